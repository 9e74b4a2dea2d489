"""Says on a claim that its class has no pool where its pod will run.

Provisioners cannot: they know neither pools nor domains, and the driver's answer has no place for a
note. The event is written when the scheduler selects a node, which is when the driver is asked;
after a restart, for claims that are still without a volume. It is only told: nothing waits for it,
and what it says is decided by ``storage.missing_pools``.
"""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import PersistentVolumeClaim, StorageClass
from zonewise.csi.errors import CsiError
from zonewise.csi.services.plugin import NO_CLUSTER
from zonewise.csi.takeover.controller import PoolStatesReader
from zonewise.csi.takeover.source import TakeoverSource
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.storage.domains import DomainLabels
from zonewise.storage.labelled_pools.selection import POOL_LABELS
from zonewise.storage.missing_pools import find_missing_pool
from zonewise.storage.pools import PoolState

SELECTED_NODE = "volume.kubernetes.io/selected-node"

_log = logger("csi")


class MissingPoolReporter:
    """Looks at claims of one driver when a node was selected for them."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        source: TakeoverSource,
        labels: DomainLabels,
        read_states: PoolStatesReader | None = None,
    ) -> None:
        self._recorder = context.recorder
        self._source = source
        self._labels = labels
        self._read_states = read_states
        controller = context.controller("missing pools", self._sync)
        self.run = controller.run
        self.stop = controller.stop
        self._claims = controller.watches(PersistentVolumeClaim, own_key, when=_node_was_selected)
        self._classes = controller.reads(StorageClass)
        self._nodes = controller.reads(Node)

    async def _sync(self, key: Key) -> None:
        claim = self._claims.get(key)
        if claim is None or not self._source.loaded:
            return
        storage_class = self._classes.get(("", claim.storage_class or ""))
        node = self._nodes.get(("", claim.metadata.annotations.get(SELECTED_NODE, "")))
        if storage_class is None or node is None:
            return
        if storage_class.provisioner != self._labels.driver:
            return
        reason = find_missing_pool(
            storage_class.metadata.name,
            storage_class.parameters,
            self._labels.segments_of_node(node.metadata.labels),
            self._labels,
            self._source.current,
            await self._read_labelled_pools(storage_class.parameters),
        )
        if reason is not None:
            note = f"{reason.message}. {reason.fix}"
            self._recorder.event(claim, reason.code, "Provision", note, type="Warning")

    async def _read_labelled_pools(
        self, parameters: Mapping[str, str]
    ) -> Mapping[str, PoolState] | None:
        """The pools of the cluster of a class that takes them by their labels.

        None for other classes; empty, so that nothing is missed, if the cluster does not answer.
        """
        if POOL_LABELS not in parameters or self._read_states is None:
            return None
        try:
            states = await self._read_states(self._source.current)
        except CsiError as error:
            _log.info("the pools cannot be read now", why=str(error))
            return {}
        only = next(iter(states)) if len(states) == 1 else NO_CLUSTER
        return states.get(parameters.get("clusterID", only), {})


def _node_was_selected(
    old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
) -> bool:
    if new is None or SELECTED_NODE not in new.metadata.annotations:
        return False
    if old is None:
        return not new.spec.volume_name
    return SELECTED_NODE not in old.metadata.annotations
