"""Answers equal those of CoreDNS 1.15, which tools/coredns recorded."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dns.message
import pytest
from tests.dns.clusters import Names
from tools.coredns.questions import EXTERNAL, SPACES
from tools.coredns.recording import plain
from tools.coredns.upstream import answer

from zonewise.dns.outside.received import reading
from zonewise.dns.outside.upstream_cache import OutsideAnswer
from zonewise.dns.slices import finished
from zonewise.dns.wire import Question, write_question
from zonewise.dns.zone import DnsCluster

RECORDED = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "vectors/dns/coredns.json.gz").read_bytes())
)


class Outside:
    """Upstream servers that answer as they did for the recording."""

    def is_own_probe(self, question: Question) -> bool:
        return False

    async def look_up(self, question: Question, source: str) -> OutsideAnswer:
        packet = write_question(7, question.name, question.type)
        response = answer(dns.message.from_wire(packet), EXTERNAL)
        return OutsideAnswer(finished(reading(response.to_wire(), question)).sections)


@pytest.fixture(scope="module")
def names() -> Names:
    """The recorded cluster."""
    cluster = Names(forwards=Outside())
    cluster.put(*RECORDED["objects"])
    return cluster


EXISTING = (
    "cluster.local",
    *(f"{tree}.cluster.local" for tree in ("svc", "pod")),
    *(f"{space}.{tree}.cluster.local" for space in SPACES for tree in ("svc", "pod")),
)
"""Names that exist without records. CoreDNS says NXDOMAIN if TXT is asked of them, and NODATA for
every other type; a resolver that follows RFC 8020 then denies all names of the cluster."""


def on_purpose(recorded: dict[str, Any]) -> bool:
    """Whether we differ from CoreDNS because it is wrong."""
    return (
        recorded["type"] == "TXT"
        and recorded["name"] in EXISTING
        and recorded["rcode"] == "NXDOMAIN"
    )


@pytest.mark.slow
def test_every_recorded_answer_is_the_same(names: Names) -> None:
    """Code, AA, records of every section and the order of aliases are equal."""
    wrong, better = [], 0
    for recorded in RECORDED["answers"]:
        ours = plain(
            names.ask(recorded["name"], recorded["type"], stream=True, payload=None, use_edns=-1)
        )
        if on_purpose(recorded):
            better += 1
            recorded["rcode"] = "NOERROR"
        if any(ours[part] != recorded[part] for part in ours):
            wrong.append((recorded, ours))
    assert not wrong, f"{len(wrong)} of {len(RECORDED['answers'])}: {wrong[:3]}"
    assert better == len(EXISTING)


def test_spellings_are_answered_from_what_is_cached_for_others(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached answer of a name in lower case answers its other spellings as CoreDNS does."""
    odd = [
        recorded
        for recorded in RECORDED["answers"]
        if recorded["name"] != recorded["name"].lower()
        and recorded["answer"]
        and not recorded["aliases"]
    ]
    assert len(odd) >= 100
    for recorded in odd:
        names.ask(recorded["name"].lower(), recorded["type"])
    monkeypatch.setattr(DnsCluster, "resolve", lambda *_: pytest.fail("worked out again"))
    for recorded in odd:
        ours = plain(names.ask(recorded["name"], recorded["type"]))
        assert {part: recorded[part] for part in ours} == ours


def test_the_recording_is_what_it_claims_to_be() -> None:
    """At least 400 questions about 40 Services, of every kind of answer."""
    kinds = Counter(item["kind"] for item in RECORDED["objects"])
    assert kinds["Service"] >= 40
    assert len(RECORDED["answers"]) >= 400
    codes = Counter(
        (recorded["rcode"], bool(recorded["answer"])) for recorded in RECORDED["answers"]
    )
    assert min(codes["NOERROR", True], codes["NOERROR", False], codes["NXDOMAIN", False]) >= 100
