"""From a packet to its answer: what is allowed, for which client, and in how many bytes.

Everything that can be answered from memory is answered at once, in the caller's turn. The rest (a
name outside of the cluster, an alias that leads there) is a coroutine, which the caller runs beside
its loop. Answers from memory are kept as bytes for the next such question.

*No answer* is sent to what is no question: answers (two servers must not answer each other forever)
and packets shorter than a header. *FORMERR* is for what cannot be parsed, with the question and an
OPT record if only an option is wrong (without one, a front end would take us for a server without
EDNS); *NOTIMP* for other operations, *REFUSED* for other classes and for transfers. Until the first
lists are complete, names of the cluster are *SERVFAIL*: a server that is not synced must never deny
a name.

*Fair*: writing thousands of records takes milliseconds, and a client that requests them over and
over must not keep others waiting. So long answers over streams are written one in each turn of the
event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from zonewise.dns.kept import AnswerKind, KeptAnswers, Turns, kind_of
from zonewise.dns.names import domain_text
from zonewise.dns.subnet import Asker, IPNetwork, asker
from zonewise.dns.wire import (
    HEADER,
    IN,
    MAX_SIZE,
    OPCODE,
    QR,
    Malformed,
    Message,
    Question,
    Rcode,
    RecordType,
    read_question,
    size_limit,
    write,
    write_refusal,
)
from zonewise.dns.zone import ALIASES, DnsCluster, Resolved, extended, rotated
from zonewise.topology.locators import PodLocation

KEPT_QUESTION = 512
"""Answers to longer questions are not kept: such questions are not repeated."""

TURNS = 10
TURNS_SIZE = 8192
"""How many orders of records are kept, and how many bytes they may take together."""

LONG = 200
"""Answers of more records are long."""

OUTSIDE = "."


class Forwards(Protocol):
    """Resolves names outside of the cluster."""

    def is_own_probe(self, question: Question) -> bool:
        """Whether a question is one of our probes that came back."""

    async def look_up(self, question: Question, source: str) -> Message:
        """The answer of others for a client; a failure is SERVFAIL."""


@dataclass(slots=True)
class Responder:
    """Answers packets; ``synced`` says whether the first lists are complete."""

    cluster: DnsCluster
    forwards: Forwards | None
    synced: Callable[[], bool]
    trusted: Sequence[IPNetwork] = ()
    kept: KeptAnswers = field(default_factory=KeptAnswers)
    counts: Counter[AnswerKind] = field(default_factory=Counter)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def spot(self, source: str) -> PodLocation:
        """Where a client is."""
        return self.cluster.locators.spot(source)

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
            return call.finish(Message(Rcode.BADVERS), OUTSIDE)
        try:
            client = call.client = asker(question, source, self.trusted)
        except Malformed:
            return call.finish(Message(Rcode.FORMERR), OUTSIDE)
        if question.cls != IN or question.type in (RecordType.AXFR, RecordType.IXFR):
            return call.finish(Message(Rcode.REFUSED), OUTSIDE)
        domain = self.cluster.domains.of(question.lower)
        if domain is None:
            return self._ask_outside(call, question)
        zone = domain_text(domain)
        if not self.synced():
            return call.finish(Message(Rcode.SERVFAIL), zone)
        spot = self.spot(client.address)
        resolved = self.cluster.resolve(question, spot)
        if resolved is None:
            return self._ask_outside(call, question)
        if resolved.outside is not None:
            return self._follow(call, question, resolved, spot, zone)
        if call.is_long(resolved.message):
            return self._finish(call, resolved.message, zone)
        return call.keep(resolved, spot, zone)

    def _ask_outside(self, call: _Call, question: Question) -> bytes | Awaitable[bytes]:
        if self.forwards is None:
            return call.finish(Message(Rcode.REFUSED), OUTSIDE)
        if self.forwards.is_own_probe(question):
            return call.finish(Message(Rcode.REFUSED), OUTSIDE)
        return self._forward(call, question, self.forwards)

    async def _forward(self, call: _Call, question: Question, forwards: Forwards) -> bytes:
        return await self._finish(call, await forwards.look_up(question, call.payer), OUTSIDE)

    async def _follow(
        self, call: _Call, question: Question, resolved: Resolved, spot: PodLocation, zone: str
    ) -> bytes:
        """Go on where an alias leads out of its domain: into another of ours, or to others."""
        for _ in range(ALIASES):
            target = resolved.outside
            if target is None:
                break
            step = replace(question, name=target, lower=target.lower())
            further = self.cluster.resolve(step, spot)
            if further is not None:
                answers = further.message.answers
                resolved = replace(extended(resolved, answers), outside=further.outside)
                continue
            if self.forwards is None:
                break
            message = await self.forwards.look_up(step, call.payer)
            resolved = extended(resolved, message.answers)
            if message.tc:
                resolved = replace(resolved, message=replace(resolved.message, tc=True))
            break
        return await self._finish(call, resolved.message, zone)

    async def _finish(self, call: _Call, message: Message, zone: str) -> bytes:
        if not call.is_long(message):
            return call.finish(message, zone)
        async with self._writing:
            told = call.finish(message, zone)
            await asyncio.sleep(0)
        return told

    def _refusal(self, data: bytes, rcode: Rcode, *, stream: bool) -> bytes:
        told = write_refusal(data, rcode)
        sizes = {"asked": len(data), "told": len(told)}
        kind = kind_of(OUTSIDE, 0, rcode, stream=stream, do=False, **sizes)
        self.counts[kind] += 1
        return told


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
        """The address whose share is used: of the client, else of what passed its question on."""
        return self.client.address or self.source

    def is_long(self, message: Message) -> bool:
        """Whether its answer must not be written while others wait."""
        sections = (message.answers, message.authority, message.additional)
        return self.stream and sum(map(len, sections)) > LONG

    def finish(self, message: Message, zone: str) -> bytes:
        """The answer as bytes, counted."""
        told = self._write(message)
        self.responder.counts[self._kind(message, zone, told)] += 1
        return told

    def keep(self, resolved: Resolved, spot: PodLocation, zone: str) -> bytes:
        """The answer as bytes, in one of its orders, and kept for the next such question."""
        message, question = resolved.message, self.question
        if (
            self.stream
            or (question.edns is not None and question.edns.options)
            or len(self.data) > KEPT_QUESTION
        ):
            return self.finish(message, zone)
        first = self._write(message)
        many = min(resolved.spread, TURNS, TURNS_SIZE // len(first)) or 1

        def turned(turn: int) -> bytes:
            by = turn * resolved.spread // many
            return self._write(rotated(message, resolved.spread, by))[2:]

        turns = Turns(first[2:], many, turned, len(message.answers) + len(message.additional))
        kind = self._kind(message, zone, first)
        kept = self.responder.kept
        if resolved.near:
            same = message.answers
            kept.keep_near(self.data[2:], kind, resolved.basis, spot.number, same, turns)
        else:
            kept.keep(self.data[2:], kind, resolved.basis, turns)
        self.responder.counts[kind] += 1
        return self.data[:2] + turns.next()

    def _write(self, message: Message) -> bytes:
        limit = MAX_SIZE if self.stream else size_limit(self.question)
        return write(self.question, message, limit, option=self.client.option)

    def _kind(self, message: Message, zone: str, told: bytes) -> AnswerKind:
        question = self.question
        return kind_of(
            zone,
            question.type,
            message.rcode,
            stream=self.stream,
            do=question.edns is not None and question.edns.do,
            asked=len(self.data),
            told=len(told),
        )
