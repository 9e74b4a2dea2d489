"""The CSI driver on a real cluster as ``install --csi`` prints it, with the official sidecars.

Everything that is printed is applied, the workloads too: the cluster makes and schedules their
pods, and the simulated kubelets say that they run. What a container runtime would start runs here
as processes: one pod of the Deployment with all its containers, and the driver of a node. Each has
the printed arguments and environment, and a token of its pod's account, bound to that pod. Only
paths and addresses differ, and the kubeconfig: a pod finds its server by its environment.

The snapshot controller, which is the cluster's and not the driver's, runs with its own manifest.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.cli.run_program import apart, environment
from tests.csi.scene import Caller
from tests.csi.socket_client import SocketClient
from tools.realkube.kubelet import FakeKubelet, nodes_in
from tools.sidecars.binary import DEFINITIONS, RIGHTS

from tools import realkube as real
from zonewise.api.errors import NotFound
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

Obj = dict[str, Any]

DRIVER = "csi.zonewise.io"
NAMESPACE = "zonewise-system"
CONTROLLER, NODE = "zonewise-csi", "zonewise-csi-node"
KEY = f"topology.{DRIVER}/zone"
ZONES = "abc"
ACCOUNTS = f"system:serviceaccount:{NAMESPACE}:"
AUDITED = [f"{ACCOUNTS}{name}" for name in (CONTROLLER, NODE)]
PATIENCE = 240.0
PATHS = {
    "namespaces": "/api/v1",
    "nodes": "/api/v1",
    "pods": "/api/v1",
    "configmaps": "/api/v1",
    "events": "/api/v1",
    "persistentvolumes": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "deployments": "/apis/apps/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "csinodes": "/apis/storage.k8s.io/v1",
    "storageclasses": "/apis/storage.k8s.io/v1",
    "csistoragecapacities": "/apis/storage.k8s.io/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
    "volumesnapshots": "/apis/snapshot.storage.k8s.io/v1",
    "volumesnapshotcontents": "/apis/snapshot.storage.k8s.io/v1",
    "volumesnapshotclasses": "/apis/snapshot.storage.k8s.io/v1",
}


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until a look returns something true; returns that."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if seen := await look():
                return seen
            await asyncio.sleep(0.3)


@dataclass
class Installed:
    """The cluster, the printed manifests and the programs."""

    plane: real.ControlPlane
    sidecars: real.Binaries
    client: Client
    folder: Path
    printed: list[Obj]
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    audited_before: int = 0
    """How much of the audit log is about earlier tests."""

    async def send(
        self,
        method: str,
        plural: str,
        name: str = "",
        namespace: str = "",
        body: Obj | None = None,
        *,
        client: Client | None = None,
        query: Mapping[str, str] = {},
    ) -> Obj:
        """One request about a resource, or about one object of it; the answer."""
        within = f"/namespaces/{namespace}" if namespace else ""
        path = f"{PATHS[plural]}{within}/{plural}" + (f"/{name}" if name else "")
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind}
        used = client or self.client
        answer = await used.raw(method, path, query=query, headers=headers, body=content)
        obj: Obj = answer.json()
        return obj

    async def items(self, plural: str, namespace: str = "", **query: str) -> list[Obj]:
        """All objects of a resource."""
        listed: list[Obj] = (await self.send("GET", plural, "", namespace, query=query))["items"]
        return listed

    async def gone(self, plural: str, name: str, namespace: str = "") -> None:
        """Wait until an object is not there."""

        async def missing() -> bool:
            with suppress(NotFound):
                await self.send("GET", plural, name, namespace)
                return False
            return True

        await until(missing)

    def workload(self, kind: str) -> Obj:
        """The printed pod of a workload."""
        (workload,) = [obj for obj in self.printed if obj["kind"] == kind]
        pod: Obj = workload["spec"]["template"]["spec"]
        return pod

    async def pod_of(self, component: str, node: str | None = None) -> Obj:
        """A pod of a workload that is bound to a node, or to this node."""
        labels = f"app.kubernetes.io/component={component}"

        async def bound() -> Obj | None:
            for pod in await self.items("pods", NAMESPACE, labelSelector=labels):
                at = pod["spec"].get("nodeName")
                if at and node in (None, at):
                    return pod
            return None

        pod: Obj = await until(bound)
        return pod

    async def kubeconfig(self, account: str, pod: Obj) -> Path:
        """The credentials of a pod: a token of its account that is bound to it."""
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"]}
        spec = {"boundObjectRef": reference, "expirationSeconds": 7200}
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/serviceaccounts/{account}/token"
        answer = await self.client.raw(
            "POST",
            path,
            headers={"Content-Type": "application/json"},
            body=json.dumps({"spec": spec}).encode(),
        )
        token = answer.json()["status"]["token"]
        return self.plane.kubeconfig_with_token(pod["metadata"]["name"], token)

    async def start(self, kind: str, pod: Obj) -> Path:
        """Run the containers of a pod, but the registrar, which needs a kubelet; their socket."""
        printed = self.workload(kind)
        kubeconfig = await self.kubeconfig(printed["serviceAccountName"], pod)
        socket = self.folder / f"{pod['spec']['nodeName']}-{kind}.sock"
        for container in printed["containers"]:
            if container["name"] == "node-driver-registrar":
                continue
            overrides = {
                "--csi-address": str(socket),
                "--endpoint": f"unix://{socket}",
                "--config": str(self.folder / "config.json"),
                "--data": str(self.folder / "data"),
                "--metrics-listen": "127.0.0.1:0",
            }
            variables = {
                item["name"]: field_of(pod, item["valueFrom"]["fieldRef"]["fieldPath"])
                for item in container.get("env", ())
            }
            arguments = [expand(argument, variables) for argument in container["args"]]
            words = [argument.partition("=") for argument in arguments]
            command = [f"{flag}{eq}{overrides.get(flag, value)}" for flag, eq, value in words]
            if "--takeover-controller" in command:
                # In a pod it is read from the mounted account.
                command.append(f"--lease-namespace={NAMESPACE}")
            command.append(f"--kubeconfig={kubeconfig}")
            program = (
                (sys.executable, "-m", "zonewise")
                if container["name"] == "driver"
                else (str(self.sidecars.path(container["name"])),)
            )
            self.run(f"{kind}-{container['name']}", [*program, *command], variables)
            if container["name"] == "driver":
                await self._listening(socket)
        return socket

    def run(self, name: str, command: list[str], variables: Mapping[str, str] = {}) -> None:
        """Run a program; its output is its log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                command,
                env={**environment(self.folder), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _listening(self, socket: Path) -> None:
        client = SocketClient(socket)

        async def ready() -> bool:
            self.check()
            with suppress(Exception):
                answer = await client.call(methods.PROBE, csi.ProbeRequest())
                return bool(answer.ready.value)
            return False

        try:
            await until(ready)
        finally:
            await client.close()

    def check(self) -> None:
        """Fail if a program has ended by itself."""
        for name, program in self.programs.items():
            log = (self.folder / f"{name}.log").read_text()
            assert program.poll() is None, f"{name} has ended: {log[-3000:]}"

    def end(self) -> None:
        """End all programs."""
        for program in self.programs.values():
            program.terminate()
        for program in self.programs.values():
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()

    def begin_audit(self) -> None:
        """Let what was refused until now count no more."""
        self.audited_before = len(self.plane.audited())

    def denied(self) -> list[str]:
        """What was refused since then for lack of a right, or by a policy."""
        return [
            f"{entry['user']['username']} {entry['verb']} {entry['requestURI']}"
            for entry in self.plane.audited()[self.audited_before :]
            if entry.get("responseStatus", {}).get("code") == 403
        ]


def field_of(pod: Obj, path: str) -> str:
    """A field of a pod, as the downward API has it."""
    value: Any = pod
    for name in path.split("."):
        value = value[name]
    return str(value)


def expand(argument: str, variables: Mapping[str, str]) -> str:
    """An argument with the variables of its container."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], argument)


def settings() -> real.Settings:
    """A control plane that keeps a record of what the printed accounts did."""
    rule = {"level": "Metadata", "users": AUDITED, "omitStages": ["RequestReceived"]}
    return real.Settings(fsync=False, audit=(rule,))


@asynccontextmanager
async def install(
    plane: real.ControlPlane, sidecars: real.Binaries, folder: Path, pools: Obj
) -> AsyncIterator[Installed]:
    """Install the driver on a cluster with a node in each zone, and run it."""
    done = await asyncio.to_thread(apart, folder, "install", "--csi")
    assert (done.code, done.err) == (0, "")
    printed = [obj for obj in yaml.safe_load_all(done.out) if obj]
    async with Client(HttpsTransport(load_config(str(plane.kubeconfig)))) as client:
        installed = Installed(plane, sidecars, client, folder, printed)
        try:
            async with FakeKubelet(client, nodes_in(*ZONES)):
                await _prepare(installed, pools)
                yield installed
                installed.check()
        finally:
            await asyncio.to_thread(installed.end)


async def _prepare(installed: Installed, pools: Obj) -> None:
    plane, folder = installed.plane, installed.folder
    files = [installed.sidecars.folder / name for name in (*DEFINITIONS, RIGHTS)]
    text = "\n---\n".join(file.read_text() for file in files)
    await asyncio.to_thread(plane.kubectl, "apply", "--server-side", "-f", "-", stdin=text)
    for name in DEFINITIONS:
        definition = yaml.safe_load((installed.sidecars.folder / name).read_text())
        wait = ("wait", "--for=condition=Established", "--timeout=120s")
        crd = f"crd/{definition['metadata']['name']}"
        await asyncio.to_thread(plane.kubectl, *wait, crd, timeout=150)
    manifests = yaml.safe_dump_all(installed.printed)
    applied = await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", stdin=manifests)
    assert applied.stderr == ""
    # What the administrator does next, and a kubelet then mounts.
    config = json.dumps(pools)
    await installed.send("PATCH", "configmaps", "csi", NAMESPACE, {"data": {"config.json": config}})
    (folder / "config.json").write_text(config)

    token = await asyncio.to_thread(
        plane.kubectl, "create", "token", "snapshot-controller", "-n", "kube-system"
    )
    kubeconfig = plane.kubeconfig_with_token("snapshot-controller", token.stdout.strip())
    program = str(installed.sidecars.path("snapshot-controller"))
    flags = ("--leader-election=true", "--leader-election-namespace=kube-system")
    installed.run("snapshot-controller", [program, *flags, f"--kubeconfig={kubeconfig}"])

    node = await installed.start("DaemonSet", await installed.pod_of("node", "node-b-0"))
    await _register(installed, node)
    await installed.start("Deployment", await installed.pod_of("controller"))


async def _register(installed: Installed, socket: Path) -> None:
    """What kubelets write when a driver registers; the driver of one node answers for all."""
    client = SocketClient(socket)
    try:
        info = await client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
    finally:
        await client.close()
    assert info.node_id == "node-b-0"
    assert dict(info.accessible_topology.segments) == {KEY: "b"}
    for zone in ZONES:
        name = f"node-{zone}-0"
        await installed.send("PATCH", "nodes", name, body={"metadata": {"labels": {KEY: zone}}})
        node = await installed.send("GET", "nodes", name)
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        driver = {"name": DRIVER, "nodeID": name, "topologyKeys": [KEY]}
        body = {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"drivers": [driver]},
        }
        await installed.send("POST", "csinodes", body=body)


@asynccontextmanager
async def on_node(installed: Installed, volume: str, folder: Path) -> AsyncIterator[Path]:
    """A volume where a pod on node-b-0 would have it."""
    socket = SocketClient(installed.folder / "node-b-0-DaemonSet.sock")
    node = Caller(socket, folder)
    await asyncio.to_thread(node.staging.mkdir, parents=True)
    try:
        await node.stage(volume)
        try:
            yield await node.publish(volume)
        finally:
            await node.unpublish(volume)
            await node.unstage(volume)
    finally:
        await socket.close()
