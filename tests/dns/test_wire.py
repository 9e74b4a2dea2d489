"""Messages on the wire: as the RFCs say, checked by dnspython, and with arbitrary bytes."""

from __future__ import annotations

import struct

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dns.clusters import (
    OUTSIDER,
    Names,
    endpoint,
    headless,
    namespace,
    pieces,
    port,
    service,
    texts,
)

from zonewise.dns.outside.received import Received, answers_of, is_answer, reading
from zonewise.dns.slices import finished
from zonewise.dns.wire import Malformed, read_question

WEB = "web.shop.svc.cluster.local."
MANY = "many.shop.svc.cluster.local."


def names(count: int = 100) -> Names:
    """A Service with an address, and a headless one with many."""
    cluster = Names(trusted=("192.0.2.0/24",))
    cluster.put(
        namespace("shop"),
        service("web", clusterIP="10.96.0.7", ports=[port("http", 80)]),
        headless("many"),
        pieces("many", [endpoint(f"10.0.{at // 250}.{at % 250 + 1}") for at in range(count)]),
    )
    return cluster


def test_the_question_is_repeated_in_the_clients_case() -> None:
    """0x20: every letter of the question comes back as it was sent, also in owners of records."""
    cluster = names()
    mixed = "wEB.sHoP.Svc.cLuster.LOCAL."
    query = dns.message.make_query(mixed, "A")
    packet = cluster.send(query.to_wire())
    assert packet is not None
    answer = dns.message.from_wire(packet)
    assert answer.question[0].name.to_text() == mixed
    assert answer.answer[0].name.to_text() == mixed
    assert query.to_wire()[12:] == packet[12 : len(query.to_wire())]


def test_flags_are_as_the_client_set_them() -> None:
    """RD, CD and the id are repeated, RA is set, AD is not."""
    for flags in (0, dns.flags.RD, dns.flags.RD | dns.flags.CD):
        query = dns.message.make_query(WEB, "A", flags=flags)
        packet = names().send(query.to_wire())
        assert packet is not None
        answer = dns.message.from_wire(packet)
        assert answer.id == query.id
        assert answer.flags == dns.flags.QR | dns.flags.AA | dns.flags.RA | flags


def test_edns_only_if_asked_for() -> None:
    """An OPT record is in the answer exactly if one was in the question, DO repeated."""
    cluster = names()
    assert cluster.ask(WEB, use_edns=-1, payload=None).edns == -1
    assert cluster.ask(WEB).edns == 0
    assert cluster.ask(WEB, want_dnssec=True).ednsflags & dns.flags.DO
    assert not cluster.ask(WEB).ednsflags & dns.flags.DO


def test_an_unknown_version_of_edns_is_badvers() -> None:
    """The answer to version 1 is BADVERS with version 0."""
    answer = names().ask(WEB, use_edns=1)
    assert answer.rcode() == dns.rcode.BADVERS
    assert answer.edns == 0
    assert not answer.answer


def test_unknown_options_and_cookies_are_ignored() -> None:
    """Unknown options and cookies change nothing, are not repeated, and such answers are not cached
    as packets.
    """
    cluster = names()
    options = [
        dns.edns.GenericOption(dns.edns.OptionType(10), b"12345678"),
        dns.edns.GenericOption(dns.edns.OptionType(65001), b"x"),
    ]
    answer = cluster.ask(WEB, options=options)
    assert texts(answer) == ["10.96.0.7"]
    assert answer.options == ()
    assert not cluster.responder.cache.table


@pytest.mark.parametrize("size", [0, 100, 511, 512, 1232, 1400])
def test_answers_fit_the_size_that_the_client_offers(size: int) -> None:
    """Less than 512 means 512; records that do not fit are left out, and TC is set."""
    query = dns.message.make_query(MANY, "A", use_edns=0, payload=size)
    packet = names().send(query.to_wire())
    assert packet is not None
    limit = max(512, size)
    assert limit - 16 < len(packet) <= limit
    answer = dns.message.from_wire(packet)
    assert answer.flags & dns.flags.TC
    assert len(answer.answer[0]) == (limit - 12 - 33 - 11) // 16


