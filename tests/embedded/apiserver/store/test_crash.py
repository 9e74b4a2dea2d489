"""Crashes: what was acknowledged survives ``kill -9``, and is synced before it is acknowledged."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.embedded.apiserver.objects import KIND
from tests.embedded.apiserver.store.folders import copy

from zonewise.embedded.apiserver.store.log import Log
from zonewise.embedded.apiserver.store.state import State

pytestmark = pytest.mark.system

ROUNDS = 8
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def writer(
    folder: Path, *, since: int, writers: int = 4, rounds: int = 0, history: int = 10_000
) -> list[str]:
    """The command of the program that writes."""
    numbers = [str(number) for number in (writers, since, rounds, history)]
    return [sys.executable, "-m", "tests.embedded.apiserver.store.writer", str(folder), *numbers]


def killed(command: list[str], lines: int) -> list[list[str]]:
    """Run the program, kill it after a number of lines, and return its output."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as program:
        assert program.stdout is not None
        output = [program.stdout.readline() for _ in range(lines)]
        program.kill()
        output += program.stdout.readlines()
    assert output[lines - 1], "it ended by itself"
    return [line.decode().split() for line in output if line.endswith(b"\n")]


@pytest.mark.parametrize("history", [10_000, 100], ids=["growing", "compacted"])
def test_nothing_acknowledged_is_lost_to_kill(tmp_path: Path, history: int) -> None:
    """When a program is killed again and again under four writers, no write is lost, no version is
    used twice, and a watcher that resumes where it was sees every event once.
    """
    rng = random.Random(4)
    folder = tmp_path / "data"
    acknowledged: dict[str, tuple[int, str]] = {}
    versions: list[int] = []
    seen: list[int] = []
    for _ in range(ROUNDS):
        newest = max(versions, default=1)
        command = writer(folder, since=seen[-1] if seen else 1, history=history)
        output = killed(command, rng.randrange(20, 800))
        now = []
        for what, *rest in output:
            if what == "saw":
                seen.append(int(rest[0]))
            else:
                acknowledged[rest[0]] = (int(rest[1]), rest[2])
                now.append(int(rest[1]))
        assert len(set(now)) == len(now)
        assert all(rv > newest for rv in now)
        versions += now
        log, contents = Log.open(copy(folder, tmp_path / "copy"))
        state = State(log, contents, clock=time.monotonic)
        for name, (rv, value) in acknowledged.items():
            entry = state.get(KIND, "default", name)
            assert entry is not None, f"{name} is lost"
            assert entry.rv >= rv, f"{name} went back from {rv} to {entry.rv}"
            if entry.rv == rv:
                assert msgspec.json.decode(entry.raw)["data"] == {"v": value}
        assert state.visible_rv >= max(versions + seen)
        log.close(state.visible_rv)
    done = subprocess.run(
        writer(folder, since=seen[-1], rounds=1, history=history),
        capture_output=True,
        env=ENVIRONMENT,
        check=True,
    )
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    seen += [int(rest[0]) for what, *rest in lines if what == "saw"]
    log, contents = Log.open(folder)
    log.close(contents.rv)
    assert (contents.floor > 1) == (history == 100)
    # Every version is an event of the one kind that is watched, from the first on.
    assert seen == list(range(2, contents.rv + 1)), "a gap or a repeat"


def test_a_write_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    """By strace: the log's fdatasync returns before the program prints the acknowledgement."""
    trace = tmp_path / "trace"
    watched = ["strace", "-f", "-y", "-e", "trace=fdatasync,pwrite64,write", "-o", str(trace)]
    subprocess.run(
        [*watched, *writer(tmp_path / "data", since=1, writers=1, rounds=30)],
        stdout=subprocess.DEVNULL,
        env=ENVIRONMENT,
        check=True,
    )
    acknowledged = 0
    written = synced = False
    begun: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[thread] = call
            if not call.startswith("write"):  # a write counts from its beginning, a sync at its end
                continue
        elif "resumed>" in call:
            call = begun.pop(thread) + call
            if call.startswith("write"):
                continue
        if call.startswith("pwrite64") and "state.db-wal>" in call:
            written, synced = True, False
        elif call.startswith("fdatasync") and "state.db-wal>" in call and call.endswith("= 0"):
            synced = written
        elif re.match(r'write\(1<[^>]*>, "ack', call):
            assert written, "acknowledged without being written"
            assert synced, "acknowledged before it was synced"
            written = synced = False
            acknowledged += 1
    assert acknowledged == 30
