"""The real control plane itself: it starts, has the pinned version, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.realkube.guard import members

from tools import realkube as real

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "lonely"},
    "spec": {"containers": [{"name": "main", "image": "example.invalid/none"}]},
}
ORPHAN = """
import sys
from tools import realkube
plane = realkube.start(realkube.LIGHT)
print(plane.folder, *(component.pid for component in plane.components), flush=True)
sys.stdin.read()
"""


def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_kubectl_and_server_are_the_pinned_version(realkube: real.ControlPlane) -> None:
    """kubectl reports v1.36.4 for itself and for the server, with major and minor set."""
    versions = json.loads(realkube.kubectl("version", "-o", "json").stdout)
    for side in ("clientVersion", "serverVersion"):
        assert versions[side]["gitVersion"] == real.VERSION == "v1.36.4"
        assert (versions[side]["major"], versions[side]["minor"]) == ("1", "36")


def test_everything_listens_on_loopback_only(realkube: real.ControlPlane) -> None:
    """No component accepts a connection from another machine."""
    inodes = {
        str(link.readlink())[len("socket:[") : -1]
        for component in realkube.components
        for link in Path(f"/proc/{component.pid}/fd").iterdir()
        if str(link.readlink()).startswith("socket:")
    }
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.add(fields[1].partition(":")[0])
    assert listening == {"0100007F"}


def test_the_namespace_default_is_ready_for_pods(realkube: real.ControlPlane) -> None:
    """When the control plane is said to be up, a pod can be created at once."""
    status, body = realkube.request("POST", "/api/v1/namespaces/default/pods", POD)
    assert status == 201, body
    realkube.kubectl("delete", "pod", "lonely", "--force")


def test_a_user_without_a_role_may_do_nothing(realkube: real.ControlPlane) -> None:
    """RBAC is on: a certificate alone grants nothing, a binding grants what it says."""
    config = realkube.kubeconfig_for("ann", ["readers"])
    ask = ("auth", "can-i", "list", "nodes")
    assert realkube.kubectl(*ask, kubeconfig=config, check=False).stdout == "no\n"
    realkube.kubectl("create", "clusterrole", "readers", "--verb=list", "--resource=nodes")
    binding = ("create", "clusterrolebinding", "readers", "--clusterrole=readers")
    realkube.kubectl(*binding, "--group=readers")
    until(lambda: realkube.kubectl(*ask, kubeconfig=config, check=False).stdout == "yes\n")


def test_the_light_variant_takes_pods_and_touches_nothing(realapi: real.ControlPlane) -> None:
    """etcd and API server alone accept a pod without a service account; it is not scheduled."""
    assert [component.name for component in realapi.components] == ["etcd", "kube-apiserver"]
    status, body = realapi.request("POST", "/api/v1/namespaces/default/pods", POD)
    assert status == 201, body
    pod = json.loads(body)
    assert "nodeName" not in pod["spec"]
    assert pod["metadata"]["namespace"] == "default"


def test_tokens_audit_and_own_arguments(real_binaries: real.Binaries, tmp_path: Path) -> None:
    """Static tokens authenticate, the audit log has each request, extra flags are used."""
    settings = real.Settings(
        controllers=(),
        scheduler=False,
        fsync=False,
        tokens=(real.Token("s3cret", "carol", ("system:masters", "others")),),
        audit=({"level": "None", "nonResourceURLs": ["/*"]}, {"level": "RequestResponse"}),
        apiserver_args=("--event-ttl=17m", "--authorization-mode=RBAC"),
    )
    with real.start(settings, folder=tmp_path / "plane", binaries=real_binaries) as plane:
        config = plane.kubeconfig_with_token("carol", "s3cret")
        plane.kubectl("create", "configmap", "note", "--from-literal=a=b", kubeconfig=config)
        until(lambda: any(event["verb"] == "create" for event in mine(plane)))
        (created,) = [event for event in mine(plane) if event["verb"] == "create"]
        assert created["responseObject"]["data"] == {"a": "b"}
        assert created["responseStatus"]["code"] == 201
        assert set(created["user"]["groups"]) >= {"system:masters", "others"}
        flags = Path(f"/proc/{plane.apiserver.pid}/cmdline").read_text().split("\0")
        assert "--event-ttl=17m" in flags
        assert "--authorization-mode=Node,RBAC" not in flags


def mine(plane: real.ControlPlane) -> list[dict[str, Any]]:
    return [event for event in plane.audited() if event["user"]["username"] == "carol"]


def test_the_api_server_comes_back_where_it_was(realapi: real.ControlPlane) -> None:
    """After kill -9 and a restart the same address serves the same objects."""
    realapi.kubectl("create", "namespace", "lasting")
    os.kill(realapi.apiserver.pid, signal.SIGKILL)
    until(lambda: not realapi.apiserver.running)
    with pytest.raises(real.RealKubeError, match="kube-apiserver has ended"):
        realapi.check()
    realapi.restart_apiserver()
    realapi.check()
    assert "lasting" in realapi.kubectl("get", "namespaces", "-o", "name").stdout


def test_stop_leaves_no_process_and_no_folder(real_binaries: real.Binaries) -> None:
    """After stop there is neither process nor folder, and a second stop does nothing."""
    plane = real.start(real.FULL, binaries=real_binaries)
    group = os.getpgid(plane.etcd.pid)
    assert len(members(group)) == 5
    folder = plane.folder
    assert folder.stat().st_mode & 0o077 == 0
    assert plane.kubeconfig.stat().st_mode & 0o077 == 0
    plane.stop()
    plane.stop()
    assert members(group) == []
    assert not folder.exists()


def test_kept_folders_keep_logs_and_data(real_binaries: real.Binaries, tmp_path: Path) -> None:
    """With `keep` the folder stays for inspection, and cannot be used again."""
    folder = tmp_path / "kept"
    with real.start(real.LIGHT, folder=folder, keep=True, binaries=real_binaries) as plane:
        log = plane.apiserver.log
    assert "Serving securely" in log.read_text()
    with pytest.raises(real.RealKubeError, match="is not empty"):
        real.start(real.LIGHT, folder=folder, binaries=real_binaries)


def test_a_failed_start_shows_the_log_and_leaves_nothing(
    real_binaries: real.Binaries, tmp_path: Path
) -> None:
    """An unknown flag of the API server ends the start with its own message."""
    settings = real.Settings(apiserver_args=("--no-such-flag",))
    folder = tmp_path / "plane"
    with pytest.raises(real.RealKubeError) as caught:
        real.start(settings, folder=folder, binaries=real_binaries)
    assert str(caught.value).startswith("kube-apiserver ended while starting:\n")
    assert "unknown flag: --no-such-flag" in str(caught.value)
    assert not folder.exists()


def test_nothing_survives_a_killed_parent(real_binaries: real.Binaries) -> None:
    """kill -9 of the process that started a control plane ends all of it and its folder."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as parent:
        assert parent.stdout is not None
        folder, *pids = parent.stdout.readline().split()
        assert len(pids) == 2
        assert all(running(int(pid)) for pid in pids)
        parent.kill()
    until(lambda: not any(running(int(pid)) for pid in pids))
    until(lambda: not Path(folder).exists())


