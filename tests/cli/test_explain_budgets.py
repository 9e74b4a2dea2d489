"""``zonewise explain budget|pod`` as people and programs run it, on dumps."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.run_program import here
from tests.disruption.drawn_cases import CASES, build, drawn
from tests.disruption.model import Case, goes, numbers
from tests.explain.dumps import with_budgets

from zonewise.api.values import times
from zonewise.disruption.grouping import NO_DOMAIN

Capture = pytest.CaptureFixture[str]
Item = dict[str, Any]
NAMED = "zone-dump.yaml"

STORY = """\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: foo}}}
- {apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/zone: bar}}}
- {apiVersion: v1, kind: Node, metadata: {name: n3}}
- {apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop}, spec: {replicas: 4}}
- {apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: shop, labels: {app: foo}, ownerReferences: [&db {apiVersion: apps/v1, kind: StatefulSet, name: db, controller: true}]}, spec: {nodeName: n1}, status: &up {phase: Running, conditions: [{type: Ready, status: "True"}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: db-1, namespace: shop, labels: {app: foo}, ownerReferences: [*db]}, spec: {nodeName: n2}, status: *up}
- {apiVersion: v1, kind: Pod, metadata: {name: db-2, namespace: shop, labels: {app: foo}, ownerReferences: [*db]}, spec: {nodeName: n3}, status: *up}
- {apiVersion: v1, kind: Pod, metadata: {name: db-3, namespace: shop, labels: {app: foo}, ownerReferences: [*db]}, status: {phase: Pending}}
- apiVersion: policy/v1beta1
  kind: PodDisruptionBudget
  metadata: {name: app-pdb, namespace: shop}
  spec:
    maxUnavailable: 0
    selector: {matchLabels: {app: foo}}
    nodeSelectorTerm:
      matchExpressions:
      - {key: failure-domain.beta.kubernetes.io/zone, operator: NotIn, values: [bar]}
      - {key: failure-domain.beta.kubernetes.io/zone, operator: Exists}
