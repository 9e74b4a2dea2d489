"""Who looks on while the proxier works, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zonewise.api.meta import Key
from zonewise.traffic.routes import ServiceRoutes

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
    """Told by the proxier, in its own thread and time: whoever has much to do does it elsewhere."""

    def came(self, change: Change) -> None:
        """A Service or a slice changed."""

    def routed(self, key: Key, routes: ServiceRoutes | None) -> None:
        """A Service has these routes now, or is gone; they are about to be written."""

    def synced(self, sync: Sync) -> None:
        """What was told since the last time is in the kernel."""

    def failed(self, error: Exception) -> None:
        """The kernel holds what it held before."""

    def not_swept(self, error: Exception) -> None:
        """Chains that nobody uses could not be removed."""
