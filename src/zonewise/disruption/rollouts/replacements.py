"""Where the pods of a new revision go while their workload is updated domain by domain.

A pod that a workload creates during its rollout would start wherever the scheduler likes: a surge,
or a spread that counts each revision for itself, fills domains that are not open yet, and the
rollout waits there for pods that are elsewhere. So admission *holds* it by a scheduling gate
(``holds_replacement``), and the rollout's controller releases it with a node affinity for one
domain (``place_replacements``). Two steps, because admission is asked for many pods at once by
several webhooks that see each other's answers late, and a place must be given once.

A replacement goes to

1. the open domain, if it has fewer pods than it should,
2. another domain that has fewer: it lost a pod, and nothing is disrupted there,
3. the open domain, if it has fewer pods of the new revision than it should: a surge.

The rest waits until the next domain opens; "the open one or any that is done" would give the first
domain what belongs to the last. Never is a pod sent where it could not be scheduled: if the open
domain has no room it waits, and the rollout says ``NoRoomInDomain``. What another domain lacks and
has no room for starts anywhere, as does what is missing in a domain none of whose nodes takes pods:
an outage must not cost capacity.

Nodes without the label are a domain as well, updated last; what has no room there starts anywhere.
Where a budget with ``expectedPods: ReplicasPerDomain`` covers the pods, what it expects counts
instead of the rollout's own baseline, and what it lacks comes before 3: it may allow nothing until
it has that.

Pods of an old revision are released as they are, and pods with claims are not held: their volumes
say where they run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from zonewise.api.objects.budgets import DomainRollout, WorkloadReference
from zonewise.api.objects.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from zonewise.api.objects.pod import Affinity, NodeAffinity, Pod, PodSchedulingGate
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.api.reason import Reason
from zonewise.disruption.baseline import split_evenly
from zonewise.disruption.grouping import NO_DOMAIN, OLD_KEYS, with_new_keys
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import REPLICA_SET, STATEFUL_SET, OwnerKey, Owners, reference_of
from zonewise.disruption.rollouts.plan import DomainPlan, RolloutView
from zonewise.disruption.rollouts.workload import DEPLOYMENT, RolledPod

GATE = "zonewise.io/domain-rollout"
DOMAIN_ANNOTATION = "zonewise.io/domain-rollout"
"""The domain that a pod was sent to, to tell it from one whose template requires that domain."""
NO_ROOM = "NoRoomInDomain"
RELEASE_REFUSED = "ReleaseRefused"
IN = "In"
ABSENT = "DoesNotExist"

FindObstacle = Callable[[Pod, str], str]
"""Why a pod could not be scheduled in a domain, in the scheduler's words; empty if it could."""


@dataclass(frozen=True, slots=True)
class Placements:
    """The pods to release, each with its domain or None for any; and why others find no room."""

    released: tuple[tuple[Pod, str | None], ...] = ()
    reason: Reason | None = None


def workload_reference(pod: Pod, owners: Owners) -> WorkloadReference | None:
    """The workload of a pod as a rollout names it; None if no rollout could.

    A ReplicaSet that is not known yet was created a moment ago, and has its Deployment's name.
    """
    reference = reference_of(pod)
    if reference is None:
        return None
    kind, name = reference.key[1], reference.key[3]
    if kind == STATEFUL_SET:
        return WorkloadReference(kind=kind, name=name)
    if kind != REPLICA_SET:
        return None
    replica_set = owners.get(reference.key, reference.uid)
    if replica_set is None:
        return WorkloadReference(kind=DEPLOYMENT, name=name.rpartition("-")[0])
    controller = replica_set.controller
    if controller is None or controller.kind != DEPLOYMENT:
        return None
    return WorkloadReference(kind=DEPLOYMENT, name=controller.name)


def holds_replacement(
    pod: Pod, rollouts: Iterable[DomainRollout], budgets: NamespaceBudgets
) -> bool:
    """Whether a new pod has to wait for its place; ``rollouts`` are those of its namespace."""
    if not may_need_place(pod):
        return False
    workload, reference = workload_reference(pod, budgets.owners), reference_of(pod)
    if workload is None or reference is None or budgets.owners.is_outdated(reference):
        return False
    matching = [rollout for rollout in rollouts if _rolls_out(rollout, workload)]
    if not matching:
        return False
    return any(rollout.status.domain for rollout in matching) or any(
        is_pod_active(old) for old in _outdated_pods(workload, pod, budgets)
    )


