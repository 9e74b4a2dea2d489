"""``zonewise install``: the manifests."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry
from tests.cli.run_program import here

from zonewise.api import EndpointSlice, Node, Service
from zonewise.api.values import quantity
from zonewise.controllers.hints.decided import DecidedService
from zonewise.controllers.hints.metrics import HintsMetrics
from zonewise.embedded.apiserver.auth.identity import Identity
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.install.alerts import make_rules
from zonewise.install.dashboard import make_page
from zonewise.install.installation import LEASE, Installation, Role
from zonewise.install.manifests import render_manifests
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.runtime.webhook.server import ReviewOutcome
from zonewise.topology.shares import Shares
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.planning import SlicePlan

SERIES = re.compile(r"\b((?:zonewise|endpoint_slice_controller|leader_election)_\w+)")
Capture = pytest.CaptureFixture[str]
ROLES: tuple[Role, ...] = ("own", "adopt", "observe")


def printed(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    """The objects that the command prints."""
    result = here(capsys, "install", *arguments)
    assert (result.code, result.err) == (0, "")
    return list(yaml.safe_load_all(result.out))


def kinds(objects: list[dict[str, Any]]) -> list[str]:
    """The kinds of these objects, in order."""
    return [item["kind"] for item in objects]


def named(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind, by name."""
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def test_by_default_nothing_is_changed(capsys: Capture) -> None:
    """Without a mode the programs only read: no right to write slices, no webhook on them."""
    objects = printed(capsys)
    assert kinds(objects) == [
        "Namespace",
        "CustomResourceDefinition",
        *["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] * 3,
        *["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"] * 2,
        "PriorityClass",
        *["PodDisruptionBudget", "Service", "NetworkPolicy", "Deployment"] * 2,
        "ValidatingWebhookConfiguration",
    ]
    rights = [rule for role in named(objects, "ClusterRole").values() for rule in role["rules"]]
    (slices,) = [rule for rule in rights if rule["resources"] == ["endpointslices"]]
    assert slices["verbs"] == ["list", "watch"]


def test_each_program_has_an_account_of_its_own(capsys: Capture) -> None:
    """Neither the controller nor the webhook may do what only the other does."""
    objects = printed(capsys, "--endpointslices", "adopt", "--budgets", "enforce")
    deployments = named(objects, "Deployment")
    accounts = {
        name: deployment["spec"]["template"]["spec"]["serviceAccountName"]
        for name, deployment in deployments.items()
    }
    assert accounts == {"zonewise": "zonewise", "zonewise-webhook": "zonewise-webhook"}
    writes = {
        name: {
            resource
            for kind in ("ClusterRole", "Role")
            for rule in named(objects, kind)[name]["rules"]
            for resource in rule["resources"]
            if {"create", "update", "patch", "delete"} & set(rule["verbs"])
        }
        for name in accounts
    }
    assert writes["zonewise"] & writes["zonewise-webhook"] == {"disruptionledgers"}
    assert writes["zonewise-webhook"] == {
        "disruptionledgers",
        "mutatingwebhookconfigurations",
        "secrets",
        "validatingwebhookconfigurations",
    }
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for name, binding in named(objects, kind).items():
            assert [subject["name"] for subject in binding["subjects"]] == [name]


OWN_FIELDS_ONLY = {"podlocators", "topologydisruptionbudgets/status", "domainrollouts/status"}
"""What the controller writes of kinds that are ours from beginning to end."""


@pytest.mark.parametrize("role", ROLES)
def test_whatever_may_be_patched_is_limited_to_fields(capsys: Capture, role: Role) -> None:
    """Each right to change an object that is not ours comes with a policy for that resource."""
    objects = printed(capsys, "--endpointslices", role, "--budgets", "enforce")
    limited = {
        resource
        for policy in named(objects, "ValidatingAdmissionPolicy").values()
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    patched = {
        resource
        for cluster_role in named(objects, "ClusterRole").values()
        for rule in cluster_role["rules"]
        for resource in rule["resources"]
        if {"update", "patch"} & set(rule["verbs"])
    }
    assert patched - limited == OWN_FIELDS_ONLY | {"disruptionledgers", "events"}
    bindings = named(objects, "ValidatingAdmissionPolicyBinding")
    assert set(bindings) == set(named(objects, "ValidatingAdmissionPolicy"))
    for name, binding in bindings.items():
        assert (binding["spec"]["policyName"], binding["spec"]["validationActions"]) == (
            name,
            ["Deny"],
        )


def test_who_may_connect(capsys: Capture) -> None:
    """NetworkPolicies allow the given networks and namespaces; open ports say that they are."""
    networks = ("--webhook-from", "10.0.0.0/28", "--webhook-from", "kube-system")
    objects = printed(capsys, *networks, "--metrics-from", "monitoring")
    webhook, controller = (
        named(objects, "NetworkPolicy")[name] for name in ("zonewise-webhook", "zonewise")
    )
    monitoring = {
        "ports": [{"port": "metrics", "protocol": "TCP"}],
        "from": [_namespace("monitoring")],
    }
    api_servers = {
        "ports": [{"port": "webhook", "protocol": "TCP"}],
        "from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}, _namespace("kube-system")],
    }
    assert webhook["spec"]["ingress"] == [api_servers, monitoring]
    assert controller["spec"]["ingress"] == [monitoring]
    assert "annotations" not in webhook["metadata"]
    for name, policy in named(objects, "NetworkPolicy").items():
        pod = named(objects, "Deployment")[name]["spec"]["template"]
        assert policy["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    unnamed = named(printed(capsys), "NetworkPolicy")["zonewise-webhook"]
    assert [list(rule) for rule in unnamed["spec"]["ingress"]] == [["ports"], ["ports"]]
    (note,) = unnamed["metadata"]["annotations"].values()
    assert "open to everybody" in note
    assert "--webhook-from and --metrics-from" in note


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def test_client_certificates_are_required(capsys: Capture, tmp_path: Path) -> None:
    """--webhook-client-ca: the authority of a file, or of a ConfigMap that exists, is mounted."""
    identity = Identity(tmp_path, host="127.0.0.1", now=datetime(2026, 1, 1, tzinfo=UTC))
    file = tmp_path / "client-ca.crt"
    file.write_text(identity.authority_pem)
    objects = printed(capsys, "--webhook-client-ca", str(file))
    (config_map,) = named(objects, "ConfigMap").values()
    assert config_map["data"] == {"ca.crt": file.read_text()}
    existing = printed(capsys, "--webhook-client-ca", "configmap/api-servers")
    assert not named(existing, "ConfigMap")
    for items, name in ((objects, config_map["metadata"]["name"]), (existing, "api-servers")):
        pods = {
            name: deployment["spec"]["template"]["spec"]
            for name, deployment in named(items, "Deployment").items()
        }
        (container,) = pods["zonewise-webhook"]["containers"]
        (mount,) = container["volumeMounts"]
        assert f"--client-ca={mount['mountPath']}/ca.crt" in container["args"]
        (volume,) = pods["zonewise-webhook"]["volumes"]
        assert volume == {"name": mount["name"], "configMap": {"name": name}}
        assert "volumes" not in pods["zonewise"]


def test_flags_reach_the_programs(capsys: Capture) -> None:
    """Image, namespace, replicas and the flags of decisions are in the manifests."""
    objects = printed(
        capsys,
        *("-n", "elsewhere", "--image", "mine:1", "--replicas", "3", "--endpointslices", "own"),
        *("--namespace-selector", "rollout=yes", "--missing-cpu", "equal"),
    )
    for deployment in named(objects, "Deployment").values():
        assert deployment["metadata"]["namespace"] == "elsewhere"
        assert deployment["spec"]["replicas"] == 3
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "mine:1"
        assert container["args"][0] == container["name"]
        assert "--endpointslices=own" in container["args"]
        assert container["args"][-2:] == ["--namespace-selector=rollout=yes", "--missing-cpu=equal"]
    rules = named(objects, "ClusterRole")["zonewise"]["rules"]
    assert {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]} in rules


def test_memory_is_limited(capsys: Capture) -> None:
    """Each program has a limit of memory above what it requests, and none of CPU."""
    for deployment in named(printed(capsys), "Deployment").values():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        requests, limits = (container["resources"][part] for part in ("requests", "limits"))
        assert set(limits) == {"memory"}
        assert quantity.value(limits["memory"]) >= 2 * quantity.value(requests["memory"])


def test_bad_flags_are_refused(capsys: Capture) -> None:
    """Flags with which no program could start are refused, and nothing is printed."""
    for flags in (
        ("--service-selector", "a b"),
        ("--feature-gates", "X=true"),
        ("--replicas", "0"),
        ("-n", "Bad_Name"),
        ("--webhook-from", "10.0.0.0/33"),
        ("--webhook-from", "10.0.0.1/28"),
        ("--metrics-from", "Bad_Name"),
        ("--webhook-client-ca", "no-such-file"),
        ("--webhook-client-ca", "/dev/null"),
        ("--webhook-client-ca", "configmap/"),
        ("--budgets", "enforce", "--gated-user", ""),
    ):
        result = here(capsys, "install", *flags)
        assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize("role", ROLES)
async def test_the_manifests_apply(role: Role, tmp_path: Path) -> None:
    """An API server that refuses unknown fields accepts every object, and deletes them again."""
    server = ApiServer(tmp_path, clock=lambda: 1.8e9, rng=random.Random(1), inline=True)
    await server.boot()
    client = server.connect("test")
    objects = render_manifests(
        Installation(role=role, alerts="configmap", dashboard=True, version="1.0")
    )
    paths = []
    for item in objects:
        served = server.registry.by_kind(item["apiVersion"], item["kind"])
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
    assert operator["spec"] == make_rules()
    plain = printed(capsys, "--alerts", "configmap")[-1]
    assert yaml.safe_load(plain["data"]["zonewise.rules.yaml"]) == make_rules()
    (group,) = make_rules()["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert names == [
        "ZonewiseHintsLost",
        "ZonewiseSyncsFailing",
        "ZonewiseWatchStale",
        "ZonewiseLeaderMissing",
    ]
    assert all(rule["annotations"]["description"].endswith(".") for rule in group["rules"])


def test_the_alert_on_failed_syncs_has_the_objective_of_the_kep() -> None:
    """More than 10 % of all syncs, of any result that is not success, for a quarter of an hour."""
    (group,) = make_rules()["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == "ZonewiseSyncsFailing"]
    ((failed, objective, every),) = re.findall(
        r"^sum\(rate\((.+)\[15m\]\)\) > ([0-9.]+) \* sum\(rate\((.+)\[15m\]\)\)$", rule["expr"]
    )
    assert (failed, float(objective)) == (f'{every}{{result=~"stale|error"}}', 0.1)
    registry = CollectorRegistry()
    hints = HintsMetrics(registry, {})
    for result in ("success", "stale", "error"):
        hints.synced(result)
    assert registry.get_sample_value(every, {"result": "stale"}) == 1


async def test_alerts_about_budgets(capsys: Capture) -> None:
    """With budgets more rules are printed: about a gate that fails, one that is bypassed, and new
    pods that were not held.
    """
    flags = ("--budgets", "enforce", "--alerts", "prometheusrule")
    (operator,) = [item for item in printed(capsys, *flags) if item["kind"] == "PrometheusRule"]
    assert operator["spec"] == make_rules(budgets=True)
    (group,) = make_rules(budgets=True)["groups"]
    more = group["rules"][len(make_rules()["groups"][0]["rules"]) :]
    assert [rule["alert"] for rule in more] == [
        "ZonewiseGateFailing",
        "ZonewiseGateBypassed",
        "ZonewiseReplacementsNotHeld",
    ]
    failing, bypassed, not_held = (rule["expr"] for rule in more)
    hooks = [
        hook
        for item in printed(capsys, *flags)
        if item["kind"].endswith("WebhookConfiguration")
        for hook in item["webhooks"]
    ]
    open_ = {hook["name"] for hook in hooks if hook["failurePolicy"] == "Ignore"}
    passed = [re.findall(r'name="([^"]+)"', rule)[0] for rule in (bypassed, not_held)]
    assert passed == ["deletions.zonewise.io", "pods.zonewise.io"]
    assert set(passed) <= open_
    paths = "|".join(re.findall(r'path=~"([^"]+)"', failing + not_held))
    gated = {hook["clientConfig"]["service"]["path"] for hook in hooks if gates(hook)}
    assert set(paths.split("|")) == gated
    (outcomes,) = set(re.findall(r'outcome=~"([^"]+)"', failing + not_held))
    assert set(outcomes.split("|")) <= set(get_args(ReviewOutcome))
    metrics = Metrics()
    metrics.admission("/evictions", "late", 0.1)
    assert 'zonewise_admission_total{outcome="late",path="/evictions"}' in metrics.render().decode()


def gates(hook: dict[str, Any]) -> bool:
    """Whether a webhook is called for budgets."""
    selector = json.dumps(hook["namespaceSelector"])
    return "zonewise.io/budgets" in selector


def test_rollouts_come_with_budgets(capsys: Capture) -> None:
    """The definitions, and the rights to roll out, are printed where budgets are enforced."""
    plain = json.dumps(printed(capsys))
    assert "domainrollouts" not in plain
    observed = json.dumps(printed(capsys, "--budgets", "observe"))
    assert "domainrollouts.zonewise.io" in observed
    assert 'pods/eviction"], "verbs": ["create"' not in observed
    objects = printed(capsys, "--budgets", "enforce")
    rights = {
        (resource, verb)
        for role in named(objects, "ClusterRole").values()
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {
        ("domainrollouts", "watch"),
        ("domainrollouts/status", "patch"),
        ("topologydisruptionbudgets", "create"),
        ("pods/eviction", "create"),
        ("statefulsets/status", "patch"),
    } <= rights
    assert ("domainrollouts", "patch") not in rights
    assert ("pods", "delete") not in rights


async def test_measured_is_what_is_watched(tmp_path: Path) -> None:
    """Every series in an alert or a panel is one that the programs expose."""
    server = ApiServer(tmp_path, clock=lambda: 1.8e9, rng=random.Random(1), inline=True)
    metrics = Metrics()
    decided_services: dict[tuple[str, str], DecidedService] = {}
    hints = HintsMetrics(metrics.registry, decided_services)
    cache = Cache(server.connect("test"))
    cache.store(Node)
    metrics.watches(lambda: cache.stats)
    metrics.leading(LEASE)
    metrics.admission("/hints", "allowed", 0.1)
    hints.synced("success")
    service, hint_request = Service(), HintRequest(Mode.AUTO)
    plan = SlicePlan(create=(EndpointSlice(),))
    hints.planned(service, hint_request, plan, writes=True)
    decided_services["", "s"] = DecidedService.of(service, hint_request, plan, Shares(), None)
    exposition = metrics.render().decode()
    panels = [target["expr"] for panel in make_page()["panels"] for target in panel["targets"]]
    alarms = [rule["expr"] for rule in make_rules()["groups"][0]["rules"]]
    series = {name for text in (*panels, *alarms) for name in SERIES.findall(text)}
    assert len(series) >= 7
    assert [name for name in series if f"\n{name}{{" not in exposition] == []
    labels = set(re.findall(r"by \(([^)]+)\)", " ".join(panels)))
    known = {"le", "pod", *re.findall(r'(\w+)="', exposition)}
    assert {word for group in labels for word in group.split(", ")} <= known
    await server.close()


def test_dashboard(capsys: Capture) -> None:
    """The dashboard is one JSON document whose panels do not overlap."""
    stored = printed(capsys, "--dashboard")[-1]
    assert json.loads(stored["data"]["zonewise.json"]) == make_page()
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in make_page()["panels"]}
    assert len(places) == len(make_page()["panels"])


def test_a_name_server_is_printed_only_if_asked_for(capsys: Capture) -> None:
    """--dns: an account that may read neither pods nor nodes, a budget, a Service, a Deployment."""
    plain = printed(capsys)
    objects = printed(capsys, "--dns")
    more = [item for item in objects if item not in plain]
    assert kinds(more) == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "PodDisruptionBudget",
        "Service",
        "Deployment",
    ]
    read = {resource for rule in more[1]["rules"] for resource in rule["resources"]}
    assert read == {"namespaces", "services", "endpointslices", "podlocators"}
    pod = more[5]["spec"]["template"]["spec"]
    assert pod["dnsPolicy"] == "Default"
    assert "--lameduck=5s" in pod["containers"][0]["args"]
    ports = {(port["port"], port.get("protocol", "TCP")) for port in more[4]["spec"]["ports"]}
    assert {(53, "UDP"), (53, "TCP")} <= ports


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--csi", "--budgets", "enforce"), "--budgets is not for --csi"),
        (("--csi", "--dns", "--dashboard"), "--dns, --dashboard are not for --csi"),
        (("--csi", "--endpointslices", "own"), "--endpointslices is not for --csi"),
        (("--csi", "--alerts", "configmap"), "--alerts is not for --csi"),
        (("--csi", "--namespace-selector", "a=b"), "--namespace-selector is not for --csi"),
        (("--csi", "--missing-cpu", "equal"), "--missing-cpu is not for --csi"),
        (("--proxy", "--dns", "--budgets", "observe"), "--budgets, --dns are not for --proxy"),
        (("--proxy", "--replicas", "3"), "--replicas is not for --proxy"),
        (("--proxy", "--backend", "embedded"), "--backend is not for --proxy"),
        (("--csi", "--webhook-from", "10.0.0.0/8"), "--webhook-from is not for --csi"),
        (("--proxy", "--metrics-from", "monitoring"), "--metrics-from is not for --proxy"),
        (("--proxy", "--webhook-client-ca", "ca.crt"), "--webhook-client-ca is not for --proxy"),
        (("--gated-user", "me"), "--gated-user has no effect without --budgets"),
    ],
)
def test_no_flag_is_ignored(capsys: Capture, flags: tuple[str, ...], says: str) -> None:
    """A flag that the chosen manifests would ignore is refused, and named."""
    result = here(capsys, "install", *flags)
    assert (result.code, result.out) == (2, "")
    assert says in result.sentence()


