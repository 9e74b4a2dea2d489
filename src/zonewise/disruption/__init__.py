"""Who may be disturbed now: what budgets allow. Pure."""

from zonewise.disruption.native import (
    DELETION_SECONDS,
    Count,
    counted_by_scale,
    counted_status,
    failed_status,
    stale_after,
)

__all__ = [
    "DELETION_SECONDS",
    "Count",
    "counted_by_scale",
    "counted_status",
    "failed_status",
    "stale_after",
]
