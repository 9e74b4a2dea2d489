"""The summary of a node's Services that metrics and health checks read."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from tests.proxy.services import backend, route

from zonewise.proxy.metrics import ProxyMetrics
from zonewise.proxy.summary import RoutesSummary
from zonewise.traffic.routes.table import Family, HealthCheck, PortRoutes, Route, ServiceRoutes

KEY = ("default", "s")
FAMILIES: tuple[Family, Family] = ("IPv4", "IPv6")


def service(*ports: tuple[Family, tuple[Route, ...]], **checks: int) -> ServiceRoutes:
    """A Service whose ports have these routes."""
    return ServiceRoutes(
        namespace="default",
        service="s",
        ports=tuple(
            PortRoutes(
                name=f"p{at}", family=family, protocol="TCP", affinity_seconds=None, routes=routes
            )
            for at, (family, routes) in enumerate(ports)
        ),
        health_checks=tuple(
            HealthCheck(family=family, port=31000, local_endpoints=checks[family])
            for family in FAMILIES
            if family in checks
        ),
    )


def lonely(address: str, *, ways: int = 1) -> tuple[Route, ...]:
    """Routes of a port with both policies Local and no local endpoint."""
    outside = (
        route("ExternalIP", f"203.0.113.{at}", source="outside", action="drop")
        for at in range(ways)
    )
    return route("ClusterIP", address, action="drop"), *outside


def test_ports_without_local_endpoints_are_counted_by_family_and_policy() -> None:
    """A port without local endpoints counts once for each policy, however many addresses it has."""
    summary = RoutesSummary()
    registry = CollectorRegistry()
    ProxyMetrics(registry, summary, clock=lambda: 0.0)

    def counted(family: str, policy: str) -> float | None:
        labels = {"ip_family": family, "traffic_policy": policy}
        return registry.get_sample_value(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total", labels
        )

    served = (route("ClusterIP", "10.96.0.1", backend(1)),)
    routes = service(
        ("IPv4", lonely("10.96.0.1", ways=3)),
        ("IPv4", lonely("10.96.0.1", ways=0)),
        ("IPv4", served),
        ("IPv6", lonely("fd00::1", ways=0)),
    )
    summary.routed(KEY, routes)
    assert [counted("IPv4", policy) for policy in ("internal", "external")] == [2, 1]
    assert [counted("IPv6", policy) for policy in ("internal", "external")] == [1, 0]
    summary.routed(KEY, None)
    assert counted("IPv4", "internal") == 0


def test_health_checks_are_counted_by_family() -> None:
    """Local endpoints are counted by family; a change of either sets the event."""
    summary = RoutesSummary()
    summary.routed(KEY, service(IPv4=0, IPv6=2))
    assert summary.checks[KEY] == {("IPv4", 31000): 0, ("IPv6", 31000): 2}
    for after in (service(IPv4=1, IPv6=2), service(IPv4=1)):
        summary.checks_changed.clear()
        summary.routed(KEY, after)
        assert summary.checks_changed.is_set()
    summary.checks_changed.clear()
    summary.routed(KEY, service(IPv4=1))
    assert not summary.checks_changed.is_set()
    summary.routed(KEY, None)
    assert summary.checks == {}
