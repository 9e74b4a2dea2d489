"""``zonewise csi --takeover-controller`` as it is installed: two drivers, one leads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.run_program import apart, environment
from tests.cli.up_program import ask_api, running, until

pytestmark = pytest.mark.system

ZONE = "topology.kubernetes.io/zone"
LABEL = "topology.csi.zonewise.io/takeover.a"
POOL = {
    "poolName": "pool-a",
    "capacity": "1Gi",
    "domainSegments": [{"domainLabel": "zone", "value": "a"}],
}


def start_driver(folder: Path, tmp: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a driver for an API server; its configuration is behind a symbolic link."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "zonewise", "csi", "--node-id", "a-1", "--data", tmp / name),
            *("--endpoint", f"unix://{tmp}/{name}.sock", "--domain-labels", ZONE),
            *("--config", tmp / "config" / "config.json", "--takeover-controller"),
            *("--lease-namespace", "default", "--kubeconfig", folder / "kubeconfig"),
        ],
        env=environment(tmp),
    )


def swap(tmp: Path, number: int, text: str) -> None:
    """Replace the configuration as a kubelet does: by a new symbolic link."""
    (tmp / f"state-{number}").mkdir()
    (tmp / f"state-{number}" / "config.json").write_text(text)
    link = tmp / "link"
    link.symlink_to(tmp / f"state-{number}")
    link.rename(tmp / "config")


def text(**takeover: list[str]) -> str:
    """A configuration."""
    return json.dumps({"version": 2, "pools": [POOL], "topology-takeover": takeover})


def find_labelled(folder: Path) -> set[str]:
    """The nodes that stand in for a."""
    return {
        node["metadata"]["name"]
        for node in ask_api(folder, "GET", "/api/v1/nodes")["items"]
        if LABEL in node["metadata"]["labels"]
    }


@pytest.mark.timeout(300)
def test_labels_follow_the_file_and_a_killed_leader_is_replaced(tmp_path: Path) -> None:
    """A replaced link is read, a bad or missing file changes nothing, another driver takes over."""
    folder = tmp_path / "cluster"
    swap(tmp_path, 0, text())
    with running(folder, "--api-only"):
        for zone in "abc":
            body: Any = {"metadata": {"name": f"{zone}-1", "labels": {ZONE: zone}}}
            ask_api(folder, "POST", "/api/v1/nodes", json.dumps(body).encode())
        drivers = [start_driver(folder, tmp_path, name) for name in ("one", "two")]
        lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        try:
            until(lambda: bool(ask_api(folder, "GET", lease)["items"]))
            swap(tmp_path, 1, text(a=["b"]))
            until(lambda: find_labelled(folder) == {"b-1"})
            swap(tmp_path, 2, text(a=["a"]))

            def is_reported() -> bool:
                path = "/api/v1/namespaces/default/configmaps"
                config_map = ask_api(folder, "GET", f"{path}/csi-takeover")
                status = json.loads(config_map["data"]["status.json"])
                return bool(status["error"] and status["takeover"] == {"a": ["b"]})

            until(is_reported)
            assert find_labelled(folder) == {"b-1"}
            swap(tmp_path, 3, text(a=["all"]))
            until(lambda: find_labelled(folder) == {"b-1", "c-1"})
            drivers[0].kill()
            drivers[0].wait()
            swap(tmp_path, 4, text())
            until(lambda: not find_labelled(folder))
        finally:
            for process in drivers:
                process.terminate()
                process.wait()


@pytest.mark.parametrize(
    "flags",
    [
        ("--takeover-controller",),
        ("--takeover-controller", "--orchestrator", "none", "--domain-labels", ZONE),
        ("--advertise-takeover",),
    ],
)
def test_bad_flags(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Flags that lack another one are exit code 2 and a sentence."""
    (tmp_path / "config.json").write_text(text())
    refused = apart(
        tmp_path,
        *("csi", "--node-id", "n", "--endpoint", f"unix://{tmp_path}/s"),
        *("--config", f"{tmp_path}/config.json", *flags),
    )
    assert refused.code == 2
    assert "--domain-labels" in refused.err
