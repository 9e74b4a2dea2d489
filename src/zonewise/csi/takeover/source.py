"""Where the takeover map comes from: a configuration that changes, and may be wrong for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zonewise.storage.configuration import StorageConfiguration


class TakeoverSource(Protocol):
    """The last good configuration, and what is wrong with a newer one."""

    @property
    def current(self) -> StorageConfiguration:
        """The last one that could be used."""

    @property
    def problem(self) -> str | None:
        """Why the newest one cannot be used."""

    @property
    def loaded(self) -> bool:
        """Whether there ever was one that could; until then nothing is decided."""

    def on_status_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it whenever one of these changes, until what is returned is called."""


class FollowedConfiguration:
    """A configuration that another component reads and hands over."""

    def __init__(self) -> None:
        self.current = StorageConfiguration()
        self.problem: str | None = None
        self.loaded = False
        self._listeners: list[Callable[[], None]] = []

    def on_status_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it whenever something changes, until what is returned is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def use(self, configuration: StorageConfiguration) -> None:
        """From now on this one counts."""
        if self.loaded and self.problem is None and configuration == self.current:
            return
        self.current, self.problem, self.loaded = configuration, None, True
        self._notify()

    def refuse(self, problem: str) -> None:
        """A newer one is wrong; what was good stays."""
        if problem != self.problem:
            self.problem = problem
            self._notify()

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()