def test_names_are_compressed_before_anything_is_cut() -> None:
    """An address takes 16 bytes, so 29 of them fit into 512 bytes without EDNS."""
    query = dns.message.make_query(MANY, "A")
    packet = names(29).send(query.to_wire())
    assert packet is not None
    assert len(packet) <= 512
    answer = dns.message.from_wire(packet)
    assert not answer.flags & dns.flags.TC
    assert len(answer.answer[0]) == 29


def test_over_a_stream_nothing_is_cut() -> None:
    """TCP answers are whole, whatever size the client offers."""
    cluster = names(1000)
    answer = cluster.ask(MANY, stream=True, payload=512)
    assert len(answer.answer[0]) == 1000
    assert not answer.flags & dns.flags.TC


def test_glue_that_does_not_fit_sets_tc() -> None:
    """SRV answers whose addresses do not fit set TC, so that clients come back over TCP."""
    cluster = names(10)
    query = dns.message.make_query(MANY, "SRV")
    packet = cluster.send(query.to_wire())
    assert packet is not None
    answer = dns.message.from_wire(packet)
    assert len(packet) <= 512
    assert answer.flags & dns.flags.TC
    whole = cluster.ask(MANY, "SRV")
    assert len(whole.answer[0]) == 10
    assert len(texts(whole, "additional")) == 10


def test_messages_that_are_no_questions_are_ignored() -> None:
    """Answers, and packets shorter than a header, get no answer."""
    query = dns.message.make_query(WEB, "A").to_wire()
    assert names().send(query[:2] + bytes([query[2] | 0x80]) + query[3:]) is None
    assert names().send(query[:11]) is None
    assert names().send(b"") is None


@pytest.mark.parametrize("opcode", [1, 2, 4, 5, 6, 15])
def test_other_operations_are_not_implemented(opcode: int) -> None:
    """IQUERY, STATUS, NOTIFY, UPDATE, DSO and undefined opcodes are NOTIMP."""
    query = bytearray(dns.message.make_query(WEB, "A").to_wire())
    query[2] = query[2] & 0x87 | opcode << 3
    packet = names().send(bytes(query))
    assert packet is not None
    assert packet[3] & 0xF == dns.rcode.NOTIMP
    assert packet[:2] == bytes(query[:2])
    assert packet[2] >> 3 & 0xF == opcode


@pytest.mark.parametrize("kind", ["AXFR", "IXFR"])
def test_transfers_are_refused(kind: str) -> None:
    """No client gets the whole zone."""
    query = dns.message.make_query("cluster.local", kind)
    packet = names().send(query.to_wire(), stream=True)
    assert packet is not None
    assert packet[3] & 0xF == dns.rcode.REFUSED


def test_other_classes_are_refused() -> None:
    """The classes CHAOS and ANY are not served."""
    for cls in ("CH", "ANY"):
        query = dns.message.make_query("version.bind.", "TXT", rdclass=cls)
        packet = names().send(query.to_wire())
        assert packet is not None
        assert packet[3] & 0xF == dns.rcode.REFUSED


def test_any_is_a_few_bytes() -> None:
    """ANY cannot be used to amplify small questions to big answers."""
    packet = names(1000).send(dns.message.make_query(MANY, "ANY").to_wire())
    assert packet is not None
    assert len(packet) < 150


def test_negative_answers_carry_a_soa() -> None:
    """NXDOMAIN and NODATA can be cached for as long as the SOA says."""
    for name in ("nobody.shop.svc.cluster.local.", "shop.svc.cluster.local."):
        answer = names().ask(name)
        assert len(answer.authority) == 1
        soa = answer.authority[0]
        assert soa.rdtype == dns.rdatatype.SOA
        assert soa.name.to_text() == "cluster.local."
        assert (soa.ttl, soa[0].minimum) == (5, 5)


