"""The ledger: the pods whose disruption was granted and that may still exist.

One object per namespace, because all budgets of a pod are in its namespace: one compare-and-swap
covers them all, and either every budget is charged or none. A grant is keyed by uid, so that a
StatefulSet's next pod of the same name is another one.

A grant counts while its pod exists and is not terminating. It stays in the ledger for
``GRANT_SECONDS``: a reader whose cache is older still sees the pod as healthy, and must find the
grant. No request to the API server lasts that long, so a pod that exists afterwards was not
deleted, and counts as healthy again. A grant with a future time comes from a clock that differs
from ours: up to ``GRANT_SECONDS`` it counts like others, which is more than the clocks of replicas
that are ready differ; beyond that it would block its budget until then, so it counts as expired.

A grant whose pod is not deleted was not used: another webhook or a plain budget refused the
request, or no API server sent it. After ``USED_SECONDS``, the default request timeout of API
servers, such a grant is taken back, but only by a process that has read the pod from the server:
the cache of another may be out of date.

``judged`` has, for each budget, the version of the object that the last grant was judged by. A
replica with an older one must not grant: its baseline may be out of date. A budget that was deleted
is left out of the next write. Field names are a format of the API: they do not change.
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
NO_BUDGETS: Set[str] = frozenset()
_VERSION_DIGITS = 4000  # int() refuses texts of more than 4300 digits


@dataclass(frozen=True, slots=True)
class Ledger:
    """The grants of a namespace by uid (or by name, where a dump has no uids)."""

    grants: Mapping[str, Grant] = field(default_factory=dict)
    judged: Mapping[str, str] = field(default_factory=dict)
    version: str = ""

    def has_live_grant(self, pod: Pod, now: float) -> bool:
        """Whether a pod has a grant that has not expired."""
        grant = self.grants.get(pod.metadata.uid or pod.metadata.name)
        return grant is not None and is_live(grant, now)

    def with_grants(
        self,
        pods: Iterable[Pod],
        budgets: Iterable[Budget],
        now: float,
        *,
        deleted: Set[str] = NO_BUDGETS,
    ) -> Ledger:
        """The ledger with more grants, without expired ones and without ``deleted`` budgets."""
        text = times.format_time(times.from_epoch(now))
        grants = {key: grant for key, grant in self.grants.items() if is_live(grant, now)}
        for pod in pods:
            grants[pod.metadata.uid] = Grant(uid=pod.metadata.uid, pod=pod.metadata.name, time=text)
        versions = {f"{budget.kind}/{budget.name}": budget.version for budget in budgets}
        newer = {
            name: version
            for name, version in versions.items()
            if version_number(version) > version_number(self.judged.get(name, ""))
        }
        judged = {name: self.judged[name] for name in self.judged.keys() - deleted}
        return Ledger(grants, {**judged, **newer}, self.version)

    def find_unused(self, pods: Mapping[str, Pod], now: float) -> list[Grant]:
        """Grants whose pods should have been deleted by now, by these cached pods.

        Only a read from the server is certain: a pod may be terminating already.
        """
        return [
            grant
            for uid, grant in self.grants.items()
            if USED_SECONDS < now - granted_at(grant) <= GRANT_SECONDS
            and uid in pods
            and pods[uid].metadata.deletion_timestamp is None
        ]

    def without(self, uids: Set[str]) -> Ledger:
        """The ledger without some grants."""
        grants = {uid: grant for uid, grant in self.grants.items() if uid not in uids}
        return Ledger(grants, self.judged, self.version)

    def is_ahead_of(self, budget: Budget) -> bool:
        """Whether a grant was judged by a newer version of a budget than this one."""
        judged_version = self.judged.get(f"{budget.kind}/{budget.name}", "")
        return version_number(judged_version) > version_number(budget.version)

    def to_spec(self) -> DisruptionLedgerSpec:
        """The spec of an object that is created."""
        return DisruptionLedgerSpec(
            grants=tuple(grant for _, grant in sorted(self.grants.items())),
            judged=dict(self.judged),
        )

    def to_patch(self) -> dict[str, Any]:
        """The spec as a patch, sorted, so that equal ledgers are equal bytes."""
        return {
            "grants": [
                {"uid": grant.uid, "pod": grant.pod, "time": grant.time}
                for _, grant in sorted(self.grants.items())
            ],
            "judged": dict(sorted(self.judged.items())),
        }


def ledger_of(item: DisruptionLedger | None) -> Ledger:
    """The ledger of an object; without one there are no grants."""
    if item is None:
        return Ledger()
    grants: dict[str, Grant] = {}
    for grant in item.spec.grants:
        known = grants.setdefault(grant.uid or grant.pod, grant)
        if granted_at(grant) > granted_at(known):
            grants[grant.uid or grant.pod] = grant
    return Ledger(grants, dict(item.spec.judged), item.metadata.resource_version)


def is_live(grant: Grant, now: float) -> bool:
    """Whether a grant has not expired."""
    return abs(now - granted_at(grant)) <= GRANT_SECONDS


def granted_at(grant: Grant) -> float:
    """The time of a grant; one without a valid time has expired."""
    return _parse_time(grant.time)


@lru_cache(maxsize=1024)
def _parse_time(text: str) -> float:
    """Cached: grants of one second share it, and every verdict reads all of them."""
    try:
        return times.parse(text).timestamp()
    except ParseError:
        return float("-inf")


def version_number(version: str) -> int:
    """A resource version as a number.

    One that is longer than any server's is ahead of all others: what it judged is not judged again.
    """
    return int(version[:_VERSION_DIGITS]) if version.isascii() and version.isdigit() else 0
