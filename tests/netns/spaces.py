"""Network namespaces: made, entered and removed by name.

A thread can be in another namespace for a moment. Sockets and processes that are made there stay
there, so one event loop can be server and client in every namespace of a laboratory.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Be in a namespace until the end of the block, in this thread."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        _enter(there)
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(there)
        os.close(home)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def ip(commands: Sequence[str], *, name: str = "") -> None:
    """Run commands of ``ip``, all at once."""
    where = ["-n", name] if name else []
    subprocess.run(["ip", *where, "-batch", "-"], input="\n".join(commands), text=True, check=True)


@contextmanager
def space(name: str) -> Iterator[str]:
    """A namespace for the length of a block, with its loopback up."""
    ip([f"netns add {name}"])
    try:
        ip(["link set lo up"], name=name)
        yield name
    finally:
        remove([name])


def remove(names: Sequence[str]) -> None:
    """Take namespaces away, and with them everything that is in them."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def sysctl(name: str, values: dict[str, str]) -> None:
    """Set network sysctls of a namespace."""
    with inside(name):
        for path, value in values.items():
            Path("/proc/sys/net", path).write_text(value)


def nft(name: str, *words: str, script: str | None = None) -> str:
    """Run ``nft`` in a namespace; returns its output."""
    with inside(name):
        done = subprocess.run(
            ["nft", *words], check=True, capture_output=True, text=True, input=script
        )
    return done.stdout