"""  # noqa: E501


@pytest.fixture
def story(tmp_path: Path) -> str:
    """Story 1 of KEP-8, as it is printed there."""
    path = tmp_path / NAMED
    path.write_text(STORY)
    return str(path)


@pytest.mark.parametrize("what", ["budgets", "pods"])
@pytest.mark.parametrize(
    "template",
    [
        5,
        {"metadata": {"labels": {"a": []}}},
        {"spec": {"containers": ["x"]}},
        {"spec": {"containers": [{"name": "c", "resources": {"requests": 1}}]}},
    ],
)
def test_a_template_of_another_form_is_one_sentence(
    tmp_path: Path, capsys: Capture, template: object, what: str
) -> None:
    """The error about a template that cannot be read names its owner."""
    meta = {"name": "r", "namespace": "n"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({**owner, "spec": {"template": template}}))
    refused = here(capsys, "explain", what, "-A", "-f", path)
    assert refused.code == 2
    assert "ReplicaSet n/r: spec.template" in refused.sentence()


def test_nulls_in_a_template_are_as_absent(tmp_path: Path, capsys: Capture) -> None:
    """Null fields of a template count as absent, as in an API server."""
    meta = {"name": "r", "namespace": "n"}
    template = {"metadata": {"labels": None}, "spec": {"containers": None}}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta}
    replica_set = {**owner, "spec": {"template": template}}
    pod = owned("p", "apps/v1", "ReplicaSet", "r")
    assert explain_all(capsys, tmp_path, "pod", NODE, BUDGET, replica_set, pod).keys() == {"p"}


def test_a_budget_in_json(story: str, capsys: Capture) -> None:
    """The report of a budget has every domain, guarded or not."""
    result = here(capsys, "explain", "budget", "app-pdb", "-n", "shop", "-f", story, "-o", "json")
    assert result.code == 0
    report = json.loads(result.out)
    assert (report.pop("reason")["code"]) == "InsufficientPods"
    row = {"present": 1, "expectedPods": 1, "desiredHealthy": 1, "currentHealthy": 1}
    assert report == {
        "file": NAMED,
        "budget": "app-pdb",
        "namespace": "shop",
        "kind": "PodDisruptionBudget",
        "replicas": 4,
        "uncovered": 1,
        "domains": [
            {"domain": "bar", "guarded": False, **row, "disruptionsAllowed": None},
            {"domain": "foo", "guarded": True, **row, "disruptionsAllowed": 0},
        ],
    }


def test_pods_in_lines(story: str, capsys: Capture) -> None:
    """Every pod is a line with its file, the verdict, and the budgets that refuse."""
    result = here(capsys, "explain", "pods", "-A", "-f", story, "-o", "jsonl")
    assert result.code == 0
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert {row["file"] for row in rows} == {NAMED}
    assert [(row["pod"], row["reason"]["code"]) for row in rows] == [
        ("db-0", "Blocked"),
        ("db-1", "Uncovered"),
        ("db-2", "Uncovered"),
        ("db-3", "Free"),
    ]
    first = {key: rows[0][key] for key in ("namespace", "allowed", "charged", "blockers")}
    assert first == {
        "namespace": "shop",
        "allowed": False,
        "charged": False,
        "blockers": [{"budget": "app-pdb", "kind": "PodDisruptionBudget", "domain": "foo"}],
    }


def test_for_people(story: str, capsys: Capture) -> None:
    """The pages of a budget and of a pod begin with a sentence."""
    result = here(capsys, "explain", "budget", "pdb/app-pdb", "-n", "shop", "-f", story)
    assert result.code == 0
    page = result.out
    assert page.startswith("PodDisruptionBudget shop/app-pdb: pods that may be disrupted now: foo")
    assert "bar           1         1        1        1      any" in page
    assert "1 pods are on nodes" in page and "is an old label" in page
    result = here(capsys, "explain", "pod", "db-0", "-n", "shop", "-f", story)
    assert result.code == 0
    page = result.out
    assert "may not be disrupted now: the budget app-pdb: no" not in page
    assert "app-pdb  PodDisruptionBudget  foo" in page
    result = here(capsys, "explain", "budgets", "-A", "-f", story)
    assert result.code == 0
    assert "bar any, foo 0" in result.out


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        (("budget", "none", "-n", "shop"), 1, "there is no budget none in namespace shop"),
        (("pod", "db-0"), 1, "there is one in namespace shop: add -n shop"),
        (("pods", "db-0"), 2, "write explain pod db-0"),
        (("budget",), 2, "a name is missing; write explain budget NAME"),
        (("pod", "db-0", "-A"), 2, "give the namespace with -n"),
    ],
)
def test_errors(story: str, capsys: Capture, call: tuple[str, ...], code: int, says: str) -> None:
    """An object that does not exist is exit code 1, wrong usage is 2, with one sentence."""
    result = here(capsys, "explain", *call, "-f", story)
    assert result.code == code
    assert says in result.err


def explain_all(capsys: Capture, tmp_path: Path, what: str, *objects: Item) -> dict[str, Item]:
    """The reports about a cluster of these objects, by name."""
    path = tmp_path / "dump.json"
    path.write_text(with_budgets(objects))
    result = here(capsys, "explain", f"{what}s", "-A", "-f", str(path), "-o", "jsonl")
    assert result.code == 0, result.err
    return {row[what]: row for row in map(json.loads, result.out.splitlines())}


def owned(name: str, version: str, kind: str, owner: str, **meta: Any) -> Item:
    """A Ready pod of an owner, in the namespace shop."""
    reference = {"apiVersion": version, "kind": kind, "name": owner, "controller": True}
    labels = {"app": "web"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": labels,
            "ownerReferences": [reference],
            **meta,
        },
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


NODE: Item = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
BUDGET: Item = {
    "apiVersion": "zonewise.io/v1alpha1",
    "kind": "TopologyDisruptionBudget",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
}


def test_owners_without_a_namespace(tmp_path: Path, capsys: Capture) -> None:
    """A cluster-scoped custom kind has replicas; a node that owns pods has none."""
    ring: Item = {"apiVersion": "db.io/v1", "kind": "Ring", "metadata": {"name": "r"}}
    pods = [owned(f"p{n}", "db.io/v1", "Ring", "r") for n in range(2)]
    pods.append(owned("static", "v1", "Node", "n1"))
    ring["spec"] = {"replicas": 3}
    rows = explain_all(capsys, tmp_path, "budget", NODE, BUDGET, ring, *pods)
    assert rows["web"]["replicas"] == 4
    assert rows["web"]["domains"][0]["disruptionsAllowed"] == 0


@pytest.mark.parametrize("replicas", ["3", {"min": 2}, True, -1, None])
def test_replicas_that_are_no_number(replicas: Any, tmp_path: Path, capsys: Capture) -> None:
    """If spec.replicas of a custom kind is not a natural number, its pods are counted."""
    ring: Item = {"apiVersion": "db.io/v1", "kind": "Ring", "spec": {"replicas": replicas}}
    ring["metadata"] = {"name": "r", "namespace": "shop"}
    rows = explain_all(
        capsys, tmp_path, "budget", NODE, BUDGET, ring, owned("p", "db.io/v1", "Ring", "r")
    )
    assert rows["web"]["replicas"] == 1
    assert rows["web"]["domains"][0]["disruptionsAllowed"] == 1


@pytest.mark.parametrize(("ago", "code"), [(10, "Granted"), (300, "Allowed"), (86_400, "Granted")])
def test_a_grant_in_a_dump(ago: int, code: str, tmp_path: Path, capsys: Capture) -> None:
    """A recent grant is compared with the clock; an old dump counts as taken at its own time."""
    granted = times.format_time(times.from_epoch(time.time() - ago))
    ledger: Item = {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "DisruptionLedger",
        "metadata": {"name": "zonewise", "namespace": "shop"},
        "spec": {"grants": [{"uid": "1", "pod": "p", "time": granted}]},
    }
    pod = owned("p", "batch/v1", "Job", "j", uid="1")
    job: Item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    job["metadata"]["namespace"] = "shop"
    rows = explain_all(capsys, tmp_path, "pod", NODE, BUDGET, ledger, job, pod)
    assert rows["p"]["reason"]["code"] == code


def test_a_version_of_thousands_of_digits(tmp_path: Path, capsys: Capture) -> None:
    """An impossible resourceVersion of a ledger is ignored."""
    ledger: Item = {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "DisruptionLedger",
        "metadata": {"name": "zonewise", "namespace": "shop", "resourceVersion": "9" * 5000},
    }
    assert explain_all(capsys, tmp_path, "budget", NODE, BUDGET, ledger).keys() == {"web"}


def test_old_keys_are_noted_on_stderr(story: str, capsys: Capture) -> None:
    """With -o jsonl, the note about an old label key is on stderr."""
    result = here(capsys, "explain", "budgets", "-A", "-f", story, "-o", "jsonl")
    assert len(result.out.splitlines()) == 1
    assert "failure-domain.beta.kubernetes.io/zone is an old label" in result.err


def items(case: Case, seed: int) -> list[Item]:
    """A case of the arithmetic as a dump."""
    town, _ = build(case, random.Random(seed))
    objects: list[Item] = []
    for name in sorted(case.domains | {NO_DOMAIN}):
        labels = {"topology.kubernetes.io/zone": name} if name else {}
        objects.append(_named("v1", "Node", {"metadata": {"name": f"n-{name}", "labels": labels}}))
    for pod in town.pods.values():
        objects.append(_named("v1", "Pod", msgspec.to_builtins(pod)))
    owner: Item = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    reference = {**owner, "uid": "uid-web", "controller": True}
    meta: Item = {"name": "web", "namespace": "shop", "uid": "uid-web"}
    spec: Item = {"replicas": case.replicas}
    objects.append(_named("apps/v1", "Deployment", {"metadata": meta, "spec": spec}))
    for number in (1, 2):
        meta = {
            "name": f"web-{number}",
            "namespace": "shop",
            "uid": f"uid-web-{number}",
            "annotations": {"deployment.kubernetes.io/revision": str(number)},
            "ownerReferences": [reference],
        }
        objects.append(_named("apps/v1", "ReplicaSet", {"metadata": meta}))
    shut = sorted(case.open - {NO_DOMAIN})
    zone = "topology.kubernetes.io/zone"
    term: list[Item] = [{"key": zone, "operator": "Exists"}]
    if shut:
        term.append({"key": zone, "operator": "NotIn", "values": shut})
    limit = int(case.limit) if case.limit.isdigit() else case.limit
    spec = {
        "selector": {"matchLabels": {"app": "web"}},
        "nodeSelectorTerm": {"matchExpressions": term},
        "minAvailable" if case.at_least else "maxUnavailable": limit,
    }
    if case.exclusive:
        spec["crossDomain"] = "Exclusive"
    if case.per_domain:
        spec["expectedPods"] = "ReplicasPerDomain"
    domains = [{"domain": key, "expectedPods": n} for key, n in (case.baseline or {}).items()]
    objects.append(
        _named(
            "zonewise.io/v1alpha1",
            "TopologyDisruptionBudget",
            {
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": spec,
                "status": {"domains": domains},
            },
        )
    )
    grants = [msgspec.to_builtins(grant) for grant in town.ledger.grants.values()]
    objects.append(
        _named(
            "zonewise.io/v1alpha1",
            "DisruptionLedger",
            {"metadata": {"name": "zonewise", "namespace": "shop"}, "spec": {"grants": grants}},
        )
    )
    return objects


def _named(version: str, kind: str, value: Item) -> Item:
    return {"apiVersion": version, "kind": kind, **value}


def test_a_folder_of_clusters_agrees_with_the_model(tmp_path: Path, capsys: Capture) -> None:
    """Every number and verdict of many dumps is the model's, whatever their order of objects."""
    cases = {f"case-{seed:03}.json": drawn(seed) for seed in range(0, CASES, 4)}
    for number, (name, case) in enumerate(cases.items()):
        (tmp_path / name).write_text(with_budgets(items(case, number)))
    result = here(capsys, "explain", "budgets", "-A", "-f", str(tmp_path), "-o", "jsonl")
    assert result.code == 0
    budgets = {row["file"]: row for row in map(json.loads, result.out.splitlines())}
    result = here(capsys, "explain", "pods", "-A", "-f", str(tmp_path), "-o", "jsonl")
    assert result.code == 0
    verdicts: dict[str, dict[str, str]] = {}
    for row in map(json.loads, result.out.splitlines()):
        verdicts.setdefault(row["file"], {})[row["pod"]] = row["reason"]["code"]
    for name, case in cases.items():
        expected = numbers(case)
        elsewhere = expected.pop(NO_DOMAIN, {"present": 0})
        assert budgets[name]["uncovered"] == elsewhere["present"]
        assert budgets[name]["replicas"] == case.replicas
        assert {
            row["domain"]: {
                "present": row["present"],
                "expected": row["expectedPods"],
                "desired": row["desiredHealthy"],
                "healthy": row["currentHealthy"],
                "allowed": row["disruptionsAllowed"],
            }
            for row in budgets[name]["domains"]
        } == expected
        for number, some in enumerate(case.pods):
            assert verdicts[name][f"p{number}"] == goes(case, some)


