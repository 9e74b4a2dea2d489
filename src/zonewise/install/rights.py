"""The least that each program has to be allowed, by mode.

The controller and the webhook have an account each: who takes one of them does not have what the
other may do. Reading is cluster-wide, because Services are everywhere. The controller writes slices
as far as the mode goes, the condition on Services, events, PodLocators, and its lease; the webhook
the bundles of our own webhook configurations and its Secret, by name, and the ledgers of budgets.
``create`` cannot be limited to a name, so there it is a rule of its own. Which fields may be
written is in ``policies``.
"""

from __future__ import annotations

from zonewise.api.objects.locator import PodLocator
from zonewise.install.wanted import LEASE, NAME, WEBHOOK, Installation, Obj

_SLICES = {
    "own": ("list", "watch", "create", "update", "delete"),
    "adopt": ("list", "watch", "update"),
    "observe": ("list", "watch"),
}
_READ = ("list", "watch")
_GROUP = "rbac.authorization.k8s.io"
_OURS = "zonewise.io"


def rights(wanted: Installation) -> list[Obj]:
    """The accounts, their roles and their bindings."""
    return [
        *_account(wanted, NAME, _controller(wanted), _lease()),
        *_account(wanted, WEBHOOK, _webhook(wanted), _secret()),
    ]


def _account(wanted: Installation, name: str, everywhere: list[Obj], here: list[Obj]) -> list[Obj]:
    account: Obj = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": wanted.metadata(name),
    }
    cluster_wide = _granted(wanted, name, everywhere, inside=False)
    return [account, *cluster_wide, *_granted(wanted, name, here, inside=True)]


def _granted(wanted: Installation, name: str, rules: list[Obj], *, inside: bool) -> list[Obj]:
    kind = "Role" if inside else "ClusterRole"
    role: Obj = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": kind,
        "metadata": wanted.metadata(name, inside=inside),
        "rules": rules,
    }
    binding: Obj = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{kind}Binding",
        "metadata": wanted.metadata(name, inside=inside),
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": wanted.namespace}],
    }
    return [role, binding]


def _controller(wanted: Installation) -> list[Obj]:
    rules = [
        _rule("", ["nodes", "pods", "services"], _READ),
        _rule("discovery.k8s.io", ["endpointslices"], _SLICES[wanted.role]),
        _rule("", ["services/status"], ("patch",)),
        _rule(
            PodLocator.resource.group,
            [PodLocator.resource.plural],
            ("list", "watch", "create", "patch", "delete"),
        ),
        _rule("events.k8s.io", ["events"], ("create", "patch")),
    ]
    if wanted.namespaces_are_selected or wanted.budgets != "off":
        rules.append(_rule("", ["namespaces"], _READ))
    if wanted.budgets != "off":
        rules += [
            *_counting(),
            _rule(_OURS, ["topologydisruptionbudgets/status"], ("patch",)),
            _rule(_OURS, ["disruptionledgers"], ("patch",), names=[NAME]),
        ]
    if wanted.budgets == "enforce":
        rules += [
            _rule("", ["pods"], ("patch",)),
            _rule("apps", ["replicasets"], ("patch",)),
            _rule(_OURS, ["domainrollouts"], _READ),
            _rule(_OURS, ["domainrollouts/status"], ("patch",)),
            _rule(_OURS, ["topologydisruptionbudgets"], ("create", "patch")),
            _rule("", ["pods/eviction"], ("create",)),
            _rule("apps", ["statefulsets/status"], ("patch",)),
        ]
    return rules


def _webhook(wanted: Installation) -> list[Obj]:
    hooks = ["validatingwebhookconfigurations"]
    if wanted.role == "adopt" or wanted.budgets == "enforce":
        hooks.append("mutatingwebhookconfigurations")
    rules = [_rule("admissionregistration.k8s.io", hooks, ("get", "patch"), names=[NAME])]
    if wanted.role == "adopt":
        rules += [
            _rule("", ["services"], _READ),
            _rule("discovery.k8s.io", ["endpointslices"], _READ),
        ]
        if wanted.namespaces_are_selected:
            rules.append(_rule("", ["namespaces"], _READ))
    if wanted.role == "adopt" or wanted.budgets != "off":
        rules.append(_rule("", ["nodes"], _READ))
    if wanted.budgets != "off":
        rules += [
            _rule("", ["pods"], _READ),
            *_counting(),
            _rule("", ["pods"], ("get",)),
        ]
    if wanted.budgets == "enforce":
        rules += [
            _rule(_OURS, ["disruptionledgers"], ("create",)),
            _rule(_OURS, ["disruptionledgers"], ("get", "patch"), names=[NAME]),
        ]
    return rules


def _counting() -> list[Obj]:
    """What both read to count: budgets, ledgers, and the owners of pods.

    Jobs, nodes and ReplicationControllers are read if they own pods. For custom owners the
    administrator grants that with an extra role.
    """
    return [
        _rule("apps", ["daemonsets", "deployments", "replicasets", "statefulsets"], _READ),
        _rule("", ["nodes", "replicationcontrollers", "replicationcontrollers/scale"], ("get",)),
        _rule("batch", ["jobs"], ("get",)),
        _rule("policy", ["poddisruptionbudgets"], _READ),
        _rule(_OURS, ["disruptionledgers", "topologydisruptionbudgets"], _READ),
    ]


def _lease() -> list[Obj]:
    return [
        _rule("coordination.k8s.io", ["leases"], ("create",)),
        _rule("coordination.k8s.io", ["leases"], ("get", "patch"), names=[LEASE]),
    ]


def _secret() -> list[Obj]:
    return [
        _rule("", ["secrets"], ("create",)),
        _rule("", ["secrets"], ("get", "patch"), names=[WEBHOOK]),
    ]


def _rule(
    group: str, resources: list[str], verbs: tuple[str, ...], *, names: list[str] | None = None
) -> Obj:
    rule: Obj = {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
    return rule if names is None else rule | {"resourceNames": names}
