"""Liveness: a controller is alive as long as it renews a lock, by the OSD's clock.

Others take over what a controller works on only when its lock has expired. So as long as it has
not, none has: ``held_since`` tells that without a request. It counts from when a renewal was sent,
not from its answer, ends before the OSD's count does, and once there may have been a gap the
controller's earlier life is over, though it has the same name: another controller may have looked
meanwhile.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import rados

from zonewise.csi.backends.ceph.connection import translate_errors
from zonewise.csi.errors import CsiError

RELIABLE_PART = 0.75
"""How much of a lease is relied upon here; the rest is for clocks that run differently."""
UNRELIABLE_SECONDS = 1.5
"""The least that is not relied upon.

Ceph's Python module passes a lock's duration without setting its microseconds. What stands there by
chance makes the lock up to 4.3 s longer, or, where the OSD's sum wraps, up to 1 s shorter.
"""

_RENEW = 1
_ALIVE = "alive"


class JournalLease:
    """The lock of one controller in a pool; taken when it is first needed."""

    def __init__(self, pool: rados.Ioctx, name: str, seconds: int) -> None:
        self.name = name
        self._pool = pool
        self._seconds = seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._term = 0
        self._held_until = 0.0

    def begin(self) -> int:
        """Take the lock, or keep it; returns the number of this life."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._renew()
                self._thread = threading.Thread(
                    target=self._renew_until_closed, name="journal-lease", daemon=True
                )
                self._thread.start()
        return self._term

    def is_held_since(self, term: int) -> bool:
        """Whether no controller can have taken us for dead since that life began."""
        # In this order: a renewal after a gap begins another life before it lasts longer.
        return _now() < self._held_until and term == self._term

    def is_alive(self, name: str) -> bool:
        """Whether another controller is alive."""
        key = f"holder.{name}"
        with translate_errors("asking who is at work"):
            try:
                self._pool.lock_exclusive(key, _ALIVE, self.name, "", self._seconds, 0)
            except (rados.ObjectBusy, rados.ObjectExists):
                return True
            with suppress(rados.ObjectNotFound):
                self._pool.remove_object(key)
        return False

    def stop(self) -> None:
        """Stop renewing, as a controller that died does."""
        self._closed.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Release the lock, so that others need not wait for its end."""
        self.stop()
        if self._thread is not None:
            self._thread = None
            with suppress(rados.Error):
                self._pool.remove_object(f"holder.{self.name}")

    def _renew_until_closed(self) -> None:
        while not self._closed.wait(self._seconds / 3):
            with suppress(CsiError, rados.Error):
                self._renew()

    def _renew(self) -> None:
        sent = _now()
        with translate_errors("showing that the journal is in use"):
            holder = f"holder.{self.name}"
            self._pool.lock_exclusive(holder, _ALIVE, self.name, "", self._seconds, _RENEW)
        if _now() >= self._held_until:
            self._term += 1
        self._held_until = sent + reliable_seconds(self._seconds)


def reliable_seconds(seconds: int) -> float:
    """How long after a renewal was sent a lock with that duration is certainly held."""
    return min(seconds * RELIABLE_PART, seconds - UNRELIABLE_SECONDS)


def _now() -> float:
    """Also while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
