"""The least that the programs have to be allowed, by mode.

Reading is cluster-wide, because Services are everywhere. Writing is: slices as far as the mode
goes, the condition on Services, events; our own lease and Secret, by name; our own webhook
configurations, by name. ``create`` cannot be limited to a name, so there it stands alone.
"""

from __future__ import annotations

from zonewise.cli.controller import LEASE
from zonewise.cli.deploy.wanted import NAME, WEBHOOK, Obj, Wanted

_SLICES = {
    "own": ("list", "watch", "create", "update", "delete"),
    "adopt": ("list", "watch", "update"),
    "observe": ("list", "watch"),
}
_GROUP = "rbac.authorization.k8s.io"


def rights(wanted: Wanted) -> list[Obj]:
    """The account, its roles and their bindings."""
    account: Obj = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": wanted.metadata(NAME),
    }
    return [account, *_granted(wanted, inside=False), *_granted(wanted, inside=True)]


def _granted(wanted: Wanted, *, inside: bool) -> list[Obj]:
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


def _everywhere(wanted: Wanted) -> list[Obj]:
    read = ["nodes", "pods", "services", *(["namespaces"] * wanted.namespaces_are_selected)]
    hooks = ["validatingwebhookconfigurations"]
    if wanted.role == "adopt":
        hooks.append("mutatingwebhookconfigurations")
    return [
        _rule("", read, ("list", "watch")),
        _rule("discovery.k8s.io", ["endpointslices"], _SLICES[wanted.role]),
        _rule("", ["services/status"], ("patch",)),
        _rule("events.k8s.io", ["events"], ("create", "patch")),
        _rule("admissionregistration.k8s.io", hooks, ("get", "patch"), names=[NAME]),
    ]


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
