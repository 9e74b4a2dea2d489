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

from zonewise.csi.status import CsiError
from zonewise.storage.journal import JournalEntry

QUIET_SECONDS = 0.25
LONGEST_SECONDS = 5.0
MOST = 200


class Marks:
    """Entries, and a thread that writes them with ``write_all`` once there are some."""

    def __init__(self, write_all: Callable[[Sequence[JournalEntry]], None]) -> None:
        self._write_all = write_all
        self._waiting: dict[str, JournalEntry] = {}
        self._last: JournalEntry | None = None
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def later(self, entry: JournalEntry) -> None:
        """Write that it is created, soon."""
        self._waiting[entry.uuid] = entry
        self._last = entry
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._work, name="journal-marks", daemon=True
                )
                self._thread.start()
        self._woken.set()

    def take(self, entry: JournalEntry) -> bool:
        """Whether it was still to be written as it is here; the caller then writes it."""
        if not self._waiting:
            return False
        found = self._waiting.pop(entry.uuid, None)
        return found is not None and found.revision == entry.revision

    def write(self) -> None:
        """Write all of them; when this returns no other thread is writing them."""
        with self._writing:
            while waiting := list(self._waiting.items())[:MOST]:
                self._write_all([entry for _, entry in waiting])
                for uuid, _ in waiting:
                    self._waiting.pop(uuid, None)

    def close(self) -> None:
        """Write what is left, and end."""
        self._closed.set()
        self._woken.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        with suppress(CsiError, rados.Error):
            self.write()

    def _work(self) -> None:
        while not self._closed.is_set():
            self._woken.wait()
            self._woken.clear()
            if self._gathered():
                try:
                    self.write()
                except (CsiError, rados.Error):
                    self._woken.set()

    def _gathered(self) -> bool:
        """Wait for more to come; False if this ends."""
        end, seen = time.monotonic() + LONGEST_SECONDS, None
        while seen is not self._last and time.monotonic() < end:
            seen = self._last
            if self._closed.wait(QUIET_SECONDS):
                return False
        return True
