"""StatefulSets: the shell around ``ordinals``.

A pass claims the set's pods and revisions, finds or records the revision of its template, lets
``ordinals`` decide, does that, and writes the status. *Concurrent* are sets, and the pods that a
Parallel set creates or gives up in one pass, at most ``BURST`` of each; an OrderedReady set gets
one step per pass, and the pod's next change brings the next one.

*Twice is once*: names are given by number and revisions are named by content, deletions carry the
uid, and a pass waits until the store shows what the last one wrote.

Pods are removed through ``removal``. *Retried* with backoff is a pass in which something failed;
its status is written all the same, and events report what failed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from zonewise.api.errors import AlreadyExists, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.apps import ControllerRevision, StatefulSet, StatefulSetStatus, opened
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.disruption import BudgetsCache
from zonewise.embedded.components.workloads import revisions
from zonewise.embedded.components.workloads.creation import Draft, draft, in_batches, namespace_ends
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.revisions import HASH_LABEL, HISTORY, REVISION_LABEL
from zonewise.embedded.components.workloads.set_controller import Pass, SetController
from zonewise.embedded.components.workloads.statefulsets import claims, ordinals
from zonewise.embedded.components.workloads.statefulsets.ordinals import (
    StatefulSetCounts,
    StatefulSetPlan,
    StatefulSetRule,
    number_of,
)
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.expectations import GLANCE, Expectations

BURST = 500
WORKERS = 8
STALE_PAUSE = 1.0
"""How long to wait for the garbage collector to take a former pod's claim."""

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


