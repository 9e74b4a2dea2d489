"""``zonewise install``: the manifests."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.program import here

from zonewise.api import EndpointSlice, Node, Service
from zonewise.cli.controller import LEASE
from zonewise.cli.deploy import Wanted, manifests
from zonewise.cli.deploy.alerts import rules
from zonewise.cli.deploy.dashboard import page
from zonewise.cli.hintoptions import Role
from zonewise.controllers.hintmetrics import HintsMetrics
from zonewise.controllers.standings import Standing
from zonewise.embedded.server import ApiServer
from zonewise.runtime.cache import Cache
from zonewise.runtime.metrics import Metrics
from zonewise.topology import Shares
from zonewise.traffic import Mode, Wish
from zonewise.traffic.slices import Plan

SERIES = re.compile(r"\b((?:zonewise|endpoint_slice_controller|leader_election)_\w+)")
Capture = pytest.CaptureFixture[str]
ROLES: tuple[Role, ...] = ("own", "adopt", "observe")


def printed(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    """The objects that the command prints."""
    result = here(capsys, "install", *arguments)
    assert (result.code, result.err) == (0, "")
    return list(yaml.safe_load_all(result.out))


def kinds(objects: list[dict[str, Any]]) -> list[str]:
    """Their kinds, in order."""
    return [item["kind"] for item in objects]


def test_by_default_nothing_is_changed(capsys: Capture) -> None:
    """Without a mode the programs look on: no right to write slices, no webhook on them."""
    objects = printed(capsys)
    assert kinds(objects) == [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "PriorityClass",
        "PodDisruptionBudget",
        "Service",
        "Deployment",
        "ValidatingWebhookConfiguration",
    ]
    (slices,) = [r for r in objects[2]["rules"] if r["resources"] == ["endpointslices"]]
    assert slices["verbs"] == ["list", "watch"]


def test_flags_reach_the_programs(capsys: Capture) -> None:
    """Image, namespace, replicas and the rules of decision are where they belong."""
    objects = printed(
        capsys,
        *("-n", "elsewhere", "--image", "mine:1", "--replicas", "3", "--endpointslices", "own"),
        *("--namespace-selector", "rollout=yes", "--missing-cpu", "equal"),
    )
    deployment = next(item for item in objects if item["kind"] == "Deployment")
    assert deployment["metadata"]["namespace"] == "elsewhere"
    assert deployment["spec"]["replicas"] == 3
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        assert container["image"] == "mine:1"
        assert container["args"][0] == container["name"]
        assert "--endpointslices=own" in container["args"]
        assert container["args"][-2:] == ["--namespace-selector=rollout=yes", "--missing-cpu=equal"]
    assert "namespaces" in objects[2]["rules"][0]["resources"]


def test_bad_flags_are_refused(capsys: Capture) -> None:
    """What no program could start with is not printed."""
    for flags in (
        ("--service-selector", "a b"),
        ("--feature-gates", "X=true"),
        ("--replicas", "0"),
        ("-n", "Bad_Name"),
    ):
        result = here(capsys, "install", *flags)
        assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize("role", ROLES)
async def test_the_manifests_apply(role: Role, tmp_path: Path) -> None:
    """An API server that refuses unknown fields takes every object, and takes them back."""
    server = ApiServer(tmp_path, clock=lambda: 1.8e9, rng=random.Random(1), inline=True)
    await server.boot()
    client = server.connect("test")
    objects = manifests(Wanted(role=role, alerts="configmap", dashboard=True, version="1.0"))
    paths = []
    for item in objects:
        served = server.registry.of(item["apiVersion"], item["kind"])
        assert served is not None, item["kind"]
        path = served.kind.resource.path(item["metadata"].get("namespace", ""))
        answer = await client.raw(
            "POST",
            path,
            query={"fieldValidation": "Strict"},
            headers={"Content-Type": "application/json"},
            body=json.dumps(item).encode(),
        )
        assert answer.status == 201
        assert "Warning" not in answer.headers
        paths.append(f"{path}/{item['metadata']['name']}")
    for path in reversed(paths):
        assert (await client.raw("DELETE", path)).status == 200
    await server.close()


def test_alerts(capsys: Capture) -> None:
    """The rules are the same for the operator and as a file; each says what to do."""
    operator = printed(capsys, "--alerts", "prometheusrule")[-1]
    assert operator["spec"] == rules()
    plain = printed(capsys, "--alerts", "configmap")[-1]
    assert yaml.safe_load(plain["data"]["zonewise.rules.yaml"]) == rules()
    (group,) = rules()["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert names == ["ZonewiseHintsLost", "ZonewiseWatchStale", "ZonewiseLeaderMissing"]
    assert all(rule["annotations"]["description"].endswith(".") for rule in group["rules"])


async def test_measured_is_what_is_watched(tmp_path: Path) -> None:
    """Every series that an alert or a panel asks for is one that the programs show."""
    server = ApiServer(tmp_path, clock=lambda: 1.8e9, rng=random.Random(1), inline=True)
    metrics = Metrics()
    hints = HintsMetrics(metrics.registry)
    cache = Cache(server.connect("test"))
    cache.store(Node)
    metrics.watches(lambda: cache.stats)
    metrics.leading(LEASE)
    metrics.admission("/hints", "allowed", 0.1)
    hints.synced("success")
    service, wish = Service(), Wish(Mode.AUTO)
    plan = Plan(create=(EndpointSlice(),))
    hints.planned(service, wish, plan)
    hints.standings = {("", "s"): Standing.of(service, wish, plan, Shares(), None)}
    shown = metrics.render().decode()
    panels = [target["expr"] for panel in page()["panels"] for target in panel["targets"]]
    alarms = [rule["expr"] for rule in rules()["groups"][0]["rules"]]
    asked = {name for text in (*panels, *alarms) for name in SERIES.findall(text)}
    assert len(asked) >= 7
    assert [name for name in asked if f"\n{name}{{" not in shown] == []
    labels = set(re.findall(r"by \(([^)]+)\)", " ".join(panels)))
    known = {"le", "pod", *re.findall(r'(\w+)="', shown)}
    assert {word for group in labels for word in group.split(", ")} <= known
    await server.close()


def test_dashboard(capsys: Capture) -> None:
    """The dashboard is one JSON document whose panels do not overlap."""
    stored = printed(capsys, "--dashboard")[-1]
    assert json.loads(stored["data"]["zonewise.json"]) == page()
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in page()["panels"]}
    assert len(places) == len(page()["panels"])
