"""``zonewise fail`` and ``zonewise heal``: which nodes are told, and what is refused."""

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
from zonewise.embedded.components.kubelet import FAILED_ANNOTATION

NODES = {"a-1": ("a", "r1"), "a-2": ("a", "r2"), "b-1": ("b", "r2")}


class Ours:
    """An embedded cluster with three nodes, and the program asked about it."""

    def __init__(self, server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = server.connect("test")
        self._config = server.identity.kubeconfig
        self._capsys = capsys

    async def run(self, *words: str) -> Result:
        call = (*words, "--kubeconfig", str(self._config))
        return await asyncio.to_thread(here, self._capsys, *call)

    async def failed(self) -> dict[str, str]:
        """The nodes that were told to fail, and because of what."""
        nodes = await self.client.list(Node)
        return {
            node.metadata.name: node.metadata.annotations[FAILED_ANNOTATION]
            for node in nodes
            if FAILED_ANNOTATION in node.metadata.annotations
        }


@pytest.fixture
async def ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Ours]:
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(3))
    await server.start(0)
    cluster = Ours(server, capsys)
    for name, (zone, rack) in NODES.items():
        labels = {"topology.kubernetes.io/zone": zone, "topology.zonewise.io/rack": rack}
        labels["example.com/row"] = rack.replace("r", "row-")
        await cluster.client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
    yield cluster
    await server.close()


async def test_a_zone_fails_and_heals(ours: Ours) -> None:
    """All nodes of the zone are told, no others, and told again to come back."""
    result = await ours.run("fail", "zone", "a")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("zone a: 2 nodes (a-1, a-2) failed\nThe failure is detected after")
    assert await ours.failed() == {"a-1": "zone a", "a-2": "zone a"}
    result = await ours.run("heal", "zone", "a")
    assert (result.code, result.out) == (0, "zone a: 2 nodes (a-1, a-2) healed\n")
    assert await ours.failed() == {}


async def test_racks_are_named_by_a_label(ours: Ours) -> None:
    """Racks have a label of ours, or one that is given; several may fail at once."""
    assert (await ours.run("fail", "rack", "r2")).code == 0
    assert set(await ours.failed()) == {"a-2", "b-1"}
    result = await ours.run("fail", "rack", "row-1", "row-2", "--key", "example.com/row")
    assert result.out.splitlines()[:-1] == [
        "rack row-1: 1 node (a-1) failed",
        "rack row-2: 2 nodes (a-2, b-1) failed, 2 of them before",
    ]
    assert (await ours.failed())["a-2"] == "rack r2"


async def test_nodes_and_everything(ours: Ours) -> None:
    """Nodes are named one by one; all heals whatever failed, and says if nothing had."""
    await ours.run("fail", "node", "a-1", "b-1")
    assert set(await ours.failed()) == {"a-1", "b-1"}
    assert (await ours.run("heal", "all")).out == "all: 2 nodes (a-1, b-1) healed\n"
    assert (await ours.run("heal", "all")).out == "all: nothing had failed\n"
    assert (await ours.run("heal", "node", "a-1")).out == "node a-1: nothing had failed\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("fail", "zone", "a", "x"), 'there is no zone "x"; there are a, b'),
        (("fail", "node", "n"), 'there is no node "n"; there are a-1, a-2, b-1'),
        (("heal", "rack", "x", "--key", "q"), "no node has the label q, say with --key"),
    ],
)
async def test_names_that_are_not_there(ours: Ours, words: tuple[str, ...], fault: str) -> None:
    """A wrong name changes nothing, and the sentence says which names there are."""
    result = await ours.run(*words)
    assert (result.code, result.out) == (1, "")
    assert fault in result.sentence()
    assert await ours.failed() == {}


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
    """What cannot be meant is a fault of usage, before any server is asked."""
    result = here(capsys, *words)
    assert result.code == 2
    assert "--help" in result.sentence()


def test_a_real_cluster_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is not ours is refused in one sentence, and nothing but its version is read."""
    with web() as server:
        path = write_kubeconfig(tmp_path / "config", server=server.url)
        result = here(capsys, "fail", "zone", "a", "--kubeconfig", path)
    assert result.code == 1
    assert "the server is v1.36.4, not an embedded cluster" in result.sentence()
    assert [seen.path for seen in server.seen] == ["/version"]
