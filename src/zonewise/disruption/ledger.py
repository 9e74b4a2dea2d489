"""The ledger: the pods whose disruption was granted and that may still exist.

One object per namespace, because all budgets of a pod are in its namespace: one compare-and-swap
covers them all, and either every budget is charged or none. A grant is keyed by uid, so that a
StatefulSet's next pod of the same name is another one.

A grant counts while its pod exists and is not terminating. It is kept longer, ``GRANT_SECONDS``
after it was made: a reader whose cache is older still sees the pod as healthy, and must find the
grant. No request to the API server lasts that long, so a pod that exists afterwards was not
deleted, and counts as healthy again. A grant from the future is of a clock that differs from ours:
up to ``GRANT_SECONDS`` it counts like others, which is more than replicas that are ready differ;
beyond that its time means nothing, and it would hold its budget until then, so it is over.

A grant whose pod is not deleted was not used: another webhook or a plain budget refused the
request, or no API server sent it. After ``USED_SECONDS``, the time after which API servers give up
a request unless they are told otherwise, such a grant is taken back, but only by one who has read
the pod from the server: others may be behind.

``judged`` has, for each budget, the version of the object that the last grant was judged by. A
replica with an older one must not grant: its baseline may be out of date. A budget that was deleted
is left out of the next write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.objects.budgets import DisruptionLedger, DisruptionLedgerSpec, Grant
from zonewise.api.objects.pod import Pod
from zonewise.api.values import times
from zonewise.disruption.budget import Budget

GRANT_SECONDS = 120.0
USED_SECONDS = 60.0
GRANTS_LIMIT = 2000
EMPTY: Set[str] = frozenset()
_DIGITS = 4000  # Python reads no number of many more


@dataclass(frozen=True, slots=True)
class Ledger:
    """The grants of a namespace by uid (or by name, where a dump has no uids)."""

    grants: Mapping[str, Grant] = field(default_factory=dict)
    judged: Mapping[str, str] = field(default_factory=dict)
    version: str = ""

    def live(self, pod: Pod, now: float) -> bool:
        """Whether a pod was granted and may still be deleted."""
        grant = self.grants.get(pod.metadata.uid or pod.metadata.name)
        return grant is not None and counts(grant, now)

    def with_grants(
        self,
        pods: Iterable[Pod],
        budgets: Iterable[Budget],
        now: float,
        *,
        deleted: Set[str] = EMPTY,
    ) -> Ledger:
        """The ledger with more grants, less those that are over, and less ``deleted`` budgets."""
        text = times.format_time(times.from_epoch(now))
        kept = {key: grant for key, grant in self.grants.items() if counts(grant, now)}
        for pod in pods:
            kept[pod.metadata.uid] = Grant(uid=pod.metadata.uid, pod=pod.metadata.name, time=text)
        seen = {f"{budget.kind}/{budget.name}": budget.version for budget in budgets}
        newer = {
            name: version
            for name, version in seen.items()
            if order(version) > order(self.judged.get(name, ""))
        }
        judged = {name: self.judged[name] for name in self.judged.keys() - deleted}
        return Ledger(kept, {**judged, **newer}, self.version)

    def unused(self, pods: Mapping[str, Pod], now: float) -> list[Grant]:
        """Grants whose pods should have been deleted by now, as far as these pods show.

        Only a look at the server is certain: a pod may be leaving already.
        """
        return [
            grant
            for uid, grant in self.grants.items()
            if USED_SECONDS < now - made(grant) <= GRANT_SECONDS
            and uid in pods
            and pods[uid].metadata.deletion_timestamp is None
        ]

    def without(self, uids: Set[str]) -> Ledger:
        """The ledger without some grants."""
        kept = {uid: grant for uid, grant in self.grants.items() if uid not in uids}
        return Ledger(kept, self.judged, self.version)

    def behind(self, budget: Budget) -> bool:
        """Whether a grant was judged by a newer version of a budget than this one."""
        known = self.judged.get(f"{budget.kind}/{budget.name}", "")
        return order(known) > order(budget.version)

    def object(self) -> DisruptionLedgerSpec:
        """What is created."""
        return DisruptionLedgerSpec(
            grants=tuple(one for _, one in sorted(self.grants.items())), judged=dict(self.judged)
        )

    def spec(self) -> dict[str, Any]:
        """What is written, in an order that depends on nothing."""
        return {
            "grants": [
                {"uid": one.uid, "pod": one.pod, "time": one.time}
                for _, one in sorted(self.grants.items())
            ],
            "judged": dict(sorted(self.judged.items())),
        }


def ledger_of(item: DisruptionLedger | None) -> Ledger:
    """Read a ledger; none has no grants."""
    if item is None:
        return Ledger()
    grants: dict[str, Grant] = {}
    for grant in item.spec.grants:
        known = grants.setdefault(grant.uid or grant.pod, grant)
        if made(grant) > made(known):
            grants[grant.uid or grant.pod] = grant
    return Ledger(grants, dict(item.spec.judged), item.metadata.resource_version)


def counts(grant: Grant, now: float) -> bool:
    """Whether a grant is not over."""
    return abs(now - made(grant)) <= GRANT_SECONDS


def made(grant: Grant) -> float:
    """When a grant was made; one that does not say so is over."""
    return _moment(grant.time)


@lru_cache(maxsize=1024)
def _moment(text: str) -> float:
    """Cached: grants of one second share it, and every verdict reads all of them."""
    try:
        return times.parse(text).timestamp()
    except ParseError:
        return float("-inf")


def order(version: str) -> int:
    """A resource version as the number it is.

    One that no server gives is still ahead of all others: what it judged is not judged again.
    """
    return int(version[:_DIGITS]) if version.isascii() and version.isdigit() else 0
