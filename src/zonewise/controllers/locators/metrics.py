"""What the locator controller counts: its writes, and why each was made."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class LocatorsMetrics:
    """Writes of PodLocators by operation and cause."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._writes = Counter(
            "zonewise_locator_writes",
            "PodLocators written, by operation and cause.",
            ["operation", "cause"],
            registry=registry,
        )

    def wrote(self, operation: str, cause: str) -> None:
        """A locator was created, updated or deleted."""
        self._writes.labels(operation, cause).inc()
