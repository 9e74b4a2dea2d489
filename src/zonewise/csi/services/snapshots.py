"""The Controller service, snapshots: create, delete, list, get.

A snapshot is a copy in its source's pool and counts there in full, so that a source can be deleted
and the pool still keeps its word. It is ready when the call returns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial

from google.protobuf.timestamp_pb2 import Timestamp

from zonewise.csi.errors import CsiError, exhausted, invalid, not_found
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services import requests
from zonewise.csi.services.plugin import CallScope, Plugin
from zonewise.csi.services.steps import (
    Proposal,
    begin_create,
    continue_create,
    journal_lookups,
    lock_source,
    lost_all_races,
    name_lock,
    remove,
)
from zonewise.csi.transport import methods
from zonewise.csi.transport.methods import ServedMethod, bind
from zonewise.storage.errors import StorageError
from zonewise.storage.identifiers import StoredKind, parse_id
from zonewise.storage.journal import EntryPage, JournalConflict, JournalEntry
from zonewise.storage.next_step import CreateRequest
from zonewise.storage.parameters import FOREIGN_PREFIX
from zonewise.storage.placement import AccessibilityRequirement, fits_requirement
from zonewise.storage.pools import PoolState


class SnapshotService:
    """Snapshots of a driver."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def bindings(self) -> list[ServedMethod]:
        """The calls of this service."""
        return [
            bind(methods.CREATE_SNAPSHOT, self.create),
            bind(methods.DELETE_SNAPSHOT, self.delete),
            bind(methods.LIST_SNAPSHOTS, self.list),
            bind(methods.GET_SNAPSHOT, self.get),
        ]

    def create(self, request: csi.CreateSnapshotRequest) -> csi.CreateSnapshotResponse:
        """One snapshot per name."""
        name = requests.check_name(request.name)
        if not request.source_volume_id:
            raise invalid("source_volume_id is missing")
        unknown = sorted(key for key in request.parameters if not key.startswith(FOREIGN_PREFIX))
        if unknown:
            raise invalid(f"parameters.{unknown[0]} is not known")
        with ExitStack() as stack:
            scope = self._plugin.require_scope(request.source_volume_id, StoredKind.VOLUME)
            parsed = parse_id(request.source_volume_id, StoredKind.VOLUME)
            key = name_lock(StoredKind.SNAPSHOT, name, parsed.cluster if parsed is not None else "")
            stack.enter_context(self._plugin.locks.hold(key))
            source = scope.find_entry(request.source_volume_id, StoredKind.VOLUME)
            if source is not None:
                lock_source(self._plugin.locks, source, stack)
                source = scope.find_entry(request.source_volume_id, StoredKind.VOLUME)
            known = scope.journal.find(StoredKind.SNAPSHOT, name)
            original = known or source
            if original is None:
                raise not_found(f"there is no volume {request.source_volume_id[:128]!r} to copy")
            spec = CreateRequest(name=name, source=request.source_volume_id, access=original.access)
            states = scope.backend.pool_states(self._plugin.configuration())
            requirement = requests.parse_requirement(request.accessibility_requirements)
            fits = partial(self._fits, requirement)
            for entry in journal_lookups(scope, spec, StoredKind.SNAPSHOT, known):
                with suppress(JournalConflict):
                    if entry is None:
                        try:
                            proposal = self._propose(scope, spec, source, states, requirement)
                        except (CsiError, StorageError):
                            if scope.journal.find(StoredKind.SNAPSHOT, name) is None:
                                raise
                            continue  # what exists needs no placement
                        created = begin_create(scope, proposal, source)
                    else:
                        created = continue_create(scope, spec, entry, source, fits=fits)
                    if created is not None:
                        break
            else:
                raise lost_all_races(name)
        snapshot = self._snapshot(created)
        if self._is_as_requested(request.accessibility_requirements, created):
            snapshot.ClearField("accessible_topology")
        return csi.CreateSnapshotResponse(snapshot=snapshot)

    def delete(self, request: csi.DeleteSnapshotRequest) -> csi.DeleteSnapshotResponse:
        """Delete a snapshot; no error if it does not exist."""
        remove(self._plugin, StoredKind.SNAPSHOT, request.snapshot_id)
        return csi.DeleteSnapshotResponse()

    def list(self, request: csi.ListSnapshotsRequest) -> csi.ListSnapshotsResponse:
        """A page of them; those of a source, or one."""
        if request.max_entries < 0:
            raise invalid("max_entries is below 0")
        if request.snapshot_id:
            entry = self._plugin.find_entry(request.snapshot_id, StoredKind.SNAPSHOT)
            fits = entry is not None and request.source_volume_id in ("", entry.source)
            return csi.ListSnapshotsResponse(entries=[self._item(entry)] if entry and fits else [])
        return self._plugin.answer_page(
            StoredKind.SNAPSHOT,
            request.starting_token,
            request.max_entries,
            self._listed,
            source=request.source_volume_id,
        )

    def get(self, request: csi.GetSnapshotRequest) -> csi.GetSnapshotResponse:
        """One of them."""
        entry = self._plugin.require_entry(request.snapshot_id, StoredKind.SNAPSHOT)
        return csi.GetSnapshotResponse(snapshot=self._snapshot(entry))

    def _fits(self, requirement: AccessibilityRequirement | None, entry: JournalEntry) -> bool:
        return fits_requirement(requirement, entry.segments, self._plugin.labels)

    def _propose(
        self,
        scope: CallScope,
        spec: CreateRequest,
        source: JournalEntry | None,
        states: Mapping[str, PoolState],
        requirement: AccessibilityRequirement | None,
    ) -> Proposal:
        """The entry of a new snapshot, in the pool of its source."""
        if source is None:
            raise not_found(f"there is no volume {spec.source[:128]!r} any more")
        state = requests.require_pool(source.pool, states, "a snapshot")
        if not self._fits(requirement, source):
            raise exhausted(
                f"a snapshot stays in the pool of its source, {source.pool}, "
                "which is outside of the requested topology"
            )
        free = state.capacity - state.promised
        if state.limited and free < source.bytes:
            raise exhausted(
                f"pool {source.pool} has {max(0, free)} bytes left, "
                f"the snapshot takes {source.bytes}"
            )
        entry = JournalEntry(
            kind=StoredKind.SNAPSHOT,
            uuid=scope.journal.new_uuid(StoredKind.SNAPSHOT, spec.name),
            name=spec.name,
            pool=source.pool,
            data_pool=source.data_pool,
            segments=dict(source.segments),
            pinned=bool(source.segments) and bool(self._plugin.labels.labels),
            bytes=source.bytes,
            access=source.access,
            source=spec.source,
            created_at=time.time_ns(),
            attributes=dict(source.attributes),
        )
        return Proposal(entry, state.limit)

    def _is_as_requested(self, message: csi.TopologyRequirement, entry: JournalEntry) -> bool:
        """Whether the one requested domain is the domain it got.

        Then the answer does not repeat it, which the protocol leaves to us: csi-sanity 5.6 compares
        what is repeated with its own message, caches of the encoder included, and never finds them
        equal. ListSnapshots and GetSnapshot always return it.
        """
        terms = [self._plugin.labels.segments_of(term.segments) for term in message.requisite]
        return terms == [entry.pinned_to]

    def _listed(self, page: EntryPage) -> csi.ListSnapshotsResponse:
        return csi.ListSnapshotsResponse(
            entries=[self._item(entry) for entry in page.entries], next_token=page.token
        )

    def _item(self, entry: JournalEntry) -> csi.ListSnapshotsResponse.Entry:
        return csi.ListSnapshotsResponse.Entry(snapshot=self._snapshot(entry))

    def _snapshot(self, entry: JournalEntry) -> csi.Snapshot:
        segments = self._plugin.labels.to_wire(entry.pinned_to)
        created = Timestamp()
        created.FromNanoseconds(entry.created_at)
        return csi.Snapshot(
            size_bytes=entry.bytes,
            snapshot_id=requests.id_of(entry),
            source_volume_id=entry.source,
            creation_time=created,
            ready_to_use=True,
            accessible_topology=[csi.Topology(segments=segments)] if segments else [],
        )
