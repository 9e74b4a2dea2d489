"""What our accounts may write of what RBAC lets them write.

RBAC knows resources and verbs, not fields. The right to patch a ReplicaSet is the right to make its
pods privileged; the right to patch our webhook configurations, to send every Secret of the cluster
to a server of one's own. So for each such right a ValidatingAdmissionPolicy says which fields the
program behind the account changes, and denies everything else: who takes one of our pods gets what
the program does, and no more.

A policy is evaluated only for the account that it limits; other users meet one comparison of their
name. It fails closed, which concerns nobody else either. Policies are applied before the rights
that they limit.

One policy is about other users: what Deployments write in namespaces that have opted in passes our
mutating webhook, which could answer with any patch. There the template of a ReplicaSet stays as it
was: no Deployment ever changes that of an existing one.
"""

from __future__ import annotations

from dataclasses import dataclass

from zonewise.api.objects.budgets import DomainRollout, TopologyDisruptionBudget
from zonewise.api.objects.discovery import SERVICE_LABEL
from zonewise.controllers.budgets.waking import WOKEN
from zonewise.controllers.hints.conditions import CONDITION
from zonewise.disruption.steering import DELETION_COST, REDUCE_TO
from zonewise.install.expressions import (
    account,
    literal,
    metadata_unchanged,
    one_of,
    same,
    unchanged,
)
from zonewise.install.hooks import DEPLOYMENT_CONTROLLERS, OPT_IN
from zonewise.install.wanted import NAME, WEBHOOK, Installation, Obj
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL, MANAGER

GROUP = "admissionregistration.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLimit:
    """What some users may write of a resource: requests for which all expressions are true."""

    name: str
    users: tuple[str, ...]
    operations: tuple[str, ...] = ("UPDATE",)
    group: str
    version: str = "v1"
    resources: tuple[str, ...]
    expressions: tuple[str, ...]
    message: str
    namespaces: Obj | None = None
    """The namespaces it is about; None for all, and for what is in none."""


def policies(wanted: Installation) -> list[Obj]:
    """The policies of the controller's and the webhook's account, with their bindings."""
    return [
        item
        for limit in (*_webhook_limits(wanted), *_controller_limits(wanted))
        for item in policy(limit, wanted.metadata(limit.name, inside=False))
    ]


def policy(limit: FieldLimit, metadata: Obj) -> list[Obj]:
    """A limit as a policy and its binding."""
    users = f"request.userInfo.username in {one_of(limit.users)}"
    rule = {
        "apiGroups": [limit.group],
        "apiVersions": [limit.version],
        "operations": list(limit.operations),
        "resources": list(limit.resources),
    }
    validations = [
        {"expression": expression, "message": limit.message, "reason": "Forbidden"}
        for expression in limit.expressions
    ]
    selected = {"matchResources": {"namespaceSelector": limit.namespaces}}
    return [
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule]},
                "matchConditions": [{"name": "account", "expression": users}],
                "validations": validations,
            },
        },
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {
                "policyName": limit.name,
                "validationActions": ["Deny"],
                **(selected if limit.namespaces is not None else {}),
            },
        },
    ]


