"""The journal: which volumes and snapshots exist, and the state of each.

A journal has the volumes of all pools. A request is looked up by its name first; an entry pins the
pool, whatever the repeated request prefers. Entries change by compare-and-set (``revision``), so
two controllers need no lock: one of them wins, the other reads again.

::

    none --reserve--> RESERVED --as_created--> CREATED --as_deleting--> DELETING --forget--> none
                          └-----------------------------------------------^

An entry whose image alone proves that it is finished (``evident``) is a volume as soon as its image
is complete, whatever its state: CREATED is written after the answer, and before the volume is used.

Bytes are promised with the reservation and given back with ``forget``, each in one step with it, so
that the sum of what is promised never exceeds a pool, whichever process crashes when. What a
request does with what a crash left is decided in ``next_step``, the same for every journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from msgspec import structs

from zonewise.api.errors import ZonewiseError
from zonewise.api.struct import Struct, field
from zonewise.storage.identifiers import StoredKind


class EntryState(Enum):
    """The state of an entry."""

    RESERVED = "reserved"
    CREATED = "created"
    DELETING = "deleting"


class JournalEntry(Struct):
    """A volume or snapshot, as it is written to disk."""

    kind: StoredKind = field(name="stored")
    uuid: str
    name: str
    """The name in the request, by which a repeated one is recognised."""
    state: EntryState = EntryState.RESERVED
    pool: str
    data_pool: str = ""
    segments: dict[str, str] = field(default_factory=dict)
    """The pool's domain when it was chosen."""
    pinned: bool = False
    """Whether it can be used from its pool's domain only; else from everywhere."""
    bytes: int
    """Bytes that are promised in the pool."""
    access: str = ""
    """``block``, or the file system."""
    parameters: str = ""
    """The digest of the class's parameters."""
    source: str = ""
    """The id of the volume or snapshot it was made from."""
    evident: bool = False
    """Whether its complete image alone proves that it is finished: CREATED may be written later."""
    created_at: int = 0
    """Nanoseconds since 1970, when it was reserved."""
    holder: str = ""
    """The process that works on it: the name of its journal."""
    revision: int = 0
    """Grows with every change; assigned by the journal."""
    attributes: dict[str, str] = field(default_factory=dict)
    """What only the backend reads."""

    @property
    def pinned_to(self) -> Mapping[str, str]:
        """The domain it can be used from; empty is everywhere."""
        return self.segments if self.pinned else {}

    def as_created(self) -> JournalEntry:
        """A copy in state CREATED: no process works on it."""
        return structs.replace(self, state=EntryState.CREATED, holder="")

    def as_deleting(self, holder: str) -> JournalEntry:
        """A copy in state DELETING: its image is being removed."""
        return structs.replace(self, state=EntryState.DELETING, holder=holder)

    def with_holder(self, holder: str) -> JournalEntry:
        """A copy that another process works on."""
        return structs.replace(self, holder=holder)

    def with_bytes(self, size: int) -> JournalEntry:
        """A copy with another size."""
        return structs.replace(self, bytes=size)


class Holder(Enum):
    """Which process works on an entry that is not finished."""

    OURS = "ours"
    OTHER = "other"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Reservation:
    """The result of a reservation: an entry, or what prevents it."""

    entry: JournalEntry | None
    existing: JournalEntry | None = None
    """The entry that has the name, or the uuid, already."""
    free_bytes: int | None = None
    """Bytes that are free in the pool, if that is too little."""


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries, and the token of the next page; an empty token is the end."""

    entries: tuple[JournalEntry, ...]
    token: str = ""


def merge_pages(pages: Sequence[EntryPage], limit: int) -> EntryPage:
    """Merge pages of several journals, each with at most ``limit`` entries, sorted by uuid.

    An entry in two of them is listed once: a cluster may have two names.
    """
    if len(pages) == 1:
        return pages[0]
    entries_by_uuid = {entry.uuid: entry for page in pages for entry in page.entries}
    entries = [entries_by_uuid[uuid] for uuid in sorted(entries_by_uuid)]
    if not limit or (len(entries) <= limit and not any(page.token for page in pages)):
        return EntryPage(tuple(entries))
    return EntryPage(tuple(entries[:limit]), entries[:limit][-1].uuid)


@dataclass(frozen=True, slots=True)
class Image:
    """The image in a pool that has the name of an entry."""

    pool: str
    uuid: str
    bytes: int
    kind: StoredKind = StoredKind.VOLUME
    ours: bool = True
    """Whether it has the mark of its entry; else another program created it."""
    complete: bool = True
    """Whether it was finished: a copy may have been interrupted."""


JOURNAL_FULL = "JournalFull"
"""The reason code of a refusal where the journal's disk is full: nothing was written."""


class JournalConflict(ZonewiseError):
    """The entry is not as it was read: another process changed it. Read again."""


class Journal(Protocol):
    """The contract of every backend's journal (``tests/csi/journal_contract.py``).

    Calls may block for one small durable write; what returned is on the disk. They may be made
    from several threads and processes.
    """

    @property
    def name(self) -> str:
        """The ``holder`` of the entries that this process works on."""

    def find(self, kind: StoredKind, name: str) -> JournalEntry | None:
        """The entry with a request's name: a point read."""

    def get(self, kind: StoredKind, uuid: str) -> JournalEntry | None:
        """The entry of an id: a point read."""

    def new_uuid(self, kind: StoredKind, name: str) -> str:
        """Draw a uuid for an entry of that name: one that is quick to write here."""

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry if neither name nor uuid are taken and its pool has room.

        ``capacity`` is the pool's; None if this journal does not enforce it.
        """

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read; raises JournalConflict.

        More bytes are promised if they fit ``capacity``; raises StorageError else.
        """

    def mark_created(self, entry: JournalEntry) -> JournalEntry:
        """Mark an entry created: its image is complete. Raises JournalConflict.

        Where the image proves it (``evident``) and no process can have taken the entry over since
        it was reserved here, CREATED may be written later; this process already reads it as
        written.
        """

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read; an entry that is gone is not an error."""

    def holder_of(self, entry: JournalEntry) -> Holder:
        """Which process works on an entry."""

    def promised_bytes(self) -> Mapping[str, int]:
        """Promised bytes by pool: a stored value, not a sum over all entries."""

    def list_page(
        self,
        kind: StoredKind,
        *,
        token: str = "",
        limit: int = 0,
        source: str = "",
        states: frozenset[EntryState] = frozenset(EntryState),
    ) -> EntryPage:
        """Entries by uuid, after a token; 0 is no limit. Raises StorageError for a bad token.

        An entry that exists from the first page to the last is listed exactly once, whatever is
        added or removed meanwhile.
        """

    def close(self) -> None:
        """End: this process works on no entry any more."""
