"""How each Service stands on this node: the rules it got, what it lacks, whom it asks about.

Kept from the first write on and read by whoever shows it later. What shows it, servers and metrics,
takes longer to import than the first rules to be written, and is loaded after them; so this module
imports nothing of that.
"""

from __future__ import annotations

import asyncio

from zonewise.api.meta import Key
from zonewise.proxy.observer import Observer, Sync
from zonewise.traffic.routes import ServiceRoutes


class RoutesSummary(Observer):
    """What the last routes of every Service were, in short."""

    def __init__(self) -> None:
        self.rules: dict[Key, tuple[str, ...]] = {}
        """Of each port and family, the rules that chose its endpoints."""
        self.unlocal: dict[Key, frozenset[tuple[str, str]]] = {}
        """Families and policies (``internal``, ``external``) that drop for want of endpoints."""
        self.checks: dict[Key, tuple[int, int]] = {}
        """Port of the health check, and how many endpoints are here."""
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
        dropped: set[tuple[str, str]] = set()
        for port in routes.ports:
            for route in port.routes:
                rules[port.name, port.family, route.why.value] = None
                if route.action == "drop":
                    policy = "internal" if route.path == "ClusterIP" else "external"
                    dropped.add((port.family, policy))
        self.rules[key] = tuple(rule for _, _, rule in rules)
        if dropped:
            self.unlocal[key] = frozenset(dropped)
        else:
            self.unlocal.pop(key, None)

    def synced(self, sync: Sync) -> None:
        if self.first is None:
            self.first = sync
            self.written.set()

    def _check(self, key: Key, routes: ServiceRoutes | None) -> None:
        found = routes.health_checks if routes is not None else ()
        before = self.checks.get(key)
        if found:
            self.checks[key] = (found[0].port, max(one.local_endpoints for one in found))
        elif before is not None:
            del self.checks[key]
        if self.checks.get(key) != before:
            self.checks_changed.set()
