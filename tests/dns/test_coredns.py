"""The same questions, the same answers as CoreDNS 1.15: recorded by tools/coredns, as data."""

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
    """The world outside as the recording had it."""

    def is_own_probe(self, question: Question) -> bool:
        return False

    async def look_up(self, question: Question, source: str) -> OutsideAnswer:
        packet = write_question(7, question.name, question.type)
        told = answer(dns.message.from_wire(packet), EXTERNAL)
        return OutsideAnswer(finished(reading(told.to_wire(), question)).sections)


@pytest.fixture(scope="module")
def names() -> Names:
    """The recorded cluster."""
    found = Names(forwards=Outside())
    found.put(*RECORDED["objects"])
    return found


EXISTING = (
    "cluster.local",
    *(f"{tree}.cluster.local" for tree in ("svc", "pod")),
    *(f"{space}.{tree}.cluster.local" for space in SPACES for tree in ("svc", "pod")),
)
"""Names that exist without records. CoreDNS says NXDOMAIN if TXT is asked of them, and NODATA for
every other type; whoever believes that (RFC 8020) takes all names of the cluster for gone."""


def on_purpose(said: dict[str, Any]) -> bool:
    """Whether we differ from CoreDNS because it is wrong."""
    return said["type"] == "TXT" and said["name"] in EXISTING and said["rcode"] == "NXDOMAIN"


@pytest.mark.slow
def test_every_recorded_answer_is_the_same(names: Names) -> None:
    """Code, AA, records of every section and the order of aliases are equal."""
    wrong, better = [], 0
    for said in RECORDED["answers"]:
        ours = plain(names.ask(said["name"], said["type"], stream=True, payload=None, use_edns=-1))
        if on_purpose(said):
            better += 1
            said["rcode"] = "NOERROR"
        if any(ours[part] != said[part] for part in ours):
            wrong.append((said, ours))
    assert not wrong, f"{len(wrong)} of {len(RECORDED['answers'])}: {wrong[:3]}"
    assert better == len(EXISTING)


def test_spellings_are_answered_from_what_is_kept_of_others(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept of a name in small letters answers its other spellings as CoreDNS does."""
    odd = [
        said
        for said in RECORDED["answers"]
        if said["name"] != said["name"].lower() and said["answer"] and not said["aliases"]
    ]
    assert len(odd) >= 100
    for said in odd:
        names.ask(said["name"].lower(), said["type"])
    monkeypatch.setattr(DnsCluster, "resolve", lambda *_: pytest.fail("worked out again"))
    for said in odd:
        ours = plain(names.ask(said["name"], said["type"]))
        assert {part: said[part] for part in ours} == ours


def test_the_recording_is_what_it_claims_to_be() -> None:
    """At least 400 questions about 40 Services, of every kind of answer."""
    kinds = Counter(item["kind"] for item in RECORDED["objects"])
    assert kinds["Service"] >= 40
    assert len(RECORDED["answers"]) >= 400
    codes = Counter((said["rcode"], bool(said["answer"])) for said in RECORDED["answers"])
    assert min(codes["NOERROR", True], codes["NOERROR", False], codes["NXDOMAIN", False]) >= 100
