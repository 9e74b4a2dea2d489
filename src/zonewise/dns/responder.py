"""From a packet to its answer: what is allowed, for which client, and in how many bytes.

Everything that can be answered from memory is answered at once, in the caller's turn. The rest (a
name outside of the cluster, an alias that leads there) is a coroutine, which the caller runs beside
its loop. Answers from memory are kept for the next such question, however that is spelled and
whatever options it has (``zonewise.dns.cluster_cache``).

*No answer* is sent to other messages than questions: to answers (two servers must not answer each
other forever) and packets shorter than a header. *FORMERR* is for what cannot be parsed, with the
question and an OPT record if only an option is wrong (without one, a front end would take us for a
server without EDNS); *NOTIMP* for other operations, *REFUSED* for other classes and for transfers.
Until the first lists are complete, names of the cluster are *SERVFAIL*: a server that is not synced
must never deny a name.

*Fair*: writing thousands of records takes milliseconds, and a client that requests them must not
keep others waiting. So long answers over streams are written in slices, one in each turn of the
event loop; answers in packets are short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Protocol

from zonewise.dns.cluster_cache import (
    AnswerKind,
    CachedSections,
    ClusterCache,
    SectionsKey,
    Turns,
    kind_of,
)
from zonewise.dns.outside.upstream_cache import OutsideAnswer
from zonewise.dns.sections import ANSWER, Placed, Sections, packing
from zonewise.dns.slices import LongWork, Steps, finished
from zonewise.dns.subnet import Asker, IPNetwork, read_asker
from zonewise.dns.wire import (
    AA,
    HEADER,
    IN,
    MAX_SIZE,
    OPCODE,
    PACKET_LIMIT,
    QR,
    TC,
    Malformed,
    Question,
    Rcode,
    RecordType,
    read_question,
    size_limit,
    write_refusal,
)
from zonewise.dns.zone import ALIASES, DnsCluster, Resolved, domain_name
from zonewise.topology.locator_index import NodeLocation

CACHED_QUESTION = 512
"""Packets for longer questions are not cached: such questions are not repeated."""

TURNS = 10
TURNS_SIZE = TURNS * PACKET_LIMIT
"""How many orders of records are kept, and how many bytes they may take together."""

LONG = 200
"""Answers of more records are long."""

OUTSIDE = "."


class Forwards(Protocol):
    """Resolves names outside of the cluster."""

    def is_own_probe(self, question: Question) -> bool:
        """Whether a question is one of our probes that came back."""

    async def look_up(self, question: Question, source: str) -> OutsideAnswer:
        """The answer of an upstream for a client; a failure is SERVFAIL."""


@dataclass(slots=True)
class Responder:
    """Answers packets; ``synced`` says whether the first lists are complete."""

    cluster: DnsCluster
    forwards: Forwards | None
    synced: Callable[[], bool]
    trusted: Sequence[IPNetwork] = ()
    cache: ClusterCache = field(default_factory=ClusterCache)
    counts: Counter[AnswerKind] = field(default_factory=Counter)
    _long: LongWork = field(default_factory=LongWork)

    def locate(self, source: str) -> NodeLocation:
        """Where a client is."""
        return self.cluster.locators.locate(source)

    def respond(self, data: bytes, source: str, *, stream: bool) -> bytes | Awaitable[bytes] | None:
        """The answer to a packet from an address, None for silence.

        Over a stream answers may be as long as they are.
        """
        if len(data) < HEADER:
            return None
        flags = int.from_bytes(data[2:4], "big")
        if flags & QR:
            return None
        if flags & OPCODE:
            return self._refusal(data, Rcode.NOTIMP, stream=stream)
        try:
            question = read_question(data)
        except Malformed:
            return self._refusal(data, Rcode.FORMERR, stream=stream)
        call = _Call(self, data, question, source, Asker(source), stream=stream)
        if question.edns is not None and question.edns.version:
            return call.fail(Rcode.BADVERS, OUTSIDE)
        try:
            client = call.client = read_asker(question, source, self.trusted)
        except Malformed:
            return call.fail(Rcode.FORMERR, OUTSIDE)
        if question.cls != IN or question.type in (RecordType.AXFR, RecordType.IXFR):
            return call.fail(Rcode.REFUSED, OUTSIDE)
        domain = self.cluster.domains.of(question.lower)
        if domain is None:
            return self._ask_outside(call, question)
        zone = domain_name(domain)
        if not self.synced():
            return call.fail(Rcode.SERVFAIL, zone)
        return self._ask_cluster(call, question, self.locate(client.address), zone)

    def _ask_cluster(
        self, call: _Call, question: Question, location: NodeLocation, zone: str
    ) -> bytes | Awaitable[bytes]:
        known = self.cache.get(call.key, location.number)
        if known is not None:
            return call.answer(known, location, zone)
        # The answer is for all spellings. The question's name is in capitals, which no name of an
        # object is, so that its spelling can be replaced by that of each question.
        general = replace(question, name=question.lower.upper())
        resolved = self.cluster.resolve(general, location)
        if resolved is None:
            return self._ask_outside(call, question)
        if resolved.outside is not None:
            return self._follow(call, general, resolved, location, zone)
        if call.stream and resolved.orders > LONG:
            begun = self.cache.begin(resolved.basis)
            return self._answer_long(call, general, resolved, location, zone, begun)
        sections = finished(_packing(general, resolved, call.most))
        return call.keep(sections, general, resolved, location, zone)

    async def _answer_long(
        self,
        call: _Call,
        general: Question,
        resolved: Resolved,
        location: NodeLocation,
        zone: str,
        begun: SectionsKey,
    ) -> bytes:
        def work() -> Steps[bytes]:
            known = self.cache.get(call.key, location.number)
            if known is not None:
                return call.answer(known, location, zone)
            sections = yield from _packing(general, resolved, call.most)
            if self.cache.end(begun):
                return call.keep(sections, general, resolved, location, zone)
            return call.finish(sections, zone)

        try:
            return await self._long.run(work())
        finally:
            self.cache.end(begun)

    def _ask_outside(self, call: _Call, question: Question) -> bytes | Awaitable[bytes]:
        if self.forwards is None:
            return call.fail(Rcode.REFUSED, OUTSIDE)
        if self.forwards.is_own_probe(question):
            return call.fail(Rcode.REFUSED, OUTSIDE)
        return self._forward(call, question, self.forwards)

    async def _forward(self, call: _Call, question: Question, forwards: Forwards) -> bytes:
        answer = await forwards.look_up(question, call.payer)
        if call.stream and len(answer.sections.ends) > LONG:
            await self._long.turn()
        packet = answer.answer(question, call.limit, call.client.option)
        return call.count(packet, answer.sections.rcode, OUTSIDE)

    async def _follow(
        self, call: _Call, question: Question, resolved: Resolved, location: NodeLocation, zone: str
    ) -> bytes:
        """Go on where an alias leads out of its domain: into another of ours, or outside."""
        records: Iterable[Placed] = resolved.records()
        target, flags = resolved.outside, AA
        for _ in range(ALIASES):
            if target is None:
                break
            step = replace(question, name=target, lower=target.lower())
            further = self.cluster.resolve(step, location)
            if further is not None:
                more = (placed for placed in further.records() if placed[0] == ANSWER)
                records = chain(records, more)
                target = further.outside
                continue
            if self.forwards is None:
                break
            answer = await self.forwards.look_up(step, call.payer)
            records = chain(records, zip(repeat(ANSWER), answer.records(target)))
            flags |= answer.sections.flags & TC
            break
        work = packing(question.name, records, call.most, flags=flags)
        sections = await self._long.run(work) if call.stream else finished(work)
        return call.finish(sections, zone)

    def _refusal(self, data: bytes, rcode: Rcode, *, stream: bool) -> bytes:
        packet = write_refusal(data, rcode)
        sizes = {"question_size": len(data), "answer_size": len(packet)}
        kind = kind_of(OUTSIDE, 0, rcode, stream=stream, do=False, **sizes)
        self.counts[kind] += 1
        return packet


@dataclass(slots=True)
class _Call:
    """One packet on its way to an answer."""

    responder: Responder
    data: bytes
    question: Question
    source: str
    client: Asker
    stream: bool

    @property
    def payer(self) -> str:
        """The address that is charged for the question: the client's, else the forwarder's."""
        return self.client.address or self.source

    @property
    def key(self) -> SectionsKey:
        """The key of its sections in the cache."""
        return self.question.lower, self.question.type, self.stream

    @property
    def limit(self) -> int:
        """How long its answer may be."""
        return MAX_SIZE if self.stream else size_limit(self.question)

    @property
    def most(self) -> int:
        """How long any answer of its kind may be."""
        return MAX_SIZE if self.stream else PACKET_LIMIT

    def fail(self, rcode: int, zone: str) -> bytes:
        """An answer without records."""
        return self.finish(Sections.empty(self.question.name, rcode), zone)

    def finish(self, sections: Sections, zone: str) -> bytes:
        """The answer as bytes, counted."""
        return self.count(self._packet(sections), sections.rcode, zone)

    def count(self, packet: bytes, rcode: int, zone: str) -> bytes:
        """An answer, counted."""
        self.responder.counts[self._kind(rcode, zone, packet)] += 1
        return packet

    def keep(
        self,
        sections: Sections,
        general: Question,
        resolved: Resolved,
        location: NodeLocation,
        zone: str,
    ) -> bytes:
        """The answer as bytes, in one of its orders, and kept for the next such question."""
        most, total = self.most, resolved.orders
        many = min(total, TURNS, TURNS_SIZE // (1 + len(sections.data))) or 1
        if self.stream and total > LONG:
            many = 1

        def pack_turn(turn: int) -> Sections:
            return finished(_packing(general, resolved, most, by=turn * total // many))

        turns = Turns(sections, sections.size, many, pack_turn)
        known = CachedSections(turns, resolved.basis, resolved.near)
        cache = self.responder.cache
        if resolved.near:
            cache.keep_near(self.key, resolved.basis, turns, at=location.number, same=resolved.same)
        elif resolved.answered:
            cache.keep(self.key, resolved.basis, turns)
        return self.answer(known, location, zone)

    def answer(self, known: CachedSections, location: NodeLocation, zone: str) -> bytes:
        """An answer out of kept sections; a question that may come again gets packets."""
        question, turns = self.question, known.turns
        if (
            self.stream
            or question.name != question.lower
            or (question.edns is not None and question.edns.options)
            or len(self.data) > CACHED_QUESTION
        ):
            return self.finish(turns.next(), zone)

        def encode_turn(turn: int) -> bytes:
            return self._packet(turns.order(turn))[2:]

        packet = self._packet(turns.order(0))
        packets = Turns(packet[2:], len(packet), turns.many, encode_turn)
        kind = self._kind(turns.order(0).rcode, zone, packet)
        cache = self.responder.cache
        if known.near:
            key, at = self.data[2:], location.number
            cache.keep_near(key, known.basis, packets, kind, at=at, same=turns)
        else:
            cache.keep(self.data[2:], known.basis, packets, kind)
        self.responder.counts[kind] += 1
        return self.data[:2] + packets.next()

    def _packet(self, sections: Sections) -> bytes:
        return sections.answer(self.question, self.limit, option=self.client.option)

    def _kind(self, rcode: int, zone: str, packet: bytes) -> AnswerKind:
        question = self.question
        return kind_of(
            zone,
            question.type,
            rcode,
            stream=self.stream,
            do=question.edns is not None and question.edns.do,
            question_size=len(self.data),
            answer_size=len(packet),
        )


def _packing(question: Question, resolved: Resolved, limit: int, *, by: int = 0) -> Steps[Sections]:
    return packing(
        question.name,
        resolved.records(by),
        limit,
        rcode=resolved.rcode,
        flags=AA,
        domain=resolved.domain,
    )
