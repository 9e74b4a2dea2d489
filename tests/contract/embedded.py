"""An embedded cluster as a process of its own, for tests that use it only over HTTPS."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY_SECONDS = 60.0
STOP_SECONDS = 20.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextmanager
def embedded(*flags: str, content: str = "--api-only") -> Iterator[Path]:
    """A fresh cluster; gives its kubeconfig, stops it by its pid and leaves nothing.

    ``content`` says what is in it: by default the API server alone.
    """
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as name:
        folder = Path(name)
        process = subprocess.Popen(
            [sys.executable, "-m", "zonewise", "up", content, "--data", name, *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            kubeconfig = folder / "kubeconfig"
            deadline = time.monotonic() + READY_SECONDS
            while not kubeconfig.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise AssertionError(process.communicate()[1].decode())
                time.sleep(0.02)
            yield kubeconfig
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise
