"""Takeover in numbers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from zonewise.csi.takeover.status import TakeoverStatus


class TakeoverMetrics:
    """Gauges of what holds now."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._taken = Gauge(
            "zonewise_takeover_domains", "Domains that are taken over.", registry=registry
        )
        self._problem = Gauge(
            "zonewise_takeover_configuration_invalid",
            "Whether a newer configuration is wrong, so that an older map is in force.",
            registry=registry,
        )
        self._warnings = Gauge(
            "zonewise_takeover_warnings",
            "What is wrong with the map that is in force, by reason.",
            ["reason"],
            registry=registry,
        )
        self._away = Gauge(
            "zonewise_takeover_away_from_home",
            "Uses of volumes outside of their domain.",
            registry=registry,
        )

    def update(self, status: TakeoverStatus) -> None:
        """Take over what holds now."""
        self._taken.set(len(status.takeover))
        self._problem.set(bool(status.error))
        self._away.set(len(status.away_from_home))
        self._warnings.clear()
        for warning in status.warnings:
            self._warnings.labels(warning.code).inc()
