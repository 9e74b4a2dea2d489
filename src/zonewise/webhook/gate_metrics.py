"""What the gate answered, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter


def verdict_counter(registry: CollectorRegistry) -> Callable[[str, bool], None]:
    """Counts verdicts by code, and grants."""
    verdicts = Counter(
        "zonewise_budget_verdicts",
        "Decisions on evictions and deletions of pods.",
        ["code"],
        registry=registry,
    )
    grants = Counter(
        "zonewise_budget_grants", "Decisions that were charged to budgets.", registry=registry
    )

    def observe(code: str, charged: bool) -> None:
        verdicts.labels(code).inc()
        grants.inc(int(charged))

    return observe
