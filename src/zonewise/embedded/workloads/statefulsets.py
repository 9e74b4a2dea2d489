"""StatefulSets: the shell around ``ordinals``.

A pass claims the set's pods and revisions, finds or records the revision of its template, lets
``ordinals`` decide, does that, and writes the status. *Concurrent* are sets, and the pods that a
Parallel set creates or gives up in one pass; an OrderedReady set gets one step per pass, and the
pod's next change brings the next one.

*Twice is once*: names are given by number and revisions are named by content, deletions carry the
uid, and a pass waits until the store shows what the last one wrote.

What is taken down goes through ``removal``. *Retried* with backoff is a pass in which something
failed; its status is written all the same, and events tell what failed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from zonewise.api import selector as labelselector
from zonewise.api.apps import StatefulSetStatus
from zonewise.api.errors import AlreadyExists, Conflict, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.pod import Pod
from zonewise.api.policy import PodDisruptionBudget
from zonewise.api.storage import PersistentVolumeClaim
from zonewise.embedded.crew import Means
from zonewise.embedded.workloads import ordinals, revisions
from zonewise.embedded.workloads import statefulsets_claims as claims
from zonewise.embedded.workloads.availability import next_available
from zonewise.embedded.workloads.cadence import Cadence
from zonewise.embedded.workloads.claims import claimed, indexed
from zonewise.embedded.workloads.creation import Draft, draft, in_batches
from zonewise.embedded.workloads.expectations import GLANCE, Expectations
from zonewise.embedded.workloads.ordinals import REVISION_LABEL, Counts, Decision, Rule, number_of
from zonewise.embedded.workloads.removal import Mode, Removal
from zonewise.embedded.workloads.revisions import HASH_LABEL, HISTORY
from zonewise.embedded.workloads.views import ControllerRevision, StatefulSet, opened
from zonewise.embedded.workloads.wakening import gives, matters, members, refused
from zonewise.runtime.controller import Controller, own_key

WORKERS = 8
STALE_PAUSE = 1.0
"""How long to wait for the garbage collector to take a former pod's claim."""

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


class StatefulSets:
    """Keeps the pods of StatefulSets."""

    def __init__(self, means: Means, *, removal: Mode = "evict") -> None:
        self.client = means.client
        self.recorder = means.recorder
        self.clock = means.clock
        self.removal: Removal[Key] = Removal(means.client, mode=removal, clock=means.clock)
        self.cadence: Cadence[Key] = Cadence(means.clock)
        self._controller: Controller[Key] = Controller(
            "statefulsets", self._reconcile, cache=means.cache, workers=WORKERS, rng=means.rng
        )
        watches = self._controller.watches
        self.sets = watches(StatefulSet, own_key)
        woken = members(self.sets, StatefulSet.resource.kind)
        self.pods = indexed(watches(Pod, woken, when=matters))
        self.expected: Expectations[Key, Pod] = Expectations(self.pods, means.clock)
        self.revisions = indexed(watches(ControllerRevision, woken))
        self.claims = watches(PersistentVolumeClaim, lambda _: ())
        if removal == "evict":
            watches(PodDisruptionBudget, refused(self.removal), when=gives)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def _reconcile(self, key: Key) -> float | None:
        group = self.sets.get(key)
        if group is None:
            for memory in (self.expected, self.cadence, self.removal):
                memory.forget(key)
            return None
        if not self.expected.settled(key):
            return GLANCE
        if (wait := self.cadence.wait(key)) > 0:
            return wait
        try:
            return await _Pass(self, group).run()
        finally:
            self.cadence.passed(key, group.spec.replicas)


