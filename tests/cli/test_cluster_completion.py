"""Names that a shell completes from a cluster or a dump."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import pytest
from tests.cli.run_program import apart, here
from tests.explain.dumps import listed, node, pod, service
from tests.explain.eks import ZONES, cluster
from tests.runtime.loopback import write_kubeconfig

from zonewise.api import Node, Service, convert
from zonewise.apiserver.server import ApiServer

Capture = pytest.CaptureFixture[str]


def words(out: str) -> list[str]:
    """The words that kubectl is told."""
    *lines, end = out.splitlines()
    assert end == ":4"
    return [line.partition("\t")[0] for line in lines]


def completed(capsys: Capture, *arguments: str | Path) -> list[str]:
    """What may come next."""
    result = here(capsys, "__complete", *arguments)
    assert (result.code, result.err) == (0, "")
    return words(result.out)


def test_from_a_dump(tmp_path: Path, capsys: Capture) -> None:
    """Namespaces, Services of the namespace that is meant, pods and nodes are those of the file."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([*cluster(), pod("10.9.9.9", "n1")])))
    dump = ("-f", str(path))
    assert completed(capsys, "explain", *dump, "-n", "") == ["default", "shop"]
    assert completed(capsys, "explain", *dump, "-n", "shop", "service", "k") == ["kept", "keyed"]
    assert completed(capsys, "explain", *dump, "svc", "") == ["kubernetes"]
    assert completed(capsys, "explain", *dump, "pod", "p") == ["p-10.9.9.9"]
    client = completed(capsys, "explain", *dump, "name", "x", "--client", "")
    assert client == ["default/p-10.9.9.9"]
    found = completed(capsys, "proxy", "--dry-run", *dump, "--node-name", "ip-10-0-2-")
    assert len(found) == ZONES["eu-west-1c"]


async def test_from_a_cluster(tmp_path: Path) -> None:
    """The cluster of the kubeconfig is asked; zones are the values of its nodes' label."""
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(3))
    await server.start(0)
    client = server.connect("test")
    for item in (node("n1", "a"), node("n2", "b")):
        await client.create(convert(Node, item))
    await client.create(convert(Service, service()))
    call = ("__complete", "--kubeconfig", server.identity.kubeconfig)
    try:
        found = [
            await asyncio.to_thread(apart, tmp_path, *call, *line)
            for line in (
                ("explain", "service", "w"),
                ("fail", "zone", ""),
                ("heal", "node", ""),
                ("status", "-n", "def"),
            )
        ]
    finally:
        await server.close()
    assert [words(one.out) for one in found] == [["web"], ["a", "b"], ["n1", "n2"], ["default"]]
    assert {one.err for one in found} == {""}


@pytest.mark.parametrize(
    "line", [("explain", "service", ""), ("status", "-n", ""), ("fail", "zone", "")]
)
def test_no_cluster_is_no_names(line: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    """Nobody answers, or there is no kubeconfig: no names, no words on either stream."""
    assert completed(capsys, *line) == []
    config = write_kubeconfig(tmp_path / "config", cluster={"server": "https://127.0.0.1:9"})
    assert completed(capsys, "--kubeconfig", config, *line) == []


def test_a_file_that_is_no_dump_is_no_names(tmp_path: Path, capsys: Capture) -> None:
    """A broken file is for the command to complain about."""
    path = tmp_path / "dump.yaml"
    path.write_text("{")
    assert completed(capsys, "explain", "-f", str(path), "service", "") == []
