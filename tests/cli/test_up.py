"""``zonewise up`` and ``zonewise status``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import dns.edns
import dns.message
import dns.query
import pytest
from tests.cli.run_program import Result, apart, environment, here
from tests.cli.up_program import PATIENCE, SHAPE, Running, ask_api, running
from tests.embedded.seed.eks_dump import eks_dump

from zonewise.controllers.hints.controller import HintsSettings
from zonewise.embedded import cluster
from zonewise.runtime.program.context import ControllerContext


def status(folder: Path, *flags: str) -> Result:
    """``zonewise status`` of a running cluster."""
    return apart(folder.parent, "status", "--kubeconfig", folder / "kubeconfig", *flags)


def read_page(folder: Path) -> Any:
    """The page of ``zonewise status``, as JSON."""
    result = status(folder, "-o", "json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def check_suggested_query(cluster: Running) -> None:
    """The suggested DNS query is answered with the pods in the zone of the pod that it names."""
    suggested = re.search(r"dig @(\S+) -p (\d+) (\S+) \+subnet=(\S+)/32\n", cluster.page)
    assert suggested is not None, cluster.page
    host, port, name, client = suggested.groups()
    ecs = dns.edns.ECSOption(client, 32)
    query = dns.message.make_query(name, "A", use_edns=0, options=[ecs])
    answer = dns.query.udp(query, host, timeout=10, port=int(port))
    (subnet,) = (option for option in answer.options if isinstance(option, dns.edns.ECSOption))
    assert subnet.scopelen == 32
    words = ("explain", "name", name, "--client", client, "-o", "json", "--kubeconfig")
    result = apart(cluster.folder.parent, *words, cluster.folder / "kubeconfig")
    explained = json.loads(result.out)["families"][0]
    addresses = {str(record) for records in answer.answer for record in records}
    assert addresses == {endpoint["address"] for endpoint in explained["told"]}
    assert explained["leftOut"]


@pytest.mark.system
def test_the_last_line_has_the_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative --data folder is printed as an absolute path."""
    monkeypatch.chdir(tmp_path)
    with running(Path("kept"), "--api-only") as cluster:
        code, words = cluster.stop()
    last = f"Stopped; the cluster is kept in {tmp_path}/kept."
    assert (code, words.splitlines()[-1]) == (0, last)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_cluster_starts_and_restarts(tmp_path: Path) -> None:
    """The demo is Ready in its zones; status shows the same; a restart adds nothing to it."""
    folder = tmp_path / "cluster"
    with running(folder, *SHAPE) as first:
        assert re.search(r"^left +2/2 +8 ", first.page, re.MULTILINE), first.page
        assert re.search(r"^shop/web +Auto +9 ", first.page, re.MULTILINE), first.page
        assert f"export KUBECONFIG={folder}/kubeconfig" in first.page
        assert "status -w" in first.page
        assert "fail zone left" in first.page
        check_suggested_query(first)
        status_page = read_page(folder)
        assert [zone["name"] for zone in status_page["zones"]] == ["left", "right"]
        assert status_page["podsReady"] == status_page["pods"] == 31
        modes = {service["name"]: service["mode"] for service in status_page["services"]}
        assert modes == {
            "cache": "PreferSameNode",
            "cart": "zonewise.io/shared",
            "catalog": "PreferSameZone",
            "checkout": "Off",
            "orders": "headless",
            "search": "zonewise.io/weighted",
            "web": "Auto",
        }
        text = status(folder)
        assert re.search(r"^right +2/2 +8 +\d+ +\d+$", text.out, re.MULTILINE), text.out
        assert f"export KUBECONFIG={folder}/kubeconfig" in text.out
        assert "fail zone left" in text.out
        assert "fail zone left" in status(folder, "-o", "table").out
        deadline = time.monotonic() + PATIENCE
        while not all(
            service["inZone"]
            for service in read_page(folder)["services"]
            if service["mode"] == "Auto"
        ):
            assert time.monotonic() < deadline
        check_metrics(folder)
        code, words = first.stop()
        assert code == 0
        assert words == f"Stopped; the cluster is kept in {folder}.\n"
        assert not (folder / "metrics.url").exists()
    with running(folder) as second:
        assert read_page(folder)["pods"] == 31
        assert len(read_page(folder)["zones"]) == 2
        assert second.stop()[0] == 0
    refused = apart(tmp_path, "up", "--data", folder, "--zones", "a,b")
    assert refused.code == 2
    assert "which --zones cannot change; leave it out" in refused.sentence()


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_dump_is_copied(tmp_path: Path) -> None:
    """Nodes and workloads of a dump run, and a table lists what is different here."""
    dump = tmp_path / "dump.yaml"
    dump.write_text(
        """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: z}}}
- {apiVersion: v1, kind: Event, metadata: {name: e, namespace: team}}
- {apiVersion: v1, kind: Endpoints, metadata: {name: e, namespace: team}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, namespace: team, uid: u, resourceVersion: "7"}
  spec:
    replicas: 2
    selector: {matchLabels: {app: web}}
    template:
      metadata: {labels: {app: web}}
      spec: {serviceAccountName: robot, containers: [{name: web, image: web}]}
  status: {replicas: 2}
- {apiVersion: v1, kind: Service, metadata: {name: "Bad Name", namespace: team}, spec: {}}
"""
    )
    folder = tmp_path / "cluster"
    with running(folder, "-f", str(dump), "--pod-start", "10ms") as cluster:
        assert re.search(r"^z +1/1 ", cluster.page, re.MULTILINE), cluster.page
        assert "Recreated from the dump: Endpoints 1\n" in cluster.page
        assert re.search(r"^ServiceAccount +1 +is referred to", cluster.page, re.MULTILINE)
        assert re.search(
            r"^Service +1 +Service \"Bad Name\" is invalid", cluster.page, re.MULTILINE
        )
        assert read_page(folder)["podsReady"] == 2
        assert cluster.stop()[0] == 0


