"""The kernel's dead man's switch, on child processes that are stopped and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zonewise.runtime.election.deadman import EXIT_CODE
from zonewise.runtime.election.election import boottime

pytestmark = pytest.mark.system

PROGRAM = """
import os, signal, sys, threading
from zonewise.runtime.election.deadman import Deadman
from zonewise.runtime.election.election import boottime

mark, how = sys.argv[1:]
switch = Deadman()
threading.Thread(target=threading.Event().wait, daemon=True).start()
if how == "stopped":
    switch.arm(boottime() + 0.5)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.mkdir(mark)
elif how == "busy":
    switch.arm(boottime() + 0.2)
    sum(range(10**12))
elif how == "renewed":
    for _ in range(5):
        switch.arm(boottime() + 60)
    switch.arm(boottime() + 0.2)
    switch.arm(boottime() + 60)
    import time; time.sleep(0.4)
    os.mkdir(mark)
elif how == "disarmed":
    switch.arm(boottime() + 0.1)
    switch.disarm()
    switch.disarm()
    import time; time.sleep(0.3)
    os.mkdir(mark)
elif how == "late":
    switch.arm(boottime() - 1)
    os.mkdir(mark)
"""


def _start(mark: Path, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(mark), how])


def _until_stopped(pid: int) -> None:
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status


def test_a_stopped_process_executes_nothing_after_the_deadline(tmp_path: Path) -> None:
    """A process that was stopped over its deadline is gone before its next instruction."""
    mark = tmp_path / "ran"
    child = _start(mark, "stopped")
    _until_stopped(child.pid)
    end = boottime() + 0.6
    while boottime() < end:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGCONT)
    assert child.wait(30) == EXIT_CODE
    assert not mark.exists()


def test_a_busy_interpreter_is_ended_too(tmp_path: Path) -> None:
    """A process that is inside a long C call does not survive its deadline."""
    assert _start(tmp_path / "ran", "busy").wait(30) == EXIT_CODE


def test_arming_again_moves_the_deadline(tmp_path: Path) -> None:
    """If a switch is armed again only the last deadline counts."""
    mark = tmp_path / "ran"
    assert _start(mark, "renewed").wait(30) == 0
    assert mark.exists()


def test_disarmed_means_nothing_happens(tmp_path: Path) -> None:
    """After disarming, also twice, the process lives on."""
    mark = tmp_path / "ran"
    assert _start(mark, "disarmed").wait(30) == 0
    assert mark.exists()


def test_a_deadline_that_has_passed_ends_the_process_at_once(tmp_path: Path) -> None:
    """Arming with a past deadline ends the process."""
    mark = tmp_path / "ran"
    assert _start(mark, "late").wait(30) == EXIT_CODE
    assert not mark.exists()
