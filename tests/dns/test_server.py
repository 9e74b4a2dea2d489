"""The server on real sockets: UDP, TCP, limits, upstreams, loops and stopping."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from tests.dns.clusters import endpoint, headless, pieces, texts
from tests.dns.sockets import WEB, names, other, says, serving, udp
from tests.embedded.virtual_cluster import until

from zonewise.dns.names import parse_domain
from zonewise.dns.outside.forward import Forwarder, ResolvConf, read_resolv_conf
from zonewise.dns.outside.received import reading
from zonewise.dns.outside.upstream import Upstream
from zonewise.dns.outside.upstream_cache import UpstreamCache
from zonewise.dns.slices import finished
from zonewise.dns.wire import read_question

pytestmark = pytest.mark.asyncio

MANY = "many.shop.svc.cluster.local."


async def test_packets_are_answered() -> None:
    """The first answer is computed, the next ones come from the cache."""
    cluster = names()
    async with serving(cluster) as number:
        for _ in range(3):
            assert texts(await udp(number, WEB)) == ["10.96.0.7"]
        assert cluster.responder.cache.counts().total() == 2


async def test_a_socket_of_both_families_knows_its_clients() -> None:
    """An IPv4 client of an IPv6 socket, there ::ffff:127.0.0.1, is still known as its pod."""
    cluster = names()
    key = "topology.kubernetes.io/zone"
    for at, zone in enumerate("ab", 1):
        cluster.put({"kind": "Node", "metadata": {"name": f"n{at}", "labels": {key: zone}}})
    cluster.put(
        headless("near", keys=key),
        pieces("near", [endpoint("10.0.9.1", nodeName="n1"), endpoint("10.0.9.2", nodeName="n2")]),
        {
            "kind": "Pod",
            "metadata": {"name": "me", "namespace": "shop", "uid": "u"},
            "spec": {"nodeName": "n2"},
            "status": {"phase": "Running", "podIPs": [{"ip": "127.0.0.1"}, {"ip": "::1"}]},
        },
    )
    async with serving(cluster, host="::") as number:
        for where in ("127.0.0.1", "::1"):
            query = dns.message.make_query("near.shop.svc.cluster.local.", "A")
            for ask in (dns.asyncquery.udp, dns.asyncquery.udp, dns.asyncquery.tcp):
                answer = await ask(query, where, timeout=10, port=number)
                assert texts(answer) == ["10.0.9.2"]


@pytest.mark.parametrize("host", ["", "::", "0.0.0.0"])
async def test_answers_come_from_the_address_that_was_asked(host: str) -> None:
    """Computed, cached and forwarded answers, on a machine with several addresses."""
    async with other(says("A 198.51.100.7")) as (upstream, _):
        forwarder = Forwarder(lambda: [upstream])
        async with serving(names(forwards=forwarder), host=host) as number:
            for name, address in ((WEB, "10.96.0.7"), ("www.example.com.", "198.51.100.7")):
                for _ in range(2):
                    query = dns.message.make_query(name, "A")
                    answer = await dns.asyncquery.udp(query, "127.0.0.2", timeout=10, port=number)
                    assert texts(answer) == [address]


async def test_many_packets_at_once_are_all_answered() -> None:
    """More packets than one wake-up reads: none is lost, each answer has its question's id."""
    async with serving(names()) as number:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            sock.connect(("127.0.0.1", number))
            body = dns.message.make_query(WEB, "A").to_wire()[2:]
            for identity in range(150):
                sock.send(identity.to_bytes(2, "big") + body)
            async with asyncio.timeout(180):
                got = [await loop.sock_recv(sock, 512) for _ in range(150)]
            assert sorted(int.from_bytes(packet[:2], "big") for packet in got) == list(range(150))


async def test_a_stream_carries_many_questions_cut_anywhere() -> None:
    """Pipelined questions, byte by byte or all at once, are each answered under their id."""
    async with serving(names()) as number:
        queries = [dns.message.make_query(name, "A") for name in (WEB, MANY, WEB, "nope.")]
        for at, query in enumerate(queries):
            query.id = at
        framed = b"".join(
            len(wire).to_bytes(2, "big") + wire for wire in (query.to_wire() for query in queries)
        )
        for size in (1, 7, len(framed)):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            for part in _parts(framed, size):
                writer.write(part)
                await writer.drain()
            answers = {}
            for _ in queries:
                length = int.from_bytes(await reader.readexactly(2), "big")
                answer = dns.message.from_wire(await reader.readexactly(length))
                answers[answer.id] = answer
            assert len(texts(answers[1])) == 100
            assert answers[3].rcode() == dns.rcode.REFUSED
            writer.close()


