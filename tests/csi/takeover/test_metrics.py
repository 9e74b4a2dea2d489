"""Takeover in numbers, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from zonewise.api.reason import Reason
from zonewise.csi.takeover.controller import TakeoverMetrics
from zonewise.csi.takeover.status import TakeoverStatus


def test_gauges_follow_the_status() -> None:
    """Every gauge has the number of the status, and a warning that is over is gone."""
    registry = CollectorRegistry()
    metrics = TakeoverMetrics(registry)
    reason = Reason(code="UnknownDomain", message="nobody is in x")
    metrics.update(TakeoverStatus({"a": ("b",), "c": ("b",)}, "wrong", (reason, reason), (reason,)))

    def read(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"zonewise_takeover_{name}", labels)

    assert read("domains") == 2
    assert read("configuration_invalid") == 1
    assert read("warnings", reason="UnknownDomain") == 2
    assert read("away_from_home") == 1
    metrics.update(TakeoverStatus({"a": ("b",)}))
    assert (read("domains"), read("configuration_invalid"), read("away_from_home")) == (1, 0, 0)
    assert read("warnings", reason="UnknownDomain") is None
