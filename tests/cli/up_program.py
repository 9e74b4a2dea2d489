"""``zonewise up`` in a process of its own, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.run_program import environment

from zonewise.csi.backends.folders import loops, mounts
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

PATIENCE = 90.0
SHAPE = ("--zones", "left,right", "--nodes-per-zone", "2", "--cpu", "4", "--pod-start", "10ms")


@dataclass(frozen=True)
class Running:
    """A running cluster, and the page that it printed."""

    process: subprocess.Popen[str]
    folder: Path
    page: str

    def stop(self) -> tuple[int, str]:
        """End it with Ctrl-C; gives its exit code and its last output."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Running]:
    """``zonewise up`` on a folder, once it has printed its page."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zonewise", "up", "--data", str(folder), *flags],
        env=environment(folder.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        yield Running(process, folder, "".join(lines))
    finally:
        if process.poll() is None:
            # Killed, it would leave its volumes mounted.
            process.terminate()
        process.communicate()


def ask_api(folder: Path, method: str, path: str, body: bytes | None = None) -> Any:
    """The JSON that the API server of a running cluster answers."""

    async def ask() -> Any:
        async with Client(HttpsTransport(load_config(str(folder / "kubeconfig")))) as client:
            headers = {"Content-Type": "application/json"}
            return (await client.raw(method, path, body=body, headers=headers)).json()

    return asyncio.run(ask())


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Unmount what a failed test left below a folder; assert that there was nothing."""
    try:
        yield
    finally:
        targets = (mount.target for mount in mounts.read_table())
        left = [target for target in targets if target.is_relative_to(folder)]
        for target in reversed(left):
            mounts.unmount(target)
        for image in (folder / "csi" / "pools").rglob("*.img"):
            for device in loops.find(image):
                loops.detach(device)
    assert not left


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
