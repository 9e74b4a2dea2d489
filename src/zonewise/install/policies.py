"""Which fields our accounts may write, where RBAC allows whole resources.

RBAC knows resources and verbs, not fields. The right to patch a ReplicaSet is the right to make its
pods privileged; the right to patch our webhook configurations, to send every Secret of the cluster
to another server. So for each such right a ValidatingAdmissionPolicy lists the fields that the
program behind the account changes, and denies everything else: an attacker in one of our pods can
do what the program does, and no more.

A policy is evaluated only for the account that it limits; for other users their name is compared
once. It fails closed, which affects no other user either. Policies are applied before the rights
that they limit.

One policy is about other users: what Deployments write in namespaces that have opted in passes our
mutating webhook, which could answer with any patch. There the template of a ReplicaSet may not
change: the Deployment controller never changes that of an existing one.
"""

from __future__ import annotations

from dataclasses import dataclass

from zonewise.api.objects.budgets import DomainRollout, TopologyDisruptionBudget
from zonewise.api.objects.discovery import SERVICE_LABEL
from zonewise.controllers.budgets.waking import WOKEN
from zonewise.disruption.rollouts.replacements import DOMAIN_ANNOTATION, GATE
from zonewise.disruption.steering import DELETION_COST, REDUCE_TO
from zonewise.install.expressions import (
    quote,
    quote_all,
    require_same,
    require_same_metadata,
    require_unchanged,
)
from zonewise.install.hooks import DEPLOYMENT_CONTROLLERS, OPT_IN
from zonewise.install.installation import NAME, WEBHOOK, Bundle, Installation, Obj
from zonewise.traffic.modes import HINTS_CONDITION
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL, MANAGER
from zonewise.traffic.slices.topology import TOPOLOGY_ANNOTATION
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

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


def render_policies(installation: Installation) -> list[Obj]:
    """The policies of the controller's and the webhook's account, with their bindings."""
    limits = (*_limit_webhook(installation), *_limit_controller(installation))
    return [item for limit in limits for item in render_limit(installation, limit)]


def render_limit(bundle: Bundle, limit: FieldLimit) -> list[Obj]:
    """A limit as a policy and its binding."""
    metadata = bundle.metadata(limit.name, inside=False)
    users = f"request.userInfo.username in {quote_all(limit.users)}"
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
    selected: Obj = {}
    if limit.namespaces is not None:
        selected["matchResources"] = {"namespaceSelector": limit.namespaces}
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
            "spec": {"policyName": limit.name, "validationActions": ["Deny"], **selected},
        },
    ]


def _limit_webhook(installation: Installation) -> list[FieldLimit]:
    users = (installation.username(WEBHOOK),)
    names = "webhooks.map(w, w.name)"
    same_but_bundle = (
        f"oldObject.webhooks.exists(b, b.name == a.name && {require_same('a', 'b', 'clientConfig')}"
        f" && {require_same('a.clientConfig', 'b.clientConfig', 'caBundle')})"
    )
    return [
        FieldLimit(
            name=f"{NAME}-webhookconfigurations",
            users=users,
            group=GROUP,
            resources=("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
            expressions=(
                *require_same_metadata(),
                f"object.{names} == oldObject.{names}",
                f"object.webhooks.all(a, {same_but_bundle})",
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
                f"object.metadata.name == {quote(WEBHOOK)}",
                "object.?type.orValue('Opaque') == 'Opaque'",
            ),
            message=f"Zonewise's webhook may create only the Secret {WEBHOOK}, of type Opaque.",
            namespaces={"matchLabels": {"kubernetes.io/metadata.name": installation.namespace}},
        ),
    ]


def _limit_controller(installation: Installation) -> list[FieldLimit]:
    users = (installation.username(NAME),)
    others = f"?conditions.orValue([]).filter(c, c.type != {quote(HINTS_CONDITION)})"
    limits = [
        FieldLimit(
            name=f"{NAME}-services",
            users=users,
            group="",
            resources=("services/status",),
            expressions=(
                *require_same_metadata(),
                require_unchanged("status", "conditions"),
                f"object.status.{others} == oldObject.status.{others}",
            ),
            message="Zonewise's controller may change only the condition"
            f" {HINTS_CONDITION} of Services.",
        ),
    ]
    if installation.role != "observe":
        limits.append(_limit_slices(installation))
    if installation.budgets == "enforce":
        limits += _limit_enforcement(users)
    return limits


def _limit_slices(installation: Installation) -> FieldLimit:
    users = (installation.username(NAME),)
    if installation.role == "adopt":
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
                require_same("object", "oldObject", "metadata", "endpoints"),
                *require_same_metadata(TOPOLOGY_ANNOTATION, WEIGHTS_ANNOTATION),
                f"{after} == {before}",
            ),
            message="Zonewise's controller may change only the hints of EndpointSlices, and their"
            f" annotations {TOPOLOGY_ANNOTATION} and {WEIGHTS_ANNOTATION}.",
        )
    return FieldLimit(
        name=f"{NAME}-endpointslices",
        users=users,
        operations=("CREATE", "UPDATE", "DELETE"),
        group="discovery.k8s.io",
        resources=("endpointslices",),
        expressions=(_require_managed("object"), _require_managed("oldObject")),
        message=f"Zonewise's controller may write only EndpointSlices managed by {MANAGER}, and"
        " none of the API server's own Service.",
    )


