"""Network namespaces: entered for a moment.

A socket belongs to the namespace in which it was made, and a thread may enter another one. So one
program, in one thread, serves many nodes that are namespaces of one machine. Nothing may be awaited
inside: other tasks of the thread would run in the wrong namespace.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/run/netns")
"""Where the program ``ip`` keeps namespaces by their names."""

_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class NetworkNamespace:
    """A namespace by its name in ``ip netns``; "" is the one this program is in."""

    name: str = ""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter it until the end of the block, in this thread."""
        if not self.name:
            yield
            return
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open(FOLDER / self.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _enter(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)

    def command(self, *words: str) -> tuple[str, ...]:
        """A command that runs there; the process stays the one that is started."""
        return ("ip", "netns", "exec", self.name, *words) if self.name else words


HOME = NetworkNamespace()


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