def _parts(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def test_messages_that_are_no_questions_do_not_end_a_stream() -> None:
    """An answer and a message without a header are ignored; the next question is answered."""
    query = dns.message.make_query(WEB, "A")
    answer = dns.message.make_response(query).to_wire()
    async with serving(names()) as number:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        for message in (answer, b"", b"short", query.to_wire()):
            writer.write(len(message).to_bytes(2, "big") + message)
        length = int.from_bytes(await reader.readexactly(2), "big")
        received = dns.message.from_wire(await reader.readexactly(length))
        assert texts(received) == ["10.96.0.7"]
        writer.close()
        await writer.wait_closed()


async def test_truncated_answers_are_whole_over_tcp() -> None:
    """A client that gets TC asks over TCP and gets everything."""
    async with serving(names()) as number:
        query = dns.message.make_query(MANY, "A")
        answer, by_stream = await dns.asyncquery.udp_with_fallback(
            query, "127.0.0.1", timeout=10, port=number
        )
        assert by_stream
        assert len(texts(answer)) == 100


async def test_many_clients_may_connect_at_once() -> None:
    """The backlog is long enough for 300 clients before the first is accepted."""
    async with serving(names()) as number:
        clients = [socket.socket() for _ in range(300)]
        try:
            for client in clients:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", number))
            connected = [client.getpeername() for client in clients]
            assert len(connected) == len(clients)
        finally:
            for client in clients:
                client.close()


async def test_connections_are_closed_when_idle_and_bounded() -> None:
    """A connection that asks nothing is closed, and so is one above the limit."""
    async with serving(names(), idle=0.2, most=1) as number:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", number)
        with pytest.raises((EOFError, ConnectionError)):
            await other_reader.readexactly(1)
        assert await reader.read() == b""
        writer.close()
        other_writer.close()


async def test_other_names_are_forwarded() -> None:
    """The answer has RA and no AA; each query upstream has its own port and id."""
    async with other(says("A 198.51.100.7", ttl=0)) as (upstream, peer):
        cluster = names(forwards=Forwarder(lambda: [upstream]))
        async with serving(cluster) as number:
            for _ in range(5):
                answer = await udp(number, "www.example.com.")
                assert texts(answer) == ["198.51.100.7"]
                assert not answer.flags & dns.flags.AA
                assert answer.flags & dns.flags.RA
            assert len(set(peer.sources)) > 1
            assert len({query.id for query in peer.queries}) > 1


async def test_queries_and_answers_have_the_rd_flag_of_the_client() -> None:
    """Upstreams get the question's RD, and so does the answer, whatever they set."""

    def contrary(query: dns.message.Message) -> dns.message.Message:
        response = says("A 198.51.100.7")(query)
        assert isinstance(response, dns.message.Message)
        response.flags ^= dns.flags.RD
        return response

    async with (
        other(contrary) as (upstream, peer),
        serving(names(forwards=Forwarder(lambda: [upstream]))) as number,
    ):
        for rd in (0, dns.flags.RD):
            for ask in (dns.asyncquery.udp, dns.asyncquery.udp, dns.asyncquery.tcp):
                query = dns.message.make_query("www.example.com.", "A", flags=rd)
                answer = await ask(query, "127.0.0.1", timeout=10, port=number)
                assert answer.flags & dns.flags.RD == rd
    assert [query.flags & dns.flags.RD for query in peer.queries] == [0, dns.flags.RD]


async def test_an_alias_ends_outside() -> None:
    """For an ExternalName the alias comes first, then the upstream's records; AA is set, as the
    alias is ours.
    """
    async with other(says("A 198.51.100.7")) as (upstream, _):
        cluster = names(forwards=Forwarder(lambda: [upstream]))
        async with serving(cluster) as number:
            answer = await udp(number, "out.shop.svc.cluster.local.")
            assert [records.rdtype for records in answer.answer] == [5, 1]
            assert answer.flags & dns.flags.AA


async def test_names_of_the_cluster_are_never_forwarded() -> None:
    """Names of the cluster are not forwarded, whether they exist or not, nor before the first
    lists.
    """
    async with other(says("A 198.51.100.7")) as (upstream, peer):
        cluster = names(forwards=Forwarder(lambda: [upstream]))
        async with serving(cluster) as number:
            await udp(number, WEB)
            await udp(number, "nope.shop.svc.cluster.local.")
            cluster.synced = False
            assert (await udp(number, WEB, "AAAA")).rcode() == dns.rcode.SERVFAIL
            assert not peer.queries
            cluster.synced = True
            await udp(number, "9.9.9.10.in-addr.arpa.", "PTR")
            assert len(peer.queries) == 1


async def test_answers_of_upstreams_are_cached_for_their_ttl() -> None:
    """A question repeated within the TTL, in another spelling, is answered from the cache."""
    async with other(says("A 198.51.100.7")) as (upstream, peer):
        forwarder = Forwarder(lambda: [upstream])
        async with serving(names(forwards=forwarder)) as number:
            await udp(number, "www.example.com.")
            await udp(number, "WWW.example.com.")
            assert len(peer.queries) == 1
            assert forwarder.cache.hits == 1


@pytest.mark.parametrize(
    ("rcode", "alias", "soa", "minimum", "seconds"),
    [
        (dns.rcode.NXDOMAIN, 0, 600, 30, 30),
        (dns.rcode.NXDOMAIN, 0, 20, 30, 20),
        (dns.rcode.NXDOMAIN, 0, 9000, 9000, 300),
        (dns.rcode.NXDOMAIN, 2, 600, 30, 2),
        (dns.rcode.NOERROR, 3000, 600, 30, 30),
        (dns.rcode.NOERROR, 3000, 0, 0, 0),
    ],
)
async def test_denials_are_cached_for_the_shortest_ttl_in_them(
    rcode: dns.rcode.Rcode, alias: int, soa: int, minimum: int, seconds: int
) -> None:
    """A denial is cached for the shortest of its SOA record's TTL and minimum and of the TTL of
    aliases before it.
    """
    query = dns.message.make_query("www.example.com.", "A")
    response = dns.message.make_response(query)
    response.set_rcode(rcode)
    if alias:
        response.answer.append(
            dns.rrset.from_text("www.example.com.", alias, "IN", "CNAME", "x.example.")
        )
    if soa:
        text = f"ns.example. h.example. 1 2 3 4 {minimum}"
        response.authority.append(dns.rrset.from_text("example.", soa, "IN", "SOA", text))
    question = read_question(query.to_wire())
    cache = UpstreamCache()
    cache.put(question, finished(reading(response.to_wire(), question)), 100.0)
    assert [cache.get(question, 100.0 + at) is not None for at in (seconds - 1, seconds)] == [
        seconds > 0,
        False,
    ]


async def test_a_dead_upstream_is_skipped() -> None:
    """After a closed port and a silent upstream the next is tried, and asked first from then on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = Upstream("127.0.0.1", closed.getsockname()[1])
    async with (
        other(lambda _: None) as (silent, mute),
        other(says("A 198.51.100.7", ttl=0)) as (good, _),
    ):
        forwarder = Forwarder(lambda: [nobody, silent, good], patience=0.05)
        async with serving(names(forwards=forwarder)) as number:
            assert texts(await udp(number, "www.example.com.")) == ["198.51.100.7"]
            assert len(mute.queries) == 1
            assert texts(await udp(number, "www.example.com.")) == ["198.51.100.7"]
            assert len(mute.queries) == 1


async def test_a_lost_packet_is_sent_again() -> None:
    """An upstream that did not answer is asked again; one that answered with an error is not."""
    lost: list[dns.message.Message] = []

    def second(query: dns.message.Message) -> dns.message.Message | bytes | None:
        lost.append(query)
        return says("A 198.51.100.7")(query) if len(lost) > 1 else None

    async with other(second) as (late, _), other(says(rcode=dns.rcode.REFUSED)) as (bad, never):
        servers = [late, bad]
        forwarder = Forwarder(servers.copy, patience=0.05)
        async with serving(names(forwards=forwarder)) as number:
            assert texts(await udp(number, "www.example.com.")) == ["198.51.100.7"]
    assert len(lost) == 2
    assert lost[0].id != lost[1].id
    assert len(never.queries) == 1


async def test_the_code_of_a_failing_upstream_is_the_answer_if_all_fail() -> None:
    """SERVFAIL of one upstream is the answer only if no other answers."""
    async with (
        other(says(rcode=dns.rcode.SERVFAIL)) as (bad, _),
        other(says("A 198.51.100.7")) as (good, _),
    ):
        async with serving(names(forwards=Forwarder(lambda: [bad, good]))) as number:
            assert texts(await udp(number, "www.example.com.")) == ["198.51.100.7"]
        async with serving(names(forwards=Forwarder(lambda: [bad]))) as number:
            assert (await udp(number, "www.example.com.")).rcode() == dns.rcode.SERVFAIL


async def test_answers_to_other_questions_are_not_believed() -> None:
    """A packet with another id or another name is ignored."""

    def forged(query: dns.message.Message) -> bytes:
        lie = says("A 203.0.113.66")(query)
        assert isinstance(lie, dns.message.Message)
        lie.id = query.id ^ 1
        return lie.to_wire()

    def elsewhere(query: dns.message.Message) -> dns.message.Message | bytes | None:
        return says("A 203.0.113.66")(dns.message.make_query("other.example.", "A", id=query.id))

    for reply in (forged, elsewhere):
        async with other(reply) as (liar, _), other(says("A 198.51.100.7")) as (good, _):
            servers = [liar, good]
            forwarder = Forwarder(servers.copy, patience=0.05)
            async with serving(names(forwards=forwarder)) as number:
                assert texts(await udp(number, "www.example.com.")) == ["198.51.100.7"]


async def test_truncated_answers_of_upstreams_are_fetched_over_tcp() -> None:
    """An answer with TC is asked for again over TCP."""

    def cut(query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query)
        response.flags |= dns.flags.TC
        return response

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2), "big")
        query = dns.message.from_wire(await reader.readexactly(length))
        response = says("A 198.51.100.7")(query)
        assert isinstance(response, dns.message.Message)
        wire = response.to_wire()
        writer.write(len(wire).to_bytes(2, "big") + wire)
        await writer.drain()
        writer.close()

    async with other(cut) as (upstream, _):
        server = await asyncio.start_server(whole, "127.0.0.1", upstream.port)
        async with server, serving(names(forwards=Forwarder(lambda: [upstream]))) as number:
            answer = await udp(number, "www.example.com.")
            assert texts(answer) == ["198.51.100.7"]
            assert not answer.flags & dns.flags.TC
        async with serving(names(forwards=Forwarder(lambda: [upstream]))) as number:
            assert (await udp(number, "www.example.com.")).flags & dns.flags.TC


async def test_a_truncated_answer_is_passed_on_if_tcp_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If an upstream accepts TCP and never answers there, its truncated answer is used."""
    monkeypatch.setattr("zonewise.dns.outside.upstream.STREAM_PATIENCE", 0.05)

    def cut(query: dns.message.Message) -> dns.message.Message:
        response = says("A 198.51.100.7")(query)
        assert isinstance(response, dns.message.Message)
        response.flags |= dns.flags.TC
        return response

    async with (
        other(cut) as (upstream, _),
        serving(names(forwards=Forwarder(lambda: [upstream]))) as number,
    ):
        with socket.create_server(("127.0.0.1", upstream.port)):
            answer = await udp(number, "www.example.com.")
    assert texts(answer) == ["198.51.100.7"]
    assert answer.flags & dns.flags.TC


@pytest.mark.parametrize("code", [dns.rcode.FORMERR, dns.rcode.SERVFAIL, dns.rcode.REFUSED])
async def test_failures_may_come_without_the_question(code: dns.rcode.Rcode) -> None:
    """A server that cannot read a question does not repeat it; it is asked without EDNS."""

    def header(query: dns.message.Message) -> dns.message.Message | bytes | None:
        if query.edns < 0:
            return says("A 198.51.100.7")(query)
        return query.id.to_bytes(2, "big") + bytes([0x81, 0x80 | code]) + bytes(8)

    async with other(header) as (upstream, peer):
        forwarder = Forwarder(lambda: [upstream])
        async with serving(names(forwards=forwarder)) as number:
            answer = await udp(number, "www.example.com.")
    again = code == dns.rcode.FORMERR
    assert len(peer.queries) == 1 + again
    assert answer.rcode() == (dns.rcode.NOERROR if again else code)


async def test_an_answer_without_a_question_can_only_be_a_failure() -> None:
    """An upstream's answer without a question cannot say that a name does not exist or has no
    records.
    """
    for code in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):

        def header(query: dns.message.Message, code: int = code) -> bytes:
            return query.id.to_bytes(2, "big") + bytes([0x81, 0x80 | code]) + bytes(8)

        async with other(header) as (liar, _), other(says("A 198.51.100.7")) as (good, _):
            servers = [liar, good]
            forwarder = Forwarder(servers.copy, patience=0.05)
            async with serving(names(forwards=forwarder)) as number:
                assert texts(await udp(number, "www.example.com.")) == ["198.51.100.7"]


