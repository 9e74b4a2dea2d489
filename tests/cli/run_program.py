"""Run the program in this process, or in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from zonewise.cli.main import main

LIMIT = 90


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a run."""

    code: int
    out: str
    err: str

    def sentence(self) -> str:
        """The only sentence on stderr; it must say what to do."""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        assert "; " in lines[0], f"does not say what to do: {lines[0]}"
        assert lines[0].isprintable()
        assert len(lines[0]) < 600
        return lines[0]


def environment(home: Path) -> dict[str, str]:
    """An environment without a cluster, a proxy or other settings of the machine."""
    names = ("PATH", "LANG", "SYSTEMROOT", "VIRTUAL_ENV")
    return {**{name: os.environ[name] for name in names if name in os.environ}, "HOME": str(home)}


def here(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Result:
    """Run the program in this process."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)


def apart(home: Path, *arguments: str | Path, program: list[str] | None = None) -> Result:
    """Run the program in a process of its own."""
    done = subprocess.run(
        [*(program or [sys.executable, "-m", "zonewise"]), *map(str, arguments)],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)
