"""Volumes of ``zonewise up`` survive a kill, with real mounts where that is allowed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cli.up_program import SHAPE, ask_api, nothing_left, running, until

from zonewise.csi.backends.folders import loops, mounts

pytestmark = pytest.mark.system


def pods(folder: Path) -> dict[str, Any]:
    """The pods of the demo's StatefulSet that are ready, by name."""
    answer = ask_api(folder, "GET", "/api/v1/namespaces/shop/pods")
    return {
        pod["metadata"]["name"]: pod
        for pod in answer["items"]
        if pod["metadata"]["labels"].get("app") == "orders"
        and "deletionTimestamp" not in pod["metadata"]
        and any(
            state["type"] == "Ready" and state["status"] == "True"
            for state in pod["status"].get("conditions", ())
        )
    }


def path(folder: Path, pod: Any) -> Path:
    """The path at which a pod has its volume."""
    node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
    (mount,) = folder.glob(f"**/{node}/**/pods/{uid}/volumes/*/*/mount")
    return mount


def marked(folder: Path, pod: Any) -> bool:
    """Whether a pod's volume has the marker."""
    return (path(folder, pod) / "marker").exists()


def zone(folder: Path, pod: Any) -> str:
    """The zone of a pod's node."""
    node = ask_api(folder, "GET", f"/api/v1/nodes/{pod['spec']['nodeName']}")
    return str(node["metadata"]["labels"]["topology.kubernetes.io/zone"])


@pytest.mark.timeout(600)
def test_what_a_kill_leaves_is_removed_by_the_next_cluster(tmp_path: Path) -> None:
    """The next cluster, in another folder, removes mounts and loop devices of a killed one."""
    killed, following = tmp_path / "killed", tmp_path / "following"

    def left() -> tuple[list[Path], list[Path]]:
        targets = (mount.target for mount in mounts.read_table())
        below = [target for target in targets if target.is_relative_to(killed)]
        return below, loops.find_below(killed)

    with nothing_left(killed), nothing_left(following):
        with running(killed, *SHAPE) as first:
            until(lambda: len(pods(killed)) == 3)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        assert all(left())
        with running(following, *SHAPE):
            assert left() == ([], [])


@pytest.mark.timeout(600)
def test_data_survives_a_kill_and_a_move_within_the_zone(tmp_path: Path) -> None:
    """Volumes are in the zones of their pods, with their data after kill -9 and a move."""
    folder = tmp_path / "cluster"
    with nothing_left(folder):
        with running(folder, *SHAPE) as first:
            until(lambda: len(pods(folder)) == 3)
            before = pods(folder)
            for name, pod in before.items():
                claim = ask_api(
                    folder, "GET", f"/api/v1/namespaces/shop/persistentvolumeclaims/data-{name}"
                )
                volume = ask_api(
                    folder, "GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}"
                )
                home, _ = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
                (needs,) = home["matchExpressions"]
                assert needs["values"] == [zone(folder, pod)]
                (path(folder, pod) / "marker").write_text(name)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        with running(folder) as second:
            until(lambda: len(pods(folder)) == 3)
            after = pods(folder)
            assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == {
                name: pod["metadata"]["uid"] for name, pod in before.items()
            }
            for name, pod in after.items():
                until(partial(marked, folder, pod))
                assert (path(folder, pod) / "marker").read_text() == name
            moving = after["orders-0"]
            node = f"/api/v1/nodes/{moving['spec']['nodeName']}"
            body = ask_api(folder, "GET", node)
            body["spec"]["unschedulable"] = True
            ask_api(folder, "PUT", node, json.dumps(body).encode())
            ask_api(folder, "DELETE", "/api/v1/namespaces/shop/pods/orders-0")

            def moved() -> bool:
                pod = pods(folder).get("orders-0")
                return pod is not None and pod["metadata"]["uid"] != moving["metadata"]["uid"]

            until(moved)
            there = pods(folder)["orders-0"]
            assert there["spec"]["nodeName"] != moving["spec"]["nodeName"]
            assert zone(folder, there) == zone(folder, moving)
            assert (path(folder, there) / "marker").read_text() == "orders-0"
            assert second.stop()[0] == 0
        assert not any((folder / "nodes").rglob("vol_data.json"))


@pytest.mark.timeout(600)
def test_a_start_that_is_refused_leaves_the_mounts_of_the_other(tmp_path: Path) -> None:
    """A second process on the same folder is refused, and volumes stay mounted."""
    folder = tmp_path / "cluster"
    with nothing_left(folder), running(folder, *SHAPE) as first:
        until(lambda: len(pods(folder)) == 3)
        volumes = [path(folder, pod) for pod in pods(folder).values()]
        for volume in volumes:
            (volume / "marker").touch()
        command = [sys.executable, "-m", "zonewise", "up", "--data", str(folder)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 2, second.stderr
        assert all((volume / "marker").exists() for volume in volumes)
        assert first.stop()[0] == 0