def test_a_pod_that_may_go_names_its_budgets(tmp_path: Path, capsys: Capture) -> None:
    """The page of a pod that may be disrupted says why once: which budgets agree, or what the pod
    is.
    """
    path = tmp_path / NAMED
    path.write_text(STORY.replace("maxUnavailable: 0", "maxUnavailable: 1"))
    lines = [
        here(capsys, "explain", "pod", name, "-n", "shop", "-f", path).out.splitlines()[0]
        for name in ("db-0", "db-3")
    ]
    assert lines == [
        "Pod shop/db-0 may be disrupted now: the budget that covers it agrees"
        " (PodDisruptionBudget app-pdb).",
        "Pod shop/db-3 may be disrupted now: it is not running on a node, or is terminating.",
    ]
    term = STORY.index("    nodeSelectorTerm:")
    plain = STORY[:term].replace("    maxUnavailable: 0\n", "    maxUnavailable: 1\n")
    path.write_text(
        plain + "  status: {disruptionsAllowed: 1, currentHealthy: 4, expectedPods: 4}\n"
    )
    page = here(capsys, "explain", "pod", "db-0", "-n", "shop", "-f", path).out
    assert page == (
        "Pod shop/db-0 may be disrupted now: the budget that covers it agrees"
        " (PodDisruptionBudget app-pdb).\n"
    )


