"""Deferred writes: CREATED of entries whose images prove it as well.

They are written together when no more come, a quarter of a second after the last, and after some
seconds at the latest. On stopping they are written first; what a kill leaves out is found by
looking at the image. What cannot be written now is tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import rados

from zonewise.csi.errors import CsiError
from zonewise.storage.journal import JournalEntry

QUIET_SECONDS = 0.25
DELAY_LIMIT_SECONDS = 5.0
BATCH = 200


class DeferredCreated:
    """Entries, and a thread that writes them with ``write_all`` once there are some."""

    def __init__(self, write_entries: Callable[[Sequence[JournalEntry]], None]) -> None:
        self._write_entries = write_entries
        self._waiting_by_uuid: dict[str, JournalEntry] = {}
        self._last: JournalEntry | None = None
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, entry: JournalEntry) -> None:
        """Write that it is created, soon."""
        self._waiting_by_uuid[entry.uuid] = entry
        self._last = entry
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._write_until_closed, name="journal-marks", daemon=True
                )
                self._thread.start()
        self._woken.set()

    def take(self, entry: JournalEntry) -> bool:
        """Whether it was still to be written as it is here; the caller then writes it."""
        if not self._waiting_by_uuid:
            return False
        waiting = self._waiting_by_uuid.pop(entry.uuid, None)
        return waiting is not None and waiting.revision == entry.revision

    def write_all(self) -> None:
        """Write all of them; when this returns no other thread is writing them."""
        with self._writing:
            while waiting := list(self._waiting_by_uuid.items())[:BATCH]:
                self._write_entries([entry for _, entry in waiting])
                for uuid, _ in waiting:
                    self._waiting_by_uuid.pop(uuid, None)

    def close(self) -> None:
        """Write what is left, and end."""
        self._closed.set()
        self._woken.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        with suppress(CsiError, rados.Error):
            self.write_all()

    def _write_until_closed(self) -> None:
        while not self._closed.is_set():
            self._woken.wait()
            self._woken.clear()
            if self._wait_for_quiet():
                try:
                    self.write_all()
                except (CsiError, rados.Error):
                    self._woken.set()

    def _wait_for_quiet(self) -> bool:
        """Wait for more to come; False if this ends."""
        deadline, last_seen = time.monotonic() + DELAY_LIMIT_SECONDS, None
        while last_seen is not self._last and time.monotonic() < deadline:
            last_seen = self._last
            if self._closed.wait(QUIET_SECONDS):
                return False
        return True