class StatefulSets(SetController[StatefulSet]):
    """Keeps the pods of StatefulSets."""

    def __init__(
        self,
        context: ComponentContext,
        *,
        removal: RemovalMode = "evict",
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        super().__init__(
            context, StatefulSet, removal=removal, budgets_cache=budgets_cache, workers=WORKERS
        )
        self.claims = self.controller.reads(PersistentVolumeClaim)
        self.claimed: Expectations[Key, PersistentVolumeClaim] = Expectations(self.claims)

    def size(self, group: StatefulSet) -> int:
        """A pass reads every pod; OrderedReady sets wait for each step anyway."""
        return group.spec.replicas if group.spec.pod_management_policy == "Parallel" else 0

    def forget(self, key: Key) -> None:
        """A set is deleted."""
        super().forget(key)
        self.claimed.forget(key)

    async def keep(self, group: StatefulSet) -> float | None:
        """One pass over a set, when its claims are seen as they were written."""
        if not self.claimed.settled(group.key):
            return GLANCE
        return await _Pass(self, group).run()


class _Pass(Pass[StatefulSet]):
    def __init__(self, home: StatefulSets, group: StatefulSet) -> None:
        super().__init__(home, group)
        self._claims = home.claims
        self._claimed = home.claimed

    async def run(self) -> float | None:
        group = self.group
        name = group.metadata.name
        pods = await self.own_pods(lambda pod: number_of(pod.metadata.name, name) is not None)
        history = await self.own_history()
        leaving = group.metadata.deletion_timestamp is not None
        if leaving and not history:
            return None
        update, collisions = await revisions.present(
            self.client,
            group,
            group.spec.template,
            history,
            hash_label=HASH_LABEL,
            collisions=group.status.collision_count or 0,
        )
        known = {one.metadata.name: one for one in history}
        current = known.get(group.status.current_revision, update)
        rule = rule_of(group, current.metadata.name, update.metadata.name)
        counts = ordinals.count(rule, pods, now=self.now)
        outdated = 0
        if not leaving:
            taken = {number_of(pod.metadata.name, name) for pod in pods}
            free = [number for number in rule.numbers if number not in taken]
            decision = ordinals.decide(rule, pods, now=self.now, stale=self._stale(free))
            await self._tend(decision)
            # A pod whose claims did not get their owner must not be deleted, or they would stay
            # forever.
            if not self.errors:
                await self._create(decision, rule, (current, update))
            if not self.errors:
                outdated = await self._take_down(decision, rule.current)
        await self._write_status(rule, counts, outdated, collisions)
        await self._forget(history, {rule.current, rule.update}, pods)
        return self.ended(pods)

    def gone(self, pod: Pod) -> None:
        """Record an event that a pod was removed."""
        self._done("delete", f"Pod {pod.metadata.name}")

    def stuck(self, pod: Pod, error: ZonewiseError) -> None:
        """Record an event that a pod could not be deleted."""
        self._failed("delete", f"Pod {pod.metadata.name}", error)

    def _stale(self, numbers: Iterable[int]) -> frozenset[int]:
        """Which of these numbers have claims that still belong to a former pod."""
        group = self.group
        if claims.scaled_policy(group) != claims.DELETE:
            return frozenset()
        stale = frozenset(
            number
            for number in numbers
            for wanted in claims.drafts(group, number).values()
            if (there := self._claims.get(wanted.key)) is not None
            and claims.stale(there, f"{group.metadata.name}-{number}")
        )
        if stale:
            self.again.append(STALE_PAUSE)
        return stale

    async def _tend(self, decision: StatefulSetPlan) -> None:
        """Make pods match their ordinals, and their claims have the right owners."""
        try:
            for pod in decision.claimants:
                await self._make_claims(pod.metadata.name)
                await self._give_claims(pod, condemned=False)
            for pod in decision.tended:
                await self._identify(pod)
                await self._give_claims(pod, condemned=False)
            for pod in decision.condemned:
                await self._give_claims(pod, condemned=True)
        except ZonewiseError as error:
            self.errors.append(error)

    async def _create(
        self,
        decision: StatefulSetPlan,
        rule: StatefulSetRule,
        templates: tuple[ControllerRevision, ControllerRevision],
    ) -> None:
        by_name = {one.metadata.name: one for one in templates}

        async def create(number: int) -> None:
            await self._create_one(number, by_name[rule.revision(number)])

        for result in await in_batches(decision.births[:BURST], create):
            if isinstance(result, ZonewiseError):
                if not namespace_ends(result):
                    self.errors.append(result)
            elif result is not None:
                raise result

    async def _create_one(self, number: int, revision: ControllerRevision) -> None:
        wanted = pod_draft(self.group, number, revision)
        name = wanted.metadata.name
        try:
            await self._make_claims(name)
            made = await self.client.create(wanted)
        except AlreadyExists:
            raise
        except ZonewiseError as error:
            self._failed("create", f"Pod {name}", error)
            raise
        self.wrote(made)
        self._done("create", f"Pod {name}")

    async def _identify(self, pod: Pod) -> None:
        meta = pod.metadata
        if meta.labels.get(POD_NAME) == meta.name:
            return
        body = {"metadata": {"uid": meta.uid, "labels": _identity(meta.name)}}
        try:
            await self.client.patch(Pod, meta.name, meta.namespace, body)
        except ZonewiseError as error:
            self._failed("update", f"Pod {meta.name}", error)
            raise
        self._done("update", f"Pod {meta.name}")

    async def _make_claims(self, pod: str) -> None:
        """Create the missing claims of an ordinal."""
        group = self.group
        number = number_of(pod, group.metadata.name)
        if number is None or not group.spec.volume_claim_templates:
            return
        for wanted in claims.drafts(group, number).values():
            name = wanted.metadata.name
            there = self._claims.get(wanted.key)
            if there is not None:
                if there.metadata.deletion_timestamp is not None:
                    raise ZonewiseError(f"pvc {name} is being deleted")
                continue
            try:
                made = await self.client.create(wanted)
            except AlreadyExists:
                continue
            except ZonewiseError as error:
                self._failed("create", f"Claim {name} for Pod {pod}", error)
                raise
            self._claimed.wrote(group.key, made)
            self._done("create", f"Claim {name} Pod {pod}", ends="success")

    async def _give_claims(self, pod: Pod, *, condemned: bool) -> None:
        """Give a pod's claims the owners that the retention policy says."""
        group = self.group
        number = number_of(pod.metadata.name, group.metadata.name)
        if number is None or not group.spec.volume_claim_templates:
            return
        for wanted in claims.drafts(group, number).values():
            there = self._claims.get(wanted.key)
            if there is None:
                continue
            given = claims.owners(there, group, pod, condemned=condemned)
            if given is None:
                continue
            meta = there.metadata
            if claims.conflicting(there, group, pod):
                note = (
                    f"PersistentVolumeClaim {meta.name} has a conflicting OwnerReference that acts"
                    " as a manging controller, the retention policy is ignored for this claim"
                )
                self.note("ConflictingController", "Own", note, type="Warning")
            body = {
                "metadata": {
                    "uid": meta.uid,
                    "resourceVersion": meta.resource_version,
                    "ownerReferences": given,
                }
            }
            cls = PersistentVolumeClaim
            given_away = await self.client.patch(cls, meta.name, meta.namespace, body)
            self._claimed.wrote(group.key, given_away)

    async def _take_down(self, decision: StatefulSetPlan, current: str) -> int:
        """Take pods down; gives how many of them were of the current revision and are outdated.

        Adopted pods can be of a revision that this set does not know.
        """
        going = decision.departures[:BURST]
        pods = [one.pod for one in going]
        granted = {pod.metadata.uid for pod in await self.take_down(pods, len(pods))}
        return sum(
            one.cause == "update"
            and one.pod.metadata.uid in granted
            and one.pod.metadata.labels.get(REVISION_LABEL) == current
            for one in going
        )

    async def _write_status(
        self,
        rule: StatefulSetRule,
        counts: StatefulSetCounts,
        outdated: int,
        collisions: int | None,
    ) -> None:
        group, complete = self.group, ordinals.complete(rule, counts)
        status = StatefulSetStatus(
            observed_generation=group.metadata.generation,
            replicas=counts.replicas,
            ready_replicas=counts.ready,
            available_replicas=counts.available,
            current_replicas=counts.updated if complete else counts.current - outdated,
            updated_replicas=counts.updated,
            current_revision=rule.update if complete else rule.current,
            update_revision=rule.update,
            collision_count=collisions,
            conditions=group.status.conditions,
        )
        if status == group.status:
            return
        await self.client.patch_status(group, _sparse(status))

    async def _forget(
        self, history: list[ControllerRevision], live: set[str], pods: Iterable[Pod]
    ) -> None:
        limit = self.group.spec.revision_history_limit
        keep = HISTORY if limit is None else limit
        if keep < 0 or len(history) <= keep:
            return
        live |= {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}
        unused = revisions.surplus(history, lambda one: one.metadata.name in live, keep=keep)
        await revisions.forget(self.client, unused)

    def _done(self, verb: str, what: str, *, ends: str = "successful") -> None:
        """Record what was done, in the words of the real controller."""
        verb = verb.title()
        note = f"{verb} {what} in StatefulSet {self.group.metadata.name} {ends}"
        self.note(f"Successful{verb}", verb, note)

    def _failed(self, verb: str, what: str, error: ZonewiseError) -> None:
        """Record what could not be done."""
        verb = verb.title()
        note = f"{verb} {what} in StatefulSet {self.group.metadata.name} failed error: {error}"
        self.note(f"Failed{verb}", verb, note, type="Warning")


def rule_of(group: StatefulSet, current: str, update: str) -> StatefulSetRule:
    """What a set specifies, given the names of its revisions."""
    spec = group.spec
    strategy = spec.update_strategy
    rolling = strategy.rolling_update
    return StatefulSetRule(
        name=group.metadata.name,
        replicas=spec.replicas,
        current=current,
        update=update,
        start=0 if spec.ordinals is None else spec.ordinals.start,
        parallel=spec.pod_management_policy == "Parallel",
        on_delete=strategy.type == "OnDelete",
        partition=0 if rolling is None else rolling.partition or 0,
        max_unavailable=None if rolling is None else rolling.max_unavailable,
        min_ready=spec.min_ready_seconds,
    )


def pod_draft(group: StatefulSet, number: int, revision: ControllerRevision) -> Draft:
    """The pod of a number, as a revision describes it."""
    name = f"{group.metadata.name}-{number}"
    template = revisions.template_of(bytes(revision.data))
    spec = msgspec.json.decode(opened(template).spec)
    spec["hostname"] = name
    spec["subdomain"] = group.spec.service_name
    mounted = claims.drafts(group, number)
    own = [volume for volume in spec.get("volumes", ()) if volume["name"] not in mounted]
    spec["volumes"] = [
        *(
            {"name": volume, "persistentVolumeClaim": {"claimName": claim.metadata.name}}
            for volume, claim in mounted.items()
        ),
        *own,
    ]
    made = draft(
        template,
        group,
        name=name,
        labels={**_identity(name), REVISION_LABEL: revision.metadata.name},
        spec=msgspec.Raw(msgspec.json.encode(spec)),
    )
    meta = msgspec.structs.replace(made.metadata, generate_name=f"{group.metadata.name}-")
    return msgspec.structs.replace(made, metadata=meta)


def _identity(name: str) -> dict[str, str]:
    return {POD_NAME: name, POD_INDEX: name.rpartition("-")[2]}


def _sparse(status: StatefulSetStatus) -> dict[str, object]:
    """The members of a status; those that are never sent as zero are removed."""
    return {
        "observedGeneration": status.observed_generation,
        "replicas": status.replicas,
        "readyReplicas": status.ready_replicas or None,
        "currentReplicas": status.current_replicas or None,
        "updatedReplicas": status.updated_replicas or None,
        "availableReplicas": status.available_replicas,
        "currentRevision": status.current_revision,
        "updateRevision": status.update_revision,
        "collisionCount": status.collision_count,
    }