async def test_codes_that_need_edns_are_not_passed_on() -> None:
    """BADCOOKIE concerns our query upstream; the client gets SERVFAIL."""

    def badcookie(query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query)
        response.set_rcode(dns.rcode.BADCOOKIE)
        return response

    async with (
        other(badcookie) as (upstream, _),
        serving(names(forwards=Forwarder(lambda: [upstream]))) as number,
    ):
        answer = await udp(number, "www.example.com.")
    assert answer.rcode() == dns.rcode.SERVFAIL


async def test_a_loop_to_ourselves_is_detected() -> None:
    """An upstream that leads back to this server is detected and not asked any more."""
    servers: list[Upstream] = []
    forwarder = Forwarder(lambda: servers, deadline=0.5)
    cluster = names(forwards=forwarder)
    async with serving(cluster) as number:
        servers.append(Upstream("127.0.0.1", number))
        await udp(number, "www.example.com.")
        await until(lambda: bool(forwarder.looping))
        assert (await udp(number, "other.example.com.")).rcode() == dns.rcode.REFUSED
        assert forwarder.forwarded <= 3


async def test_too_many_questions_at_a_time_fail_at_once() -> None:
    """Above the limit the answer is SERVFAIL; a question of many clients is forwarded once."""
    async with other(lambda _: None) as (silent, mute):
        forwarder = Forwarder(lambda: [silent], concurrent=1, deadline=0.5)
        async with serving(names(forwards=forwarder)) as number:
            same = [asyncio.create_task(udp(number, "a.example.")) for _ in range(3)]
            await until(lambda: bool(mute.queries))
            assert (await udp(number, "b.example.")).rcode() == dns.rcode.SERVFAIL
            assert {(await task).rcode() for task in same} == {dns.rcode.SERVFAIL}
            assert len(mute.queries) == 1
            assert forwarder.rejected == 1