def test_without_upstream_other_names_are_refused() -> None:
    """A server without upstreams refuses names outside of the cluster."""
    assert names().ask("example.com").rcode() == dns.rcode.REFUSED


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"\x03web",
        b"\xc0\x0c\x00\x01\x00\x01",
        b"\x40" + b"a" * 64 + b"\x00\x00\x01\x00\x01",
        b"\x3f" + b"a" * 10,
        (b"\x3f" + b"a" * 63) * 4 + b"\x00\x00\x01\x00\x01",
        b"\x00\x00\x01",
    ],
)
def test_garbled_questions_are_format_errors(tail: bytes) -> None:
    """Truncated names, pointers, labels and names that are too long: FORMERR, with the same id."""
    packet = names().send(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + tail)
    assert packet is not None
    assert packet[:2] == b"\x12\x34"
    assert packet[2] & 0x80
    assert packet[3] & 0xF == dns.rcode.FORMERR


@pytest.mark.parametrize(
    "counts", [(0, 0, 0, 0), (2, 0, 0, 0), (1, 2, 0, 0), (1, 0, 2, 0), (1, 0, 0, 3), (65535,) * 4]
)
def test_counts_that_make_no_sense_are_format_errors(counts: tuple[int, ...]) -> None:
    """A query has one question, at most one answer, one authority and two additional records."""
    query = dns.message.make_query(WEB, "A").to_wire()
    packet = names().send(query[:4] + struct.pack("!4H", *counts) + query[12:])
    assert packet is not None
    assert packet[3] & 0xF == dns.rcode.FORMERR


def test_two_opts_are_a_format_error() -> None:
    """A question with two OPT records is FORMERR, since RFC 6891 allows one."""
    query = dns.message.make_query(WEB, "A", use_edns=0).to_wire()
    twice = query[:10] + b"\x00\x02" + query[12:] + query[-11:]
    packet = names().send(twice)
    assert packet is not None
    assert packet[3] & 0xF == dns.rcode.FORMERR


_NAMES = names()


def judged(packet: bytes, *, stream: bool) -> None:
    """Send any packet: nothing is raised, and an answer is a valid message that fits."""
    response = _NAMES.send(packet, OUTSIDER, stream=stream)
    if response is None:
        assert len(packet) < 12 or packet[2] & 0x80
        return
    assert response[:2] == packet[:2]
    assert response[2] & 0x80
    assert len(response) <= (65_535 if stream else max(512, asked_size(packet)))
    if response[4:6] == b"\x00\x01":
        dns.message.from_wire(response)


def asked_size(packet: bytes) -> int:
    """The size that a client offers, 0 without EDNS."""
    try:
        question = read_question(packet)
    except Malformed:
        return 0
    return question.edns.size if question.edns else 0


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=600), st.booleans())
def test_any_bytes_are_survived(packet: bytes, stream: bool) -> None:
    """Random bytes get a valid answer or none."""
    judged(packet, stream=stream)


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from([WEB, MANY, "cluster.local.", "7.0.96.10.in-addr.arpa.", "."]),
    st.integers(0, 65535),
    st.integers(0, 65535),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    st.integers(0, 200),
    st.booleans(),
)
def test_damaged_questions_are_survived(
    name: str,
    kind: int,
    size: int,
    damage: list[tuple[int, int]],
    cut: int,
    stream: bool,
) -> None:
    """Questions with changed bytes and the end cut off get a valid answer or none."""
    options = [
        dns.edns.ECSOption("10.0.0.1", 32),
        dns.edns.GenericOption(dns.edns.OptionType(10), b"12345678"),
    ]
    query = dns.message.make_query(
        name, dns.rdatatype.RdataType(kind), use_edns=0, payload=size, options=options
    )
    packet = bytearray(query.to_wire())
    for offset, value in damage:
        packet[offset % len(packet)] = value
    judged(bytes(packet[: len(packet) - cut] if cut < 60 else packet), stream=stream)


def test_64_kilobytes_are_survived() -> None:
    """The longest packets, of labels, of options and of zeros, get a valid answer or none."""
    head = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01"
    query = dns.message.make_query(WEB, "A", use_edns=0).to_wire()
    room = 65_535 - len(query)
    options = struct.pack("!HH", 65001, room - 4) + b"x" * (room - 4)
    for packet in (
        head + b"\x01a" * 32_000,
        head + b"\0" * 65_000,
        query[:-2] + struct.pack("!H", room) + options,
    ):
        for stream in (False, True):
            judged(packet, stream=stream)


