"""What a Deployment does next: which ReplicaSet is created, grows, shrinks or is deleted.

A Deployment has one ReplicaSet for each template it had. The *new* one has the present template;
the others are *old*. A rollout moves the pods from the old ones to the new one between two limits:
never more than ``replicas + surge`` pods, never fewer than ``replicas - unavailable`` available
ones. Percentages of surge round up, those of unavailable round down; if both are zero, one pod may
be unavailable, or nothing would ever move.

One sync does what Kubernetes' controller does in one: a new ReplicaSet is created as large as the
surge allows and the old ones shrink in the same sync; later syncs either grow the new one or
shrink old ones, unavailable pods first. Outside of a rollout, and while it is paused, a change of
``replicas`` is shared among the ReplicaSets in proportion to their sizes.

**Evict instead of delete.** If the removal of a pod may be refused, "shrink" is a request, and two
things go wrong if it counts as done. The sum of ``spec.replicas`` would no longer bound the live
pods, so the new ReplicaSet would grow beyond the surge while the old pods still exist. And
available pods whose removal is pending would be counted again and again, until removal of all old
pods is requested; once the budget allows it they would be removed at once, far beyond
``unavailable``.

So the request is written as an annotation on the ReplicaSet, and ``spec.replicas`` stays what the
ReplicaSet still has: its controller lowers it by what was granted, see ``replicas``. Then

- room to grow is counted in ``spec.replicas``: a pod whose removal is requested still counts;
- what may be removed is counted in ``target_replicas``: such a pod counts as removed.

The first keeps the surge whatever is refused, the second keeps ``unavailable`` whatever is granted,
in any order. Where pods are deleted there are no such requests, both counts are equal, and the
arithmetic is Kubernetes' own. A request survives restarts, and is void once the ReplicaSet has to
grow again.

The oldest ReplicaSet shrinks first. If budgets hold all of its pods, and not those of another old
one, the request is passed on to that one: the oldest may have pods only in domains that open after
this one is updated.

Everything here is a function of its arguments. ReplicaSets may be in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from zonewise.api.objects.apps import Deployment, DeploymentStatus, ReplicaSet
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.embedded.components.workloads.deployments.templates import equal_ignoring_hash
from zonewise.embedded.components.workloads.replicasets.replicas import target_replicas

PREFIX = "deployment.kubernetes.io/"
REVISION = PREFIX + "revision"
REVISION_HISTORY = PREFIX + "revision-history"
DESIRED_REPLICAS = PREFIX + "desired-replicas"
MAX_REPLICAS = PREFIX + "max-replicas"
UNCOPIED_ANNOTATIONS = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
    }
)
MAX_HISTORY_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """How many pods a Deployment should have, how many more it may have, and how many fewer."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def max_pods(self) -> int:
        """The most pods there may be."""
        return self.replicas + self.surge

    @property
    def min_available(self) -> int:
        """The fewest pods that must be available."""
        return self.replicas - self.unavailable


@dataclass(frozen=True, slots=True)
class Resize:
    """A new size of a ReplicaSet; ``short`` if there was no room for the size it should get."""

    replica_set: ReplicaSet
    replicas: int
    short: bool = False


