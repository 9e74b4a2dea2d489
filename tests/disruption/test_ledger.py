"""Ledgers as they are read, whoever wrote them."""

from __future__ import annotations

import itertools

import pytest
from tests.disruption.clusters import NOW, pod

from zonewise.api import DisruptionLedger, convert
from zonewise.api.values import times
from zonewise.disruption import ledger_of
from zonewise.disruption.ledger import GRANT_SECONDS


def text(moment: float) -> str:
    """A moment as it is written."""
    return times.format_time(times.from_epoch(moment))


@pytest.mark.parametrize("order", tuple(itertools.permutations(range(3))))
def test_the_newest_grant_of_a_pod_counts(order: tuple[int, ...]) -> None:
    """Of several grants for one pod the newest is live, in whatever order they are written; a
    grant without a time is older than all others.
    """
    moments = [text(NOW - GRANT_SECONDS - 5), text(NOW - 5), ""]
    grants = [{"uid": "uid-a", "pod": "a", "time": moments[index]} for index in order]
    ledger = ledger_of(convert(DisruptionLedger, {"spec": {"grants": grants}}))
    assert ledger.live(pod("a"), NOW)
    assert ledger.grants["uid-a"].time == moments[1]
