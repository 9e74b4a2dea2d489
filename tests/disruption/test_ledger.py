"""Reading ledgers that any writer may have changed."""

from __future__ import annotations

import itertools

import pytest
from tests.disruption.clusters import NOW, pod

from zonewise.api import DisruptionLedger, convert
from zonewise.api.values import times
from zonewise.disruption.ledger import GRANT_SECONDS, ledger_of


def text(moment: float) -> str:
    """A time as it is written."""
    return times.format_time(times.from_epoch(moment))


@pytest.mark.parametrize("order", tuple(itertools.permutations(range(3))))
def test_the_newest_grant_of_a_pod_counts(order: tuple[int, ...]) -> None:
    """Of several grants for one pod the newest is live, whatever their order; a grant without a
    time is older than all others.
    """
    moments = [text(NOW - GRANT_SECONDS - 5), text(NOW - 5), ""]
    grants = [{"uid": "uid-a", "pod": "a", "time": moments[index]} for index in order]
    ledger = ledger_of(convert(DisruptionLedger, {"spec": {"grants": grants}}))
    assert ledger.has_live_grant(pod("a"), NOW)
    assert ledger.grants["uid-a"].time == moments[1]


@pytest.mark.parametrize(
    ("ahead", "live"),
    [
        (-GRANT_SECONDS - 1, False),
        (-GRANT_SECONDS, True),
        (0.0, True),
        (GRANT_SECONDS, True),
        (GRANT_SECONDS + 1, False),
        (86400.0, False),
    ],
)
def test_a_grant_far_from_now_is_over(ahead: float, live: bool) -> None:
    """A grant counts for two minutes around its time, so one from the future blocks for at most
    four; expired grants are left out of the next write.
    """
    grant = {"uid": "uid-a", "pod": "a", "time": text(NOW + ahead)}
    ledger = ledger_of(convert(DisruptionLedger, {"spec": {"grants": [grant]}}))
    assert ledger.has_live_grant(pod("a"), NOW) is live
    assert ("uid-a" in ledger.with_grants([pod("b")], [], NOW).grants) is live
