"""A dump that lacks a kind is not a cluster without it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.run_program import here
from tests.explain.dumps import (
    NO_PDB,
    NO_TDB,
    endpoint,
    listed,
    node,
    part,
    pod,
    service,
    with_budgets,
)

from zonewise.cli.program.dump_kinds import DUMP_COMMAND

Capture = pytest.CaptureFixture[str]
Item = dict[str, Any]
RAW = "kubectl get --raw /apis/policy/v1/poddisruptionbudgets"


def budget(kind: str, version: str) -> Item:
    """A budget of all pods."""
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }


PDB = budget("PodDisruptionBudget", "policy/v1")
TDB = budget("TopologyDisruptionBudget", "zonewise.io/v1alpha1")
NODES = [node("n1", "a"), node("n2", "b")]
PODS = [pod("10.0.0.1", "n1"), pod("10.0.0.2", "n2")]
SLICE = part([endpoint("10.0.0.1", on="n1"), endpoint("10.0.0.2", on="n2")])
HEADLESS = service(clusterIP="None", annotations={})
CLAIM: Item = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data", "namespace": "default"},
    "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}},
}
BOUND = CLAIM | {"spec": CLAIM["spec"] | {"volumeName": "v"}}
LATE: Item = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "fast"},
    "provisioner": "ebs.csi.aws.com",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def written(folder: Path, items: Iterable[Item]) -> Path:
    """A dump of these objects."""
    path = folder / "all.yaml"
    path.write_text(json.dumps(listed(items)))
    return path


@pytest.mark.parametrize(
    ("words", "items", "missing"),
    [
        (("pods", "-A"), [*NODES, *PODS], "PodDisruptionBudget"),
        (("pod", "p-10.0.0.1"), [*NODES, *PODS], "PodDisruptionBudget"),
        (("budgets", "-A"), [*NODES, *PODS], "PodDisruptionBudget"),
        (("pods", "-A"), [*NODES, *PODS, TDB], "PodDisruptionBudget"),
        (("pod", "p-10.0.0.1"), [*NODES, *PODS, TDB], "PodDisruptionBudget"),
        (("pods", "-A"), [*NODES, PDB], "Pod"),
        (("pods", "-A"), [*PODS, PDB], "Node"),
        (("budgets", "-A"), [*PODS, TDB], "Node"),
        (("services", "-A"), [service(), SLICE], "Node"),
        (("services", "-A"), [*NODES, SLICE], "Service"),
        (("services", "-A"), [*NODES, service()], "EndpointSlice"),
        (("services", "-A"), [*NODES, *PODS, service()], "EndpointSlice"),
        (("service", "web"), [*NODES, service()], "EndpointSlice"),
        (("name", "web.default.svc"), [*NODES, *PODS, SLICE], "Service"),
        (("name", "web.default.svc"), [*NODES, *PODS, HEADLESS], "EndpointSlice"),
        (("name", "web.default.svc", "--client", "10.0.0.9"), [HEADLESS, SLICE, *NODES], "Pod"),
        (("name", "web.default.svc", "--client", "10.0.0.9"), [HEADLESS, SLICE, *PODS], "Node"),
        (("pvc", "data"), [CLAIM], "StorageClass"),
        (("pvc", "data"), [BOUND, LATE], "PersistentVolume"),
        (("pvc", "data"), [CLAIM, LATE], "Pod"),
    ],
)
def test_what_a_dump_lacks_is_refused(
    words: tuple[str, ...], items: list[Item], missing: str, tmp_path: Path, capsys: Capture
) -> None:
    """For a kind that a dump lacks the only output is a sentence: the kind and how to dump it."""
    path = written(tmp_path, items)
    result = here(capsys, "explain", *words, "-f", path)
    assert (result.code, result.out) == (1, "")
    plural = "storageclasses" if missing == "StorageClass" else f"{missing.lower()}s"
    expected = f"error: there is no {missing} in {path}; dump {plural} as well"
    assert result.sentence().startswith(expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("services", "-A"), "there is no Service and no Node and no EndpointSlice in"),
        (("service", "web"), "there is no Service and no Node and no EndpointSlice in"),
        (("pods", "-A"), "there is no Node and no Pod and no PodDisruptionBudget in"),
        (("budgets", "-A"), "there is no Node and no PodDisruptionBudget in"),
        (("name", "web.shop.svc"), "there is no Service in"),
        (("volume", "v"), "there is no PersistentVolume v;"),
        (("pvc", "data"), "there is no PersistentVolumeClaim data in namespace default;"),
    ],
)
def test_an_empty_file_is_no_cluster(
    words: tuple[str, ...], expected: str, tmp_path: Path, capsys: Capture
) -> None:
    """The error about an empty file says what to dump, for every kind of report."""
    path = tmp_path / "empty.yaml"
    path.write_text("")
    result = here(capsys, "explain", *words, "-f", path)
    assert (result.code, result.out) == (1, "")
    assert expected in result.sentence()
    assert "as well" in result.sentence()


def test_an_empty_list_shows_that_a_kind_has_no_objects(tmp_path: Path, capsys: Capture) -> None:
    """With an empty list of the kind, as the sentence advises, the report is printed."""
    path = written(tmp_path, [*NODES, *PODS])
    refused = here(capsys, "explain", "pods", "-A", "-f", path)
    assert refused.sentence().endswith(f"or if the cluster has none add what {RAW} prints")
    for name, empty in (("pdb.json", NO_PDB), ("tdb.json", NO_TDB)):
        (tmp_path / name).write_text(json.dumps(empty))
    files = ("-f", path, "-f", tmp_path / "pdb.json", "-f", tmp_path / "tdb.json")
    result = here(capsys, "explain", "pods", "-A", *files)
    assert (result.code, result.err) == (0, "")
    assert result.out.count("Uncovered") == 2


def definition(name: str) -> Item:
    """A CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
    }


