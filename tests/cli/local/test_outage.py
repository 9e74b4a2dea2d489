"""``zonewise fail`` and ``zonewise heal``: which nodes they change, and what is refused."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cli.run_program import Result, here
from tests.runtime.loopback import web, write_kubeconfig

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION

NODES = {"a-1": ("a", "r1"), "a-2": ("a", "r2"), "b-1": ("b", "r2")}


class Cluster:
    """An embedded cluster with three nodes, and the program on it."""

    def __init__(self, server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = server.connect("test")
        self._config = server.identity.kubeconfig
        self._capsys = capsys

    async def run(self, *words: str) -> Result:
        call = (*words, "--kubeconfig", str(self._config))
        return await asyncio.to_thread(here, self._capsys, *call)

    async def failed(self) -> dict[str, str]:
        """The nodes that are to fail, and what failed."""
        nodes = await self.client.list(Node)
        return {
            node.metadata.name: node.metadata.annotations[FAILED_ANNOTATION]
            for node in nodes
            if FAILED_ANNOTATION in node.metadata.annotations
        }


@pytest.fixture
async def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cluster]:
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(3))
    await server.start(0)
    cluster = Cluster(server, capsys)
    for name, (zone, rack) in NODES.items():
        labels = {"topology.kubernetes.io/zone": zone, "topology.zonewise.io/rack": rack}
        labels["example.com/row"] = rack.replace("r", "row-")
        await cluster.client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
    yield cluster
    await server.close()


async def test_a_zone_fails_and_heals(cluster: Cluster) -> None:
    """All nodes of the zone are annotated, no others, and the annotation is removed again."""
    result = await cluster.run("fail", "zone", "a")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("zone a: 2 nodes (a-1, a-2) failed\nThe failure is detected after")
    assert await cluster.failed() == {"a-1": "zone a", "a-2": "zone a"}
    result = await cluster.run("heal", "zone", "a")
    assert (result.code, result.out) == (0, "zone a: 2 nodes (a-1, a-2) healed\n")
    assert await cluster.failed() == {}


async def test_racks_are_named_by_a_label(cluster: Cluster) -> None:
    """Racks are values of our label, or of a given one; several may fail at once."""
    assert (await cluster.run("fail", "rack", "r2")).code == 0
    assert set(await cluster.failed()) == {"a-2", "b-1"}
    result = await cluster.run("fail", "rack", "row-1", "row-2", "--key", "example.com/row")
    assert result.out.splitlines()[:-1] == [
        "rack row-1: 1 node (a-1) failed",
        "rack row-2: 2 nodes (a-2, b-1) failed, 2 of them before",
    ]
    assert (await cluster.failed())["a-2"] == "rack r2"


async def test_nodes_and_everything(cluster: Cluster) -> None:
    """Nodes are failed and healed by name; ``heal all`` heals whatever failed, and says if nothing
    had.
    """
    await cluster.run("fail", "node", "a-1", "b-1")
    assert set(await cluster.failed()) == {"a-1", "b-1"}
    assert (await cluster.run("heal", "all")).out == "all: 2 nodes (a-1, b-1) healed\n"
    assert (await cluster.run("heal", "all")).out == "all: nothing had failed\n"
    assert (await cluster.run("heal", "node", "a-1")).out == "node a-1: nothing had failed\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fail", "zone", "a", "x"), 'there is no zone "x"; there are a, b'),
        (("fail", "node", "n"), 'there is no node "n"; there are a-1, a-2, b-1'),
        (("heal", "rack", "x", "--key", "q"), "no node has the label q; give the label of racks"),
    ],
)
async def test_unknown_names(cluster: Cluster, words: tuple[str, ...], says: str) -> None:
    """An unknown name changes nothing, and the sentence lists the known ones."""
    result = await cluster.run(*words)
    assert (result.code, result.out) == (1, "")
    assert says in result.sentence()
    assert await cluster.failed() == {}


@pytest.mark.parametrize(
    "words",
    [
        ("fail",),
        ("fail", "zone"),
        ("fail", "all"),
        ("heal", "all", "a"),
        ("fail", "zone", "a", "--key", "x"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """Wrong usage is refused before any request."""
    result = here(capsys, *words)
    assert result.code == 2
    assert "--help" in result.sentence()


def test_a_real_cluster_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another server is refused in one sentence, and only its version is read."""
    with web() as server:
        path = write_kubeconfig(tmp_path / "config", server=server.url)
        result = here(capsys, "fail", "zone", "a", "--kubeconfig", path)
    assert result.code == 1
    assert "the server is v1.36.4, not an embedded cluster" in result.sentence()
    assert [seen.path for seen in server.seen] == ["/version"]
