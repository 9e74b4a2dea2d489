"""Takeover as it is installed: printed rights, a real API server, a real Ceph, programs.

What ``zonewise install --csi`` prints is applied, without the workloads: their programs run here,
with the arguments and the accounts that are printed for them. Instead of a kubelet the test copies
the ConfigMap to the drivers. Time is real.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.ceph.scene import parameters
from tests.ceph.waiting import UNSURE, settled
from tests.cli.run_program import Result, apart, environment
from tests.csi.scene import Caller, refused
from tests.csi.socket_client import SocketClient
from tools.ceph.cluster import CephCluster

from tools import realkube as real
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.timeout(600)]

DRIVER = "csi.zonewise.io"
NAMESPACE = "zonewise-system"
ZONE = "topology.kubernetes.io/zone"
KEY = f"topology.{DRIVER}/zone"
LABEL = f"topology.{DRIVER}/takeover.a"
NODES = {f"installed-{zone}": zone for zone in "abc"}
MARK = "csi.zonewise.io/automatic-takeover"
PATIENCE = 200.0


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until a look returns something true; returns that."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if answer := await look():
                return answer
            await asyncio.sleep(0.3)


def objects(ceph: CephCluster, folder: Path) -> list[dict[str, Any]]:
    """The printed manifests."""
    flags = ("--backend", "ceph-rbd", "--ceph-monitors", f"v2:{ceph.monitor}")
    done = apart(folder, "install", "--csi", *flags)
    assert (done.code, done.err) == (0, "")
    return [obj for obj in yaml.safe_load_all(done.out) if obj]


def surroundings() -> list[dict[str, Any]]:
    """Three nodes with a registered driver, and a class."""
    manifests: list[dict[str, Any]] = []
    for name, zone in NODES.items():
        labels = {ZONE: zone, KEY: zone}
        manifests += [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}},
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": {"name": name},
                "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": [KEY]}]},
            },
        ]
    return [
        *manifests,
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "installed"},
            "provisioner": DRIVER,
            "parameters": class_parameters(),
        },
    ]


def class_parameters() -> dict[str, str]:
    """A pool in each zone."""
    given = parameters()
    pools = json.loads(given["topologyConstrainedPools"])
    for pool in pools:
        pool["domainSegments"] = pool["domainSegments"][1:]
    return {**given, "topologyConstrainedPools": json.dumps(pools)}


class Scene:
    """The cluster, the programs, and the folder they share."""

    def __init__(self, plane: real.ControlPlane, ceph: CephCluster, folder: Path) -> None:
        self.plane = plane
        self.ceph = ceph
        self.folder = folder
        self.printed = objects(ceph, folder)
        self.programs: dict[str, subprocess.Popen[bytes]] = {}

    def kubectl(self, *words: str, given: list[dict[str, Any]] | None = None) -> str:
        """The real kubectl, as the administrator."""
        stdin = None if given is None else yaml.safe_dump_all(given)
        return self.plane.kubectl(*words, stdin=stdin, timeout=120).stdout

    @property
    def applied(self) -> list[dict[str, Any]]:
        """The printed manifests without workloads, which would need images."""
        return [obj for obj in self.printed if obj["kind"] not in ("Deployment", "DaemonSet")]

    async def map(self) -> dict[str, Any]:
        """The ConfigMap with the configuration."""
        text = await asyncio.to_thread(
            self.kubectl, "get", "configmap", "csi", "-n", NAMESPACE, "-o", "json"
        )
        config_map: dict[str, Any] = json.loads(text)
        return config_map

    async def bring(self) -> None:
        """Copy the ConfigMap to the drivers, forever; the path of the user's key is replaced."""
        while True:
            text = (await self.map())["data"]["config.json"]
            fresh = self.folder / "config.new"
            fresh.write_text(text.replace("/ceph/key", str(self.ceph.key_file)))
            fresh.rename(self.folder / "config.json")
            await asyncio.sleep(0.5)

    async def start(self, kind: str, node: str) -> Caller:
        """Run the driver of a printed workload, as its account; returns a caller."""
        (workload,) = [obj for obj in self.printed if obj["kind"] == kind]
        pod = workload["spec"]["template"]["spec"]
        account = pod["serviceAccountName"]
        token = await asyncio.to_thread(
            self.kubectl, "create", "token", account, "-n", NAMESPACE, "--duration", "2h"
        )
        (driver,) = [container for container in pod["containers"] if container["name"] == "driver"]
        socket = self.folder / f"{kind}.sock"
        overrides = {
            "--endpoint": f"unix://{socket}",
            "--node-id": node,
            "--config": str(self.folder / "config.json"),
            "--data": str(self.folder / f"data-{kind}"),
            "--metrics-listen": "127.0.0.1:0",
        }
        words = [argument.partition("=") for argument in driver["args"]]
        arguments = [f"{flag}{eq}{overrides.get(flag, value)}" for flag, eq, value in words]
        if "--takeover-controller" in arguments:
            arguments += ["--lease-namespace", NAMESPACE]
        kubeconfig = self.plane.kubeconfig_with_token(f"{account}", token.strip())
        self._run(kind, [*arguments, "--kubeconfig", str(kubeconfig), "-v"])
        caller = Caller(SocketClient(socket), self.folder)

        async def ready() -> bool:
            assert self.programs[kind].poll() is None, self.log(kind)
            with suppress(Exception):
                answer = await caller.client.call(methods.PROBE, csi.ProbeRequest())
                return bool(answer.ready.value)
            return False

        await until(ready)
        return caller

    def _run(self, kind: str, arguments: list[str]) -> None:
        with (self.folder / f"{kind}.log").open("ab") as log:
            self.programs[kind] = subprocess.Popen(
                [sys.executable, "-m", "zonewise", *arguments],
                env=environment(self.folder),
                stdout=log,
                stderr=log,
            )

    def end(self, kind: str) -> None:
        """Kill a program."""
        program = self.programs.pop(kind)
        program.kill()
        program.wait()

    def log(self, kind: str) -> str:
        """The log of a program."""
        return (self.folder / f"{kind}.log").read_text()

    async def takeover(self, *words: str) -> Result:
        """``zonewise takeover`` as the administrator."""
        return await asyncio.to_thread(
            apart, self.folder, "takeover", *words, "--kubeconfig", self.plane.kubeconfig
        )

    async def labelled(self) -> set[str]:
        """The nodes that stand in for a."""
        text = await asyncio.to_thread(self.kubectl, "get", "nodes", "-l", LABEL, "-o", "name")
        return {name.removeprefix("node/") for name in text.split()}