def may_need_place(pod: Pod) -> bool:
    """Whether a new pod is of a kind that could have to wait, whatever else there is."""
    reference = reference_of(pod)
    return (
        reference is not None
        and reference.key[1] in (REPLICA_SET, STATEFUL_SET)
        and not (pod.spec.node_name or is_held(pod) or has_claims(pod))
    )


def is_held(pod: Pod) -> bool:
    """Whether a pod waits for its place."""
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates)


def has_claims(pod: Pod) -> bool:
    """Whether volumes say where a pod runs."""
    return any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None
        for volume in pod.spec.volumes
    )


def place_replacements(
    view: RolloutView,
    plan: DomainPlan,
    nodes: Mapping[str, Node],
    find_obstacle: FindObstacle,
    *,
    refused: Collection[str] = (),
) -> Placements:
    """Which of the pods that wait are released, and to which domain.

    ``nodes`` are all nodes. ``find_obstacle`` counts a pod for which it found a place. Others come
    before pods whose release was ``refused`` (their uids): they would keep the place empty.
    """
    gated = (rolled for rolled in view.unscheduled if is_held(rolled.pod))
    waiting = sorted(gated, key=lambda rolled: (rolled.pod.metadata.uid in refused, _age(rolled)))
    if not waiting or not view.budget_counted:
        return Placements()
    if view.workload is None or view.blocking_reason is not None or plan.is_complete:
        return Placements(tuple((rolled.pod, None) for rolled in waiting))
    places = _Places(view, plan, nodes)
    released: list[tuple[Pod, str | None]] = []
    obstacles: list[str] = []
    for rolled in waiting:
        if rolled.outdated or has_claims(rolled.pod):
            released.append((rolled.pod, None))
            continue
        candidates = places.candidates()
        refusals: dict[str | None, str] = {}
        for domain in candidates:
            refusals[domain] = find_obstacle(rolled.pod, domain)
            if not refusals[domain]:
                places.take(domain)
                released.append((rolled.pod, domain))
                break
        else:
            if plan.open_domain == NO_DOMAIN and NO_DOMAIN in refusals:
                places.take(NO_DOMAIN)
                released.append((rolled.pod, None))
            elif plan.open_domain in refusals:
                obstacles.append(refusals[plan.open_domain])
            elif places.some_are_missing:
                released.append((rolled.pod, None))
    reason = _no_room_reason(view, plan, obstacles) if obstacles else None
    return Placements(tuple(released), reason)


def label_of(rollout: DomainRollout) -> str:
    """The node label that names the domains; of two spellings the present one."""
    key = rollout.spec.topology_key
    return OLD_KEYS.get(key, key)


def labels_of(rollout: DomainRollout, nodes: Iterable[Node]) -> tuple[str, ...]:
    """The node labels that a replacement's affinity names: also the old spelling, if a node has
    only that.
    """
    label = label_of(rollout)
    old_label = next((old for old, new in OLD_KEYS.items() if new == label), None)
    labels = (node.metadata.labels for node in nodes)
    if old_label is not None and any(old_label in each and label not in each for each in labels):
        return label, old_label
    return (label,)


def count_spellings(pod: Pod, labels: tuple[str, ...], domain: str) -> int:
    """In how many ways a pod can be confined to a domain, of which only one can be written.

    Terms are alternatives, but where a pod has some the API server allows no more of them.
    """
    return len(_expressions_of(labels, domain)) if _required_terms(pod) else 1


def confine(pod: Pod, labels: tuple[str, ...], domain: str | None, *, spelling: int = 0) -> Pod:
    """A pod without our gate, and with a node affinity for a domain.

    ``spelling`` is the way among those that ``count_spellings`` counts. A term without conditions
    matches no node, and stays as it is.
    """
    spec = pod.spec
    gates = tuple(gate for gate in spec.scheduling_gates if gate.name != GATE)
    affinity = spec.affinity
    if domain is not None:
        affinity = affinity or Affinity()
        node_affinity = affinity.node_affinity or NodeAffinity()
        alternatives = _expressions_of(labels, domain)
        own_terms = _required_terms(pod)
        terms = tuple(_narrow(term, alternatives[spelling]) for term in own_terms) or tuple(
            NodeSelectorTerm(match_expressions=expressions) for expressions in alternatives
        )
        required = NodeSelector(node_selector_terms=terms)
        affinity = msgspec.structs.replace(
            affinity, node_affinity=msgspec.structs.replace(node_affinity, required=required)
        )
    spec = msgspec.structs.replace(spec, scheduling_gates=gates, affinity=affinity)
    return msgspec.structs.replace(pod, spec=spec)


