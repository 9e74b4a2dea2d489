"""Limits that clients share fairly: connections, forwarded questions, waiting clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import dns.asyncquery
import dns.message
import dns.rcode
import pytest
from tests.dns.clusters import texts
from tests.dns.sockets import WEB, Other, names, other, says, serving, udp
from tests.embedded.virtual_cluster import until

from zonewise.dns.names import parse_domain
from zonewise.dns.outside.forward import PROBE_AGAIN, Forwarder
from zonewise.dns.outside.upstream import Upstream
from zonewise.dns.shares import FairShares


def test_no_source_gets_more_than_is_left() -> None:
    """The first source gets half, the second half of the rest, until nothing is left."""
    shares = FairShares(12)
    assert [shares.take("a") for _ in range(8)].count(True) == 6
    assert [shares.take("b") for _ in range(8)].count(True) == 3
    assert shares.take("c")
    for _ in range(6):
        shares.give_back("a")
    assert [shares.take("b") for _ in range(8)].count(True) == 3
    assert not FairShares(0).take("a")


def test_sources_that_hold_nothing_use_no_memory() -> None:
    """A thousand addresses that took and gave back leave no entry."""
    shares = FairShares(3)
    for number in range(1000):
        assert shares.take(str(number))
        shares.give_back(str(number))
    assert not shares._taken


@pytest.mark.asyncio
async def test_one_client_leaves_connections_for_others() -> None:
    """A client that opens as many as allowed gets half, and another is still answered."""
    async with serving(names(), most=20) as number:
        streams = [await asyncio.open_connection("127.0.0.1", number) for _ in range(20)]
        try:
            reading = [asyncio.create_task(reader.read(1)) for reader, _ in streams]
            await until(lambda: sum(task.done() for task in reading) == 10)
            query = dns.message.make_query(WEB, "A")
            answer = await dns.asyncquery.tcp(
                query, "127.0.0.1", timeout=10, port=number, source="127.0.0.2"
            )
            assert texts(answer) == ["10.96.0.7"]
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        finally:
            for _, writer in streams:
                writer.close()


async def ask_from(source: str, number: int, name: str) -> dns.message.Message:
    """Ask a question over UDP from an address."""
    query = dns.message.make_query(name, "A")
    return await dns.asyncquery.udp(query, "127.0.0.1", timeout=10, port=number, source=source)


def silent_below(domain: str) -> Callable[[dns.message.Message], dns.message.Message | None]:
    """Replies to all names but those of a domain."""
    good = says("A 198.51.100.7")

    def reply(query: dns.message.Message) -> dns.message.Message | None:
        if query.question[0].name.to_text().endswith(domain):
            return None
        response = good(query)
        assert isinstance(response, dns.message.Message)
        return response

    return reply


def asked_below(peer: Other, domain: str) -> int:
    """How many names of a domain reached an upstream."""
    names = {query.question[0].name.to_text() for query in peer.queries}
    return sum(name.endswith(domain) for name in names)


@pytest.mark.asyncio
async def test_unanswered_questions_leave_capacity_for_other_clients() -> None:
    """One client asks many names of a silent domain; another's names are forwarded."""
    async with other(silent_below(".silent.")) as (upstream, peer):
        forwarder = Forwarder(lambda: [upstream], concurrent=10)
        async with serving(names(forwards=forwarder)) as number:
            hostile = [
                asyncio.create_task(ask_from("127.0.0.2", number, f"n{at}.silent."))
                for at in range(20)
            ]
            await until(lambda: forwarder.rejected == 15 and asked_below(peer, ".silent.") == 5)
            answer = await ask_from("127.0.0.3", number, "www.example.com.")
            assert texts(answer) == ["198.51.100.7"]
            for task in hostile:
                task.cancel()
            await asyncio.gather(*hostile, return_exceptions=True)
            await forwarder.close()


@pytest.mark.asyncio
async def test_silent_servers_of_a_stub_domain_leave_capacity_for_others() -> None:
    """While the servers of a stub domain are silent, a client's other names are forwarded to other
    servers.
    """
    async with (
        other(lambda _: None) as (silent, mute),
        other(says("A 198.51.100.7")) as (good, _),
    ):
        forwarder = Forwarder(
            lambda: [good], stubs={parse_domain("corp.example"): [silent]}, concurrent=2
        )
        async with serving(names(forwards=forwarder)) as number:
            waiting = [asyncio.create_task(udp(number, f"n{at}.corp.example.")) for at in range(4)]
            await until(lambda: bool(mute.queries) and forwarder.rejected == 3)
            assert texts(await udp(number, "www.example.com.")) == ["198.51.100.7"]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await forwarder.close()


@pytest.mark.asyncio
async def test_a_client_that_repeats_a_question_leaves_others_room_to_wait() -> None:
    """A client that repeats one question to a silent upstream does not use all waiting slots."""
    async with other(silent_below(".silent.")) as (upstream, peer):
        forwarder = Forwarder(lambda: [upstream], waiting=10)
        async with serving(names(forwards=forwarder)) as number:
            same = [
                asyncio.create_task(ask_from("127.0.0.2", number, "n.silent.")) for _ in range(20)
            ]
            await until(lambda: forwarder.rejected == 15 and bool(peer.queries))
            answer = await ask_from("127.0.0.3", number, "www.example.com.")
            assert texts(answer) == ["198.51.100.7"]
            for task in same:
                task.cancel()
            await asyncio.gather(*same, return_exceptions=True)
            await forwarder.close()


@pytest.mark.asyncio
async def test_an_upstream_that_no_longer_loops_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upstream that looped is probed again, and asked as soon as a probe does not come back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as relay:
        relay.bind(("127.0.0.1", 0))
        relay.setblocking(False)
        upstream = Upstream("127.0.0.1", relay.getsockname()[1])
        forwarder = Forwarder(lambda: [upstream], deadline=0.5)
        looping = True
        async with serving(names(forwards=forwarder)) as number:
            loop = asyncio.get_running_loop()

            async def relaying() -> None:
                reply = says("A 198.51.100.7")
                while True:
                    data, source = await loop.sock_recvfrom(relay, 4096)
                    if looping:
                        await loop.sock_sendto(relay, data, ("127.0.0.1", number))
                    elif source[1] != number:
                        response = reply(dns.message.from_wire(data))
                        assert isinstance(response, dns.message.Message)
                        await loop.sock_sendto(relay, response.to_wire(), source)

            task = asyncio.create_task(relaying())
            try:
                await udp(number, "www.example.com.")
                await until(lambda: bool(forwarder.looping))
                assert (await udp(number, "a.example.com.")).rcode() == dns.rcode.REFUSED
                looping = False
                forwarder._next_probe -= 10 * PROBE_AGAIN
                assert (await udp(number, "b.example.com.")).rcode() == dns.rcode.REFUSED
                await until(lambda: not forwarder.looping)
                assert texts(await udp(number, "c.example.com.")) == ["198.51.100.7"]
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await forwarder.close()
