"""What a Deployment does next: which ReplicaSet is made, grows, shrinks or is deleted.

A Deployment has one ReplicaSet for each template it had. The *new* one has the present template;
the others are *old*. A rollout moves the pods from the old ones to the new one between two limits:
never more than ``replicas + surge`` pods, never fewer than ``replicas - unavailable`` available
ones. Percentages of surge round up, those of unavailable round down; if both are zero, one pod may
be unavailable, or nothing would ever move.

A pass is what Kubernetes' controller does in one: a new ReplicaSet is created as large as the
surge allows and the old ones shrink in the same pass; later passes either grow the new one or
shrink old ones, unavailable pods first. Outside of a rollout, and while it is paused, a change of
``replicas`` is shared among the ReplicaSets in proportion to their sizes.

**Evict instead of delete.** If taking a pod down may be refused, "shrink" is a request, and two
things go wrong when it is taken for done. The sum of ``spec.replicas`` would no longer bound the
live pods, so the new ReplicaSet would grow beyond the surge while the old pods still exist. And
available pods whose removal is pending would be counted again and again, until removal of all old
pods is requested; once the budget opens they would be removed at once, far beyond ``unavailable``.

So the request is written as an annotation on the ReplicaSet, and ``spec.replicas`` stays what the
ReplicaSet still holds: its controller lowers it by what was granted, see ``replicas``. Here then

- room to grow is counted in ``spec.replicas``: a pod whose removal is requested still counts;
- what may be removed is counted in aims: a pod whose removal is requested counts as removed.

The first makes the surge hold whatever is refused, the second makes ``unavailable`` hold whatever
is granted, in any order. Where pods are deleted there are no such requests, both counts are the
same, and the arithmetic is Kubernetes' own. A request survives restarts, and is void once the
ReplicaSet is to grow again.

Everything here is a function of its arguments. ReplicaSets may be in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from zonewise.api.objects.apps import Deployment, DeploymentStatus, ReplicaSet
from zonewise.api.values.int_or_percent import portion
from zonewise.embedded.components.workloads import templates
from zonewise.embedded.components.workloads.replicasets.replicas import aim

PREFIX = "deployment.kubernetes.io/"
REVISION = PREFIX + "revision"
HISTORY = PREFIX + "revision-history"
DESIRED = PREFIX + "desired-replicas"
MOST = PREFIX + "max-replicas"
NOT_COPIED = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        REVISION,
        HISTORY,
        DESIRED,
        MOST,
    }
)
HISTORY_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """How many pods there should be, how many more there may be, and how many fewer."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        """The most pods there may be."""
        return self.replicas + self.surge

    @property
    def least(self) -> int:
        """The fewest pods that must be available."""
        return self.replicas - self.unavailable


@dataclass(frozen=True, slots=True)
class Resize:
    """A ReplicaSet to be given a size; ``short`` if there was not room for all it should get."""

    set: ReplicaSet
    replicas: int
    short: bool = False


@dataclass(frozen=True, slots=True)
class Sets:
    """The ReplicaSets of a Deployment, oldest first."""

    new: ReplicaSet | None
    old: tuple[ReplicaSet, ...]

    @property
    def all(self) -> tuple[ReplicaSet, ...]:
        """Old and new."""
        return self.old if self.new is None else (*self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What one pass does."""

    create: int | None = None
    """The size of the new ReplicaSet, if it is to be made."""
    resizes: tuple[Resize, ...] = ()
    forget: tuple[ReplicaSet, ...] = ()
    scaling: bool = False
    """Whether this pass only scales: it says nothing about a rollout's progress."""


def limits(deployment: Deployment) -> RolloutLimits:
    """The limits of a Deployment, in pods."""
    replicas = deployment.spec.replicas
    strategy = deployment.spec.strategy
    if strategy.type == "Recreate":
        return RolloutLimits(replicas, 0, 0)
    rolling = strategy.rolling_update
    surge = portion((rolling and rolling.max_surge) or 0, replicas, up=True)
    unavailable = portion((rolling and rolling.max_unavailable) or 0, replicas, up=False)
    if surge == unavailable == 0:
        unavailable = 1
    return RolloutLimits(replicas, surge, min(unavailable, replicas))


def sorted_sets(deployment: Deployment, sets: Iterable[ReplicaSet]) -> Sets:
    """Which ReplicaSet has the present template, and which have others."""
    by_age = sorted(sets, key=_age)
    template = deployment.spec.template
    new = next((one for one in by_age if templates.same(one.spec.template, template)), None)
    return Sets(new, tuple(one for one in by_age if one is not new))


def plan(deployment: Deployment, sets: Sets, *, old_pods: bool) -> RolloutPlan:
    """The next pass; ``old_pods`` says whether pods of old ReplicaSets still exist."""
    if deployment.spec.paused:
        return RolloutPlan(
            resizes=scaled(deployment, sets), forget=surplus(deployment, sets), scaling=True
        )
    if _rescaled(deployment, sets):
        return RolloutPlan(resizes=scaled(deployment, sets), scaling=True)
    recreate = deployment.spec.strategy.type == "Recreate"
    return _recreate(deployment, sets, old_pods) if recreate else _roll(deployment, sets)


