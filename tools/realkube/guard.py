"""A process that ends all components of a control plane when its parent has ended.

Started before the first component, as the leader of a process group that every component joins
between fork and exec: there is no instant at which a component runs and the guard could miss it.
When the parent says so, or has ended in any way (kill -9 included), the guard kills, by pid,
everything that is still in the group and removes the folder. The parent's death is read from a
pidfd, not from a signal tied to the thread that forked.

Runs as a script with nothing but the standard library: `guard.py PARENT_PID [FOLDER]`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path


def members(group: int) -> list[int]:
    """The living processes of a group, this one not counted."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            # The program's name may hold spaces and brackets; the fields follow the last bracket.
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                pids.append(int(entry.name))
    return pids


def sweep(group: int) -> None:
    """Kill the group until it stays empty; a process just forked may join it late."""
    empty = 0
    while empty < 2:
        running = members(group)
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        empty = 0 if running else empty + 1
        time.sleep(0.01)


def wait_for_end(parent: int) -> None:
    """Return when the parent writes or closes our stdin, or does not exist any more."""
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    if os.getppid() == parent:
        select.select([watched, sys.stdin], [], [])


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    wait_for_end(int(sys.argv[1]))
    sweep(os.getpgrp())
    for folder in sys.argv[2:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