OUR_DEFINITION = definition("topologydisruptionbudgets.zonewise.io")


@pytest.mark.parametrize(
    ("more", "noted"),
    [
        ([], True),
        ([OUR_DEFINITION], True),
        ([definition("widgets.example.com")], False),
        ([TDB], False),
    ],
)
def test_budgets_of_ours_that_were_not_dumped_are_noted(
    more: list[Item], noted: bool, tmp_path: Path, capsys: Capture
) -> None:
    """A server without the definitions cannot dump them, so the dump is read; unless it shows that
    there are none, a note says once for all files how to dump them.
    """
    for name in ("a.json", "b.json", "c.json"):
        (tmp_path / name).write_text(json.dumps(listed([*NODES, *PODS, PDB, *more])))
    result = here(capsys, "explain", "pods", "-A", "-f", tmp_path)
    assert result.code == 0
    expected = (
        "note: there is no TopologyDisruptionBudget in a.json and 2 more; if the cluster has them,"
        " dump them as well: kubectl get tdb -A -o yaml > own.yaml, and add -f own.yaml\n"
    )
    assert result.err == (expected if noted else "")


def test_owners_that_were_not_dumped_are_noted(tmp_path: Path, capsys: Capture) -> None:
    """The replicas of owners that were not dumped are unknown, and the note names their kind."""
    owned = [
        pod
        | {
            "metadata": pod["metadata"]
            | {
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "ReplicaSet",
                        "name": "web-1",
                        "controller": True,
                    }
                ]
            }
        }
        for pod in PODS
    ]
    path = written(tmp_path, [*NODES, *owned, PDB, TDB])
    result = here(capsys, "explain", "budgets", "-A", "-f", path)
    assert result.code == 0
    assert (
        "there is no ReplicaSet in all.yaml; it owns pods: dump replicasets as well" in result.err
    )


@pytest.mark.parametrize("words", [("pods", "-A"), ("budgets", "-A"), ("services", "-A")])
def test_revisions_are_never_needed_to_explain(
    words: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    """ControllerRevisions are for ``up --keep-placement``; reports do without them."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": True}
    owned = [item | {"metadata": item["metadata"] | {"ownerReferences": [owner]}} for item in PODS]
    group: Item = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}},
    }
    path = written(tmp_path, [])
    path.write_text(with_budgets([*NODES, *owned, group, PDB, service(), SLICE], NO_TDB))
    result = here(capsys, "explain", *words, "-f", path)
    assert (result.code, result.err) == (0, "")
    assert "controllerrevisions" in DUMP_COMMAND


def test_other_files_of_a_folder_are_reported(tmp_path: Path, capsys: Capture) -> None:
    """A cluster whose dump lacks a kind is noted and left out."""
    (tmp_path / "a.json").write_text(json.dumps(listed([*NODES, *PODS])))
    (tmp_path / "b.json").write_text(json.dumps(listed([*NODES, *PODS, PDB])))
    result = here(capsys, "explain", "pods", "-A", "-f", tmp_path, "-o", "jsonl")
    assert result.code == 0
    assert {json.loads(line)["file"] for line in result.out.splitlines()} == {"b.json"}
    assert f"note: there is no PodDisruptionBudget in {tmp_path / 'a.json'}; dump" in result.err


def test_routes_without_slices_are_refused(tmp_path: Path, capsys: Capture) -> None:
    """A dump without slices is not taken for a cluster whose Services have no endpoints."""
    path = written(tmp_path, [*NODES, service(clusterIP="10.96.0.1")])
    result = here(capsys, "proxy", "--dry-run", "-f", path)
    assert (result.code, result.out) == (1, "")
    expected = f"error: there is no EndpointSlice in {path}; dump endpointslices as well"
    assert result.sentence() == expected
    noted = here(capsys, "proxy", "--dry-run", "-f", written(tmp_path, NODES))
    assert noted.code == 0
    assert noted.err == f"note: there is no Service in {path}; dump services as well\n"


@pytest.mark.parametrize("name", ["explain", "proxy", "up"])
def test_help_has_the_dump_command(name: str, capsys: Capture) -> None:
    """The help of every command that reads a dump has the command that makes it, on one line."""
    assert f"  {DUMP_COMMAND} > dump.yaml\n" in here(capsys, name, "--help").out
