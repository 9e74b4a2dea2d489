"""One real Ceph for all tests of this folder that run in one process.

`make e2e` installs Ceph's Python modules; without them no test is collected here.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zonewise.csi.backends.folders import mounts

if TYPE_CHECKING:
    from tools.ceph.cluster import CephCluster

collect_ignore_glob = [] if find_spec("rados") else ["test_*.py"]


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephCluster]:
    """A cluster with an OSD in each of three zones, and a file system."""
    from tools.ceph.cluster import started

    with started(tmp_path_factory.mktemp("ceph"), files=True) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def let_go(tmp_path: Path) -> Iterator[None]:
    """End the FUSE clients that a failed test left; a test that passes leaves none.

    A client whose cluster is gone never answers, and every user of loop devices on this machine
    waits for it: a single failure would block all other tests.
    """
    yield
    below = f"{tmp_path}/"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            if program.endswith(b"-fuse") and any(
                os.fsencode(below) in argument for argument in arguments
            ):
                os.kill(int(process.name), signal.SIGKILL)
    for mount in reversed(mounts.read_table()):
        if str(mount.target).startswith(below):
            subprocess.run(["umount", "--lazy", mount.target], check=False)
