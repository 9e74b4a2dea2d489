"""Names that a shell completes from a cluster or a dump."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path

import pytest
from tests.cli.run_program import apart, here
from tests.explain.dumps import listed, node, pod, service
from tests.explain.eks import ZONES, cluster
from tests.runtime.loopback import write_kubeconfig

from zonewise.api import CSINode, Namespace, Node, ObjectMeta, Service, convert
from zonewise.cli.program import cluster_completion
from zonewise.csi.takeover.controller import ConfigMap
from zonewise.embedded.apiserver.server import ApiServer

Capture = pytest.CaptureFixture[str]


def words(out: str) -> list[str]:
    """The words that are printed for kubectl."""
    *lines, end = out.splitlines()
    assert end == ":4"
    return [line.partition("\t")[0] for line in lines]


def completed(capsys: Capture, *arguments: str | Path) -> list[str]:
    """The completions of the last argument."""
    result = here(capsys, "__complete", *arguments)
    assert (result.code, result.err) == (0, "")
    return words(result.out)


def test_from_a_dump(tmp_path: Path, capsys: Capture) -> None:
    """Namespaces, Services of the chosen namespace, pods and nodes are those of the file."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([*cluster(), pod("10.9.9.9", "n1")])))
    dump = ("-f", str(path))
    assert completed(capsys, "explain", *dump, "-n", "") == ["default", "shop"]
    assert completed(capsys, "explain", *dump, "-n", "shop", "service", "k") == ["kept", "keyed"]
    assert completed(capsys, "explain", *dump, "svc", "") == ["kubernetes"]
    assert completed(capsys, "explain", *dump, "pod", "p") == ["p-10.9.9.9"]
    client = completed(capsys, "explain", *dump, "name", "x", "--client", "")
    assert client == ["default/p-10.9.9.9"]
    nodes = completed(capsys, "proxy", "--dry-run", *dump, "--node-name", "ip-10-0-2-")
    assert len(nodes) == ZONES["eu-west-1c"]


@pytest.mark.system
async def test_from_a_cluster(tmp_path: Path) -> None:
    """Names are read from the cluster of the kubeconfig; zones are the values of a node label."""
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(3))
    await server.start(0)
    client = server.connect("test")
    for item in (node("n1", "a"), node("n2", "b")):
        await client.create(convert(Node, item))
    await client.create(convert(Service, service()))
    call = ("__complete", "--kubeconfig", server.identity.kubeconfig)
    try:
        results = [
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
    assert [words(result.out) for result in results] == [
        ["web"],
        ["a", "b"],
        ["n1", "n2"],
        ["default"],
    ]
    assert {result.err for result in results} == {""}


@pytest.mark.system
async def test_domains_of_a_driver(tmp_path: Path) -> None:
    """Domains that nodes are in can be taken over, by others and by all; those that are taken over
    can be given back.
    """
    keys = [f"topology.csi.zonewise.io/{name}" for name in ("region", "zone")]
    drivers = [{"name": "csi.zonewise.io", "nodeID": "n", "topologyKeys": keys}]
    settings = json.dumps({"version": 2, "topology-takeover": {"r1/a": ["r1/b"]}})
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(3))
    await server.start(0)
    client = server.connect("test")
    await client.create(Namespace(metadata=ObjectMeta(name="zonewise-system")))
    meta = {"name": "csi", "namespace": "zonewise-system"}
    await client.create(ConfigMap({"metadata": meta, "data": {"config.json": settings}}))
    for zone in "abc":
        labels = dict(zip(keys, ("r1", zone), strict=True))
        await client.create(convert(Node, {"metadata": {"name": zone, "labels": labels}}))
        body = {"metadata": {"name": zone}, "spec": {"drivers": drivers}}
        await client.create(convert(CSINode, body))
    call = ("__complete", "--kubeconfig", server.identity.kubeconfig, "takeover")
    expected = {
        ("set", ""): ["r1", "r1/a", "r1/b", "r1/c"],
        ("set", "r1/a", "--by", "a"): ["all"],
        ("set", "r1/a", "--by", "r1/"): ["r1/a", "r1/b", "r1/c"],
        ("set", "r1/a", "--by", "r1/b,r1/"): ["r1/b,r1/a", "r1/b,r1/c"],
        ("clear", ""): ["r1/a"],
        ("set", "--drivername", "x.y", ""): [],
        ("status", ""): [],
    }
    try:
        completions = {
            line: words((await asyncio.to_thread(apart, tmp_path, *call, *line)).out)
            for line in expected
        }
    finally:
        await server.close()
    assert completions == expected


@pytest.mark.parametrize(
    "line",
    [
        ("explain", "service", ""),
        ("status", "-n", ""),
        ("fail", "zone", ""),
        ("takeover", "set", ""),
        ("takeover", "clear", ""),
    ],
)
def test_without_a_cluster_there_are_no_names(
    line: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    """If no server answers, or there is no kubeconfig, nothing is completed and nothing printed."""
    assert completed(capsys, *line) == []
    config = write_kubeconfig(tmp_path / "config", cluster={"server": "https://127.0.0.1:9"})
    assert completed(capsys, "--kubeconfig", config, *line) == []


def test_a_broken_dump_has_no_names(tmp_path: Path, capsys: Capture) -> None:
    """Errors in a file are reported by the command, not by completion."""
    path = tmp_path / "dump.yaml"
    path.write_text("{")
    assert completed(capsys, "explain", "-f", str(path), "service", "") == []


def test_a_large_dump_is_not_read(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are large together, and pipes, are not read; of a folder only the first file."""
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(listed([service(f"web-{name[0]}")])))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    both = ("explain", "-f", files[0], "-f", files[1], "service", "")
    assert completed(capsys, *both) == ["web-a", "web-b"]
    size = (tmp_path / "a.json").stat().st_size
    monkeypatch.setattr(cluster_completion, "DUMP_LIMIT", size)
    assert completed(capsys, *both) == []
    assert completed(capsys, "explain", "-f", str(tmp_path), "service", "") == ["web-a"]
    monkeypatch.setattr(cluster_completion, "DUMP_LIMIT", size - 1)
    assert completed(capsys, "explain", "-f", files[0], "service", "") == []


@pytest.mark.system
def test_standard_input_is_not_read(tmp_path: Path) -> None:
    """Completion of ``-f -`` reads neither standard input nor pipes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in ("-", str(pipe)):
        result = apart(tmp_path, "__complete", "explain", "-f", name, "service", "")
        assert (words(result.out), result.err) == ([], "")
