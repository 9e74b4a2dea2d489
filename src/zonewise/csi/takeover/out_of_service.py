"""Fences nodes that are out of service, and lets them in again.

Kubernetes deletes the pods of a node with the taint ``node.kubernetes.io/out-of-service`` and lets
their volumes be used elsewhere; here the node is fenced from them, at once: an administrator who is
wrong, or a machine that is only cut off, must not write to a volume that another node has.

In this order, so that a crash at any line converges: which clients the node has is written
(``fence_records``), they are fenced, that all are is written. Each step may be repeated; while the
taint is there, it is looked again for clients that are new. A fence that fails is tried again after
at most a minute; until it is certain, no other node gets the volume
(``storage.takeover.dead_nodes.decide_fencing``).

A record that is refused does not hold up the fence: a node that goes on writing harms data, and a
client that nobody lets in again only needs a boot of its node. It is needed to lift the fence, so
it is kept in memory and tried again.

When the taint goes, the clients are let in again and the record is removed. First the record says
that the fence is not certain any more: if the taint comes back when some are let in, all of them
are fenced again. A client stays out while it may harm another node: its volume is not only this
node's any more, and the node has not been booted since, so the client may still live. New clients
of the node are not affected.

A node that is deleted has no taint any more, and is lost all the same: a fence that has begun is
finished, because until then no other node gets the volume. Then its record is removed, and its
clients stay out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.reason import Reason
from zonewise.csi.backends.contract import HeldVolume, NodeFencing
from zonewise.csi.errors import CsiError
from zonewise.csi.takeover.controller import TakeoverSettings
from zonewise.csi.takeover.fence_records import FenceRecord, FenceRecords
from zonewise.csi.transport.calls import CallWorker
from zonewise.runtime.controller.recorder import EventType
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.topology.nodes import is_out_of_service

RECHECK_SECONDS = 30.0
FIRST_RETRY_SECONDS = 2.0
LAST_RETRY_SECONDS = 60.0
RECORDED = ""
"""The key for all nodes that have a record: those of a process that was killed."""

T = TypeVar("T")
_log = logger("csi")


class OutOfServiceController:
    """Keeps nodes fenced while they have the taint; one at a time."""

    def __init__(
        self,
        context: ControllerContext,
        settings: TakeoverSettings,
        *,
        storage: object,
        worker: CallWorker,
    ) -> None:
        self._context = context
        self._records = FenceRecords(context.client, settings.namespace)
        self._status = settings.fences
        self._storage = storage
        self._worker = worker
        self._reasons: dict[str, Reason] = {}
        self._failures: dict[str, int] = {}
        self._controller = context.controller("out of service", self._sync)
        self._nodes = self._controller.watches(
            Node, lambda node: (node.metadata.name,), when=_is_concerned
        )

    async def run(self) -> None:
        """Work until cancelled."""
        self._controller.enqueue(RECORDED)
        await self._controller.run()

    def stop(self) -> None:
        """Finish what has begun."""
        self._controller.stop()

    async def _sync(self, name: str) -> float | None:
        storage = self._storage
        if not isinstance(storage, NodeFencing):
            return None
        await self._records.read()
        self._report_unreadable()
        records = self._records.by_node
        if name == RECORDED:
            for recorded in records:
                self._controller.enqueue(recorded)
            return RECHECK_SECONDS if self._records.problem is not None else None
        node = self._nodes.get(("", name))
        if node is not None and is_out_of_service(node):
            return await self._fence(storage, node, records.get(name))
        if name in records:
            if node is not None:
                return await self._unfence(storage, node, records[name])
            deleted = Node(metadata=ObjectMeta(name=name))
            if not records[name].confirmed:
                return await self._fence(storage, deleted, records[name], deleted=True)
            if refusal := await self._records.write(name, None):
                return self._fail(deleted, _tell_kept(name, refusal))
        self._report(name, None)
        return None

    async def _fence(
        self,
        storage: NodeFencing,
        node: Node,
        previous: FenceRecord | None,
        *,
        deleted: bool = False,
    ) -> float | None:
        name, refusal = node.metadata.name, ""
        boot = previous.boot if deleted and previous else node.status.node_info.boot_id
        try:
            volumes, problems = await self._worker(lambda: storage.find_held(name))
        except CsiError as error:
            volumes, problems = [], [str(error)]
        record = (previous or FenceRecord(boot)).add(boot, volumes)
        if problems:
            record = replace(record, confirmed=False)
        if record != previous or not self._records.is_written(name):
            refusal = await self._records.write(name, record)
        # Those that were written down before, too: a client that Ceph does not see just now may
        # be cut off, and come back with what it has not written yet.
        for volume in () if record.confirmed else record.volumes:
            _, problem = await self._try(partial(storage.fence_held, name, volume))
            problems += [problem] if problem else []
        if problems:
            return self._fail(
                node,
                Reason(
                    code="FenceFails",
                    message=f"node {name} {'was deleted' if deleted else 'is out of service'} and"
                    f" not fenced completely: {'; '.join(problems[:3])}",
                    object=f"Node/{name}",
                    fix="It is tried again at least each minute; its volumes stay where they are.",
                ),
            )
        reason = Reason(
            code="NodeFenced" if record.volumes else "NothingToFence",
            message=f"node {name} {'was deleted' if deleted else 'is out of service'}: "
            + (
                f"it is fenced from {_count_fenced(record.volumes)}"
                if record.volumes
                else "it has no volume from which it can be fenced"
            ),
            object=f"Node/{name}",
        )
        if deleted:
            if refusal := await self._records.write(name, None):
                return self._fail(node, _tell_kept(name, refusal))
            self._tell(node, reason)
            self._report(name, None)
            return None
        if not record.confirmed:
            refusal = await self._records.write(name, replace(record, confirmed=True))
        if refusal:
            return self._fail(node, _tell_refused(reason, refusal))
        if not record.confirmed:
            self._tell(node, reason)
        self._failures.pop(name, None)
        self._report(name, reason)
        return RECHECK_SECONDS

    async def _unfence(
        self, storage: NodeFencing, node: Node, previous: FenceRecord
    ) -> float | None:
        name, boot = node.metadata.name, node.status.node_info.boot_id
        record = replace(previous, confirmed=False)
        if record != previous:
            await self._records.write(name, record)  # refused, it counts here at least
        rebooted = bool(boot and record.boot) and boot != record.boot
        left: list[HeldVolume] = []
        problems: list[str] = []
        for volume in record.volumes:
            done, problem = await self._try(
                partial(storage.unfence_held, name, volume, rebooted=rebooted)
            )
            problems += [problem] if problem else []
            if not done:
                left.append(volume)
        remaining = replace(record, volumes=tuple(left)) if left else None
        if remaining != record or not self._records.is_written(name):
            refusal = await self._records.write(name, remaining)
            problems += [f"its record cannot be changed: {refusal}"] if refusal else []
        if problems:
            return self._fail(
                node,
                Reason(
                    code="UnfenceFails",
                    message=f"node {name} is in service again, and not all clients are let in:"
                    f" {'; '.join(problems[:3])}",
                    object=f"Node/{name}",
                    fix="Its new clients are not affected. On Ceph the driver's user needs the"
                    " right to remove entries of the blocklist: docs/ceph.md, Rights.",
                ),
            )
        self._failures.pop(name, None)
        if left:
            self._report(
                name,
                Reason(
                    code="ClientsStayFenced",
                    message=f"node {name} is in service again; its old clients of"
                    f" {_count(len(left), 'volume')}, which other nodes may have written since,"
                    " stay fenced until they have ended or the node is booted",
                    object=f"Node/{name}",
                ),
            )
            return LAST_RETRY_SECONDS
        note = f"node {name} is in service again: nothing of it is fenced"
        self._tell(node, Reason(code="NodeUnfenced", message=note))
        self._report(name, None)
        return None

    async def _try(self, work: Callable[[], T]) -> tuple[T | None, str]:
        """What it gives, or what was wrong with it.

        Who cancels this waits until the storage has answered: what has begun cannot be taken back,
        and must not end after the next leader has begun.
        """
        call = asyncio.ensure_future(self._worker(work))
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            await asyncio.wait([call])
            raise
        try:
            return call.result(), ""
        except CsiError as error:
            return None, str(error)

    def _fail(self, node: Node, reason: Reason) -> float:
        """Report it, once, and say when to try again."""
        name = node.metadata.name
        if self._reasons.get(name) != reason:
            self._tell(node, reason, kind="Warning")
        self._report(name, reason)
        failures = self._failures.get(name, 0)
        self._failures[name] = failures + 1
        return float(min(FIRST_RETRY_SECONDS * 2 ** min(failures, 10), LAST_RETRY_SECONDS))

    def _tell(self, node: Node, reason: Reason, *, kind: EventType = "Normal") -> None:
        _log.warning(str(reason), reason=reason.code)
        self._context.recorder.event(node, reason.code, "Fence", str(reason), type=kind)

    def _report_unreadable(self) -> None:
        problem = self._records.problem
        if problem is not None and self._reasons.get(RECORDED) != problem:
            _log.warning(str(problem), reason=problem.code)
        self._report(RECORDED, problem)

    def _report(self, name: str, reason: Reason | None) -> None:
        if reason is None:
            self._reasons.pop(name, None)
        else:
            self._reasons[name] = reason
        self._status.replace(tuple(self._reasons[each] for each in sorted(self._reasons)))


def _is_concerned(old: Node | None, new: Node | None) -> bool:
    return any(node is not None and is_out_of_service(node) for node in (old, new))


def _tell_refused(fenced: Reason, refusal: str) -> Reason:
    return Reason(
        code="FenceFails",
        message=f"{fenced.message}, and its record cannot be written: {refusal}",
        object=fenced.object,
        fix="It is tried again at least each minute. A driver that is restarted before does not"
        " know which clients to let in: then boot the node before its taint goes.",
    )


def _tell_kept(name: str, refusal: str) -> Reason:
    return Reason(
        code="FenceFails",
        message=f"node {name} was deleted, and its record cannot be removed: {refusal}",
        object=f"Node/{name}",
        fix="It is fenced. It is tried again at least each minute.",
    )


def _count_fenced(volumes: Sequence[HeldVolume]) -> str:
    """The numbers of volumes and of clients; a backend without clients is fenced by the volume."""
    clients = sum(len(volume.clients) for volume in volumes)
    fenced = _count(len(volumes), "volume")
    return f"{fenced}, {_count(clients, 'client')}" if clients else fenced


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