def test_a_pod_at_the_gate_says_which_rollout_it_waits_for(tmp_path: Path, capsys: Capture) -> None:
    """The page of a pod that a DomainRollout holds has the rollout's domain and reason."""
    pod = owned("web-0", "apps/v1", "StatefulSet", "web")
    pod["spec"] = {"schedulingGates": [{"name": "zonewise.io/domain-rollout"}]}
    pod["status"] = {"phase": "Pending"}
    message = "StatefulSet web: domain b is updated: 1 of 2 pods are of the newest revision"
    rollout = {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "DomainRollout",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"workloadRef": {"kind": "StatefulSet", "name": "web"}},
        "status": {
            "domain": "b",
            "reason": "Updating",
            "conditions": [
                {"type": "Progressing", "status": "True", "reason": "Updating", "message": message}
            ],
        },
    }
    path = tmp_path / "dump.json"
    path.write_text(with_budgets([NODE, pod, rollout]))
    page = here(capsys, "explain", "pod", "web-0", "-n", "shop", "-f", path).out.splitlines()
    assert page == [
        "Pod shop/web-0 may be disrupted now: it is not running on a node, or is terminating.",
        "",
        "It waits at the scheduling gate zonewise.io/domain-rollout for its turn: DomainRollout web"
        f" is at domain b (Updating): {message}. It starts when a domain lacks a pod of the new"
        " revision: this one or the next.",
    ]
    row = here(capsys, "explain", "pod", "web-0", "-n", "shop", "-f", path, "-o", "json").out
    assert json.loads(row)["waiting"]["code"] == "Updating"
    path.write_text(with_budgets([NODE, pod]))
    page = here(capsys, "explain", "pod", "web-0", "-n", "shop", "-f", path).out.splitlines()
    assert page[2].endswith("are not known. They say why: kubectl describe domainrollouts.")


