"""One program of the control plane as a process: started, watched, stopped by its pid.

Components end by SIGKILL. Their state is either in a folder that is thrown away or in etcd's log,
which is made for that, so a graceful end would only cost seconds. Output goes to one log file per
component; its end is part of every error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.realkube.errors import RealKubeError, tail

POLL = 0.02


class Guard:
    """Our end of `guard.py`: the process group all components live in."""

    def __init__(self, *doomed: Path) -> None:
        script = Path(__file__).with_name("guard.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(os.getpid()), *map(str, doomed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            process_group=0,
        )
        self.group = self._process.pid

    def release(self) -> None:
        """Have the guard end what is left and remove the folder; return when it has."""
        with contextlib.suppress(BrokenPipeError):
            # Bytes, not only end-of-file: a forked child of ours may hold a copy of the pipe.
            self._process.communicate(b"end\n")
        self._process.wait()


class Port:
    """A free loopback port that stays reserved while its server does not listen, also in restarts.

    The socket is bound alone and then marked reusable: no other bind(0) or connect() is given this
    number, while a server that sets SO_REUSEADDR, as every Go program does, may listen on it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def __str__(self) -> str:
        return str(self.number)


class Component:
    """A program with fixed arguments; it may be started again after it was stopped."""

    def __init__(
        self, name: str, program: Path, arguments: Iterable[str], *, guard: Guard, folder: Path
    ) -> None:
        self.name = name
        self.command = [str(program), *arguments]
        self.log = folder / f"{name}.log"
        self._guard = guard
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The running process, for signals a test wants to send."""
        if self._process is None:
            raise RealKubeError(f"{self.name} is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; `wait` says when it serves."""
        if self.running:
            raise RealKubeError(f"{self.name} is running already.")
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                # Nothing of the caller's environment may change what a component does.
                env={"PATH": os.defpath, "HOME": str(self._folder)},
                process_group=self._guard.group,
            )

    def stop(self) -> None:
        """End the process and reap it; nothing happens if it is not there."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return when `ready()`; fail with the end of the log if the process ends or time is up."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise RealKubeError(f"{self.name} ended while starting:\n{tail(self.log)}")
            if time.monotonic() > deadline:
                raise RealKubeError(
                    f"{self.name} is not ready after {timeout:.0f} s:\n{tail(self.log)}"
                )
            time.sleep(POLL)
