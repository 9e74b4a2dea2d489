"""The Controller service, volumes: create, delete, expand, list, capacity.

CreateVolume is a loop around one pure decision (``next_for_create``): look up the name in the
journal, look what is in the pool, do the next step, look again. A retry, a restart after a crash at
any line and a second controller all enter the same loop, so there is nothing to recover. The pool
is chosen only when the journal has no entry of the name; a reservation pins it.

One call per name at a time, others get ABORTED. A source is held meanwhile, so that it is not
deleted under a copy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from google.protobuf.wrappers_pb2 import Int64Value

from zonewise.csi.answering import answered
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services import requests
from zonewise.csi.services.plugin import NO_CLUSTER, CallScope, Plugin, finished
from zonewise.csi.services.steps import Maker, Proposal, copy_locks, entry_lock, name_lock, remove
from zonewise.csi.status import Code, CsiError, invalid, precondition
from zonewise.csi.transport import methods
from zonewise.csi.transport.methods import ServedMethod, bind
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.errors import StorageError
from zonewise.storage.identifiers import Stored, parse_id
from zonewise.storage.journal import EntryPage, JournalEntry
from zonewise.storage.next_step import StoredRequest
from zonewise.storage.parameters import (
    FOREIGN,
    ClassParameters,
    PlacementPolicy,
    read_parameters,
)
from zonewise.storage.placement import (
    PlacementRequest,
    PlacementSource,
    free_space,
    place,
    still_fits,
)
from zonewise.storage.pools import named_pools, pools_of
from zonewise.storage.takeover import with_takeover

_Rpc = csi.ControllerServiceCapability.RPC
CAPABILITIES = (
    _Rpc.CREATE_DELETE_VOLUME,
    _Rpc.LIST_VOLUMES,
    _Rpc.GET_CAPACITY,
    _Rpc.CREATE_DELETE_SNAPSHOT,
    _Rpc.LIST_SNAPSHOTS,
    _Rpc.GET_SNAPSHOT,
    _Rpc.CLONE_VOLUME,
    _Rpc.EXPAND_VOLUME,
    _Rpc.GET_VOLUME,
    _Rpc.SINGLE_NODE_MULTI_WRITER,
)


class VolumeService:
    """Volumes of a driver."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def bindings(self) -> list[ServedMethod]:
        """The calls of this service."""
        return [
            bind(methods.CONTROLLER_GET_CAPABILITIES, self.capabilities),
            bind(methods.CREATE_VOLUME, self.create),
            bind(methods.DELETE_VOLUME, self.delete),
            bind(methods.CONTROLLER_EXPAND_VOLUME, self.expand),
            bind(methods.VALIDATE_VOLUME_CAPABILITIES, self.validate),
            bind(methods.LIST_VOLUMES, self.list),
            bind(methods.CONTROLLER_GET_VOLUME, self.get),
            bind(methods.GET_CAPACITY, self.capacity),
        ]

    def capabilities(
        self, _request: csi.ControllerGetCapabilitiesRequest
    ) -> csi.ControllerGetCapabilitiesResponse:
        """What the controller can do."""
        return csi.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi.ControllerServiceCapability(rpc=_Rpc(type=one)) for one in CAPABILITIES
            ]
        )

    def create(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        """One volume per name."""
        name = requests.checked_name(request.name)
        if request.mutable_parameters:
            raise invalid("mutable_parameters are not supported")
        configuration = self._plugin.configuration()
        parameters = self._parameters(request.parameters, configuration)
        scope = self._plugin.of_class(parameters.cluster_id)
        wish = requests.source_id(request)
        if wish is not None:
            self._require_same_cluster(parameters.cluster_id, *wish)
        attributes = scope.backend.attributes(parameters, request.parameters)
        with ExitStack() as held:
            key = name_lock(Stored.VOLUME, name, attributes.get("cluster", ""))
            held.enter_context(self._plugin.locks.held(key))
            source = None
            if wish is not None:
                source = scope.entry(wish[1], wish[0])
                if source is not None:
                    copy_locks(self._plugin.locks, source, held)
                elif scope.journal.find(Stored.VOLUME, name) is None:
                    self._plugin.require_cluster(parse_id(wish[1], wish[0]))
                    raise CsiError(
                        Code.NOT_FOUND, f"there is no {wish[0].value} {wish[1][:128]!r} to copy"
                    )
            entry = self._made(scope, request, configuration, parameters, attributes, source)
        return csi.CreateVolumeResponse(volume=self._volume(entry))

    def delete(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        """Delete a volume; no error if it does not exist."""
        remove(self._plugin, Stored.VOLUME, request.volume_id)
        return csi.DeleteVolumeResponse()

    def expand(
        self, request: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        """Larger, never smaller: first promised, then given."""
        sizes = requests.sizes(request.capacity_range)
        scope = self._plugin.scope(request.volume_id, Stored.VOLUME)
        entry = scope.existing(request.volume_id, Stored.VOLUME)
        if not sizes.required and not sizes.limit:
            raise invalid("capacity_range is missing")
        with scope.locks.held(entry_lock(entry)):
            entry = scope.existing(request.volume_id, Stored.VOLUME)
            size = max(entry.bytes, scope.backend.size(sizes.required, entry.access))
            if sizes.limit and size > sizes.limit:
                raise CsiError(
                    Code.OUT_OF_RANGE, f"the volume has {size} bytes, above {sizes.limit}"
                )
            if size > entry.bytes:
                state = scope.backend.states(self._plugin.configuration()).get(entry.pool)
                if state is None:
                    raise precondition(f"pool {entry.pool} is not in the configuration any more")
                entry = scope.journal.change(entry, entry.resized(size), state.limit)
            follow = scope.backend.grow(entry)
        return csi.ControllerExpandVolumeResponse(
            capacity_bytes=entry.bytes, node_expansion_required=follow
        )

    def validate(
        self, request: csi.ValidateVolumeCapabilitiesRequest
    ) -> csi.ValidateVolumeCapabilitiesResponse:
        """Whether a volume can be used as requested, and is the one that the request describes."""
        if not request.volume_id:
            raise invalid("volume_id is missing")
        if not request.volume_capabilities:
            raise invalid("volume_capabilities is missing")
        entry = self._plugin.existing(request.volume_id, Stored.VOLUME)
        reason = requests.mismatch(request.volume_capabilities, entry) or requests.context_mismatch(
            request.volume_context, self._volume(entry).volume_context
        )
        if not reason and _names_class(request.parameters):
            parameters = self._parameters(request.parameters, self._plugin.configuration())
            if parameters.digest != entry.parameters:
                reason = "the volume was made with other parameters"
        if reason:
            return csi.ValidateVolumeCapabilitiesResponse(message=reason)
        return csi.ValidateVolumeCapabilitiesResponse(
            confirmed=csi.ValidateVolumeCapabilitiesResponse.Confirmed(
                volume_context=request.volume_context,
                volume_capabilities=request.volume_capabilities,
                parameters=request.parameters,
            )
        )

    def list(self, request: csi.ListVolumesRequest) -> csi.ListVolumesResponse:
        """A page of them, by id."""
        if request.max_entries < 0:
            raise invalid("max_entries is below 0")
        return self._plugin.page(
            Stored.VOLUME, request.starting_token, request.max_entries, self._listed
        )

    def get(self, request: csi.ControllerGetVolumeRequest) -> csi.ControllerGetVolumeResponse:
        """One of them."""
        entry = self._plugin.existing(request.volume_id, Stored.VOLUME)
        return csi.ControllerGetVolumeResponse(
            volume=self._volume(entry), status=csi.ControllerGetVolumeResponse.VolumeStatus()
        )

    def capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        """What is not promised yet, in a domain or everywhere; without a class in all clusters."""
        configuration = self._plugin.configuration()
        parameters = self._parameters(request.parameters, configuration)
        if parameters.absent is not None:
            raise StorageError(parameters.absent)
        if request.volume_capabilities:
            requests.access_of(request.volume_capabilities, self._plugin.any_backend())
        term = dict(request.accessible_topology.segments)
        used = parameters.pools
        if parameters.placement is PlacementPolicy.DEFAULT_POOL and parameters.default is not None:
            used = (parameters.default,)
        if _names_class(request.parameters):
            scopes = {parameters.cluster_id: self._plugin.of_class(parameters.cluster_id)}
        else:
            scopes = self._plugin.scopes()
        states = answered(
            {name: partial(one.backend.states, configuration) for name, one in scopes.items()}
        )
        found = [
            free_space(
                named_pools(used, one),
                term if request.HasField("accessible_topology") else None,
                self._plugin.labels,
                parameters.placement,
            )
            for one in states.values()
        ]
        return csi.GetCapacityResponse(
            available_capacity=sum(one.available for one in found),
            maximum_volume_size=Int64Value(value=max(one.largest for one in found)),
        )

    def _parameters(
        self, given: Mapping[str, str], configuration: StorageConfiguration
    ) -> ClassParameters:
        return read_parameters(
            dict(given),
            self._plugin.labels,
            configuration,
            further=self._plugin.any_backend().further,
        )

    def _require_same_cluster(self, cluster: str, stored: Stored, id: str) -> None:
        """A copy is made by the cluster that has its source; the id alone tells which."""
        source, clusters = parse_id(id, stored), self._plugin.clusters()
        named = cluster or next(iter(clusters))
        if source is not None and source.cluster in {*clusters} - {named, NO_CLUSTER}:
            raise invalid(
                f"the source is in cluster {source.cluster} and the class is for {named}: a copy"
                " cannot be made in another cluster"
            )

    def _made(
        self,
        scope: CallScope,
        request: csi.CreateVolumeRequest,
        configuration: StorageConfiguration,
        parameters: ClassParameters,
        attributes: dict[str, str],
        source: JournalEntry | None,
    ) -> JournalEntry:
        wish = requests.source_id(request)
        known = scope.journal.find(Stored.VOLUME, request.name) if wish is not None else None
        kin = source or (known if known is not None and known.source else None)
        access = requests.access_of(request.volume_capabilities, scope.backend, kin)
        sizes = requests.sizes(request.capacity_range)
        requirement = requests.requirement(request.accessibility_requirements)
        wanted = StoredRequest(
            name=request.name,
            required=sizes.required,
            limit=sizes.limit,
            access=access,
            parameters=parameters.digest,
            source=wish[1] if wish is not None else "",
        )

        def propose() -> Proposal:
            if parameters.absent is not None:
                raise StorageError(parameters.absent)
            size = sizes.choose(scope.backend, access, source)
            states = scope.backend.states(configuration)
            default = pools_of([parameters.default] if parameters.default else [], states)
            placement = PlacementRequest(
                bytes=size,
                requirement=requirement,
                policy=parameters.placement,
                default_pool=default[0] if default else None,
                source=_source_place(source),
                cross_domain=parameters.cross_domain,
                seed=request.name,
            )
            pools = named_pools(parameters.pools, states)
            found = place(placement, pools, self._plugin.labels)
            if found.refusal is not None or found.pool is None:
                assert found.refusal is not None
                raise StorageError(found.refusal)
            entry = JournalEntry(
                stored=Stored.VOLUME,
                uuid=scope.journal.draw(Stored.VOLUME, request.name),
                name=request.name,
                pool=found.pool.name,
                data_pool=found.pool.spec.data_pool or parameters.data_pool,
                segments=dict(found.pool.segments),
                pinned=bool(found.accessible),
                bytes=size,
                access=access,
                parameters=parameters.digest,
                source=wanted.source,
                evident=scope.backend.evident and not wanted.source,
                created_at=time.time_ns(),
                attributes=attributes,
            )
            return Proposal(entry, found.pool.state.limit, str(found.reason))

        def fits(entry: JournalEntry) -> bool:
            grown = source is not None and source.bytes > entry.bytes
            if (grown or parameters.absent is not None) and not finished(entry, scope.backend):
                return False  # what is not made yet is undone, and refused like a new one
            return still_fits(requirement, entry.pinned_to, self._plugin.labels)

        return Maker(scope, Stored.VOLUME, wanted, source, propose, fits).run(known)

    def _listed(self, page: EntryPage) -> csi.ListVolumesResponse:
        return csi.ListVolumesResponse(
            entries=[
                csi.ListVolumesResponse.Entry(volume=self._volume(entry)) for entry in page.entries
            ],
            next_token=page.token,
        )

    def _volume(self, entry: JournalEntry) -> csi.Volume:
        context = {"pool": entry.pool}
        if entry.data_pool:
            context["dataPool"] = entry.data_pool
        labels = self._plugin.labels
        home = labels.keyed(entry.pinned_to)
        places = with_takeover((home,) if home else (), entry.pinned_to, labels)
        return csi.Volume(
            capacity_bytes=entry.bytes,
            volume_id=requests.id_of(entry),
            volume_context=context,
            content_source=requests.content_source(entry.source),
            accessible_topology=[csi.Topology(segments=dict(one)) for one in places],
        )


def _names_class(parameters: Mapping[str, str]) -> bool:
    """Whether parameters say anything to the driver."""
    return not all(key.startswith(FOREIGN) for key in parameters)


def _source_place(source: JournalEntry | None) -> PlacementSource | None:
    return None if source is None else PlacementSource(source.pool, source.segments)