@pytest.mark.parametrize("name", ["pod/db-0", "pods/db-0", "po/db-0", "Pod/db-0"])
def test_a_pod_as_kubectl_prints_it(name: str, story: str, capsys: Capture) -> None:
    """The kind may precede the name of a pod; another kind is none of a pod."""
    page = here(capsys, "explain", "pod", "db-0", "-n", "shop", "-f", story)
    assert page.code == 0
    assert here(capsys, "explain", "pod", name, "-n", "shop", "-f", story) == page
    other = here(capsys, "explain", "pod", "svc/db-0", "-n", "shop", "-f", story)
    assert "there is no pod svc/db-0 in namespace shop" in other.err


@pytest.mark.parametrize(
    "words",
    [
        ("pdb", "app-pdb"),
        ("pdb/app-pdb",),
        ("poddisruptionbudget.policy/app-pdb",),
        ("poddisruptionbudgets", "app-pdb"),
        ("pdb", "pdb/app-pdb"),
        ("budget", "poddisruptionbudget.policy/app-pdb"),
        ("budget", "budget/app-pdb"),
    ],
)
def test_a_budget_by_its_kind(words: tuple[str, ...], story: str, capsys: Capture) -> None:
    """kubectl's words for the kinds of budgets mean budgets of that kind."""
    page = here(capsys, "explain", "budget", "app-pdb", "-n", "shop", "-f", story)
    assert here(capsys, "explain", *words, "-n", "shop", "-f", story) == page
    other = here(capsys, "explain", "tdb", "app-pdb", "-n", "shop", "-f", story)
    assert other.code == 1
    assert "app-pdb" in here(capsys, "explain", "pdb", "-A", "-f", story).out
    assert "app-pdb" not in here(capsys, "explain", "tdb", "-A", "-f", story).out


