"""The least that the programs have to be allowed, by mode.

Reading is cluster-wide, because Services are everywhere. Writing is: slices as far as the mode
goes, the condition on Services, events, PodLocators; our own lease and Secret, by name; our own
webhook configurations, by name. ``create`` cannot be limited to a name, so there it is a rule of
its own.
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


def rights(wanted: Installation) -> list[Obj]:
    """The account, its roles and their bindings."""
    account: Obj = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": wanted.metadata(NAME),
    }
    return [account, *_granted(wanted, inside=False), *_granted(wanted, inside=True)]


def _granted(wanted: Installation, *, inside: bool) -> list[Obj]:
    kind = "Role" if inside else "ClusterRole"
    role: Obj = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": kind,
        "metadata": wanted.metadata(NAME, inside=inside),
        "rules": _here() if inside else _everywhere(wanted),
    }
    binding: Obj = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{kind}Binding",
        "metadata": wanted.metadata(NAME, inside=inside),
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": wanted.namespace}],
    }
    return [role, binding]


def _everywhere(wanted: Installation) -> list[Obj]:
    read = ["nodes", "pods", "services", *(["namespaces"] * wanted.namespaces_are_selected)]
    hooks = ["validatingwebhookconfigurations"]
    if wanted.role == "adopt" or wanted.budgets == "enforce":
        hooks.append("mutatingwebhookconfigurations")
    return [
        *_budgets(wanted),
        _rule("", read, ("list", "watch")),
        _rule("discovery.k8s.io", ["endpointslices"], _SLICES[wanted.role]),
        _rule("", ["services/status"], ("patch",)),
        _rule(
            PodLocator.resource.group,
            [PodLocator.resource.plural],
            ("list", "watch", "create", "patch", "delete"),
        ),
        _rule("events.k8s.io", ["events"], ("create", "patch")),
        _rule("admissionregistration.k8s.io", hooks, ("get", "patch"), names=[NAME]),
    ]


def _budgets(wanted: Installation) -> list[Obj]:
    """The permissions for budgets.

    Counting reads workloads and writes statuses; enforcing writes ledgers, marks pods, scales
    ReplicaSets down, and rolls out by domain: a budget for each rollout, evictions, the revision a
    StatefulSet is at. Jobs, nodes and ReplicationControllers are read if they own pods. For custom
    owners the administrator grants that with an extra role.
    """
    if wanted.budgets == "off":
        return []
    ours = "zonewise.io"
    made = [
        _rule("apps", ["daemonsets", "deployments", "replicasets", "statefulsets"], _READ),
        _rule("", ["nodes", "replicationcontrollers", "replicationcontrollers/scale"], ("get",)),
        _rule("batch", ["jobs"], ("get",)),
        _rule("policy", ["poddisruptionbudgets"], _READ),
        _rule(ours, ["disruptionledgers", "topologydisruptionbudgets"], _READ),
        _rule(ours, ["topologydisruptionbudgets/status"], ("patch",)),
        _rule(ours, ["disruptionledgers"], ("get", "patch"), names=[NAME]),
    ]
    if not wanted.namespaces_are_selected:
        made.append(_rule("", ["namespaces"], _READ))
    if wanted.budgets == "enforce":
        made += [
            _rule(ours, ["disruptionledgers"], ("create",)),
            _rule("", ["pods"], ("get", "patch")),
            _rule("apps", ["replicasets"], ("patch",)),
            _rule(ours, ["domainrollouts"], _READ),
            _rule(ours, ["domainrollouts/status"], ("patch",)),
            _rule(ours, ["topologydisruptionbudgets"], ("create", "patch")),
            _rule("", ["pods/eviction"], ("create",)),
            _rule("apps", ["statefulsets/status"], ("patch",)),
        ]
    return made


def _here() -> list[Obj]:
    return [
        _rule("coordination.k8s.io", ["leases"], ("create",)),
        _rule("coordination.k8s.io", ["leases"], ("get", "patch"), names=[LEASE]),
        _rule("", ["secrets"], ("create",)),
        _rule("", ["secrets"], ("get", "patch"), names=[WEBHOOK]),
    ]


def _rule(
    group: str, resources: list[str], verbs: tuple[str, ...], *, names: list[str] | None = None
) -> Obj:
    rule: Obj = {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
    return rule if names is None else rule | {"resourceNames": names}