@pytest.mark.parametrize(
    ("image", "fine"),
    [
        ("zonewise:0.1", True),
        ("registry.example:5000/team/zonewise:v1.2_3", True),
        ("localhost/zonewise@sha256:" + "0a" * 32, True),
        ("bad image", False),
        ("Zonewise:1", False),
        ("zonewise:", False),
        ("https://registry.example/zonewise", False),
        ("zonewise:1\n", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("what", [(), ("--proxy",), ("--csi",)])
def test_images(capsys: Capture, image: str, fine: bool, what: tuple[str, ...]) -> None:
    """A text that is not the name of an image is refused, whatever is installed."""
    result = here(capsys, "install", *what, "--image", image)
    if fine:
        assert result.code == 0
        assert f"image: {image}\n" in result.out
    else:
        assert (result.code, result.out) == (2, "")
        assert "is not the name of an image" in result.sentence()


@pytest.mark.parametrize(
    ("flags", "programs"),
    [
        (("--dns", "--endpointslices", "adopt"), {"zonewise", "zonewise-webhook", "zonewise-dns"}),
        (("--proxy", "--api-server", "10.0.0.1:6443"), {"zonewise-proxy"}),
    ],
)
def test_feature_gates_go_to_every_program_that_uses_hints(
    flags: tuple[str, ...], programs: set[str], capsys: Capture
) -> None:
    """One flag of the installation switches hints off in all programs; the CSI driver has none."""
    gate = "--feature-gates=TopologyAwareHints=false"
    objects = printed(capsys, *flags, gate)
    workloads = named(objects, "Deployment") | named(objects, "DaemonSet")
    assert set(workloads) == programs
    for workload in workloads.values():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert gate in container["args"]
    refused = here(capsys, "install", "--csi", gate)
    assert refused.code == 2
    assert "--feature-gates is not for --csi" in refused.err
