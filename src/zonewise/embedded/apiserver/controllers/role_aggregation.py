"""A ClusterRole that aggregates others has their rules."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from zonewise.api.meta import LabelSelector
from zonewise.api.values import selector
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.controllers.garbage_collector import GraphNode
from zonewise.embedded.apiserver.controllers.internal_writes import InternalWrites
from zonewise.embedded.apiserver.store.history import StoreEvent

Obj = dict[str, Any]

CLUSTER_ROLES = "rbac.authorization.k8s.io/clusterroles"


class RoleAggregation:
    """Keeps the rules of aggregated ClusterRoles."""

    def __init__(self, writes: InternalWrites) -> None:
        self._writes = writes
        self._wake = asyncio.Event()
        self._wake.set()

    def observe(self, storage: str, _: StoreEvent) -> None:
        """Something was written."""
        if storage == CLUSTER_ROLES:
            self._wake.set()

    async def run(self) -> None:
        """Aggregate whenever a role changes, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            roles = [
                bodies.decode_stored(entry.raw)
                for entry in self._writes.state.list(CLUSTER_ROLES).entries
            ]
            for role in roles:
                rule = role.get("aggregationRule")
                if not rule:
                    continue
                wanted = _aggregated(role, rule, roles)
                if wanted != (role.get("rules") or []):
                    await self._give_rules(role["metadata"]["name"], wanted)

    async def _give_rules(self, name: str, rules: list[Obj]) -> None:
        node = GraphNode(CLUSTER_ROLES, "", name)
        await self._writes.change(node, lambda obj: {**obj, "rules": rules})


def _aggregated(role: Obj, rule: Obj, roles: list[Obj]) -> list[Obj]:
    wanted: list[Obj] = []
    for one in rule.get("clusterRoleSelectors") or ():
        chosen = selector.from_object(msgspec.convert(one, LabelSelector))
        for other in roles:
            meta = other["metadata"]
            if meta["name"] != role["metadata"]["name"] and chosen.matches(
                meta.get("labels") or {}
            ):
                wanted += [part for part in other.get("rules") or () if part not in wanted]
    return wanted
