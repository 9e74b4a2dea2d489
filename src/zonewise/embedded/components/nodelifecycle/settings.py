"""Settings of the node lifecycle controllers; defaults are kube-controller-manager's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLifecycleSettings:
    """Times are in seconds, rates in nodes per second and zone.

    ``grace`` is how long a node may be silent, ``startup_grace`` how long a new one may be before
    its first report. ``orphan_after`` is how long pods outlive their deleted Node, which the real
    controller checks less often and later.
    """

    grace: float = 50.0
    startup_grace: float = 60.0
    period: float = 5.0
    rate: float = 0.1
    reduced_rate: float = 0.01
    unhealthy_zone: float = 0.55
    large_zone: int = 50
    orphan_after: float = 20.0
    finished_pods: int = 12_500
    workers: int = 16