def check_metrics(folder: Path) -> None:
    """The file names an address on this machine, where what the KEP names is counted."""
    url = (folder / "metrics.url").read_text().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/metrics", url)
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    for name, labels in (
        ("endpointslices_changed_per_sync_count", 'approach="auto",topology="Auto"'),
        ("syncs_total", 'result="success"'),
    ):
        assert re.search(rf"^endpoint_slice_controller_{name}{{{labels}", text, re.MULTILINE)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_an_empty_cluster_runs(tmp_path: Path) -> None:
    """--empty starts everything but has no node and no workload."""
    folder = tmp_path / "cluster"
    with running(folder, "--empty") as cluster:
        status_page = read_page(folder)
        assert status_page["zones"] == status_page["services"] == []
        assert status_page["pods"] == 0
        assert cluster.stop()[0] == 0


REFUSALS = {
    "no folder": (("--data", ""), "--data is empty"),
    "a port too high": (("--listen", "127.0.0.1:70000"), "give one from 1 to 65535"),
    "no port": (("--listen", "here"), "is not ADDRESS:PORT"),
    "no digit": (("--listen", "127.0.0.1:²"), "is not ADDRESS:PORT"),
    "no end": (("--listen", f"127.0.0.1:{'9' * 5000}"), "is not ADDRESS:PORT"),
    "a bad zone": (("--zones", "A"), '"A" is not a zone name'),
    "a zone twice": (("--zones", "a,a"), "named twice"),
    "no nodes": (("--nodes-per-zone", "0"), "there must be 1 to 10000 nodes"),
    "a bad cpu": (("--cpu", "many"), '"many" is not a number of CPUs'),
    "a bad time": (("--pod-start", "soon"), '"soon" is no'),
    "stages and a time": (("--stages", "x", "--pod-start", "1s"), "exclude each other"),
    "no stages": (("--stages", "nowhere.yaml"), "cannot be read"),
    "two modes": (("--empty", "--api-only"), "exclude each other"),
    "empty and zones": (("--empty", "--zones", "a"), "--empty and --zones exclude each other"),
    "a lone keep": (("--keep-placement",), "give one with -f"),
    "a lone speed": (("--speed", "2"), "give one with --scenario"),
    "no nodes in a dump": (("-f", "NODELESS"), "n.yaml, so no pod could run; dump nodes as well"),
    "no dump": (("-f", "nowhere.yaml"), "cannot read nowhere.yaml"),
    "no scenario": (("--scenario", "nowhere.yaml"), "cannot read the scenario"),
    "another scenario": (("--scenario", "OTHER"), "steps[0].at must be text, not a number"),
    "other stages": (("--stages", "OTHER"), "the file must be a list, not a mapping"),
    "a bad speed": (("--scenario", "SCENARIO", "--speed", "fast"), "is not a speed"),
    "a scenario in a folder": (("--scenario", "SCENARIO", "--data", "x"), "exclude each other"),
    "a bad gate": (("--feature-gates", "Magic=true"), "Magic"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """Flags that cannot work are refused before anything starts, with what to do."""
    scenario = tmp_path / "s.yaml"
    scenario.write_text("steps: [{at: 0s}]")
    flags, says = REFUSALS[case]
    other = tmp_path / "o.yaml"
    other.write_text("steps: [{at: 3}]")
    nodeless = tmp_path / "n.yaml"
    nodeless.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: team}")
    files = {"SCENARIO": str(scenario), "OTHER": str(other), "NODELESS": str(nodeless)}
    chosen = [files.get(flag, flag) for flag in flags]
    result = here(capsys, "up", *chosen)
    assert result.code == 2
    assert says in result.err
    assert len(result.err.splitlines()) == 1
    assert not result.out


def test_foreign_folders_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with other files, or a file, is refused and not changed."""
    (tmp_path / "thesis.tex").write_text("x")
    assert "has other files and no cluster" in here(capsys, "up", "--data", tmp_path).sentence()
    assert "is a file" in here(capsys, "up", "--data", tmp_path / "thesis.tex").sentence()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If another program listens on the port, the error says so and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = here(capsys, "up", "--empty", "--listen", f"127.0.0.1:{port}")
    assert result.code == 2
    assert "address already in use" in result.sentence()
    assert "choose another --listen" in result.sentence()


def test_an_address_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """If the address to listen on is not this machine's, the error asks for one that is."""
    result = here(capsys, "up", "--listen", "192.0.2.1:6443", "--empty")
    assert result.code == 2
    assert "give --listen an address of this machine" in result.err


def test_serving_other_machines_gives_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A listen address beyond the loopback gives a warning."""
    result = here(capsys, "up", "--listen", "192.0.2.1:6443", "--empty")
    assert "warning: 192.0.2.1:6443 can be reached from other machines" in result.err
    assert result.code == 2


class Broken:
    """A component with a fault."""

    def __init__(self, context: ControllerContext, settings: HintsSettings) -> None:
        del context, settings

    async def run(self) -> None:
        """Fail."""
        raise ZeroDivisionError("a fault")


def test_a_component_that_fails_ends_the_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of a component is one sentence that names it, and exit code 2."""
    monkeypatch.setattr(cluster, "HintsController", Broken)
    result = here(capsys, "up", "--empty")
    assert result.code == 2
    assert "endpointslice-controller failed (ZeroDivisionError: a fault)" in result.sentence()


def test_a_scenario_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario prints what happens line by line; exit code 0 if all expectations were met."""
    file = tmp_path / "s.yaml"
    file.write_text(
        """
about: A small play.
cluster: {zones: [a], nodesPerZone: 1}
workloads: []
steps:
- {at: 0s, expect: nodes == 1, within: 1m}
- {at: 1m, do: fail node a-1, expect: nodes == 0, within: 2m}
"""
    )
    result = here(capsys, "up", "--scenario", file, "--speed", "max")
    assert result.code == 0, result.out
    assert "A small play." in result.out
    assert "  1:00  → fail node a-1" in result.out
    assert "All expectations were met." in result.out
    file.write_text("workloads: []\nsteps: [{at: 0s, expect: nodes == 10, within: 1m}]")
    failed = here(capsys, "up", "--scenario", file, "--speed", "max")
    assert failed.code == 1
    assert "✗ nodes == 10, but it is 9" in failed.out


@pytest.mark.slow
def test_a_scenario_is_played_on_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--scenario with -f runs on the dump's nodes and prints first what is different there."""
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": eks_dump()}))
    file = tmp_path / "s.yaml"
    file.write_text("steps: [{at: 0s, expect: [nodes == 40, ready shop/kafka == 6], within: 5m}]")
    words = ("up", "-f", dump, "--keep-placement", "--scenario", file, "--speed", "max")
    result = here(capsys, *words)
    assert result.code == 0, result.out
    assert re.search(r"^PersistentVolume +20 +is simulated here, without", result.out, re.MULTILINE)
    assert "All expectations were met." in result.out


@pytest.mark.system
@pytest.mark.timeout(600)
def test_status_follows_a_cluster(tmp_path: Path) -> None:
    """-w prints the page again when it has changed, one JSON document per line for programs."""
    folder = tmp_path / "cluster"
    with running(folder, "--empty") as cluster:
        process = subprocess.Popen(
            [sys.executable, "-m", "zonewise", "status", "-w", "-o", "json"],
            env={**environment(tmp_path), "KUBECONFIG": str(folder / "kubeconfig")},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["zones"] == []
            node = b'{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}'
            ask_api(folder, "POST", "/api/v1/nodes", node)
            assert json.loads(process.stdout.readline())["zones"][0]["nodes"] == 1
        finally:
            os.kill(process.pid, signal.SIGINT)
            process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert cluster.stop()[0] == 0