def _roll(deployment: Deployment, sets: Sets) -> RolloutPlan:
    bounds = limits(deployment)
    new = sets.new
    if new is None:
        create = min(bounds.replicas, max(0, bounds.most - _held(sets.all)))
        return RolloutPlan(create=create, resizes=_shrunk(bounds, sets, made=create))
    size = _grown(bounds, sets, new)
    if size != aim(new):
        return RolloutPlan(resizes=(Resize(new, size),))
    return RolloutPlan(resizes=_shrunk(bounds, sets), forget=_forgotten(deployment, sets))


def _recreate(deployment: Deployment, sets: Sets, old_pods: bool) -> RolloutPlan:
    down = tuple(Resize(one, 0) for one in sets.old if aim(one))
    if down or old_pods:
        return RolloutPlan(resizes=down)
    replicas = deployment.spec.replicas
    if sets.new is None:
        return RolloutPlan(create=replicas)
    if aim(sets.new) != replicas:
        return RolloutPlan(resizes=(Resize(sets.new, replicas),))
    return RolloutPlan(forget=_forgotten(deployment, sets))


def _grown(bounds: RolloutLimits, sets: Sets, new: ReplicaSet) -> int:
    """The size of the new ReplicaSet: all there should be, as far as there is room."""
    if aim(new) >= bounds.replicas:
        return bounds.replicas
    room = max(0, bounds.most - _held(sets.all))
    return max(aim(new), min(bounds.replicas, new.spec.replicas + room))


def _shrunk(bounds: RolloutLimits, sets: Sets, made: int = 0) -> tuple[Resize, ...]:
    """The old ReplicaSets that may be smaller; ``made`` pods are just being created.

    Nothing is removed by a status that is older than the sizes: a ReplicaSet that shrank and grew
    again would count the pods it had before.
    """
    if any(aim(one) and not _observed(one) for one in sets.all):
        return ()
    available = {one.metadata.uid: min(one.status.available_replicas, aim(one)) for one in sets.all}
    sizes = {one.metadata.uid: aim(one) for one in sets.old}
    fresh = made if sets.new is None else aim(sets.new) - available[sets.new.metadata.uid]
    total = sum(aim(one) for one in sets.all) + made
    spare = total - bounds.least - fresh
    if spare <= 0:
        return ()
    for one in sets.old:
        uid = one.metadata.uid
        unhealthy = min(spare, sizes[uid] - available[uid])
        sizes[uid] -= unhealthy
        spare -= unhealthy
    spare = sum(available.values()) - bounds.least
    for one in sets.old:
        uid = one.metadata.uid
        healthy = min(max(spare, 0), sizes[uid])
        sizes[uid] -= healthy
        spare -= healthy
    return tuple(
        Resize(one, sizes[one.metadata.uid])
        for one in sets.old
        if sizes[one.metadata.uid] != aim(one)
    )


def scaled(deployment: Deployment, sets: Sets) -> tuple[Resize, ...]:
    """How a change of ``replicas`` is shared, without any rollout."""
    bounds = limits(deployment)
    replicas = bounds.replicas
    active = [one for one in sets.all if aim(one)]
    if len(active) <= 1:
        only = active[0] if active else sets.new or (sets.old[-1] if sets.old else None)
        sizes = {} if only is None or aim(only) == replicas else {only.metadata.uid: replicas}
    elif sets.new is not None and _saturated(sets.new, replicas):
        sizes = {one.metadata.uid: 0 for one in sets.old if aim(one)}
    elif deployment.spec.strategy.type == "Recreate":
        sizes = {}
    else:
        sizes = _shared(deployment, bounds, active)
    return _within(bounds, sets, sizes)


def _shared(
    deployment: Deployment, bounds: RolloutLimits, active: Sequence[ReplicaSet]
) -> dict[str, int]:
    """Sizes in proportion to what there is; what rounding leaves goes to the largest."""
    allowed = bounds.most if bounds.replicas else 0
    missing = allowed - sum(map(aim, active))
    by_age = sorted(active, key=_age, reverse=missing > 0)
    by_size = sorted(by_age, key=aim, reverse=True)
    sizes: dict[str, int] = {}
    added = 0
    for one in by_size:
        left = missing - added
        share = _share(deployment, bounds, one) if left else 0
        share = min(share, left) if missing > 0 else max(share, left)
        sizes[one.metadata.uid] = aim(one) + share
        added += share
    first = by_size[0].metadata.uid
    sizes[first] = max(0, sizes[first] + missing - added)
    return sizes