def _require_managed(item: str) -> str:
    """That a slice, if there is one, is one that the EndpointSlice controller would write."""
    labels = f"{item}.metadata.?labels.orValue({{}})"
    manager, service = (
        f"{labels}[?{quote(key)}].orValue('')" for key in (MANAGED_BY_LABEL, SERVICE_LABEL)
    )
    foreign = f"request.namespace == 'default' && {service} == 'kubernetes'"
    return f"{item} == null || ({manager} == {quote(MANAGER)} && !({foreign}))"


def _limit_enforcement(users: tuple[str, ...]) -> list[FieldLimit]:
    budgets, rollouts = TopologyDisruptionBudget.resource, DomainRollout.resource
    controlled = (
        "metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false)"
        f" && o.apiVersion == {quote(rollouts.api_version)}"
        f" && o.kind == {quote(rollouts.kind)})"
    )
    gates = "spec.?schedulingGates.orValue([])"
    others = f"{gates}.filter(gate, gate.name != {quote(GATE)})"
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    # As dyn, because a checked type has no value for what is absent.
    affinity, old_affinity = (f"dyn({item}.spec).?affinity" for item in ("object", "oldObject"))
    after, before = (
        f"{item}.?nodeAffinity.?{required}.?nodeSelectorTerms.orValue([])"
        for item in (affinity, old_affinity)
    )
    fields = "map(term, dyn(term.?matchFields.orValue([])))"
    released = (
        f"oldObject.{gates}.exists(gate, gate.name == {quote(GATE)})",
        f"object.{others} == oldObject.{others}",
        require_unchanged("spec", "schedulingGates", "affinity"),
        require_same(f"{affinity}.orValue({{}})", f"{old_affinity}.orValue({{}})", "nodeAffinity"),
        require_same(
            f"{affinity}.?nodeAffinity.orValue({{}})",
            f"{old_affinity}.?nodeAffinity.orValue({{}})",
            required,
        ),
        # Terms of a pod that has some are only added to, which the API server sees to.
        f"(size({before}) == 0 ? {after}.all(term, size(term.?matchFields.orValue([])) == 0)"
        f" : {after}.{fields} == {before}.{fields})",
    )
    return [
        FieldLimit(
            name=f"{NAME}-pods",
            users=users,
            group="",
            resources=("pods",),
            expressions=(
                f"object.spec == oldObject.spec || ({' && '.join(released)})",
                *require_same_metadata(DELETION_COST, WOKEN, DOMAIN_ANNOTATION),
            ),
            message=f"Zonewise's controller may change only the annotations {DELETION_COST},"
            f" {DOMAIN_ANNOTATION} and {WOKEN} of pods, and of those with the scheduling gate"
            f" {GATE} that gate and what they require of labels of nodes.",
        ),
        FieldLimit(
            name=f"{NAME}-replicasets",
            users=users,
            group="apps",
            resources=("replicasets",),
            expressions=(
                require_unchanged("spec", "replicas"),
                "object.spec.replicas <= oldObject.spec.replicas",
                *require_same_metadata(REDUCE_TO),
            ),
            message="Zonewise's controller may only lower the replicas of ReplicaSets, and change"
            f" their annotation {REDUCE_TO}.",
        ),
        FieldLimit(
            name=f"{NAME}-statefulsets",
            users=users,
            group="apps",
            resources=("statefulsets/status",),
            expressions=(*require_same_metadata(), require_unchanged("status", "currentRevision")),
            message="Zonewise's controller may change only status.currentRevision of StatefulSets.",
        ),
        FieldLimit(
            name=f"{NAME}-{budgets.plural}",
            users=users,
            operations=("CREATE", "UPDATE"),
            group=budgets.group,
            version=budgets.version,
            resources=(budgets.plural,),
            expressions=(f"object.{controlled}", f"oldObject == null || oldObject.{controlled}"),
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