def test_a_pod_that_is_held_lists_every_budget_that_covers_it(
    tmp_path: Path, capsys: Capture
) -> None:
    """The page of a pod that is held lists every budget that covers it: one refuses and why, one
    allows, and others do not apply.
    """
    pods = [owned(f"p{n}", "apps/v1", "ReplicaSet", "web-1") for n in range(2)]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web-1", "namespace": "shop"},
        "spec": {"replicas": 2},
    }
    plain = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2},
    }
    updates = _budget("web-rollout", maxUnavailable=0, holds="Updates")
    watching = _budget("watching", maxUnavailable=0, mode="Observe")
    objects = [NODE, BUDGET, plain, updates, watching, owner, *pods]
    report = explain_all(capsys, tmp_path, "pod", *objects)["p0"]
    assert [row["budget"] for row in report["blockers"]] == ["web"]
    topology = "TopologyDisruptionBudget"
    assert [
        (row["budget"], row["kind"], row["domain"], row["answer"], row["message"])
        for row in report["budgets"]
    ] == [
        ("watching", topology, "*", "DoesNotApply", "its mode is Observe"),
        ("web", "PodDisruptionBudget", "*", "Refuses", "needs 2 healthy pods and has 2"),
        ("web", topology, "*", "Allows", ""),
        (
            "web-rollout",
            topology,
            "*",
            "DoesNotApply",
            "it holds updates only, and evicting this pod is no update",
        ),
    ]
    page = here(
        capsys, "explain", "pod", "p0", "-n", "shop", "-f", str(tmp_path / "dump.json")
    ).out.splitlines()
    assert [line.split(maxsplit=3) for line in page[2:5]] == [
        ["BUDGET", "KIND", "DOMAIN", "ANSWER          WHY"],
        ["watching", topology, "*", "does not apply  its mode is Observe"],
        ["web", "PodDisruptionBudget", "*", "refuses         needs 2 healthy pods and has 2"],
    ]
    assert page[5].split() == ["web", topology, "*", "allows", "-"]


def test_budgets_that_agree_are_named_without_those_that_do_not_apply(
    tmp_path: Path, capsys: Capture
) -> None:
    """A budget that only observes does not decide, and is in the table."""
    pod = owned("p", "batch/v1", "Job", "j")
    job: Item = {"apiVersion": "batch/v1", "kind": "Job"}
    job["metadata"] = {"name": "j", "namespace": "shop"}
    watching = _budget("watching", maxUnavailable=0, mode="Observe")
    report = explain_all(capsys, tmp_path, "pod", NODE, BUDGET, watching, job, pod)["p"]
    assert [row["answer"] for row in report["budgets"]] == ["DoesNotApply", "Allows"]
    page = here(capsys, "explain", "pod", "p", "-n", "shop", "-f", str(tmp_path / "dump.json")).out
    assert page.startswith(
        "Pod shop/p may be disrupted now: the budget that covers it agrees"
        " (TopologyDisruptionBudget web).\n"
    )
    assert "does not apply  its mode is Observe" in page


