"""``zonewise up --network``: pods have addresses that answer, and packets stay in their zone."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.netns.lab import SERVICE, until
from tests.netns.spaces import inside

from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.cli.local.packets import ABSENT
from zonewise.proxy.netlink.namespace import FOLDER as NAMESPACES
from zonewise.runtime import Client, HttpsTransport, load_config

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600), pytest.mark.system]

PATIENCE = 180.0
SHAPE = ("--nodes-per-zone", "1", "--cpu", "8", "--pod-start", "10ms")
_COMMAND = re.compile(
    r"^  (ip netns exec (\S+) curl --interface (\S+) (http://\S+))\n"
    r"    # (\S+) asked by (\S+) in zone (\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs with a network, and what it printed."""

    process: subprocess.Popen[str]
    page: str

    @property
    def commands(self) -> list[tuple[str, str, str]]:
        """What to try: the command, its source address, and the zone of that address."""
        return [(groups[0], groups[2], groups[6]) for groups in _COMMAND.findall(self.page)]

    @property
    def prefix(self) -> str:
        return str(_COMMAND.findall(self.page)[0][1]).partition("-")[0]

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return rest


@contextmanager
def up(
    folder: Path, *flags: str, program: tuple[str, ...] = ("-m", "zonewise")
) -> Iterator[Cluster]:
    process = subprocess.Popen(
        [sys.executable, *program, "up", "--data", str(folder), *SHAPE, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        yield Cluster(process, "".join(lines))
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate()


@asynccontextmanager
async def client(folder: Path) -> AsyncIterator[Client]:
    async with Client(HttpsTransport(load_config(str(folder / "kubeconfig")))) as api:
        yield api


def run_curl(command: str) -> str:
    """The output of a printed curl command."""
    done = subprocess.run(
        [*command.split(), "--silent", "--max-time", "5"],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout


def spaces(prefix: str) -> set[str]:
    names = {path.name for path in NAMESPACES.iterdir()}
    return {name for name in names if name == prefix or name.startswith(f"{prefix}-")}


def datagram(space: str, address: str, port: int) -> str:
    """The answer to a datagram sent from a namespace, or the error."""
    with inside(space):
        link = socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
        )
    with link:
        link.settimeout(1.0)
        try:
            link.connect((address, port))
            link.send(b"?")
            return link.recv(1000).decode()
        except OSError as error:
            return str(error)


def answers_datagrams(space: str, address: str) -> bool:
    return datagram(space, address, 53).startswith("shop/web-")


async def test_packets_stay_in_their_zone_and_nothing_stays_behind(tmp_path: Path) -> None:
    """The printed commands are answered in their zone, also after kill -9; stop removes all."""
    folder = tmp_path / "cluster"
    with up(folder, "--network") as first:
        assert [zone for _, _, zone in first.commands] == ["a", "b", "c"], first.page
        for command, source, zone in first.commands:
            answers = {run_curl(command) for _ in range(8)}
            for answer in answers:
                assert re.fullmatch(
                    rf"shop/web-\S+ on node {zone}-1 in zone {zone}, asked by {source}\n", answer
                ), answers
        prefix = first.prefix
        there = {prefix, *(f"{prefix}-{zone}-1" for zone in "abc")}
        assert spaces(prefix) == there
        first.process.kill()
        first.process.wait()
    assert spaces(prefix) == there
    with up(folder, "--network") as second:
        assert second.prefix == prefix
        assert spaces(prefix) == there
        for command, _, zone in second.commands:
            assert f"in zone {zone}, asked by" in run_curl(command)
        assert second.stop() == f"Stopped; the cluster is kept in {folder}.\n"
    assert spaces(prefix) == set()


async def test_the_network_follows_the_cluster(tmp_path: Path) -> None:
    """Services, pods and nodes that come, go and fail are followed by real packets."""
    folder = tmp_path / "cluster"
    with up(folder, "--network") as cluster:
        async with client(folder) as api:
            prefix = cluster.prefix
            spec = {
                "selector": {"app": "web"},
                "ports": [{"name": "d", "port": 53, "protocol": "UDP", "targetPort": 5353}],
                "ipFamilyPolicy": "RequireDualStack",
            }
            meta = {"name": "names", "namespace": "shop"}
            service = await api.create(SERVICE({"metadata": meta, "spec": spec}))
            for address in service.raw["spec"]["clusterIPs"]:
                await until(
                    partial(answers_datagrams, f"{prefix}-a-1", address),
                    lambda: "a pod answers to datagrams",
                )
            pods = [pod for pod in await api.list(Pod, "shop") if "web-" in pod.metadata.name]
            victim = pods[0]
            address = victim.status.pod_ips[0].ip
            command = f"ip netns exec {prefix}-b-1 curl http://{address}:8080"
            assert run_curl(command).startswith(f"shop/{victim.metadata.name} on node ")
            await api.delete(Pod, victim.metadata.name, "shop", grace_period=0)
            await until(
                lambda: victim.metadata.name not in run_curl(command), lambda: "the pod is gone"
            )
            other = next(
                pod
                for pod in await api.list(Pod, "shop")
                if "catalog-" in pod.metadata.name and pod.spec.node_name == "c-1"
            )
            direct = f"ip netns exec {prefix}-b-1 curl http://{other.status.pod_ips[0].ip}:8080"
            assert "on node c-1" in run_curl(direct)
            failed = {"metadata": {"annotations": {"zonewise.io/failed": "true"}}}
            await api.patch(Node, "c-1", None, failed)
            await until(lambda: not run_curl(direct), lambda: "a failed node is silent")
            healed = {"metadata": {"annotations": {"zonewise.io/failed": None}}}
            await api.patch(Node, "c-1", None, healed)
            await until(lambda: "on node c-1" in run_curl(direct), lambda: "it answers again")
            await api.delete(Node, "b-1", None)
            await until(lambda: f"{prefix}-b-1" not in spaces(prefix), lambda: "b-1 is gone")
            health = (
                f"ip netns exec {prefix} curl http://{await _address(api, 'a-1')}:10256/healthz"
            )
            assert '"nodeEligible": true' in run_curl(health)
        cluster.stop()
    assert spaces(prefix) == set()


async def _address(api: Client, node: str) -> str:
    return (await api.get(Node, node, None)).status.addresses[0].address


async def test_without_root_it_is_left_out_in_one_line(tmp_path: Path) -> None:
    """Without root a cluster runs without a network and says so, with --network or not."""
    script = "import os, sys; os.geteuid = lambda: 1000; from zonewise.cli.main import main;"
    user = ("-c", f"{script} sys.exit(main(sys.argv[1:]))")
    for flags, line in (
        (
            ("--network",),
            "--network is left out, no packets are sent: network namespaces need root",
        ),
        ((), ABSENT),
    ):
        with up(tmp_path / "cluster", *flags, program=user) as cluster:
            assert line in cluster.page.splitlines()
            assert "ip netns" not in cluster.page
            cluster.stop()


async def test_network_and_api_only_exclude_each_other(tmp_path: Path) -> None:
    """The API server alone has no nodes, so --network is refused with one sentence."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "zonewise", "up", "--api-only", "--network"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, text = await process.communicate()
    assert process.returncode == 2
    assert text.decode() == ("error: --network and --api-only exclude each other; leave out one\n")
