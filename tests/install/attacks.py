"""What an attacker could do with one of our accounts, and what its program does with it.

The printed roles of ``--endpointslices adopt --budgets enforce`` allow all of it; the printed
policies have to refuse the attacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from zonewise.controllers.budgets.waking import WOKEN
from zonewise.disruption.rollouts.replacements import DOMAIN_ANNOTATION, GATE
from zonewise.disruption.steering import DELETION_COST, MARK_COST, REDUCE_TO
from zonewise.install.installation import NAME, WEBHOOK, Installation, Obj
from zonewise.runtime.client.client import Client
from zonewise.traffic.slices.topology import TOPOLOGY_ANNOTATION
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

INSTALLATION = Installation(role="adopt", budgets="enforce", namespace="taken")
SHOP = "shop-of-taken"

HOOKS = "/apis/admissionregistration.k8s.io/v1"
VALIDATING = f"{HOOKS}/validatingwebhookconfigurations/{NAME}"
MUTATING = f"{HOOKS}/mutatingwebhookconfigurations/{NAME}"
POD = "/api/v1/namespaces/kube-system/pods/dns"
GATED_POD = f"/api/v1/namespaces/{SHOP}/pods/held"
CHOOSY_POD = f"/api/v1/namespaces/{SHOP}/pods/choosy"
REPLICA_SET = f"/apis/apps/v1/namespaces/{SHOP}/replicasets/web"
STATEFUL_SET = f"/apis/apps/v1/namespaces/{SHOP}/statefulsets/db"
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{SHOP}/endpointslices/web"
SERVICE = f"/api/v1/namespaces/{SHOP}/services/web"
SECRETS = f"/api/v1/namespaces/{INSTALLATION.namespace}/secrets"
BUDGETS = f"/apis/zonewise.io/v1alpha1/namespaces/{SHOP}/topologydisruptionbudgets"

CONTAINERS = [{"name": "box", "image": "registry.example/box:1"}]
PRIVILEGED = [{**CONTAINERS[0], "securityContext": {"privileged": True}}]
OTHER_GATE = "quota.example.com/approved"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LINUX = {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux"]}]}
SELECTED = {"app": "web"}
WORKLOAD: Obj = {
    "selector": {"matchLabels": SELECTED},
    "template": {"metadata": {"labels": SELECTED}, "spec": {"containers": CONTAINERS}},
}
BUDGET_SPEC: Obj = {"selector": {"matchLabels": SELECTED}, "maxUnavailable": 0}
ROLLOUT: Obj = {
    "apiVersion": "zonewise.io/v1alpha1",
    "kind": "DomainRollout",
    "name": "web",
    "uid": "0b1c",
    "controller": True,
}


def victims() -> list[Obj]:
    """The objects on the cluster."""

    def of(version: str, kind: str, name: str, namespace: str = SHOP, **fields: Any) -> Obj:
        meta = {"name": name, "namespace": namespace}
        return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}

    ledger_kinds = "zonewise.io/v1alpha1"
    noted = {"name": "web", "namespace": SHOP, "annotations": {"team": "shop", REDUCE_TO: "1"}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}},
        of("v1", "Pod", "dns", "kube-system", spec={"containers": CONTAINERS}),
        of(
            "v1",
            "Pod",
            "held",
            spec={"containers": CONTAINERS, "schedulingGates": [{"name": GATE}]},
        ),
        of(
            "v1",
            "Pod",
            "choosy",
            spec={
                "containers": CONTAINERS,
                "schedulingGates": [{"name": OTHER_GATE}, {"name": GATE}],
                "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [LINUX]}}},
            },
        ),
        of("apps/v1", "ReplicaSet", "web", spec={"replicas": 3, **WORKLOAD}) | {"metadata": noted},
        of("apps/v1", "StatefulSet", "db", spec={"serviceName": "db", **WORKLOAD}),
        of(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            "web",
            addressType="IPv4",
            endpoints=[{"addresses": ["10.0.0.1"], "zone": "a"}],
            ports=[{"port": 80}],
        ),
        of("v1", "Service", "web", spec={"type": "LoadBalancer", "ports": [{"port": 80}]}),
        of(ledger_kinds, "TopologyDisruptionBudget", "web", spec=BUDGET_SPEC),
    ]


@dataclass(frozen=True)
class Try:
    """One request by one account; a PUT changes the stored object."""

    what: str
    account: str
    method: Literal["PATCH", "POST", "PUT"]
    path: str
    body: Any

    async def send(self, account: Client, owner: Client) -> Obj:
        """Send it as a dry run."""
        body, kind = self.body, "application/json"
        if self.method == "PATCH":
            manner = "json-patch" if isinstance(body, list) else "merge-patch"
            kind = f"application/{manner}+json"
        elif callable(body):
            body = body((await owner.raw("GET", self.path)).json())
        answer = await account.raw(
            self.method,
            self.path,
            query={"dryRun": "All"},
            headers={"Content-Type": kind},
            body=json.dumps(body).encode(),
        )
        result: Obj = answer.json()
        return result


def _secret(name: str, **fields: Any) -> Obj:
    meta = {"name": name, "annotations": {"kubernetes.io/service-account.name": NAME}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, **fields}


def _budget(**meta: Any) -> Obj:
    return {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "TopologyDisruptionBudget",
        "metadata": {"name": "web-rollout", **meta},
        "spec": BUDGET_SPEC,
    }


def _with_endpoint(**fields: Any) -> Callable[[Obj], Obj]:
    return lambda body: body | {"endpoints": [body["endpoints"][0] | fields]}


def _annotated(name: str) -> Callable[[Obj], Obj]:
    def add(body: Obj) -> Obj:
        meta = body["metadata"]
        return body | {
            "metadata": meta | {"annotations": meta.get("annotations", {}) | {name: "{}"}}
        }

    return add


def _at(path: str, value: Any) -> list[Obj]:
    return [{"op": "add", "path": path, "value": value}]


FIRST = "/webhooks/0"
EVERY_SECRET = {
    "operations": ["*"],
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["secrets"],
}
INGRESS = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
HINTS = {"type": "zonewise.io/Hints", "status": "True", "reason": "Hinted", "message": ""}
HINTS["lastTransitionTime"] = "2026-01-01T00:00:00Z"
FOREIGN = HINTS | {"type": "example.com/Ready"}
IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
ON_NODE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["mine"]}]}
PREFERRED = [{"weight": 100, "preference": IN_ZONE}]


def _released(term: Obj, gates: list[Obj] | None = None) -> Obj:
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}
    return {"spec": {"schedulingGates": gates, "affinity": affinity}}


OTHER_GATES = [{"name": OTHER_GATE}]
BOTH = {"matchExpressions": LINUX["matchExpressions"] + IN_ZONE["matchExpressions"]}
SENT = {"annotations": {DOMAIN_ANNOTATION: "a"}}
TOKEN = "kubernetes.io/service-account-token"

ATTACKS = (
    Try(
        "send reviews to another server",
        WEBHOOK,
        "PATCH",
        VALIDATING,
        [
            {"op": "add", "path": f"{FIRST}/clientConfig/url", "value": "https://192.0.2.1/read"},
            {"op": "remove", "path": f"{FIRST}/clientConfig/service"},
        ],
    ),
    Try(
        "send reviews to another Service",
        WEBHOOK,
        "PATCH",
        MUTATING,
        _at(f"{FIRST}/clientConfig/service/name", "mine"),
    ),
    Try(
        "have Secrets reviewed", WEBHOOK, "PATCH", VALIDATING, _at(f"{FIRST}/rules/-", EVERY_SECRET)
    ),
    Try("take a webhook out", WEBHOOK, "PATCH", MUTATING, [{"op": "remove", "path": FIRST}]),
    Try(
        "let failures pass",
        WEBHOOK,
        "PATCH",
        VALIDATING,
        _at("/webhooks/1/failurePolicy", "Ignore"),
    ),
    Try(
        "get a token of the controller",
        WEBHOOK,
        "POST",
        SECRETS,
        _secret(WEBHOOK, type=TOKEN),
    ),
    Try("keep another Secret", WEBHOOK, "POST", SECRETS, _secret("other", type="Opaque")),
    Try(
        "change an image in kube-system",
        NAME,
        "PATCH",
        POD,
        _at("/spec/containers/0/image", "registry.example/mine"),
    ),
    Try(
        "change an image of a pod that waits",
        NAME,
        "PATCH",
        GATED_POD,
        [
            {"op": "replace", "path": "/spec/containers/0/image", "value": "registry.example/mine"},
            {"op": "remove", "path": "/spec/schedulingGates"},
        ],
    ),
    Try(
        "let a pod that waits stay on lost nodes",
        NAME,
        "PATCH",
        GATED_POD,
        _at("/spec/tolerations/-", {"operator": "Exists"}),
    ),
    Try("open the gate of another system", NAME, "PATCH", CHOOSY_POD, _released(BOTH)),
    Try("send a pod to one node", NAME, "PATCH", GATED_POD, _released(ON_NODE)),
    Try(
        "send a pod with terms of its own to one node",
        NAME,
        "PATCH",
        CHOOSY_POD,
        _released(LINUX | ON_NODE, gates=OTHER_GATES),
    ),
    Try(
        "let a pod prefer nodes",
        NAME,
        "PATCH",
        CHOOSY_POD,
        {
            "spec": {
                "schedulingGates": OTHER_GATES,
                "affinity": {
                    "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}
                },
            }
        },
    ),
    Try("label a pod", NAME, "PATCH", POD, {"metadata": {"labels": SELECTED}}),
    Try("annotate a pod", NAME, "PATCH", POD, {"metadata": {"annotations": {"mine": "1"}}}),
    Try(
        "make a ReplicaSet privileged",
        NAME,
        "PATCH",
        REPLICA_SET,
        {"spec": {"template": {"spec": {"containers": PRIVILEGED}}}},
    ),
    Try("make a ReplicaSet larger", NAME, "PATCH", REPLICA_SET, {"spec": {"replicas": 4}}),
    Try(
        "remove another annotation",
        NAME,
        "PATCH",
        REPLICA_SET,
        {"metadata": {"annotations": {"team": None}}},
    ),
    Try(
        "give a ReplicaSet away",
        NAME,
        "PATCH",
        REPLICA_SET,
        {"metadata": {"ownerReferences": [ROLLOUT]}},
    ),
    Try(
        "claim replicas of a StatefulSet",
        NAME,
        "PATCH",
        f"{STATEFUL_SET}/status",
        {"status": {"replicas": 7}},
    ),
    Try("send traffic elsewhere", NAME, "PUT", SLICE, _with_endpoint(addresses=["192.0.2.1"])),
    Try(
        "have an endpoint ignored", NAME, "PUT", SLICE, _with_endpoint(conditions={"ready": False})
    ),
    Try("annotate a slice", NAME, "PUT", SLICE, _annotated("mine")),
    Try("take an address of a Service", NAME, "PATCH", f"{SERVICE}/status", {"status": INGRESS}),
    Try(
        "write a condition of others",
        NAME,
        "PATCH",
        f"{SERVICE}/status",
        {"status": {"conditions": [FOREIGN]}},
    ),
    Try(
        "open a budget",
        NAME,
        "PATCH",
        f"{BUDGETS}/web",
        {"spec": {"maxUnavailable": 9}, "metadata": {"ownerReferences": [ROLLOUT]}},
    ),
    Try("make a budget of nobody", NAME, "POST", BUDGETS, _budget()),
)

WORK = (
    Try(
        "publish an authority",
        WEBHOOK,
        "PATCH",
        VALIDATING,
        _at(f"{FIRST}/clientConfig/caBundle", ""),
    ),
    Try("keep the certificate", WEBHOOK, "POST", SECRETS, _secret(WEBHOOK, type="Opaque")),
    Try(
        "mark a pod", NAME, "PATCH", POD, {"metadata": {"annotations": {DELETION_COST: MARK_COST}}}
    ),
    Try(
        "send a pod to its zone", NAME, "PATCH", GATED_POD, _released(IN_ZONE) | {"metadata": SENT}
    ),
    Try("send a pod anywhere", NAME, "PATCH", GATED_POD, {"spec": {"schedulingGates": None}}),
    Try(
        "send a pod with terms and another gate to its zone",
        NAME,
        "PATCH",
        CHOOSY_POD,
        _released(BOTH, gates=OTHER_GATES) | {"metadata": SENT},
    ),
    Try("wake a workload", NAME, "PATCH", POD, {"metadata": {"annotations": {WOKEN: "now"}}}),
    Try("lower a ReplicaSet", NAME, "PATCH", REPLICA_SET, {"spec": {"replicas": 2}}),
    Try(
        "let a ReplicaSet go",
        NAME,
        "PATCH",
        REPLICA_SET,
        {"metadata": {"annotations": {REDUCE_TO: None}}, "spec": {"replicas": 1}},
    ),
    Try(
        "advance a StatefulSet",
        NAME,
        "PATCH",
        f"{STATEFUL_SET}/status",
        {"status": {"currentRevision": "db-2"}},
    ),
    Try(
        "hint an endpoint", NAME, "PUT", SLICE, _with_endpoint(hints={"forZones": [{"name": "a"}]})
    ),
    Try("state topology", NAME, "PUT", SLICE, _annotated(TOPOLOGY_ANNOTATION)),
    Try("weigh zones", NAME, "PUT", SLICE, _annotated(WEIGHTS_ANNOTATION)),
    Try(
        "report hints",
        NAME,
        "PATCH",
        f"{SERVICE}/status",
        {"status": {"conditions": [HINTS]}},
    ),
    Try("make a budget of a rollout", NAME, "POST", BUDGETS, _budget(ownerReferences=[ROLLOUT])),
)
