"""Grants: judged in memory, written in batches, one compare-and-swap per batch and namespace.

A request that is not charged (free, uncovered, refused) is answered from memory at once and writes
nothing. Those that would be charged wait, per namespace, while the previous batch is written; then
all that wait are judged in order, each seeing what the others got, and one write of the ledger
covers every grant among them. If some wait when a write ends, that is a burst: the next batch
gathers for ``GATHER`` seconds, because a write costs an API server far more than an admission call.
So a burst of 500 deletions costs a few writes, and evictions that come one by one are not delayed.

The ledger is written on the version it was judged by. On a conflict it is read and judged again;
after ``TRIES`` the requests are refused, which is always safe. The answer of a write is the new
state of the ledger, so the next batch does not wait for a watch. No other replica's grant can be
missed: a stale ledger cannot be written.

Judging takes turns between namespaces (``turns``), also inside a batch: one with thousands of pods
to count, or hundreds of requests, never delays the others by more than a slice of its own. A batch
is judged by the ledger it began with, and written on that version.

A grant that was written but whose answer got lost is found in the ledger: a retry is answered with
it. All state is in the cluster.

Where a request would be refused while grants look unused (``zonewise.disruption.ledger``), the pods
of those grants are read first. One that is not being deleted loses its grant, and the next write of
the ledger says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from zonewise.api.errors import AlreadyExists, Conflict, NotFound, Status, ZonewiseError
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.budgets import (
    LEDGER_NAME,
    DisruptionLedger,
    Grant,
    TopologyDisruptionBudget,
)
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.reason import Reason
from zonewise.api.values import names
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.ledger import GRANTS_LIMIT, Ledger, ledger_of
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.verdict import BLOCKED, DisruptionVerdict, VerdictRound
from zonewise.runtime.client.client import Client
from zonewise.runtime.process.logs import logger
from zonewise.runtime.process.turns import FairTurns

TRIES = 5
GATHER = 0.05
READS = 20
"""Objects that are read for one batch beside what it is about."""

_KINDS: dict[str, type[TopologyDisruptionBudget] | type[PodDisruptionBudget]] = {
    cls.resource.kind: cls for cls in (TopologyDisruptionBudget, PodDisruptionBudget)
}

_log = logger("grants")


@dataclass(frozen=True, slots=True)
class _Question:
    pod: Pod
    evicting: bool
    answer: asyncio.Future[DisruptionVerdict]


class Grants:
    """Answers whether pods may be disrupted, and records what it granted.

    ``plain`` if plain PodDisruptionBudgets are checked first, as far as their status is known here.
    """

    def __init__(
        self,
        client: Client,
        budgets_cache: BudgetsCache,
        clock: Callable[[], float],
        *,
        plain: bool = True,
        turns: FairTurns | None = None,
    ) -> None:
        self._client = client
        self._plain = plain
        self._turns = turns or FairTurns()
        self._budgets_cache = budgets_cache
        self._clock = clock
        self._waiting: dict[str, list[_Question]] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self.writes = 0

    async def ask(self, pod: Pod, *, evicting: bool, dry_run: bool = False) -> DisruptionVerdict:
        """A verdict; one that is charged has been written when it is returned."""
        namespace = pod.metadata.namespace
        budgets = self._budgets_cache.get_or_create(namespace)
        await self.count_changes(namespace)
        verdict = await self._judge(self._round(budgets), pod, evicting)
        if not verdict.allowed and self._unused(budgets):
            await self._take_back(budgets, namespace)
            await self.count_changes(namespace)
            verdict = await self._judge(self._round(budgets), pod, evicting)
        if not verdict.charged or dry_run:
            return verdict
        question = _Question(pod, evicting, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(namespace, []).append(question)
        if namespace not in self._writing:
            task = asyncio.create_task(self._work(namespace), name=f"grants of {namespace}")
            self._writing[namespace] = task
        return await question.answer

    async def count_changes(self, namespace: str) -> None:
        """Count what has changed in a namespace, in turns with the others."""
        budgets = self._budgets_cache.get_or_create(namespace)
        await self._turns.slices(namespace, budgets.count_changes())

    async def _judge(self, verdicts: VerdictRound, pod: Pod, evicting: bool) -> DisruptionVerdict:
        await self._turns.slices(pod.metadata.namespace, verdicts.prepare(pod))
        return verdicts.judge(pod, evicting=evicting)

    def _round(self, budgets: NamespaceBudgets) -> VerdictRound:
        return VerdictRound(budgets, self._clock(), strict=True, plain=self._plain)

    async def _work(self, namespace: str) -> None:
        """Write batch after batch while requests wait."""
        try:
            while namespace in self._waiting:
                # Those that are being asked for already get their turns first, and join the batch.
                await self.count_changes(namespace)
                batch = self._waiting.pop(namespace)
                try:
                    await self._grant(namespace, batch)
                except Exception as error:
                    if not isinstance(error, ZonewiseError):
                        _log.exception("grants failed", namespace=namespace)
                    for question in batch:
                        _answer(question, _refuse_unwritten(question.pod, str(error)))
                if namespace in self._waiting:
                    await asyncio.sleep(GATHER)
        finally:
            del self._writing[namespace]

    async def _grant(self, namespace: str, batch: list[_Question]) -> None:
        budgets = self._budgets_cache.get_or_create(namespace)
        for _ in range(TRIES):
            batch = [question for question in batch if not question.answer.done()]
            verdicts = self._round(budgets)
            granted: list[tuple[_Question, DisruptionVerdict]] = []
            room = GRANTS_LIMIT - len(verdicts.ledger.grants)
            for question in batch:
                verdict = await self._judge(verdicts, question.pod, question.evicting)
                if not verdict.charged:
                    _answer(question, verdict)
                elif len(granted) >= room:
                    why = f"{GRANTS_LIMIT} pods of the namespace were granted in two minutes"
                    _answer(question, _refuse_unwritten(question.pod, why))
                else:
                    verdicts.charge(question.pod)
                    granted.append((question, verdict))
            if not granted:
                return
            try:
                await self._write(budgets, namespace, verdicts.ledger, granted)
            except (Conflict, AlreadyExists):
                await self._reread(budgets, namespace)
                await self.count_changes(namespace)
                continue
            for question, verdict in granted:
                _answer(question, verdict)
            return
        for question in batch:
            _answer(
                question, _refuse_unwritten(question.pod, "others write the ledger all the time")
            )

    async def _write(
        self,
        namespace_budgets: NamespaceBudgets,
        namespace: str,
        ledger: Ledger,
        granted: list[tuple[_Question, DisruptionVerdict]],
    ) -> None:
        budgets = {budget.key: budget for _, verdict in granted for budget in verdict.agreeing}
        pods = [question.pod for question, _ in granted]
        deleted = await self._deleted(namespace_budgets, ledger, namespace)
        desired = ledger.with_grants(pods, budgets.values(), self._clock(), deleted=deleted)
        if ledger.version:
            meta = {"resourceVersion": ledger.version}
            spec = desired.to_patch()
            spec["judged"] |= dict.fromkeys(deleted)  # None removes a key in a merge patch.
            body = {"metadata": meta, "spec": spec}
            try:
                written = await self._client.patch(DisruptionLedger, LEDGER_NAME, namespace, body)
            except NotFound:
                raise Conflict(Status(message="the ledger was deleted", code=409)) from None
        else:
            written = await self._client.create(
                DisruptionLedger(
                    metadata=ObjectMeta(name=LEDGER_NAME, namespace=namespace),
                    spec=desired.to_spec(),
                )
            )
        self.writes += 1
        namespace_budgets.ledger = ledger_of(written)

    def _unused(self, budgets: NamespaceBudgets) -> list[Grant]:
        return budgets.ledger.find_unused(budgets.pods, self._clock())

    async def _take_back(self, budgets: NamespaceBudgets, namespace: str) -> None:
        """Take back unused grants, once for all that wait for it."""
        reading = self._reading.get(namespace)
        if reading is None:
            reading = asyncio.create_task(self._read_unused(budgets, namespace))
            self._reading[namespace] = reading
            reading.add_done_callback(lambda _: self._reading.pop(namespace))
        await asyncio.shield(reading)

    async def _read_unused(self, budgets: NamespaceBudgets, namespace: str) -> None:
        unused = self._unused(budgets)[:READS]
        known = [budgets.pods[grant.uid].metadata for grant in unused]
        stayed: set[str] = set()
        for meta in known:
            try:
                pod = await self._client.get(Pod, meta.name, namespace)
            except ZonewiseError:
                continue
            self._budgets_cache.put_read_pod(pod)
            if pod.metadata.uid == meta.uid and pod.metadata.deletion_timestamp is None:
                stayed.add(meta.uid)
        if stayed:
            budgets.ledger = budgets.ledger.without(stayed)
            _log.warning(
                "grants were not used; if no other webhook or budget refuses such evictions,"
                " something that is no API server calls this webhook",
                namespace=namespace,
                grants=len(stayed),
            )

    async def _deleted(self, budgets: NamespaceBudgets, ledger: Ledger, namespace: str) -> set[str]:
        """The budgets that grants were judged by and that are deleted.

        One that is not known here may also be newer than what is known here, so it is looked up.
        """
        known = {f"{kind}/{name}" for kind, _, name in budgets.budgets}
        deleted: set[str] = set()
        for judged in sorted(ledger.judged.keys() - known)[:READS]:
            kind, _, name = judged.partition("/")
            if kind not in _KINDS or names.subdomain_errors(name):
                deleted.add(judged)
                continue
            try:
                await self._client.get(_KINDS[kind], name, namespace)
            except NotFound:
                deleted.add(judged)
        return deleted

    async def _reread(self, budgets: NamespaceBudgets, namespace: str) -> None:
        try:
            ledger: DisruptionLedger | None = await self._client.get(
                DisruptionLedger, LEDGER_NAME, namespace
            )
        except NotFound:
            ledger = None
        budgets.ledger = ledger_of(ledger)


def _answer(question: _Question, verdict: DisruptionVerdict) -> None:
    if not question.answer.done():
        question.answer.set_result(verdict)


def _refuse_unwritten(pod: Pod, why: str) -> DisruptionVerdict:
    """No grant without its record."""
    meta = pod.metadata
    reason = Reason(
        code=BLOCKED,
        message=f"a grant for pod {meta.name} could not be written: {why}",
        object=f"Pod/{meta.namespace}/{meta.name}",
        fix="Try again.",
    )
    return DisruptionVerdict(False, False, reason)