def release_patch(
    pod: Pod, labels: tuple[str, ...], domain: str | None, *, spelling: int = 0
) -> dict[str, Any]:
    """The merge patch that releases a pod, on the very version that was judged."""
    confined, meta = confine(pod, labels, domain, spelling=spelling), pod.metadata
    metadata: dict[str, Any] = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    spec: dict[str, Any] = {"schedulingGates": _gates_left(confined.spec.scheduling_gates)}
    if domain is not None:
        metadata["annotations"] = {DOMAIN_ANNOTATION: domain}
        assert confined.spec.affinity is not None
        assert confined.spec.affinity.node_affinity is not None
        required = msgspec.to_builtins(confined.spec.affinity.node_affinity.required)
        spec["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
    return {"metadata": metadata, "spec": spec}


def _required_terms(pod: Pod) -> tuple[NodeSelectorTerm, ...]:
    affinity = pod.spec.affinity
    node_affinity = None if affinity is None else affinity.node_affinity
    required = None if node_affinity is None else node_affinity.required
    return () if required is None else required.node_selector_terms or ()


def _narrow(
    term: NodeSelectorTerm, expressions: tuple[NodeSelectorRequirement, ...]
) -> NodeSelectorTerm:
    if not (term.match_expressions or term.match_fields):
        return term
    return msgspec.structs.replace(
        term, match_expressions=(*(term.match_expressions or ()), *expressions)
    )


def _expressions_of(
    labels: tuple[str, ...], domain: str
) -> tuple[tuple[NodeSelectorRequirement, ...], ...]:
    """What the nodes of a domain have in common, in alternatives: one for each spelling."""
    absent = [NodeSelectorRequirement(key=label, operator=ABSENT) for label in labels]
    if domain == NO_DOMAIN:
        return (tuple(absent),)
    return tuple(
        (*absent[:number], NodeSelectorRequirement(key=label, operator=IN, values=(domain,)))
        for number, label in enumerate(labels)
    )


def sent_to(pod: Pod) -> str | None:
    """The domain that a pod was sent to; None if it is held, was never, or may start anywhere.

    While it is held, the annotation is that of its template and says nothing.
    """
    return None if is_held(pod) else pod.metadata.annotations.get(DOMAIN_ANNOTATION)


def with_even_budgets(view: RolloutView, budgets: NamespaceBudgets) -> RolloutView:
    """The view with what budgets expect that divide the replicas by domains.

    They cover pods of the workload that wait, and have the rollout's domains. Where pods really are
    does not matter to them, so that a rollout that keeps the present numbers would never meet them.
    If a budget covers other workloads, too, ours is divided in the same way, and what the budget
    lacks all the same is known beside it.
    """
    label = label_of(view.rollout)
    covering = {
        budget.key
        for rolled in view.unscheduled
        if is_held(rolled.pod)
        for budget in budgets.budgets_covering(rolled.pod)
        if budget.per_domain
        and budget.enforced
        and budget.grouping.keys == (label,)
        and budget.grouping.node_filter is None
    }
    desired: Mapping[str, int] = view.desired_ready
    replicas = sum(desired.values())
    lacking: dict[str, int] = {}
    for key in sorted(covering):
        states = budgets.state_and_counts(key)[0].domains
        for name, state in states.items():
            lacking[name] = max(state.expected - state.present, lacking.get(name, 0))
        expected = {name: state.expected for name, state in states.items()}
        if sum(expected.values()) != replicas:
            expected = split_evenly(replicas, desired, states)
        desired = {**dict.fromkeys(desired, 0), **expected}
    lacking = {name: count for name, count in lacking.items() if count > 0}
    return replace(view, desired_ready=desired, budgets_lack=lacking)


class _Places:
    """How many pods each domain has and should have, while places are given away."""

    def __init__(self, view: RolloutView, plan: DomainPlan, nodes: Mapping[str, Node]) -> None:
        label = label_of(view.rollout)
        self._alive = {
            with_new_keys(node.metadata.labels).get(label, NO_DOMAIN)
            for node in nodes.values()
            if _takes_pods(node)
        }
        self._expected = view.desired_ready
        self._lacking = view.budgets_lack
        self._open = plan.open_domain
        self._coming: Counter[str] = Counter()
        self._present: Counter[str] = Counter()
        self._updated: Counter[str] = Counter()
        for rolled in view.pods:
            if rolled.pod.spec.node_name:
                self._add(rolled.domain, outdated=rolled.outdated)
        for rolled in view.unscheduled:
            domain = sent_to(rolled.pod)
            if domain is not None:
                self._coming[domain] += 1
                self._add(domain, outdated=rolled.outdated)

    @property
    def some_are_missing(self) -> bool:
        """Whether a domain lacks pods, also one that takes none."""
        return any(self._missing(name) > 0 for name in self._expected)

    def candidates(self) -> list[str]:
        """The domains that the next replacement may go to, the best first."""
        missing = {name for name in self._expected if self._missing(name) > 0}
        lacking = [name for name in self._lacking if self._missing_of_budgets(name) > 0]
        result = sorted(
            missing & self._alive,
            key=lambda name: (name != self._open, -self._missing(name), name),
        )
        result += sorted(
            (set(lacking) & self._alive) - missing,
            key=lambda name: (name != self._open, -self._missing_of_budgets(name), name),
        )
        # Without a usable node, too: then it waits there, and the reason says for what.
        takes_surge = self._updated[self._open or ""] < self._expected.get(self._open or "", 0)
        if self._open is not None and takes_surge and self._open not in {*missing, *result}:
            result.append(self._open)
        return result

    def take(self, domain: str) -> None:
        """A replacement goes to a domain."""
        self._coming[domain] += 1
        self._add(domain, outdated=False)

    def _missing(self, name: str) -> int:
        return self._expected[name] - self._present[name]

    def _missing_of_budgets(self, name: str) -> int:
        return self._lacking[name] - self._coming[name]

    def _add(self, domain: str, *, outdated: bool) -> None:
        self._present[domain] += 1
        self._updated[domain] += not outdated


def _rolls_out(rollout: DomainRollout, workload: WorkloadReference) -> bool:
    return rollout.spec.workload_ref == workload and rollout.metadata.deletion_timestamp is None


def _outdated_pods(
    workload: WorkloadReference, pod: Pod, budgets: NamespaceBudgets
) -> Iterable[Pod]:
    """The pods of a workload of other revisions than the newest, which ``pod`` is of."""
    own = reference_of(pod)
    assert own is not None
    if workload.kind == STATEFUL_SET:
        for other in budgets.pods_owned_by(own.uid):
            reference = reference_of(other)
            if reference is not None and budgets.owners.is_outdated(reference):
                yield other
        return
    key: OwnerKey = ("apps", DEPLOYMENT, pod.metadata.namespace, workload.name)
    for replica_set in budgets.owners.replica_sets_of(key):
        if replica_set.uid != own.uid:
            yield from budgets.pods_owned_by(replica_set.uid)


def _takes_pods(node: Node) -> bool:
    """Whether new pods may be scheduled on a node, as far as the node itself is concerned."""
    effects = ("NoSchedule", "NoExecute")
    return not node.spec.unschedulable and not any(
        taint.key.startswith("node.kubernetes.io/") and taint.effect in effects
        for taint in node.spec.taints or ()
    )


def _age(rolled: RolledPod) -> tuple[str, str]:
    return rolled.created, rolled.pod.metadata.name


def _gates_left(gates: tuple[PodSchedulingGate, ...]) -> list[dict[str, str]] | None:
    return [{"name": gate.name} for gate in gates] or None


def refusal_reason(
    subject: str, pod: Pod, domain: str | None, message: str, *, count: int
) -> Reason:
    """Why the first of ``count`` pods could not be released, in the API server's words."""
    meta = pod.metadata
    aim = f"to domain {domain}" if domain else "to any domain"
    more = f", nor {count - 1} more" if count > 1 else ""
    return Reason(
        code=RELEASE_REFUSED,
        message=f"{subject}: pod {meta.name} waits, because the API server does not let it be sent"
        f" {aim}{more}: {message.rstrip('.')}",
        object=f"Pod/{meta.namespace}/{meta.name}",
        numbers={"waiting": count},
        fix="It is tried again every minute: let the account of Zonewise's controller change pods"
        " here (an admission webhook, a policy or a missing role refuses it).",
    )


def _no_room_reason(view: RolloutView, plan: DomainPlan, obstacles: list[str]) -> Reason:
    assert view.workload is not None
    workload, waiting = view.workload, len(obstacles)
    pods = "a pod waits" if waiting == 1 else f"{waiting} pods wait"
    # Kubernetes requires that one of maxSurge and maxUnavailable is not 0.
    instead = (
        ", or set maxSurge: 0 and a maxUnavailable, so that old pods make room"
        if workload.kind == DEPLOYMENT
        else ""
    )
    return Reason(
        code=NO_ROOM,
        message=f"{workload.kind} {workload.name}: {pods} for room in domain {plan.open_domain}:"
        f" {obstacles[0].rstrip('.')}",
        object=workload.object,
        numbers={"waiting": waiting},
        fix=f"It continues when a node of that domain has room: add one{instead}.",
    )
