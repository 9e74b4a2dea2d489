"""Observers of the proxier, and what they are notified of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zonewise.api.meta import Key
from zonewise.traffic.routes.table import ServiceRoutes

Change = Literal["service", "endpoint"]


@dataclass(frozen=True, slots=True)
class Sync:
    """One write that succeeded. ``triggers`` are the times of the changes it has brought."""

    first: bool
    full: bool
    services: int
    removed: int
    put: int
    seconds: float
    triggers: tuple[str, ...] = ()


class Observer:
    """Called by the proxier, in its own thread: long work must be done elsewhere."""

    def object_changed(self, change: Change) -> None:
        """A Service or a slice changed."""

    def routed(self, key: Key, routes: ServiceRoutes | None) -> None:
        """A Service has these routes now, or is deleted; they are about to be written."""

    def synced(self, sync: Sync) -> None:
        """All routes since the last call are in the kernel."""

    def failed(self, error: Exception) -> None:
        """A write failed; the kernel has the rules it had before."""

    def refused(self, key: Key, error: Exception) -> None:
        """The kernel refused the rules of a Service; it holds those it had before."""

    def not_swept(self, error: Exception) -> None:
        """Unused chains could not be removed."""
