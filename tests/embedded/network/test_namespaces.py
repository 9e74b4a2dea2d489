"""Network namespaces of a cluster are named, recorded, and removed by the next cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.netns.spaces import ip, remove

from zonewise.api.errors import ConfigError
from zonewise.embedded.network import namespaces
from zonewise.embedded.network.namespaces import ClusterNamespaces, remove_stale_namespaces
from zonewise.proxy.netlink.namespace import FOLDER as NAMESPACES

KILLED = """
import os, sys
from pathlib import Path
from zonewise.embedded.network import namespaces
namespaces.RECORDS = Path(sys.argv[1])
namespaces._PREFIX = sys.argv[2]
claimed = namespaces.ClusterNamespaces.claim()
claimed.add([claimed.node("a-1"), claimed.node("b-1")])
print(claimed.fabric.name, flush=True)
os.kill(os.getpid(), 9)
"""


def spaces(prefix: str) -> set[str]:
    return {path.name for path in NAMESPACES.iterdir() if path.name.startswith(prefix)}


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix for names, and a folder for records."""
    own_prefix = f"zwi{os.getpid()}"
    monkeypatch.setattr(namespaces, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(namespaces, "_PREFIX", own_prefix)
    return own_prefix


@pytest.mark.system
def test_a_cluster_removes_its_namespaces(prefix: str) -> None:
    """A cluster that ends leaves neither namespaces nor a record."""
    claimed = ClusterNamespaces.claim()
    claimed.add([claimed.node("a-1")])
    assert spaces(prefix) == {prefix, f"{prefix}-a-1"}
    claimed.close()
    assert spaces(prefix) == set()
    assert list(namespaces.RECORDS.iterdir()) == []


@pytest.mark.system
def test_two_clusters_are_separate(prefix: str) -> None:
    """A second cluster has its own names, and the end of one does not affect the other."""
    first, second = ClusterNamespaces.claim(), ClusterNamespaces.claim()
    try:
        first.add([first.node("a-1")])
        second.add([second.node("a-1")])
        remove_stale_namespaces()
        first.close()
        assert spaces(prefix) == {f"{prefix}2", f"{prefix}2-a-1"}
    finally:
        second.close()
    assert spaces(prefix) == set()


@pytest.mark.system
def test_a_killed_program_is_cleaned_up_after(prefix: str) -> None:
    """After kill -9 the namespaces remain, and the next start removes them and uses their name."""
    words = [sys.executable, "-c", KILLED, str(namespaces.RECORDS), prefix]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert spaces(prefix) == {prefix, f"{prefix}-a-1", f"{prefix}-b-1"}
    claimed = ClusterNamespaces.claim()
    assert claimed.fabric.name == prefix
    assert spaces(prefix) == {prefix}
    claimed.close()


@pytest.mark.system
def test_namespaces_of_others_are_left_alone(prefix: str) -> None:
    """A foreign namespace with our prefix is not changed; another prefix is used."""
    ip([f"netns add {prefix}-mine"])
    try:
        claimed = ClusterNamespaces.claim()
        assert claimed.fabric.name == f"{prefix}2"
        claimed.close()
        assert spaces(prefix) == {f"{prefix}-mine"}
    finally:
        remove([f"{prefix}-mine"])


@pytest.mark.system
def test_a_long_node_name_is_cut(prefix: str) -> None:
    """Names at the limit of file names are cut and stay different."""
    claimed = ClusterNamespaces.claim()
    try:
        long = [claimed.node("n" * 252 + suffix) for suffix in "ab"]
        claimed.add(long)
        assert len(spaces(prefix)) == 3
    finally:
        claimed.close()


def test_missing_requirements_are_one_sentence(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root, or without a program, there is an error and no namespace."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="need root"):
        ClusterNamespaces.claim()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="there is no program ip; install iproute2"):
        ClusterNamespaces.claim()
    assert not namespaces.RECORDS.exists()
