"""What the services of one driver share, and where a call belongs.

A driver on Ceph may have several clusters, each with a journal and images of its own. A call is
about one of them: a class names it, an id carries it. Only that cluster is used, so that an
unreachable cluster blocks only its own volumes. That includes names: a name is looked up in the
cluster of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from zonewise.csi.backends.contract import ControllerBackend
from zonewise.csi.errors import Code, CsiError, invalid, not_found, precondition
from zonewise.csi.locks import Locks
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import StorageId, StoredKind, parse_id
from zonewise.storage.journal import (
    EntryPage,
    EntryState,
    Journal,
    JournalConflict,
    JournalEntry,
    merge_pages,
)
from zonewise.storage.next_step import is_proven

M = TypeVar("M", bound=Message)

PAGE_BYTE_LIMIT = 3 << 20
PAGE_ENTRY_LIMIT = 5000
NO_CLUSTER = ""
"""The key of storage that has no clusters: the data folder of the embedded backend."""

_LISTED_STATES = frozenset({EntryState.CREATED, EntryState.RESERVED})
_ID_FIELDS = (
    ("volume_id", StoredKind.VOLUME),
    ("snapshot_id", StoredKind.SNAPSHOT),
    ("source_volume_id", StoredKind.VOLUME),
)


class NodeDomain(Protocol):
    """Where this node is."""

    def segments(self) -> dict[str, str]:
        """Short label names to values; raises UNAVAILABLE as long as it is not known."""

    def problem(self) -> str | None:
        """Why it is not known; None if it is."""

    def is_out_of_service(self) -> bool:
        """Whether an administrator has declared this node out of service."""


class VolumeStorage(Protocol):
    """Where volumes are kept: a Ceph cluster, or a data folder."""

    @property
    def journal(self) -> Journal: ...
    @property
    def backend(self) -> ControllerBackend: ...


@dataclass(frozen=True, slots=True)
class CallScope:
    """What a call works with: the journal and backend of one cluster, the locks of the driver."""

    journal: Journal
    backend: ControllerBackend
    locks: Locks
    silent_pools: set[str] = field(default_factory=set)
    """Pools that did not answer in this call; each is waited for once."""

    def find_entry(self, id: str, kind: StoredKind) -> JournalEntry | None:
        """The finished volume or snapshot of an id; None if there is none here.

        One that is finished and only reserved in the journal is recorded as CREATED first: a volume
        in use must never be taken for an attempt that was interrupted.
        """
        parsed = parse_id(id, kind)
        if parsed is None:
            return None
        entry = self.journal.get(kind, parsed.uuid)
        if entry is not None and entry.state is not EntryState.CREATED:
            entry = self.record_if_finished(entry)
        return entry if entry is not None and entry.state is EntryState.CREATED else None

    def record_if_finished(self, entry: JournalEntry) -> JournalEntry | None:
        """An entry that is not CREATED, or what it has become; recorded if its image proves it."""
        if not is_finished(entry, self.backend):
            return entry
        try:
            return self.journal.change(entry, entry.as_created())
        except JournalConflict:  # another controller did, or removes it
            return self.journal.get(entry.kind, entry.uuid)

    def read_page(self, kind: StoredKind, token: str, limit: int, source: str) -> EntryPage:
        """A page of the journal without what is only reserved.

        Whether an entry in a pool that does not answer is finished is unknown. It is listed: an id
        that nobody was given does no harm, while a volume that is missing looks deleted.
        """
        entries: list[JournalEntry] = []
        while True:
            page = self.journal.list_page(
                kind, token=token, limit=limit - len(entries), source=source, states=_LISTED_STATES
            )
            entries += [entry for entry in page.entries if self._may_be_finished(entry)]
            token = page.token
            if not token or len(entries) >= limit:
                return EntryPage(tuple(entries), token)

    def _may_be_finished(self, entry: JournalEntry) -> bool:
        if entry.evident and entry.pool in self.silent_pools:
            return True
        try:
            return is_finished(entry, self.backend)
        except CsiError as error:
            if error.code is not Code.UNAVAILABLE:
                raise
            self.silent_pools.add(entry.pool)
            return True

    def require_entry(self, id: str, kind: StoredKind) -> JournalEntry:
        """The same, or NOT_FOUND."""
        entry = self.find_entry(id, kind)
        if entry is None:
            raise not_found(f"there is no {kind.value} {id[:128]!r}")
        return entry


@dataclass(frozen=True, slots=True)
class Plugin:
    """A driver: its name, its configuration, and its state.

    ``configuration`` gives what the file says now; a call reads it once, so that it sees one state
    of the file from its beginning to its end. ``clusters`` are those of that file, by their ids.
    """

    name: str
    version: str
    labels: DomainLabels
    configuration: Callable[[], StorageConfiguration]
    clusters: Callable[[], Mapping[str, VolumeStorage]]
    locks: Locks

    def scopes(self) -> dict[str, CallScope]:
        """All of them."""
        return {name: self._scope_of(storage) for name, storage in self.clusters().items()}

    def any_backend(self) -> ControllerBackend:
        """One of them, for what is the same for all."""
        return next(iter(self.clusters().values())).backend

    def scope_of_class(self, cluster: str) -> CallScope:
        """Where a class's volumes are; it may leave out the only cluster there is."""
        clusters = self.clusters()
        if NO_CLUSTER in clusters:
            return self._scope_of(clusters[NO_CLUSTER])
        names = ", ".join(sorted(clusters))
        if not cluster and len(clusters) > 1:
            raise invalid(f"the parameter clusterID is missing: the configuration has {names}")
        storage = clusters.get(cluster or names)
        if storage is None:
            raise invalid(f"clusterID {cluster!r} is not in the configuration; it has {names}")
        return self._scope_of(storage)

    def find_scope(self, id: str, kind: StoredKind) -> CallScope | None:
        """Where a volume or snapshot is; None if no cluster that is known has it.

        What carries no cluster, or one that is called otherwise now, is looked for in all.
        """
        clusters, parsed = self.clusters(), parse_id(id, kind)
        cluster = parsed.cluster if parsed is not None else NO_CLUSTER
        if NO_CLUSTER in clusters or cluster in clusters:
            return self._scope_of(clusters[NO_CLUSTER if NO_CLUSTER in clusters else cluster])
        if parsed is None:
            return self._scope_of(next(iter(clusters.values()))) if len(clusters) == 1 else None
        for storage in clusters.values():
            if storage.journal.get(kind, parsed.uuid) is not None:
                return self._scope_of(storage)
        return None

    def require_scope(self, id: str, kind: StoredKind) -> CallScope:
        """The same, or NOT_FOUND; FAILED_PRECONDITION if its cluster is not in the configuration.

        INVALID_ARGUMENT if no id was given.
        """
        if not id:
            raise invalid(f"{kind.value}_id is missing")
        scope = self.find_scope(id, kind)
        if scope is None:
            self.require_cluster(parse_id(id, kind))
            raise not_found(f"there is no {kind.value} {id[:128]!r}")
        return scope

    def require_cluster(self, id: StorageId | None) -> None:
        """Raises if an id's cluster is not configured: whether it exists is unknown then."""
        clusters = self.clusters()
        if id is not None and id.cluster and not {NO_CLUSTER, id.cluster} & {*clusters}:
            raise precondition(
                f"cluster {id.cluster} of this {id.kind.value} is not in the configuration, which"
                f" has {', '.join(sorted(clusters))}; add it again"
            )

    def cluster_of(self, request: Message) -> str:
        """The one of several clusters that a request is about; empty if it does not say."""
        clusters = self.clusters()
        if len(clusters) < 2:
            return NO_CLUSTER
        cluster = getattr(request, "parameters", {}).get("clusterID", NO_CLUSTER)
        for id_field, kind in _ID_FIELDS:
            parsed = parse_id(getattr(request, id_field, ""), kind)
            cluster = parsed.cluster if parsed is not None else cluster
        return cluster if cluster in clusters else NO_CLUSTER

    def answer_page(
        self,
        kind: StoredKind,
        token: str,
        limit: int,
        build: Callable[[EntryPage], M],
        source: str = "",
    ) -> M:
        """An answer with a page of finished entries, as many as were requested and fit.

        Callers wait ten seconds and take messages of four MiB, so a page has a maximum, and a
        larger one is read again, shorter; its token leads to the rest. A list that left out a
        cluster would say that its volumes are deleted: it fails if one does not answer.
        """
        limit = min(limit or PAGE_ENTRY_LIMIT, PAGE_ENTRY_LIMIT)
        scopes = [*self.scopes().values()]
        if source:
            scope = self.find_scope(source, StoredKind.VOLUME)
            scopes = [scope] if scope is not None else []
        while True:
            pages = [scope.read_page(kind, token, limit, source) for scope in scopes]
            page = merge_pages(pages, limit)
            answer = build(page)
            if answer.ByteSize() <= PAGE_BYTE_LIMIT:
                return answer
            limit = len(page.entries) * PAGE_BYTE_LIMIT // (answer.ByteSize() + 1)

    def find_entry(self, id: str, kind: StoredKind) -> JournalEntry | None:
        """The finished volume or snapshot of an id; None if there is none."""
        scope = self.find_scope(id, kind)
        return scope.find_entry(id, kind) if scope is not None else None

    def require_entry(self, id: str, kind: StoredKind) -> JournalEntry:
        """The same, or NOT_FOUND; INVALID_ARGUMENT if no id was given."""
        return self.require_scope(id, kind).require_entry(id, kind)

    def _scope_of(self, storage: VolumeStorage) -> CallScope:
        return CallScope(storage.journal, storage.backend, self.locks)


def is_finished(entry: JournalEntry, backend: ControllerBackend) -> bool:
    """Whether an entry is a volume or snapshot that may have been returned to a caller."""
    if entry.state is EntryState.CREATED:
        return True
    return entry.evident and is_proven(entry, backend.find_image(entry))


def add_cluster_name(cluster: str, error: CsiError) -> CsiError:
    """The same error, with the name of the cluster that does not answer."""
    if error.code is not Code.UNAVAILABLE or not cluster or cluster in error.message:
        return error
    return CsiError(error.code, f"cluster {cluster}: {error.message}")