def test_a_second_build_builds_nothing(real_binaries: real.Binaries, tmp_path: Path) -> None:
    """With everything built, `build` needs neither Go nor network and writes nothing."""
    before = {path.name: path.stat().st_mtime_ns for path in real_binaries.folder.iterdir()}
    done = subprocess.run(
        [sys.executable, "-m", "tools.realkube", "build"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PATH": str(tmp_path), "GOPROXY": "off", "GOFLAGS": "-mod=mod"},
    )
    assert done.stdout == f"Kubernetes {real.VERSION} is here: {real_binaries.folder}\n"
    assert done.stderr == ""
    after = {path.name: path.stat().st_mtime_ns for path in real_binaries.folder.iterdir()}
    assert after == before


def test_up_runs_until_it_is_told_to_end(real_binaries: real.Binaries, tmp_path: Path) -> None:
    """`up DIR` prints how to reach a cluster with nodes; SIGTERM ends it and removes DIR."""
    folder = tmp_path / "byhand"
    with subprocess.Popen(
        [sys.executable, "-m", "tools.realkube", "up", str(folder), "--light", "--nodes=3"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[1] == f"  export KUBECONFIG={folder}/kubeconfig\n"
        kubectl = [*lines[2].split()[:2], "nodes", "-L", "topology.kubernetes.io/zone"]
        answer = subprocess.run(
            kubectl,
            env={"KUBECONFIG": f"{folder}/kubeconfig", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        rows = [line.split() for line in answer.stdout.splitlines()[1:]]
        assert [(row[0], row[1], row[-1]) for row in rows] == [
            (f"node-{number}", "Ready", zone) for number, zone in enumerate("abc")
        ]
        process.terminate()
        assert process.wait(30) == 0
    assert not folder.exists()