class _Pass:
    """One pass over one set."""

    def __init__(self, home: StatefulSets, group: StatefulSet) -> None:
        self._home = home
        self._client = home.client
        self._group = group
        self._now = home.clock()
        self._errors: list[ZonewiseError] = []
        self._again: list[float] = []

    async def run(self) -> float | None:
        group, home = self._group, self._home
        name = group.metadata.name
        selector = labelselector.from_object(group.spec.selector)
        pods = await claimed(
            self._client,
            group,
            selector,
            home.pods,
            fits=lambda pod: number_of(pod.metadata.name, name) is not None,
        )
        found = await claimed(self._client, group, selector, home.revisions)
        history = revisions.ordered(found)
        leaving = group.metadata.deletion_timestamp is not None
        if leaving and not history:
            return None
        update, collisions = await revisions.present(
            self._client,
            group,
            group.spec.template,
            history,
            hash_label=HASH_LABEL,
            collisions=group.status.collision_count or 0,
        )
        known = {one.metadata.name: one for one in history}
        current = known.get(group.status.current_revision, update)
        rule = rule_of(group, current.metadata.name, update.metadata.name)
        counts = ordinals.count(rule, pods, now=self._now)
        outdated = 0
        if not leaving:
            decision = ordinals.decide(rule, pods, now=self._now, stale=self._stale(rule))
            await self._tend(decision)
            await self._create(decision, rule, (current, update))
            outdated = await self._take_down(decision)
        await self._write_status(rule, counts, outdated, collisions)
        await self._forget(history, {rule.current, rule.update}, pods)
        if self._errors:
            raise self._errors[0]
        soon = next_available(pods, rule.min_ready, self._now)
        return min((*self._again, *(() if soon is None else (soon,))), default=None)

    def _stale(self, rule: Rule) -> frozenset[int]:
        """Numbers whose claims still belong to a former pod."""
        group = self._group
        if claims.scaled_policy(group) != claims.DELETE:
            return frozenset()
        namespace, name = group.key
        stale = set()
        for number in rule.numbers:
            pod = f"{name}-{number}"
            if (namespace, pod) in self._home.pods:
                continue
            for wanted in claims.drafts(group, number).values():
                there = self._home.claims.get(wanted.key)
                if there is not None and claims.stale(there, pod):
                    stale.add(number)
                    self._again.append(STALE_PAUSE)
        return frozenset(stale)

    async def _tend(self, decision: Decision) -> None:
        """See to it that pods are what their numbers say, and their claims are whose they are."""
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
            self._errors.append(error)

    async def _create(
        self,
        decision: Decision,
        rule: Rule,
        templates: tuple[ControllerRevision, ControllerRevision],
    ) -> None:
        by_name = {one.metadata.name: one for one in templates}

        async def create(number: int) -> None:
            await self._create_one(number, by_name[rule.revision(number)])

        for result in await in_batches(decision.births, create):
            if isinstance(result, ZonewiseError):
                self._errors.append(result)
            elif result is not None:
                raise result

    async def _create_one(self, number: int, revision: ControllerRevision) -> None:
        wanted = pod_draft(self._group, number, revision)
        name = wanted.metadata.name
        try:
            await self._make_claims(name)
            made = await self._client.create(wanted)
        except AlreadyExists:
            raise
        except ZonewiseError as error:
            self._note("create", f"Pod {name}", error)
            raise
        self._home.expected.wrote(self._group.key, made)
        self._note("create", f"Pod {name}")

    async def _identify(self, pod: Pod) -> None:
        meta = pod.metadata
        if meta.labels.get(POD_NAME) == meta.name:
            return
        body = {"metadata": {"uid": meta.uid, "labels": _identity(meta.name)}}
        try:
            await self._client.patch(Pod, meta.name, meta.namespace, body)
        except ZonewiseError as error:
            self._note("update", f"Pod {meta.name}", error)
            raise
        self._note("update", f"Pod {meta.name}")

    async def _make_claims(self, pod: str) -> None:
        """Create the claims of a number that are not there."""
        group = self._group
        number = number_of(pod, group.metadata.name)
        if number is None or not group.spec.volume_claim_templates:
            return
        for wanted in claims.drafts(group, number).values():
            name = wanted.metadata.name
            there = self._home.claims.get(wanted.key)
            if there is not None:
                if there.metadata.deletion_timestamp is not None:
                    raise ZonewiseError(f"pvc {name} is being deleted")
                continue
            try:
                await self._client.create(wanted)
            except AlreadyExists:
                continue
            except ZonewiseError as error:
                self._note("create", f"Claim {name} for Pod {pod}", error)
                raise
            self._note("create", f"Claim {name} Pod {pod}", ends="success")

    async def _give_claims(self, pod: Pod, *, condemned: bool) -> None:
        """Make a pod's claims belong to whom the retention policy says."""
        group = self._group
        number = number_of(pod.metadata.name, group.metadata.name)
        if number is None or not group.spec.volume_claim_templates:
            return
        for wanted in claims.drafts(group, number).values():
            there = self._home.claims.get(wanted.key)
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
                self._home.recorder.event(
                    group, type="Warning", reason="ConflictingController", action="Own", note=note
                )
            body = {
                "metadata": {
                    "uid": meta.uid,
                    "resourceVersion": meta.resource_version,
                    "ownerReferences": given,
                }
            }
            await self._client.patch(PersistentVolumeClaim, meta.name, meta.namespace, body)

    async def _take_down(self, decision: Decision) -> int:
        """Take pods down; gives how many of them were outdated."""
        if not decision.departures:
            self._home.removal.forget(self._group.key)
            return 0
        causes = {one.pod.metadata.uid: one.cause for one in decision.departures}
        pods = [one.pod for one in decision.departures]
        key = self._group.key
        taken = await self._home.removal.take(key, pods, len(pods))
        for pod in taken.granted:
            self._home.expected.removed(key, pod)
            self._note("delete", f"Pod {pod.metadata.name}")
        for refusal in taken.refused:
            name = refusal.pod.metadata.name
            if self._home.removal.mode == "delete":
                self._note("delete", f"Pod {name}", refusal.error)
            elif not isinstance(refusal.error, Conflict):
                self._home.recorder.event(
                    self._group,
                    type="Warning",
                    reason="EvictionRefused",
                    action="Delete",
                    note=f"Pod {name} stays for now: {refusal.why}",
                )
        if taken.again is not None:
            self._again.append(taken.again)
        return sum(causes[pod.metadata.uid] == "update" for pod in taken.granted)

    async def _write_status(
        self, rule: Rule, counts: Counts, outdated: int, collisions: int | None
    ) -> None:
        group, complete = self._group, ordinals.complete(rule, counts)
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
        body = {"metadata": {"uid": group.metadata.uid}, "status": _sparse(status)}
        namespace, name = group.key
        await self._client.patch(StatefulSet, name, namespace, body, subresource="status")

    async def _forget(
        self, history: list[ControllerRevision], live: set[str], pods: Iterable[Pod]
    ) -> None:
        limit = self._group.spec.revision_history_limit
        keep = HISTORY if limit is None else limit
        if keep < 0 or len(history) <= keep:
            return
        live |= {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}
        unused = revisions.surplus(history, lambda one: one.metadata.name in live, keep=keep)
        await revisions.forget(self._client, unused)

    def _note(
        self, verb: str, what: str, error: ZonewiseError | None = None, *, ends: str = "successful"
    ) -> None:
        """Tell what was done, or could not be done, in the words of the real controller."""
        done = error is None
        told = f"{verb.title()} {what} in StatefulSet {self._group.metadata.name}"
        self._home.recorder.event(
            self._group,
            type="Normal" if done else "Warning",
            reason=f"{'Successful' if done else 'Failed'}{verb.title()}",
            action=verb.title(),
            note=f"{told} {ends}" if done else f"{told} failed error: {error}",
        )


def rule_of(group: StatefulSet, current: str, update: str) -> Rule:
    """What a set asks for, given the names of its revisions."""
    spec = group.spec
    strategy = spec.update_strategy
    rolling = strategy.rolling_update
    return Rule(
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
    """The members of a status; those that are never sent as zero are taken away."""
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