def received(packet: bytes) -> Received:
    """Read an upstream's answer to the question that it repeats."""
    question = read_question(packet[:4] + b"\x00\x01" + bytes(6) + packet[12:])
    if not is_answer(packet, question, question.id):
        raise Malformed("not the answer")
    return finished(reading(packet, question))


@settings(max_examples=600, deadline=None)
@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_answers_of_upstreams_are_read_or_refused(
    tail: bytes, damage: list[tuple[int, int]]
) -> None:
    """Upstream messages, whole or damaged, can be passed on or raise Malformed."""
    query = dns.message.make_query("a.b.example.", "A")
    response = dns.message.make_response(query)
    response.answer.append(dns.rrset.from_text("a.b.example.", 60, "IN", "CNAME", "c.b.example."))
    packet = bytearray(response.to_wire() + tail)
    for offset, value in damage:
        packet[offset % len(packet)] = value
    try:
        answer = received(bytes(packet))
    except Malformed:
        return
    question = read_question(bytes(packet[:4] + b"\x00\x01" + bytes(6) + packet[12:]))
    records = list(answers_of(answer.sections, question.name))
    assert len(records) == answer.sections.counts[0]
    passed_on = answer.sections.answer(question, 65_535)
    assert passed_on[12 : answer.sections.start] == packet[12 : answer.sections.start]
    assert finished(reading(passed_on, question)).sections.data == answer.sections.data


def test_pointers_that_loop_are_refused() -> None:
    """A pointer to itself, forwards, or into the header is malformed."""
    head = b"\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01"
    record = b"\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x00"
    assert received(head + b"\xc0\x0c" + record).sections.counts == (1, 0)
    for name in (b"\xc0\x13", b"\xc0\x15", b"\x01a\xc0\x13", b"\xc0\x04", b"\x40a\0"):
        with pytest.raises(Malformed):
            received(head + name + record)


def chain_of(pointers: int, records: int = 1) -> bytes:
    """An answer whose last records have a name of ``pointers`` pointers."""
    record = b"\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x00"
    head = b"\x12\x34\x81\x80\x00\x01" + (1 + records).to_bytes(2, "big") + bytes(4)
    head += b"\x01a\x00\x00\x01\x00\x01"
    head += b"\x00\x00\x10" + record[2:8] + (2 * pointers).to_bytes(2, "big")
    places = [12, *(len(head) + 2 * at for at in range(pointers))]
    steps = [(0xC000 | at).to_bytes(2, "big") for at in places]
    return head + b"".join(steps[:-1]) + (steps[-1] + record) * records


def test_chains_of_pointers_are_refused() -> None:
    """The pointers of one name, and those of a whole message, are bounded."""
    answer = received(chain_of(126))
    names = [record.name for record in answers_of(answer.sections, b"\x01a\0")]
    assert names == [b"\0", b"\x01a\0"]
    with pytest.raises(Malformed):
        received(chain_of(127))
    received(chain_of(10, records=4000))
    with pytest.raises(Malformed):
        received(chain_of(126, records=4000))


def test_the_opt_record_of_an_upstream_is_not_passed_on() -> None:
    """The OPT record of an upstream concerns our query only and is not passed on, but its upper
    bits of the code count.
    """
    query = dns.message.make_query("a.example.", "A", use_edns=0)
    response = dns.message.make_response(query)
    response.answer.append(dns.rrset.from_text("a.example.", 60, "IN", "A", "198.51.100.7"))
    response.set_rcode(dns.rcode.BADCOOKIE)
    answer = received(response.to_wire())
    assert answer.rcode == dns.rcode.BADCOOKIE
    plain = read_question(dns.message.make_query("a.example.", "A").to_wire())
    passed_on = dns.message.from_wire(answer.sections.answer(plain, 512))
    assert passed_on.edns == -1
    assert texts(passed_on) == ["198.51.100.7"]