@dataclass(frozen=True, slots=True)
class DeploymentSets:
    """The ReplicaSets of a Deployment, oldest first."""

    new: ReplicaSet | None
    old: tuple[ReplicaSet, ...]

    @property
    def all(self) -> tuple[ReplicaSet, ...]:
        """Old and new."""
        return self.old if self.new is None else (*self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What one sync does."""

    create: int | None = None
    """The size of the new ReplicaSet, if it has to be created."""
    resizes: tuple[Resize, ...] = ()
    delete: tuple[ReplicaSet, ...] = ()
    scaling: bool = False
    """Whether this sync only scales: it does not change the progress of a rollout."""


def rollout_limits(deployment: Deployment) -> RolloutLimits:
    """The limits of a Deployment, in pods."""
    replicas = deployment.spec.replicas
    strategy = deployment.spec.strategy
    if strategy.type == "Recreate":
        return RolloutLimits(replicas, 0, 0)
    rolling = strategy.rolling_update
    surge = scale_int_or_percent((rolling and rolling.max_surge) or 0, replicas, round_up=True)
    limit = (rolling and rolling.max_unavailable) or 0
    unavailable = scale_int_or_percent(limit, replicas, round_up=False)
    if surge == unavailable == 0:
        unavailable = 1
    return RolloutLimits(replicas, surge, min(unavailable, replicas))


def split_sets(deployment: Deployment, sets: Iterable[ReplicaSet]) -> DeploymentSets:
    """Split ReplicaSets into the one with the current template and the others."""
    by_age = sorted(sets, key=_age_key)
    template = deployment.spec.template
    current = (rs for rs in by_age if equal_ignoring_hash(rs.spec.template, template))
    new = next(current, None)
    return DeploymentSets(new, tuple(rs for rs in by_age if rs is not new))


def plan_rollout(deployment: Deployment, sets: DeploymentSets, *, old_pods: bool) -> RolloutPlan:
    """Plan the next sync; ``old_pods`` says whether pods of old ReplicaSets still exist."""
    if deployment.spec.paused:
        resizes, surplus = plan_scaling(deployment, sets), surplus_sets(deployment, sets)
        return RolloutPlan(resizes=resizes, delete=surplus, scaling=True)
    if _is_scaling_event(deployment, sets):
        return RolloutPlan(resizes=plan_scaling(deployment, sets), scaling=True)
    if deployment.spec.strategy.type == "Recreate":
        return _plan_recreate(deployment, sets, old_pods)
    return _plan_rolling_update(deployment, sets)


def _plan_rolling_update(deployment: Deployment, sets: DeploymentSets) -> RolloutPlan:
    limits = rollout_limits(deployment)
    new = sets.new
    if new is None:
        create = min(limits.replicas, max(0, limits.max_pods - _total_replicas(sets.all)))
        return RolloutPlan(create=create, resizes=_shrink_old_sets(limits, sets, created=create))
    size = _size_of_new_set(limits, sets, new)
    if size != target_replicas(new):
        return RolloutPlan(resizes=(Resize(new, size),))
    resizes = _shrink_old_sets(limits, sets)
    return RolloutPlan(resizes=resizes, delete=_sets_to_delete(deployment, sets))


def _plan_recreate(deployment: Deployment, sets: DeploymentSets, old_pods: bool) -> RolloutPlan:
    down = tuple(Resize(rs, 0) for rs in sets.old if target_replicas(rs))
    if down or old_pods:
        return RolloutPlan(resizes=down)
    replicas = deployment.spec.replicas
    if sets.new is None:
        return RolloutPlan(create=replicas)
    if target_replicas(sets.new) != replicas:
        return RolloutPlan(resizes=(Resize(sets.new, replicas),))
    return RolloutPlan(delete=_sets_to_delete(deployment, sets))


def _size_of_new_set(limits: RolloutLimits, sets: DeploymentSets, new: ReplicaSet) -> int:
    """The size of the new ReplicaSet: all there should be, as far as there is room."""
    if target_replicas(new) >= limits.replicas:
        return limits.replicas
    room = max(0, limits.max_pods - _total_replicas(sets.all))
    return max(target_replicas(new), min(limits.replicas, new.spec.replicas + room))


def _shrink_old_sets(
    limits: RolloutLimits, sets: DeploymentSets, created: int = 0
) -> tuple[Resize, ...]:
    """Shrink the old ReplicaSets where that is allowed; ``created`` pods are being created.

    Nothing is removed by a status that is older than the sizes: a ReplicaSet that shrank and grew
    again would count the pods it had before.
    """
    if any(target_replicas(rs) and not _is_observed(rs) for rs in sets.all):
        return ()
    available = {
        rs.metadata.uid: min(rs.status.available_replicas, target_replicas(rs)) for rs in sets.all
    }
    sizes = {rs.metadata.uid: target_replicas(rs) for rs in sets.old}
    unavailable_new = created
    if sets.new is not None:
        unavailable_new = target_replicas(sets.new) - available[sets.new.metadata.uid]
    total = sum(target_replicas(rs) for rs in sets.all) + created
    spare = total - limits.min_available - unavailable_new
    if spare <= 0:
        return ()
    for rs in sets.old:
        uid = rs.metadata.uid
        unhealthy = min(spare, sizes[uid] - available[uid])
        sizes[uid] -= unhealthy
        spare -= unhealthy
    spare = sum(available.values()) - limits.min_available
    for rs in sets.old:
        uid = rs.metadata.uid
        healthy = min(max(spare, 0), sizes[uid])
        sizes[uid] -= healthy
        spare -= healthy
    return tuple(
        Resize(rs, sizes[rs.metadata.uid])
        for rs in sets.old
        if sizes[rs.metadata.uid] != target_replicas(rs)
    )


def awaits_removal(rs: ReplicaSet) -> bool:
    """Whether pods of a ReplicaSet are to be removed, and are not yet."""
    return target_replicas(rs) < rs.spec.replicas


def pass_requests_on(
    sets: DeploymentSets, resizes: Sequence[Resize], removable: Mapping[str, int]
) -> tuple[Resize, ...]:
    """The resizes, with what old ReplicaSets cannot give up requested from other old ones.

    ``removable`` is how many pods of each budgets would let go, by uid. The sum of all sizes, and
    so of the pods that may be missing, stays the same.
    """
    sizes = {rs.metadata.uid: target_replicas(rs) for rs in sets.old}
    sizes |= {resize.replica_set.metadata.uid: resize.replicas for resize in resizes}
    before = dict(sizes)
    for replica_set in sets.old:
        uid = replica_set.metadata.uid
        requested = replica_set.spec.replicas - sizes[uid]
        if requested <= 0 or removable[uid]:
            continue
        for rs in sets.old:
            other = rs.metadata.uid
            room = removable[other] - (rs.spec.replicas - sizes[other])
            passed = min(requested, max(room, 0), sizes[other])
            sizes[other] -= passed
            sizes[uid] += passed
            requested -= passed
    moved = [rs for rs in sets.old if sizes[rs.metadata.uid] != before[rs.metadata.uid]]
    # What is no longer requested comes first, so that a crash leaves too few requests.
    moved.sort(key=lambda rs: sizes[rs.metadata.uid] < before[rs.metadata.uid])
    others = [resize for resize in resizes if resize.replica_set not in moved]
    short = {resize.replica_set.metadata.uid for resize in resizes if resize.short}
    passed_on = (Resize(rs, sizes[rs.metadata.uid], short=rs.metadata.uid in short) for rs in moved)
    return (*others, *passed_on)


def plan_scaling(deployment: Deployment, sets: DeploymentSets) -> tuple[Resize, ...]:
    """Share a change of ``replicas`` among the ReplicaSets, without a rollout."""
    limits = rollout_limits(deployment)
    replicas = limits.replicas
    active = [rs for rs in sets.all if target_replicas(rs)]
    if len(active) <= 1:
        # One that has that size already learns that it is for this many replicas: otherwise the
        # change would never end.
        only = active[0] if active else sets.new or (sets.old[-1] if sets.old else None)
        sizes = {} if only is None else {only.metadata.uid: replicas}
    elif sets.new is not None and _is_saturated(sets.new, replicas):
        sizes = {rs.metadata.uid: 0 for rs in sets.old if target_replicas(rs)}
    elif deployment.spec.strategy.type == "Recreate":
        sizes = {rs.metadata.uid: target_replicas(rs) for rs in active}
    else:
        sizes = _scale_proportionally(deployment, limits, active)
    return _limit_growth(limits, sets, sizes)


def _scale_proportionally(
    deployment: Deployment, limits: RolloutLimits, active: Sequence[ReplicaSet]
) -> dict[str, int]:
    """Sizes in proportion to the current ones; the remainder of rounding goes to the largest."""
    allowed = limits.max_pods if limits.replicas else 0
    missing = allowed - sum(map(target_replicas, active))
    by_age = sorted(active, key=_age_key, reverse=missing > 0)
    by_size = sorted(by_age, key=target_replicas, reverse=True)
    sizes: dict[str, int] = {}
    added = 0
    for rs in by_size:
        remaining = missing - added
        share = _proportional_change(deployment, limits, rs) if remaining else 0
        share = min(share, remaining) if missing > 0 else max(share, remaining)
        sizes[rs.metadata.uid] = target_replicas(rs) + share
        added += share
    largest = by_size[0].metadata.uid
    sizes[largest] = max(0, sizes[largest] + missing - added)
    return sizes


def _proportional_change(deployment: Deployment, limits: RolloutLimits, rs: ReplicaSet) -> int:
    size = target_replicas(rs)
    if not limits.replicas:
        return -size
    previous = _parse_number(rs.metadata.annotations.get(MAX_REPLICAS))
    previous = previous or deployment.status.replicas
    if not previous:
        return 0
    # Rounds half away from zero, exactly.
    return (2 * size * limits.max_pods + previous) // (2 * previous) - size


def _limit_growth(
    limits: RolloutLimits, sets: DeploymentSets, sizes: Mapping[str, int]
) -> tuple[Resize, ...]:
    """Limit the growth to the room there is; without open requests nothing is limited."""
    room = max(0, limits.max_pods - _total_replicas(sets.all))
    resizes = []
    for rs in sets.all:
        size = sizes.get(rs.metadata.uid)
        if size is None:
            continue
        granted = min(size, rs.spec.replicas + room)
        room -= max(0, granted - rs.spec.replicas)
        resizes.append(Resize(rs, granted, short=granted < size))
    return tuple(resizes)


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Whether all pods are updated and available and no others exist, according to a status."""
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    observed = status.observed_generation >= deployment.metadata.generation
    return observed and counts == {deployment.spec.replicas}


def _sets_to_delete(deployment: Deployment, sets: DeploymentSets) -> tuple[ReplicaSet, ...]:
    return surplus_sets(deployment, sets) if is_complete(deployment, deployment.status) else ()


def surplus_sets(deployment: Deployment, sets: DeploymentSets) -> tuple[ReplicaSet, ...]:
    """The old ReplicaSets beyond the history's limit that have no pods."""
    keep = deployment.spec.revision_history_limit
    if keep is None:
        return ()
    living = [rs for rs in sets.old if rs.metadata.deletion_timestamp is None]
    by_revision = sorted(living, key=lambda rs: (revision_of(rs), rs.metadata.creation_timestamp))
    return tuple(rs for rs in by_revision[: max(0, len(living) - keep)] if _is_empty(rs))


def revision_of(rs: ReplicaSet) -> int:
    """The revision of a ReplicaSet."""
    return _parse_number(rs.metadata.annotations.get(REVISION))


def missing_annotations(deployment: Deployment, sets: DeploymentSets) -> dict[str, str]:
    """The annotations that the new ReplicaSet lacks, or needs when it is created.

    Going back to an old template makes its ReplicaSet the latest revision; the numbers it had are
    kept as its history.
    """
    current = {} if sets.new is None else sets.new.metadata.annotations
    annotations = deployment.metadata.annotations.items()
    desired = {k: v for k, v in annotations if k not in UNCOPIED_ANNOTATIONS}
    latest = max((revision_of(rs) for rs in sets.old), default=0) + 1
    current_revision = current.get(REVISION)
    if _parse_number(current_revision) < latest:
        desired[REVISION] = str(latest)
        if current_revision is not None:
            desired[REVISION_HISTORY] = _append_revision(
                current.get(REVISION_HISTORY, ""), current_revision
            )
    return {name: value for name, value in desired.items() if current.get(name) != value}


def size_annotations(deployment: Deployment) -> dict[str, str]:
    """The size of the Deployment when a ReplicaSet got its size, for scaling in proportion."""
    limits = rollout_limits(deployment)
    return {DESIRED_REPLICAS: str(limits.replicas), MAX_REPLICAS: str(limits.max_pods)}


def apply_resizes(
    sets: DeploymentSets, resizes: Sequence[Resize], *, reducing: bool
) -> DeploymentSets:
    """The ReplicaSets as they are once the resizes are written."""
    sizes = {resize.replica_set.metadata.uid: resize.replicas for resize in resizes}

    def apply(rs: ReplicaSet) -> ReplicaSet:
        size = sizes.get(rs.metadata.uid)
        if size is None or (reducing and size < rs.spec.replicas):
            return rs
        spec = msgspec.structs.replace(rs.spec, replicas=size)
        return msgspec.structs.replace(rs, spec=spec)

    new = None if sets.new is None else apply(sets.new)
    return DeploymentSets(new, tuple(map(apply, sets.old)))


def _is_scaling_event(deployment: Deployment, sets: DeploymentSets) -> bool:
    """Whether ``replicas`` changed since the ReplicaSets got their sizes."""
    for rs in sets.all:
        desired = rs.metadata.annotations.get(DESIRED_REPLICAS)
        changed = desired is not None and _parse_number(desired) != deployment.spec.replicas
        if changed and target_replicas(rs):
            return True
    return False


def _is_saturated(new: ReplicaSet, replicas: int) -> bool:
    desired = _parse_number(new.metadata.annotations.get(DESIRED_REPLICAS))
    return replicas == desired == new.spec.replicas == new.status.available_replicas


def _is_empty(rs: ReplicaSet) -> bool:
    return rs.status.replicas == 0 and rs.spec.replicas == 0 and _is_observed(rs)


def _is_observed(rs: ReplicaSet) -> bool:
    return rs.status.observed_generation >= rs.metadata.generation


def _total_replicas(sets: Iterable[ReplicaSet]) -> int:
    return sum(rs.spec.replicas for rs in sets)


def _age_key(rs: ReplicaSet) -> tuple[str, str]:
    return rs.metadata.creation_timestamp or "", rs.metadata.name


def _parse_number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 19 else 0


def _append_revision(history: str, latest: str) -> str:
    numbers = [number for number in history.split(",") if number]
    while numbers and len(",".join((*numbers, latest))) > MAX_HISTORY_LENGTH:
        numbers.pop(0)
    return ",".join((*numbers, latest))
