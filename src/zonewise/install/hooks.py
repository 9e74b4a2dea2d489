"""The webhook configurations, and what becomes of a request if no webhook answers.

Hints fail open, within two seconds: a cluster whose webhook is down must work as if it did not
exist. Budgets are enforced where a namespace opts in. There evictions, and a Deployment that scales
a ReplicaSet down, fail closed: both are retried. Deletions fail open, with an alert, after the
longest timeout there can be: an answer that is too late does not count. Which users are matched is
in ``matchConditions``: kubelets, garbage collection, the controllers of namespaces and nodes never
reach a webhook, up or down. Our own namespace is left out, so that the slices of the webhook's own
Service never wait for it. The ``caBundle`` is not set here: the programs add it.
"""

from __future__ import annotations

from zonewise.install.expressions import quote, quote_all
from zonewise.install.installation import NAME, WEBHOOK, Installation, Obj

TIMEOUT = 2
OBSERVE_TIMEOUT = 5
GATE_TIMEOUT = 15
DELETION_TIMEOUT = 30
"""The maximum: a deletion whose answer is later passes.

The gate itself answers within seconds; the rest is for a machine that is too busy to send or
receive the answer."""
OPT_IN = {"key": "zonewise.io/budgets", "operator": "In", "values": ["enforce"]}
CONTROLLERS = (
    "replicaset-controller",
    "replication-controller",
    "statefulset-controller",
    "daemon-set-controller",
)
PLACED_CONTROLLERS = ("replicaset-controller", "statefulset-controller")
PLACED_OWNERS = ("ReplicaSet", "StatefulSet")
"""Which controllers create the pods whose domain a DomainRollout chooses, and their kinds."""
ALL_IN_ONE = "system:kube-controller-manager"
"""The user of a controller manager whose controllers have none of their own."""
DEPLOYMENT_CONTROLLERS = ("system:serviceaccount:kube-system:deployment-controller", ALL_IN_ONE)


def render_webhooks(installation: Installation) -> list[Obj]:
    """Services are validated in every mode; slices are changed where we adopt them."""
    validating = [_make_webhook(installation, "services", "/services", "")]
    mutating = []
    if installation.role == "adopt":
        slices = _make_webhook(installation, "endpointslices", "/hints", "discovery.k8s.io")
        managed = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
        slices["objectSelector"] = {"matchLabels": managed}
        mutating.append(slices)
    if installation.budgets != "off":
        validating += [_gate_evictions(installation), _gate_deletions(installation)]
    if installation.budgets == "enforce":
        mutating += [_clamp_replicas(installation), _hold_replacements(installation)]
    kinds = {"Validating": validating, "Mutating": mutating}
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": installation.metadata(NAME, inside=False),
            "webhooks": webhooks,
        }
        for kind, webhooks in kinds.items()
        if webhooks
    ]


def _gate_evictions(installation: Installation) -> Obj:
    hook = _make_gate(installation, "evictions", ["CREATE"], "pods/eviction")
    return hook | {"failurePolicy": "Fail" if installation.budgets == "enforce" else "Ignore"}


def _gate_deletions(installation: Installation) -> Obj:
    controllers = [f"system:serviceaccount:kube-system:{name}" for name in CONTROLLERS]
    users = quote_all((*controllers, *installation.gated_users))
    owned = "has(oldObject.metadata.ownerReferences) && oldObject.metadata.ownerReferences.exists("
    owned += "owner, has(owner.controller) && owner.controller)"
    who = f"request.userInfo.username in {users} ||"
    who += f" (request.userInfo.username == {quote(ALL_IN_ONE)} && {owned})"
    enforced = {"timeoutSeconds": DELETION_TIMEOUT} if installation.budgets == "enforce" else {}
    return _make_gate(installation, "deletions", ["DELETE"], "pods") | {
        "matchConditions": [
            {"name": "workload-controllers", "expression": who},
            {"name": "stays", "expression": "!has(oldObject.metadata.deletionTimestamp)"},
        ],
        **enforced,
    }


def _clamp_replicas(installation: Installation) -> Obj:
    who = f"request.userInfo.username in {quote_all(DEPLOYMENT_CONTROLLERS)}"
    less = "object.spec.replicas < oldObject.spec.replicas"
    return _make_gate(installation, "replicasets", ["UPDATE"], "replicasets", group="apps") | {
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "matchConditions": [
            {"name": "deployments", "expression": who},
            {"name": "decreases", "expression": less},
        ],
    }


def _hold_replacements(installation: Installation) -> Obj:
    names = [f"system:serviceaccount:kube-system:{name}" for name in PLACED_CONTROLLERS]
    who = f"request.userInfo.username in {quote_all((*names, ALL_IN_ONE))}"
    owned = "object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller"
    owned += f".orValue(false) && owner.kind in {quote_all(PLACED_OWNERS)})"
    return _make_gate(installation, "pods", ["CREATE"], "pods") | {
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT,
        "matchConditions": [
            {"name": "workload-controllers", "expression": who},
            {"name": "workloads", "expression": owned},
        ],
    }


def _make_gate(
    installation: Installation, name: str, operations: list[str], resource: str, *, group: str = ""
) -> Obj:
    """A webhook for the namespaces that have opted in; ours and the system's never are."""
    never = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": [installation.namespace, "kube-system"],
    }
    hook = _make_webhook(installation, name, f"/{name}", group)
    hook["rules"][0] |= {"operations": operations, "resources": [resource]}
    return hook | {
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": GATE_TIMEOUT if installation.budgets == "enforce" else OBSERVE_TIMEOUT,
        "namespaceSelector": {"matchExpressions": [OPT_IN, never]},
    }


def _make_webhook(installation: Installation, resource: str, path: str, group: str) -> Obj:
    ours = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": [installation.namespace],
    }
    return {
        "name": f"{resource}.zonewise.io",
        "clientConfig": {
            "service": {"namespace": installation.namespace, "name": WEBHOOK, "path": path}
        },
        "rules": [
            {
                "operations": ["CREATE", "UPDATE"],
                "apiGroups": [group],
                "apiVersions": ["v1"],
                "resources": [resource],
            }
        ],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT,
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchExpressions": [ours]},
    }
