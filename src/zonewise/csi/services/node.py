"""The Node service: volumes at the paths of this machine.

A volume must be in the journal to be staged, published, measured or grown; taking it away again
works without, because what is unknown must be unmountable. One call per volume at a time. Staging
also excludes copies of the image, so that a copy never starts unmounted and ends mounted, and other
nodes that unstage it: on one machine they would take a device away that has just been attached.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from zonewise.csi.backends.contract import BLOCK, FOLDER, ExclusiveNode, MountRequest, NodeBackend
from zonewise.csi.errors import Code, CsiError, invalid, precondition
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services import requests
from zonewise.csi.services.plugin import NodeDomain, Plugin
from zonewise.csi.services.steps import entry_lock, mount_lock
from zonewise.csi.transport import methods
from zonewise.csi.transport.methods import ServedMethod, bind
from zonewise.runtime.process.logs import logger
from zonewise.storage.identifiers import StoredKind, parse_id
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.dead_nodes import FenceStep, VolumeHolder, decide_fencing
from zonewise.storage.takeover.stand_ins import desired_takeover_labels, fully_named_domains

_Rpc = csi.NodeServiceCapability.RPC
_Unit = csi.VolumeUsage
CAPABILITIES = (
    _Rpc.STAGE_UNSTAGE_VOLUME,
    _Rpc.GET_VOLUME_STATS,
    _Rpc.EXPAND_VOLUME,
    _Rpc.SINGLE_NODE_MULTI_WRITER,
)

PATH_LIMIT = 4096
NAME_LIMIT = 255
"""What Linux takes."""

_log = logger("csi")


class NodeService:
    """Volumes on one node; ``advertise`` also reports the domains that it stands in for."""

    def __init__(
        self,
        plugin: Plugin,
        backend: NodeBackend,
        *,
        node_id: str,
        domain: NodeDomain,
        advertise: bool = False,
    ) -> None:
        self._plugin = plugin
        self._backend = backend
        self._node_id = node_id
        self._domain = domain
        self._advertise = advertise

    def bindings(self) -> list[ServedMethod]:
        """The calls of this service."""
        return [
            bind(methods.NODE_STAGE_VOLUME, self.stage),
            bind(methods.NODE_UNSTAGE_VOLUME, self.unstage),
            bind(methods.NODE_PUBLISH_VOLUME, self.publish),
            bind(methods.NODE_UNPUBLISH_VOLUME, self.unpublish),
            bind(methods.NODE_GET_VOLUME_STATS, self.get_volume_stats),
            bind(methods.NODE_EXPAND_VOLUME, self.expand),
            bind(methods.NODE_GET_CAPABILITIES, self.get_capabilities),
            bind(methods.NODE_GET_INFO, self.get_info),
        ]

    def get_capabilities(
        self, _request: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        """What the node can do."""
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=_Rpc(type=capability)) for capability in CAPABILITIES
            ]
        )

    def get_info(self, _request: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        """Which node this is and where; never a wrong domain, so UNAVAILABLE until it is known."""
        labels = self._plugin.labels
        topology = None
        if labels.labels:
            segments = self._domain.segments()
            topology_segments = labels.to_wire(segments)
            if self._advertise:
                topology_segments |= self._takeover_segments(segments)
            topology = csi.Topology(segments=topology_segments)
        return csi.NodeGetInfoResponse(node_id=self._node_id, accessible_topology=topology)

    def _takeover_segments(self, segments: dict[str, str]) -> dict[str, str]:
        """Keys of the domains that are taken over by this node's, of one state of the file."""
        configuration = self._plugin.configuration()
        pools = [
            *configuration.pools,
            *(pool for pool_set in configuration.pool_sets.values() for pool in pool_set),
        ]
        return desired_takeover_labels(
            segments,
            configuration.takeover,
            [
                *(pool.segments for pool in pools if pool.segments),
                *fully_named_domains(configuration.takeover, self._plugin.labels),
            ],
            self._plugin.labels,
        )

    def stage(self, request: csi.NodeStageVolumeRequest) -> csi.NodeStageVolumeResponse:
        """Mount once per node."""
        staging = _parse_path(request.staging_target_path, "staging_target_path")
        entry = self._require_usable(request.volume_id, request, "volume_capability")
        with ExitStack() as stack:
            locks = self._plugin.locks
            stack.enter_context(locks.hold(entry_lock(entry), shared=True))
            stack.enter_context(locks.hold(mount_lock(entry)))
            stack.enter_context(locks.hold(self._lock_key(request.volume_id)))
            mount_request = replace(
                requests.parse_mount_request(request.volume_capability, entry, readonly=False),
                node=self._node_id,
                read_domain=self._read_domain(entry),
            )
            exclusive_backend = self._take_volume(entry, staging, mount_request)
            try:
                self._backend.stage(entry, staging, mount_request)
            except CsiError as error:
                if exclusive_backend is not None and error.code is Code.RESOURCE_EXHAUSTED:
                    # Nothing is here, and no caller will unstage it: another node may have it.
                    exclusive_backend.clear_holder(entry, self._node_id)
                raise
        return csi.NodeStageVolumeResponse()

    def _take_volume(
        self, entry: JournalEntry, staging: Path, mount_request: MountRequest
    ) -> ExclusiveNode | None:
        """Have a volume to ourselves: refused while another node has it, unless that is dead.

        Returns the backend that recorded this; None if many nodes may have the volume.
        """
        backend = self._backend
        if not isinstance(backend, ExclusiveNode):
            return None
        shared = _is_shared(entry, mount_request)
        labels = self._plugin.labels
        this_node = VolumeHolder(self._node_id, labels.ordered(self._known_segments()))
        holder = None if shared else backend.find_holder(entry, staging)
        decision = decide_fencing(
            requests.id_of(entry),
            holder,
            this_node,
            labels.ordered(entry.segments),
            self._plugin.configuration().takeover,
            out_of_service=self._domain.is_out_of_service(),
        )
        if decision.step is FenceStep.REFUSE:
            raise precondition(str(decision.reason))
        if shared:
            return None
        if holder is not None and holder.node == self._node_id and holder.fence is not None:
            # It was fenced while it was out of service: what is staged here answers nobody.
            backend.abandon_staging(entry, staging)
        if decision.step is FenceStep.FENCE:
            _log.warning(str(decision.reason), reason=decision.reason.code)
            backend.fence(entry)
        backend.record_holder(entry, this_node)
        return backend

    def unstage(self, request: csi.NodeUnstageVolumeRequest) -> csi.NodeUnstageVolumeResponse:
        """Unmount; unknown is fine."""
        if not request.volume_id:
            raise invalid("volume_id is missing")
        staging = _parse_path(request.staging_target_path, "staging_target_path")
        volume = parse_id(request.volume_id, StoredKind.VOLUME)
        locks = self._plugin.locks
        with ExitStack() as stack:
            stack.enter_context(locks.hold(self._lock_key(request.volume_id)))
            entry = self._plugin.find_entry(request.volume_id, StoredKind.VOLUME)
            if entry is not None:
                stack.enter_context(locks.hold(mount_lock(entry), shared=True))
            backend = self._backend
            if entry is None or not isinstance(backend, ExclusiveNode):
                backend.unstage(volume.uuid if volume is not None else "", staging)
            elif self._is_lost(backend, entry, staging):
                backend.abandon_staging(entry, staging)
            else:
                backend.unstage(entry.uuid, staging)
                backend.clear_holder(entry, self._node_id)
        return csi.NodeUnstageVolumeResponse()

    def _known_segments(self) -> dict[str, str]:
        """Where this node is; nothing as long as that is not known."""
        return self._domain.segments() if self._domain.problem() is None else {}

    def _read_domain(self, entry: JournalEntry) -> dict[str, str]:
        """Where a volume is best read from, if its cluster cares."""
        cluster = self._plugin.configuration().find_cluster(entry.attributes.get("cluster", ""))
        if cluster is None or not cluster.read_affinity:
            return {}
        return self._plugin.labels.ordered(self._known_segments())

    def _is_lost(self, backend: ExclusiveNode, entry: JournalEntry, staging: Path) -> bool:
        """Whether the volume was taken from us meanwhile, by another node or a fence."""
        holder = backend.find_holder(entry, staging)
        return holder is not None and (
            holder.node not in ("", self._node_id) or holder.fence is not None
        )

    def publish(self, request: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        """Show it to one pod."""
        target = _parse_path(request.target_path, "target_path")
        entry = self._require_usable(request.volume_id, request, "volume_capability")
        if not request.staging_target_path:
            raise precondition("staging_target_path is missing; the volume must be staged first")
        staging = _parse_path(request.staging_target_path, "staging_target_path")
        mount_request = requests.parse_mount_request(
            request.volume_capability, entry, readonly=request.readonly
        )
        with self._plugin.locks.hold(self._lock_key(request.volume_id)):
            backend = self._backend
            if (
                entry.access == BLOCK
                and isinstance(backend, ExclusiveNode)
                and not _is_shared(entry, mount_request)
                and self._is_lost(backend, entry, staging)
            ):
                # On one machine an existing device may be the other node's.
                raise precondition("another node took the volume; it is not staged here any more")
            backend.publish(entry, staging, target, mount_request)
        return csi.NodePublishVolumeResponse()

    def unpublish(self, request: csi.NodeUnpublishVolumeRequest) -> csi.NodeUnpublishVolumeResponse:
        """Unmount it and remove the path; unknown is fine."""
        if not request.volume_id:
            raise invalid("volume_id is missing")
        target = _parse_path(request.target_path, "target_path")
        volume = parse_id(request.volume_id, StoredKind.VOLUME)
        with self._plugin.locks.hold(self._lock_key(request.volume_id)):
            self._backend.unpublish(volume.uuid if volume is not None else "", target)
        return csi.NodeUnpublishVolumeResponse()

    def get_volume_stats(
        self, request: csi.NodeGetVolumeStatsRequest
    ) -> csi.NodeGetVolumeStatsResponse:
        """How full it is."""
        if not request.volume_id:
            raise invalid("volume_id is missing")
        if not request.volume_path:
            raise invalid("volume_path is missing")
        entry = self._plugin.require_entry(request.volume_id, StoredKind.VOLUME)
        path = _check_path(request.volume_path, "volume_path")
        volume_usage = self._backend.measure_usage(entry, path)
        usage = [
            csi.VolumeUsage(
                total=volume_usage.total,
                used=volume_usage.used,
                available=volume_usage.available,
                unit=_Unit.BYTES,
            )
        ]
        if entry.access == BLOCK:
            usage = [csi.VolumeUsage(total=volume_usage.total, unit=_Unit.BYTES)]
        if volume_usage.inodes is not None:
            total, used, available = volume_usage.inodes
            usage.append(
                csi.VolumeUsage(total=total, used=used, available=available, unit=_Unit.INODES)
            )
        return csi.NodeGetVolumeStatsResponse(usage=usage)

    def expand(self, request: csi.NodeExpandVolumeRequest) -> csi.NodeExpandVolumeResponse:
        """Let device and file system follow what the controller did."""
        if not request.volume_id:
            raise invalid("volume_id is missing")
        if not request.volume_path:
            raise invalid("volume_path is missing")
        entry = self._plugin.require_entry(request.volume_id, StoredKind.VOLUME)
        path = _check_path(request.volume_path, "volume_path")
        required = requests.parse_size_range(request.capacity_range).required
        if required > entry.bytes:
            raise precondition(
                f"{required} bytes were requested, the controller made it {entry.bytes}"
            )
        with self._plugin.locks.hold(self._lock_key(request.volume_id)):
            self._backend.expand(entry, path)
        return csi.NodeExpandVolumeResponse(capacity_bytes=entry.bytes)

    def _require_usable(
        self,
        id: str,
        request: csi.NodeStageVolumeRequest | csi.NodePublishVolumeRequest,
        field: str,
    ) -> JournalEntry:
        if not id:
            raise invalid("volume_id is missing")
        if not request.HasField("volume_capability"):
            raise invalid(f"{field} is missing")
        entry = self._plugin.require_entry(id, StoredKind.VOLUME)
        reason = requests.find_mismatch([request.volume_capability], entry)
        if reason:
            raise invalid(reason)
        return entry

    def _lock_key(self, id: str) -> str:
        return f"paths of {id} on {self._node_id}"


def _is_shared(entry: JournalEntry, mount_request: MountRequest) -> bool:
    """Whether several nodes may use it at the same time."""
    return entry.access == FOLDER or (mount_request.shared and mount_request.readonly)


def _parse_path(text: str, field: str) -> Path:
    if not text:
        raise invalid(f"{field} is missing")
    if not text.startswith("/"):
        raise invalid(f"{field} is not an absolute path")
    return _check_path(text, field)


def _check_path(text: str, field: str) -> Path:
    if "\0" in text:
        raise invalid(f"{field} has a character that cannot be in a path")
    too_long = any(len(part.encode()) > NAME_LIMIT for part in text.split("/"))
    if too_long or len(text.encode()) >= PATH_LIMIT:
        raise invalid(f"{field} is longer than a path can be")
    return Path(text)