def _share(deployment: Deployment, bounds: RolloutLimits, one: ReplicaSet) -> int:
    if not bounds.replicas:
        return -aim(one)
    before = _number(one.metadata.annotations.get(MOST)) or deployment.status.replicas
    if not before:
        return 0
    # Rounds half away from zero, exactly.
    return (2 * aim(one) * bounds.most + before) // (2 * before) - aim(one)


def _within(bounds: RolloutLimits, sets: Sets, sizes: Mapping[str, int]) -> tuple[Resize, ...]:
    """The sizes as far as there is room; nothing is cut where no request is open."""
    room = max(0, bounds.most - _held(sets.all))
    resizes = []
    for one in sets.all:
        size = sizes.get(one.metadata.uid)
        if size is None:
            continue
        fits = min(size, one.spec.replicas + room)
        room -= max(0, fits - one.spec.replicas)
        resizes.append(Resize(one, fits, short=fits < size))
    return tuple(resizes)


def complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Whether a status says that all pods are updated and available, and no others exist."""
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return (
        counts == {deployment.spec.replicas}
        and status.observed_generation >= deployment.metadata.generation
    )


def _forgotten(deployment: Deployment, sets: Sets) -> tuple[ReplicaSet, ...]:
    return surplus(deployment, sets) if complete(deployment, deployment.status) else ()


def surplus(deployment: Deployment, sets: Sets) -> tuple[ReplicaSet, ...]:
    """The old ReplicaSets beyond the history's limit that hold nothing any more."""
    keep = deployment.spec.revision_history_limit
    if keep is None:
        return ()
    living = [one for one in sets.old if one.metadata.deletion_timestamp is None]
    by_revision = sorted(living, key=lambda one: (revision(one), one.metadata.creation_timestamp))
    return tuple(one for one in by_revision[: max(0, len(living) - keep)] if _empty(one))


def revision(one: ReplicaSet) -> int:
    """The revision of a ReplicaSet."""
    return _number(one.metadata.annotations.get(REVISION))


def lacking(deployment: Deployment, sets: Sets) -> dict[str, str]:
    """What the new ReplicaSet's annotations lack, or will need if it is yet to be made.

    Going back to an old template makes its ReplicaSet the latest revision; the numbers it had are
    kept as its history.
    """
    have = {} if sets.new is None else sets.new.metadata.annotations
    want = {k: v for k, v in deployment.metadata.annotations.items() if k not in NOT_COPIED}
    latest = max((revision(one) for one in sets.old), default=0) + 1
    known = have.get(REVISION)
    if _number(known) < latest:
        want[REVISION] = str(latest)
        if known is not None:
            want[HISTORY] = _history(have.get(HISTORY, ""), known)
    return {name: value for name, value in want.items() if have.get(name) != value}


def size_annotations(deployment: Deployment) -> dict[str, str]:
    """What a ReplicaSet's size was meant for; later scaling is in proportion to it."""
    bounds = limits(deployment)
    return {DESIRED: str(bounds.replicas), MOST: str(bounds.most)}


def resized(sets: Sets, resizes: Sequence[Resize], *, reducing: bool) -> Sets:
    """The ReplicaSets as they are once the resizes are written."""
    sizes = {one.set.metadata.uid: one.replicas for one in resizes}

    def changed(one: ReplicaSet) -> ReplicaSet:
        size = sizes.get(one.metadata.uid)
        if size is None or (reducing and size < one.spec.replicas):
            return one
        spec = msgspec.structs.replace(one.spec, replicas=size)
        return msgspec.structs.replace(one, spec=spec)

    new = None if sets.new is None else changed(sets.new)
    return Sets(new, tuple(map(changed, sets.old)))


def _rescaled(deployment: Deployment, sets: Sets) -> bool:
    """Whether ``replicas`` changed since the ReplicaSets got their sizes."""
    for one in sets.all:
        meant = one.metadata.annotations.get(DESIRED)
        if aim(one) and meant is not None and _number(meant) != deployment.spec.replicas:
            return True
    return False


def _saturated(new: ReplicaSet, replicas: int) -> bool:
    meant = _number(new.metadata.annotations.get(DESIRED))
    return replicas == meant == new.spec.replicas == new.status.available_replicas


def _empty(one: ReplicaSet) -> bool:
    return one.status.replicas == 0 and one.spec.replicas == 0 and _observed(one)


def _observed(one: ReplicaSet) -> bool:
    return one.status.observed_generation >= one.metadata.generation


def _held(sets: Iterable[ReplicaSet]) -> int:
    return sum(one.spec.replicas for one in sets)


def _age(one: ReplicaSet) -> tuple[str, str]:
    return one.metadata.creation_timestamp or "", one.metadata.name


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 19 else 0


def _history(past: str, latest: str) -> str:
    numbers = [number for number in past.split(",") if number]
    while numbers and len(",".join((*numbers, latest))) > HISTORY_LENGTH:
        numbers.pop(0)
    return ",".join((*numbers, latest))