def _webhook_limits(wanted: Installation) -> list[FieldLimit]:
    users = (account(wanted, WEBHOOK),)
    names = "webhooks.map(w, w.name)"
    kept = (
        f"oldObject.webhooks.exists(b, b.name == a.name && {same('a', 'b', 'clientConfig')}"
        f" && {same('a.clientConfig', 'b.clientConfig', 'caBundle')})"
    )
    return [
        FieldLimit(
            name=f"{NAME}-webhookconfigurations",
            users=users,
            group=GROUP,
            resources=("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
            expressions=(
                *metadata_unchanged(),
                f"object.{names} == oldObject.{names}",
                f"object.webhooks.all(a, {kept})",
            ),
            message="Zonewise's webhook may change only the caBundle of webhook configurations.",
        ),
        FieldLimit(
            name=f"{NAME}-secrets",
            users=users,
            operations=("CREATE",),
            group="",
            resources=("secrets",),
            expressions=(
                f"object.metadata.name == {literal(WEBHOOK)}",
                "object.?type.orValue('Opaque') == 'Opaque'",
            ),
            message=f"Zonewise's webhook may create only the Secret {WEBHOOK}, of type Opaque.",
            namespaces=_only(wanted.namespace),
        ),
    ]


def _controller_limits(wanted: Installation) -> list[FieldLimit]:
    users = (account(wanted, NAME),)
    others = f"?conditions.orValue([]).filter(c, c.type != {literal(CONDITION)})"
    limits = [
        FieldLimit(
            name=f"{NAME}-services",
            users=users,
            group="",
            resources=("services/status",),
            expressions=(
                *metadata_unchanged(),
                unchanged("status", "conditions"),
                f"object.status.{others} == oldObject.status.{others}",
            ),
            message=f"Zonewise's controller may change only the condition {CONDITION} of Services.",
        ),
    ]
    if wanted.role != "observe":
        limits.append(_slices(wanted))
    if wanted.budgets == "enforce":
        limits += _enforcing(users)
    return limits


def _slices(wanted: Installation) -> FieldLimit:
    users = (account(wanted, NAME),)
    if wanted.role == "adopt":
        fields = (
            "[dyn(e.addresses), dyn(e.?conditions), dyn(e.?deprecatedTopology), dyn(e.?hostname),"
            " dyn(e.?nodeName), dyn(e.?targetRef), dyn(e.?zone)]"
        )
        after, before = (
            f"({item}.?endpoints.orValue(null) == null ? [] : {item}.endpoints).map(e, {fields})"
            for item in ("dyn(object)", "dyn(oldObject)")
        )
        return FieldLimit(
            name=f"{NAME}-endpointslices",
            users=users,
            group="discovery.k8s.io",
            resources=("endpointslices",),
            expressions=(
                same("object", "oldObject", "metadata", "endpoints"),
                *metadata_unchanged(),
                f"{after} == {before}",
            ),
            message="Zonewise's controller may change only the hints of EndpointSlices.",
        )
    return FieldLimit(
        name=f"{NAME}-endpointslices",
        users=users,
        operations=("CREATE", "UPDATE", "DELETE"),
        group="discovery.k8s.io",
        resources=("endpointslices",),
        expressions=(_is_managed("object"), _is_managed("oldObject")),
        message=f"Zonewise's controller may write only EndpointSlices managed by {MANAGER}, and"
        " none of the API server's own Service.",
    )


def _is_managed(item: str) -> str:
    """That a slice, if there is one, is one that the controller of EndpointSlices would write."""
    labels = f"{item}.metadata.?labels.orValue({{}})"
    manager, service = (
        f"{labels}[?{literal(key)}].orValue('')" for key in (MANAGED_BY_LABEL, SERVICE_LABEL)
    )
    foreign = f"request.namespace == 'default' && {service} == 'kubernetes'"
    return f"{item} == null || ({manager} == {literal(MANAGER)} && !({foreign}))"


def _enforcing(users: tuple[str, ...]) -> list[FieldLimit]:
    budgets, rollouts = TopologyDisruptionBudget.resource, DomainRollout.resource
    controlled = (
        "metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false)"
        f" && o.apiVersion == {literal(rollouts.api_version)}"
        f" && o.kind == {literal(rollouts.kind)})"
    )
    return [
        FieldLimit(
            name=f"{NAME}-pods",
            users=users,
            group="",
            resources=("pods",),
            expressions=(
                "object.spec == oldObject.spec",
                *metadata_unchanged(DELETION_COST, WOKEN),
            ),
            message=f"Zonewise's controller may change only the annotations {DELETION_COST} and"
            f" {WOKEN} of pods.",
        ),
        FieldLimit(
            name=f"{NAME}-replicasets",
            users=users,
            group="apps",
            resources=("replicasets",),
            expressions=(
                unchanged("spec", "replicas"),
                "object.spec.replicas <= oldObject.spec.replicas",
                *metadata_unchanged(REDUCE_TO),
            ),
            message="Zonewise's controller may only lower the replicas of ReplicaSets, and change"
            f" their annotation {REDUCE_TO}.",
        ),
        FieldLimit(
            name=f"{NAME}-statefulsets",
            users=users,
            group="apps",
            resources=("statefulsets/status",),
            expressions=(*metadata_unchanged(), unchanged("status", "currentRevision")),
            message="Zonewise's controller may change only status.currentRevision of StatefulSets.",
        ),
        FieldLimit(
            name=f"{NAME}-{budgets.plural}",
            users=users,
            operations=("CREATE", "UPDATE"),
            group=budgets.group,
            version=budgets.version,
            resources=(budgets.plural,),
            expressions=(
                f"object.{controlled}",
                f"oldObject == null || oldObject.{controlled}",
            ),
            message=f"Zonewise's controller may write only budgets of a {rollouts.kind}.",
        ),
        FieldLimit(
            name=f"{NAME}-clamp",
            users=DEPLOYMENT_CONTROLLERS,
            group="apps",
            resources=("replicasets",),
            expressions=("object.spec.template == oldObject.spec.template",),
            message="Zonewise's webhook may not change the template of a ReplicaSet.",
            namespaces={"matchExpressions": [OPT_IN]},
        ),
    ]


def _only(namespace: str) -> Obj:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