def test_a_budget_that_holds_updates_says_so(tmp_path: Path, capsys: Capture) -> None:
    """The column HOLDS distinguishes it from a budget that holds every disruption."""
    path = tmp_path / "dump.json"
    objects = [NODE, BUDGET, _budget("web-rollout", maxUnavailable=0, holds="Updates")]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    page = here(capsys, "explain", "budgets", "-A", "-f", str(path)).out.splitlines()
    column = page[0].index("HOLDS")
    assert [line[column:].split("  ")[0] for line in page] == [
        "HOLDS",
        "disruptions",
        "updates only",
    ]


def _page(capsys: Capture, tmp_path: Path, budget: Item, what: str = "budget") -> list[str]:
    """The page of a budget of four pods, or of the first of them."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web-1", "namespace": "shop"},
        "spec": {"replicas": 4},
    }
    pods = [owned(f"p{n}", "apps/v1", "ReplicaSet", "web-1") for n in range(4)]
    path = tmp_path / "dump.json"
    path.write_text(with_budgets([NODE, owner, *pods, budget]))
    name = "p0" if what == "pod" else budget["metadata"]["name"]
    result = here(capsys, "explain", what, name, "-n", "shop", "-f", path)
    assert result.code == 0, result.err
    return result.out.splitlines()


@pytest.mark.parametrize(
    "spec", [{"maxUnavailable": 0}, {"minAvailable": "100%"}, {"minAvailable": 10}]
)
@pytest.mark.parametrize("plain", [False, True])
def test_a_budget_that_never_allows_says_what_its_pods_say(
    spec: Item, plain: bool, tmp_path: Path, capsys: Capture
) -> None:
    """The page of the budget has the sentence that the page of a pod has."""
    budget = _budget("web", **spec)
    if plain:
        needs = 10 if spec == {"minAvailable": 10} else 4
        budget |= {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
        budget["status"] = {"currentHealthy": 4, "desiredHealthy": needs, "expectedPods": 4}
    page = _page(capsys, tmp_path, budget)
    allows = "it never allows a disruption"
    if plain and spec != {"minAvailable": 10}:
        allows = (
            "it allows a disruption only while there are more pods than requested, as in a rollout"
            " with surge"
        )
    sentences = [line for line in page if f"{allows}. Change or delete" in line]
    assert len(sentences) == 1
    assert sentences[0] in _page(capsys, tmp_path, budget, "pod")


def test_the_first_line_of_a_budget_says_what_it_refuses_at_all(
    tmp_path: Path, capsys: Capture
) -> None:
    """The first line about a budget that observes says that it refuses nothing, about one of a
    DomainRollout that it does not refuse drains.
    """
    page = _page(capsys, tmp_path, _budget("web", maxUnavailable=0, mode="Observe"))
    assert page[0] == (
        "TopologyDisruptionBudget shop/web: it observes only, and nothing is refused (mode:"
        " Observe); enforced, pods that may be disrupted now: * 0."
    )
    assert not any("never" in line for line in page)
    budget = _budget("web-rollout", maxUnavailable=0, holds="Updates")
    budget["metadata"]["ownerReferences"] = [
        {"apiVersion": "zonewise.io/v1alpha1", "kind": "DomainRollout", "name": "web"}
        | {"uid": "1", "controller": True}
    ]
    page = _page(capsys, tmp_path, budget)
    assert page[0] == (
        "TopologyDisruptionBudget shop/web-rollout: it holds updates only, for DomainRollout web:"
        " drains are allowed for pods of the newest revision; for updates, pods that may be"
        " disrupted now: * 0."
    )
    assert not any("never" in line for line in page)


def _budget(name: str, **spec: Any) -> Item:
    """A TopologyDisruptionBudget of the same pods."""
    limits = {"selector": BUDGET["spec"]["selector"], **spec}
    return {**BUDGET, "metadata": {"name": name, "namespace": "shop"}, "spec": limits}
