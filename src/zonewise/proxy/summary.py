"""The state of each Service on this node: its rules, missing local endpoints, and health checks.

Kept from the first write on and shown later. What shows it, servers and metrics, takes longer to
import than the first rules take to be written, and is loaded after them; so this module imports
nothing of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from zonewise.api.meta import Key
from zonewise.proxy.observer import Observer, Sync
from zonewise.traffic.routes.table import Family, ServiceRoutes


class RoutesSummary(Observer):
    """What the last routes of every Service were, in short."""

    def __init__(self) -> None:
        self.rules: dict[Key, tuple[str, ...]] = {}
        """Of each port and family, the rules that chose its endpoints."""
        self.unlocal: dict[Key, tuple[tuple[str, str], ...]] = {}
        """Families and policies (``internal``, ``external``) of ports without endpoints here."""
        self.checks: dict[Key, Mapping[tuple[Family, int], int]] = {}
        """By family and port of the health check, how many endpoints are here."""
        self.checks_changed = asyncio.Event()
        self.first: Sync | None = None
        self.written = asyncio.Event()

    def routed(self, key: Key, routes: ServiceRoutes | None) -> None:
        self._check(key, routes)
        if routes is None or not routes.ports:
            self.rules.pop(key, None)
            self.unlocal.pop(key, None)
            return
        rules: dict[tuple[str, str, str], None] = {}
        dropped: list[tuple[str, str]] = []
        for port in routes.ports:
            policies: dict[str, None] = {}
            for route in port.routes:
                rules[port.name, port.family, route.rule.value] = None
                if route.action == "drop":
                    policies["internal" if route.path == "ClusterIP" else "external"] = None
            dropped += ((port.family, policy) for policy in policies)
        self.rules[key] = tuple(rule for _, _, rule in rules)
        if dropped:
            self.unlocal[key] = tuple(dropped)
        else:
            self.unlocal.pop(key, None)

    def synced(self, sync: Sync) -> None:
        if self.first is None:
            self.first = sync
            self.written.set()

    def _check(self, key: Key, routes: ServiceRoutes | None) -> None:
        checks = routes.health_checks if routes is not None else ()
        before = self.checks.get(key)
        if checks:
            self.checks[key] = {
                (check.family, check.port): check.local_endpoints for check in checks
            }
        elif before is not None:
            del self.checks[key]
        if self.checks.get(key) != before:
            self.checks_changed.set()
