"""The permissions that the programs need, and no more, by mode.

The controller and the webhook have an account each: an attacker who has one of them does not have
the permissions of the other. Reading is cluster-wide, because Services are everywhere. The
controller writes slices as far as the mode goes, the condition on Services, events, PodLocators,
and its lease; the webhook the bundles of our own webhook configurations and its Secret, by name,
and the ledgers of budgets. ``create`` cannot be limited to a name, so it is a rule of its own.
Which fields may be written is in ``policies``.
"""

from __future__ import annotations

from zonewise.api.objects.locator import PodLocator
from zonewise.install.installation import LEASE, NAME, WEBHOOK, Installation, Obj
from zonewise.install.objects import READ, allow, render_account

_SLICES = {
    "own": (*READ, "create", "update", "delete"),
    "adopt": (*READ, "update"),
    "observe": READ,
}
_OURS = "zonewise.io"


def render_rights(installation: Installation) -> list[Obj]:
    """The accounts, their roles and their bindings."""
    lease, secret = ("coordination.k8s.io", ["leases"]), ("", ["secrets"])
    return [
        *render_account(
            installation,
            NAME,
            _controller_rules(installation),
            [allow(*lease, ["create"]), allow(*lease, ["get", "patch"], names=[LEASE])],
        ),
        *render_account(
            installation,
            WEBHOOK,
            _webhook_rules(installation),
            [allow(*secret, ["create"]), allow(*secret, ["get", "patch"], names=[WEBHOOK])],
        ),
    ]


def _controller_rules(installation: Installation) -> list[Obj]:
    locators = PodLocator.resource
    rules = [
        allow("", ["nodes", "pods", "services"], READ),
        allow("discovery.k8s.io", ["endpointslices"], _SLICES[installation.role]),
        allow("", ["services/status"], ("patch",)),
        allow(locators.group, [locators.plural], (*READ, "create", "patch", "delete")),
        allow("events.k8s.io", ["events"], ("create", "patch")),
    ]
    if installation.namespaces_are_selected or installation.budgets != "off":
        rules.append(allow("", ["namespaces"], READ))
    if installation.budgets != "off":
        rules += [
            *_counting_rules(),
            allow(_OURS, ["topologydisruptionbudgets/status"], ("patch",)),
            allow(_OURS, ["disruptionledgers"], ("patch",), names=[NAME]),
        ]
    if installation.budgets == "enforce":
        rules += [
            allow("", ["pods"], ("patch",)),
            allow("apps", ["replicasets"], ("patch",)),
            allow(_OURS, ["domainrollouts"], READ),
            allow(_OURS, ["domainrollouts/status"], ("patch",)),
            allow(_OURS, ["topologydisruptionbudgets"], ("create", "patch")),
            allow("", ["pods/eviction"], ("create",)),
            allow("", ["replicationcontrollers"], ("list", "watch")),
            allow("apps", ["statefulsets/status"], ("patch",)),
        ]
    return rules


def _webhook_rules(installation: Installation) -> list[Obj]:
    hooks = ["validatingwebhookconfigurations"]
    if installation.role == "adopt" or installation.budgets == "enforce":
        hooks.append("mutatingwebhookconfigurations")
    rules = [allow("admissionregistration.k8s.io", hooks, ("get", "patch"), names=[NAME])]
    if installation.role == "adopt":
        rules.append(allow("", ["services"], READ))
        rules.append(allow("discovery.k8s.io", ["endpointslices"], READ))
        if installation.namespaces_are_selected:
            rules.append(allow("", ["namespaces"], READ))
    if installation.role == "adopt" or installation.budgets != "off":
        rules.append(allow("", ["nodes"], READ))
    if installation.budgets != "off":
        rules += [allow("", ["pods"], READ), *_counting_rules(), allow("", ["pods"], ("get",))]
    if installation.budgets == "enforce":
        rules += [
            allow(_OURS, ["disruptionledgers"], ("create",)),
            allow(_OURS, ["disruptionledgers"], ("get", "patch"), names=[NAME]),
            allow(_OURS, ["domainrollouts"], READ),
        ]
    return rules


def _counting_rules() -> list[Obj]:
    """What both read to count: budgets, ledgers, and the owners of pods.

    Jobs, nodes and ReplicationControllers are read if they own pods. For custom owners the
    administrator grants that with an extra role.
    """
    return [
        allow("apps", ["daemonsets", "deployments", "replicasets", "statefulsets"], READ),
        allow("", ["nodes", "replicationcontrollers", "replicationcontrollers/scale"], ("get",)),
        allow("batch", ["jobs"], ("get",)),
        allow("policy", ["poddisruptionbudgets"], READ),
        allow(_OURS, ["disruptionledgers", "topologydisruptionbudgets"], READ),
    ]
