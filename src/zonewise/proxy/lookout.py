"""Starts what a proxy serves: health, metrics and health checks; loaded after the first write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from zonewise.proxy.flows import StaleFlows
from zonewise.proxy.healthchecks import HealthChecks
from zonewise.proxy.metrics import ProxyMetrics
from zonewise.proxy.monitor import ProxyMonitor, Vitals
from zonewise.proxy.netlink.namespace import NetworkNamespace
from zonewise.proxy.notes import Notes
from zonewise.proxy.proxier import Proxier
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.summary import RoutesSummary
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.traffic.modes import hint_request_of


def list_routes(proxier: Proxier, settings: ProxySettings) -> Iterator[dict[str, Any]]:
    """Every route of every Service, with the topology mode that the Service requests."""
    for key, routes in proxier.routes():
        service = proxier.services.get(key)
        if service is not None:
            mode = hint_request_of(service, settings.routing.gates).mode.value
            yield from ({**row, "mode": mode} for row in routes.rows())


async def look_out(
    proxier: Proxier,
    cache: Cache,
    settings: ProxySettings,
    *,
    summary: RoutesSummary,
    notes: Notes,
    flows: StaleFlows,
    namespace: NetworkNamespace,
) -> None:
    """Serve health, metrics and health checks until cancelled."""
    loop = asyncio.get_running_loop()
    metrics = Metrics()
    metrics.watches(lambda: cache.stats)
    counts = ProxyMetrics(metrics.registry, summary, clock=time.time)
    vitals = Vitals(
        clock=loop.time,
        waiting_since=lambda: proxier.waiting_since,
        node=lambda: next(iter(proxier.nodes), None),
    )
    if summary.first is not None:
        counts.synced(summary.first)
        vitals.synced(summary.first)
    proxier.observers += (counts, vitals)
    flows.count = counts.flows_removed
    checks = HealthChecks(
        summary,
        networks=lambda: settings.nodeport_networks(proxier.location.addresses),
        healthy=lambda: vitals.healthy,
        refused=notes.no_health_check,
        namespace=namespace,
    )
    monitor = ProxyMonitor(
        vitals,
        metrics,
        counts,
        lambda: list_routes(proxier, settings),
        healthz=settings.healthz_listen,
        metrics_listen=settings.metrics_listen,
        namespace=namespace,
    )
    async with monitor:
        await checks.run()