@asynccontextmanager
async def scene(plane: real.ControlPlane, ceph: CephCluster, folder: Path) -> AsyncIterator[Scene]:
    """Apply the printed manifests, and delete them at the end."""
    some = Scene(plane, ceph, folder)
    given = [*some.applied, *surroundings()]
    await asyncio.to_thread(some.kubectl, "apply", "-f", "-", given=given)
    bringing = asyncio.create_task(some.bring())
    try:
        yield some
        assert not bringing.done()
    finally:
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)
        for kind in [*some.programs]:
            some.end(kind)
        await asyncio.to_thread(
            some.kubectl, "delete", "--ignore-not-found", "-f", "-", given=given
        )


async def test_manual_and_automatic_takeover(
    realkube: real.ControlPlane, ceph: CephCluster, tmp_path: Path
) -> None:
    """Set, status and clear work with the printed rights; a lost zone is taken and given back."""
    async with scene(realkube, ceph, tmp_path) as some:
        await until(lambda: asyncio.to_thread((tmp_path / "config.json").exists))
        controller = await some.start("Deployment", "installed-c")
        node = await some.start("DaemonSet", "installed-b")
        info = await node.client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
        assert dict(info.accessible_topology.segments) == {KEY: "b"}

        status = await some.takeover("status", "-o", "json")
        assert (status.code, json.loads(status.out)) == (0, {"takeover": {}, "error": ""})
        done = await some.takeover("set", "a", "--by", "b", "-o", "json")
        assert (done.code, done.err) == (0, ""), done
        assert json.loads(done.out) == {"takeover": {"a": ["b"]}, "error": ""}

        async def standing_in() -> bool:
            return await some.labelled() == {"installed-b"}

        await until(standing_in)
        refusal = await some.takeover("set", "b", "--by", "a")
        assert (refusal.code, "was not changed" in refusal.sentence()) == (1, True)
        done = await some.takeover("clear", "a")
        assert (done.code, done.out) == (0, "a is given back; new pods start at home\n")

        async def given_back() -> bool:
            return not await some.labelled()

        await until(given_back)

        # Automatically: an OSD does not answer for longer than the pause.
        volume = await settled(lambda: _volume_in_a(controller))
        value = json.loads((await some.map())["data"]["config.json"])
        value["automatic-takeover"] = {"by": ["all"], "pause": "30s"}
        patch = json.dumps({"data": {"config.json": json.dumps(value)}})
        await asyncio.to_thread(
            some.kubectl, "patch", "configmap", "csi", "-n", NAMESPACE, "-p", patch
        )
        ceph.signal("osd.0", signal.SIGSTOP)
        try:
            await asyncio.to_thread(ceph.wait, "OSDs", lambda: ceph.up() == 2)

            async def taken() -> bool:
                return await some.labelled() == {"installed-b", "installed-c"}

            await until(taken)
            config_map = await some.map()
            assert config_map["metadata"]["annotations"][MARK] == "a"
            written = json.loads(config_map["data"]["config.json"])
            assert written["topology-takeover"] == {"a": ["all"]}
            assert written["clusters"] == value["clusters"]

            async def warned() -> set[str]:
                reported = json.loads((await some.takeover("status", "-o", "json")).out)
                return {
                    warning["object"]
                    for warning in reported.get("warnings", ())
                    if warning["reason"] == "TakenPoolDead"
                }

            # Only the class names the pool; only the controller knows that it is dead.
            assert await until(warned) == {"Pool/rbd-a"}
            assert await refused(node.stage(volume)) in UNSURE
            # A node plugin that restarts meanwhile reports the same.
            some.end("DaemonSet")
            node = await some.start("DaemonSet", "installed-b")
            again = await node.client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
            assert again == info
        finally:
            ceph.signal("osd.0", signal.SIGCONT)
            await asyncio.to_thread(ceph.wait, "OSDs", lambda: ceph.up() == 3)
        # It is given back when it was up for the whole pause.
        assert await some.labelled() == {"installed-b", "installed-c"}
        await until(given_back)
        config_map = await some.map()
        assert MARK not in config_map["metadata"]["annotations"]
        assert json.loads(config_map["data"]["config.json"]).get("topology-takeover", {}) == {}
        await settled(lambda: controller.delete(volume))
        events = await asyncio.to_thread(some.kubectl, "get", "events", "-A", "-o", "json")
        reasons = {event["reason"] for event in json.loads(events)["items"]}
        assert {"TakeoverBegins", "TakeoverEnds"} <= reasons
        assert {"TakenOverAutomatically", "GivenBackAutomatically"} <= reasons
        for kind in ("Deployment", "DaemonSet"):
            assert "forbidden" not in some.log(kind).lower()


async def _volume_in_a(caller: Caller) -> str:
    """Create a volume that belongs to zone a."""
    topology = csi.TopologyRequirement(requisite=[csi.Topology(segments={KEY: "a"})])
    volume = await caller.create("installed-1", topology=topology, parameters=class_parameters())
    return volume.volume_id