async def test_stale_answers_are_used_when_no_upstream_answers() -> None:
    """If no upstream answers, stale answers are used only if a time for them is set."""
    for stale, code in ((0.0, dns.rcode.SERVFAIL), (3600.0, dns.rcode.NOERROR)):
        async with other(says("A 198.51.100.7", ttl=1)) as (upstream, peer):
            cache = UpstreamCache(stale=stale)
            forwarder = Forwarder([upstream].copy, cache=cache, deadline=0.3)
            async with serving(names(forwards=forwarder)) as number:
                await udp(number, "www.example.com.")
                peer.reply = lambda _: None
                for key, entry in cache._entries.items():
                    cache._entries[key] = replace(entry, until=entry.until - 2)
                answer = await udp(number, "www.example.com.")
                assert answer.rcode() == code


async def test_stub_domains_have_servers_of_their_own() -> None:
    """Names below a stub domain go to its servers only, other names to the usual ones."""
    async with (
        other(says("A 198.51.100.1")) as (usual, usual_peer),
        other(says("A 198.51.100.2")) as (stub, _),
    ):
        stubs = {parse_domain("corp.example"): [stub]}
        forwarder = Forwarder(lambda: [usual], stubs=stubs)
        async with serving(names(forwards=forwarder)) as number:
            assert texts(await udp(number, "x.Corp.example.")) == ["198.51.100.2"]
            assert not usual_peer.queries
            assert texts(await udp(number, "xcorp.example.")) == ["198.51.100.1"]


async def test_resolv_conf_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Servers are in the order of the file; if it cannot be read, the last ones are used."""
    path = tmp_path / "resolv.conf"
    servers = ResolvConf(path)
    assert servers() == ()
    path.write_text("search x\nnameserver 10.0.0.2 # first\nnameserver fd00::53\n")
    assert servers() == (Upstream("10.0.0.2"), Upstream("fd00::53"))
    path.write_text("nameserver 10.0.0.3\n; nameserver 10.0.0.4\n")
    assert servers() == (Upstream("10.0.0.3"),)
    path.unlink()
    assert servers() == (Upstream("10.0.0.3"),)
    assert read_resolv_conf("nameserver\n") == ()
