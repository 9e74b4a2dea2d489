"""The Controller service, volumes: create, delete, expand, list, capacity.

CreateVolume is a loop around one pure decision (``next_create_step``): look up the name in the
journal, look what is in the pool, do the next step, look again. A retry, a restart after a crash at
any line and a second controller all enter the same loop, so there is nothing to recover. The pool
is chosen only when the journal has no entry of the name; a reservation pins it.

One call per name at a time, others get ABORTED. A source is held meanwhile, so that it is not
deleted under a copy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from google.protobuf.wrappers_pb2 import Int64Value

from zonewise.csi.answering import collect_answers
from zonewise.csi.errors import Code, CsiError, invalid, not_found
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services import requests
from zonewise.csi.services.plugin import NO_CLUSTER, CallScope, Plugin, is_finished
from zonewise.csi.services.steps import (
    Proposal,
    begin_create,
    continue_create,
    entry_lock,
    journal_lookups,
    lock_source,
    lost_all_races,
    name_lock,
    remove,
)
from zonewise.csi.transport import methods
from zonewise.csi.transport.methods import ServedMethod, bind
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.errors import StorageError
from zonewise.storage.identifiers import StoredKind, parse_id
from zonewise.storage.journal import EntryPage, JournalConflict, JournalEntry
from zonewise.storage.next_step import CreateRequest
from zonewise.storage.parameters import (
    FOREIGN_PREFIX,
    ClassParameters,
    PlacementPolicy,
    parse_class,
    with_labelled_pools,
)
from zonewise.storage.placement import (
    AccessibilityRequirement,
    PlacementRequest,
    PlacementSource,
    fits_requirement,
    free_space,
    place_volume,
)
from zonewise.storage.pools import declared_pools, existing_pools
from zonewise.storage.takeover.stand_ins import add_takeover_term

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


@dataclass(frozen=True, slots=True)
class _VolumeSpec:
    """A CreateVolume request, parsed."""

    request: CreateRequest
    sizes: requests.SizeRange
    requirement: AccessibilityRequirement | None
    parameters: ClassParameters
    attributes: dict[str, str]


class VolumeService:
    """Volumes of a driver."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def bindings(self) -> list[ServedMethod]:
        """The calls of this service."""
        return [
            bind(methods.CONTROLLER_GET_CAPABILITIES, self.get_capabilities),
            bind(methods.CREATE_VOLUME, self.create),
            bind(methods.DELETE_VOLUME, self.delete),
            bind(methods.CONTROLLER_EXPAND_VOLUME, self.expand),
            bind(methods.VALIDATE_VOLUME_CAPABILITIES, self.validate),
            bind(methods.LIST_VOLUMES, self.list),
            bind(methods.CONTROLLER_GET_VOLUME, self.get),
            bind(methods.GET_CAPACITY, self.get_capacity),
        ]

    def get_capabilities(
        self, _request: csi.ControllerGetCapabilitiesRequest
    ) -> csi.ControllerGetCapabilitiesResponse:
        """What the controller can do."""
        return csi.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi.ControllerServiceCapability(rpc=_Rpc(type=capability))
                for capability in CAPABILITIES
            ]
        )

    def create(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        """One volume per name: parse, lock name and source, then step by step until it exists."""
        name = requests.check_name(request.name)
        if request.mutable_parameters:
            raise invalid("mutable_parameters are not supported")
        configuration = self._plugin.configuration()
        parameters = self._parameters(request.parameters, configuration)
        scope = self._plugin.scope_of_class(parameters.cluster_id)
        parameters = self._add_labelled_pools(parameters, scope, configuration)
        origin = requests.parse_source(request)
        if origin is not None:
            self._require_same_cluster(parameters.cluster_id, *origin)
        attributes = scope.backend.prepare_attributes(parameters, request.parameters)
        with ExitStack() as stack:
            lock = name_lock(StoredKind.VOLUME, name, attributes.get("cluster", ""))
            stack.enter_context(self._plugin.locks.hold(lock))
            source = known = None
            if origin is not None:
                source = scope.find_entry(origin[1], origin[0])
                if source is not None:
                    lock_source(self._plugin.locks, source, stack)
                known = scope.journal.find(StoredKind.VOLUME, name)
                if source is None and known is None:
                    self._plugin.require_cluster(parse_id(origin[1], origin[0]))
                    raise not_found(f"there is no {origin[0].value} {origin[1][:128]!r} to copy")
            copied = source or (known if known is not None and known.source else None)
            access = requests.choose_access(request.volume_capabilities, scope.backend, copied)
            sizes = requests.parse_size_range(request.capacity_range)
            spec = _VolumeSpec(
                CreateRequest(
                    name=name,
                    required_bytes=sizes.required,
                    limit_bytes=sizes.limit,
                    access=access,
                    parameters=parameters.digest,
                    source=origin[1] if origin is not None else "",
                ),
                sizes,
                requests.parse_requirement(request.accessibility_requirements),
                parameters,
                attributes,
            )
            for entry in journal_lookups(scope, spec.request, StoredKind.VOLUME, known):
                with suppress(JournalConflict):
                    if entry is None:
                        try:
                            proposal = self._propose(scope, spec, source, configuration)
                        except (CsiError, StorageError):
                            if scope.journal.find(StoredKind.VOLUME, name) is None:
                                raise
                            continue  # what exists needs no placement
                        volume = begin_create(scope, proposal, source)
                    else:
                        fits = partial(self._fits, scope, spec, source)
                        volume = continue_create(scope, spec.request, entry, source, fits=fits)
                    if volume is not None:
                        break
            else:
                raise lost_all_races(name)
        return csi.CreateVolumeResponse(volume=self._volume(volume))

    def _propose(
        self,
        scope: CallScope,
        spec: _VolumeSpec,
        source: JournalEntry | None,
        configuration: StorageConfiguration,
    ) -> Proposal:
        """The entry of a new volume, in the pool that it gets."""
        if spec.parameters.placement_refusal is not None:
            raise StorageError(spec.parameters.placement_refusal)
        size = spec.sizes.choose(scope.backend, spec.request.access, source)
        states = scope.backend.pool_states(configuration)
        default = existing_pools(
            [spec.parameters.default_pool] if spec.parameters.default_pool else [], states
        )
        placement = PlacementRequest(
            required_bytes=size,
            requirement=spec.requirement,
            policy=spec.parameters.placement,
            default_pool=default[0] if default else None,
            source=_placement_source(source),
            cross_domain=spec.parameters.cross_domain,
            seed=spec.request.name,
        )
        pools = declared_pools(spec.parameters.pools, states)
        placed = place_volume(placement, pools, self._plugin.labels)
        if placed.refusal is not None or placed.pool is None:
            assert placed.refusal is not None
            raise StorageError(placed.refusal)
        entry = JournalEntry(
            kind=StoredKind.VOLUME,
            uuid=scope.journal.new_uuid(StoredKind.VOLUME, spec.request.name),
            name=spec.request.name,
            pool=placed.pool.name,
            data_pool=placed.pool.spec.data_pool or spec.parameters.data_pool,
            segments=dict(placed.pool.segments),
            pinned=bool(placed.accessible_topology),
            bytes=size,
            access=spec.request.access,
            parameters=spec.parameters.digest,
            source=spec.request.source,
            evident=scope.backend.evident and not spec.request.source,
            created_at=time.time_ns(),
            attributes=spec.attributes,
        )
        return Proposal(entry, placed.pool.state.limit, str(placed.reason))

    def _fits(
        self, scope: CallScope, spec: _VolumeSpec, source: JournalEntry | None, entry: JournalEntry
    ) -> bool:
        """Whether the request could have got what an entry is."""
        grown = source is not None and source.bytes > entry.bytes
        if (grown or spec.parameters.placement_refusal is not None) and not is_finished(
            entry, scope.backend
        ):
            return False  # what is not made yet is undone, and refused like a new one
        return fits_requirement(spec.requirement, entry.pinned_to, self._plugin.labels)

    def delete(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        """Delete a volume; no error if it does not exist."""
        remove(self._plugin, StoredKind.VOLUME, request.volume_id)
        return csi.DeleteVolumeResponse()

    def expand(
        self, request: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        """Larger, never smaller: first promised, then given."""
        sizes = requests.parse_size_range(request.capacity_range)
        scope = self._plugin.require_scope(request.volume_id, StoredKind.VOLUME)
        entry = scope.require_entry(request.volume_id, StoredKind.VOLUME)
        if not sizes.required and not sizes.limit:
            raise invalid("capacity_range is missing")
        with scope.locks.hold(entry_lock(entry)):
            entry = scope.require_entry(request.volume_id, StoredKind.VOLUME)
            size = max(entry.bytes, scope.backend.round_size(sizes.required, entry.access))
            if sizes.limit and size > sizes.limit:
                raise CsiError(
                    Code.OUT_OF_RANGE, f"the volume has {size} bytes, above {sizes.limit}"
                )
            if size > entry.bytes:
                states = scope.backend.pool_states(self._plugin.configuration())
                state = requests.require_pool(entry.pool, states, "the expansion")
                entry = scope.journal.change(entry, entry.with_bytes(size), state.limit)
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
        entry = self._plugin.require_entry(request.volume_id, StoredKind.VOLUME)
        reason = requests.find_mismatch(
            request.volume_capabilities, entry
        ) or requests.find_context_mismatch(
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
        return self._plugin.answer_page(
            StoredKind.VOLUME, request.starting_token, request.max_entries, self._listed
        )

    def get(self, request: csi.ControllerGetVolumeRequest) -> csi.ControllerGetVolumeResponse:
        """One of them."""
        entry = self._plugin.require_entry(request.volume_id, StoredKind.VOLUME)
        return csi.ControllerGetVolumeResponse(
            volume=self._volume(entry), status=csi.ControllerGetVolumeResponse.VolumeStatus()
        )

    def get_capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        """What is not promised yet, in a domain or everywhere; without a class in all clusters."""
        configuration = self._plugin.configuration()
        parameters = self._parameters(request.parameters, configuration)
        if _names_class(request.parameters):
            scopes = {parameters.cluster_id: self._plugin.scope_of_class(parameters.cluster_id)}
            scope = scopes[parameters.cluster_id]
            parameters = self._add_labelled_pools(parameters, scope, configuration)
        else:
            scopes = self._plugin.scopes()
        if parameters.placement_refusal is not None:
            raise StorageError(parameters.placement_refusal)
        if request.volume_capabilities:
            requests.choose_access(request.volume_capabilities, self._plugin.any_backend())
        term = dict(request.accessible_topology.segments)
        used = parameters.pools
        at_default = parameters.placement is PlacementPolicy.DEFAULT_POOL
        if at_default and parameters.default_pool is not None:
            used = (parameters.default_pool,)
        states = collect_answers(
            {
                name: partial(scope.backend.pool_states, configuration)
                for name, scope in scopes.items()
            }
        )
        spaces = [
            free_space(
                declared_pools(used, cluster_states),
                term if request.HasField("accessible_topology") else None,
                self._plugin.labels,
                parameters.placement,
            )
            for cluster_states in states.values()
        ]
        return csi.GetCapacityResponse(
            available_capacity=sum(space.available for space in spaces),
            maximum_volume_size=Int64Value(value=max(space.largest for space in spaces)),
        )

    def _parameters(
        self, given: Mapping[str, str], configuration: StorageConfiguration
    ) -> ClassParameters:
        return parse_class(
            dict(given),
            self._plugin.labels,
            configuration,
            backend_keys=self._plugin.any_backend().backend_keys,
        )

    def _add_labelled_pools(
        self, parameters: ClassParameters, scope: CallScope, configuration: StorageConfiguration
    ) -> ClassParameters:
        """The class with the pools of its cluster that it takes by their labels, if it does."""
        if parameters.pool_labels is None:
            return parameters
        states = scope.backend.pool_states(configuration)
        return with_labelled_pools(parameters, states, self._plugin.labels, configuration)

    def _require_same_cluster(self, cluster: str, stored: StoredKind, id: str) -> None:
        """A copy is made by the cluster that has its source; the id alone tells which."""
        source, clusters = parse_id(id, stored), self._plugin.clusters()
        named = cluster or next(iter(clusters))
        if source is not None and source.cluster in {*clusters} - {named, NO_CLUSTER}:
            raise invalid(
                f"the source is in cluster {source.cluster} and the class is for {named}: a copy"
                " cannot be made in another cluster"
            )

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
        home = labels.to_wire(entry.pinned_to)
        terms = add_takeover_term((home,) if home else (), entry.pinned_to, labels)
        return csi.Volume(
            capacity_bytes=entry.bytes,
            volume_id=requests.id_of(entry),
            volume_context=context,
            content_source=requests.render_content_source(entry.source),
            accessible_topology=[csi.Topology(segments=dict(term)) for term in terms],
        )


def _names_class(parameters: Mapping[str, str]) -> bool:
    """Whether parameters say anything to the driver."""
    return not all(key.startswith(FOREIGN_PREFIX) for key in parameters)


def _placement_source(source: JournalEntry | None) -> PlacementSource | None:
    return None if source is None else PlacementSource(source.pool, source.segments)
