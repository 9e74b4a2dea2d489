"""One real Ceph for all tests of this folder that run in one process.

`make e2e` installs Ceph's modules; where they are not, there is nothing here to collect.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tools.ceph.cluster import CephCluster

collect_ignore_glob = [] if find_spec("rados") else ["test_*.py"]


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephCluster]:
    """A cluster with an OSD in each of three zones, and a file system."""
    from tools.ceph.cluster import started

    with started(tmp_path_factory.mktemp("ceph"), files=True) as cluster:
        yield cluster
