"""The journal: which volumes and snapshots there are, and how far each has come.

One journal knows the volumes of all pools. A request is looked up by its name first; an entry pins
the pool, whatever the request prefers by now. Entries change by compare-and-set (``revision``), so
two controllers need no lock: one of them wins, the other reads again.

::

    (none) --reserve--> RESERVED --created()--> CREATED --deleting()--> DELETING --forget--> (none)
                            └---------------------------------------------^

Bytes are promised with the reservation and given back with ``forget``, each in one step with it,
so that the sum of what is promised never exceeds a pool, whoever crashes when. What a request does
with what a crash left is decided in ``next_step``, for every journal alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from msgspec import structs

from zonewise.api.errors import ZonewiseError
from zonewise.api.struct import Struct, field
from zonewise.storage.identifiers import Stored


class EntryState(Enum):
    """How far an entry has come."""

    RESERVED = "reserved"
    CREATED = "created"
    DELETING = "deleting"


class JournalEntry(Struct):
    """One volume or snapshot."""

    stored: Stored
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
    """What is promised in the pool."""
    access: str = ""
    """``block``, or the file system."""
    parameters: str = ""
    """The class's digest."""
    source: str = ""
    """The id of the volume or snapshot it was made from."""
    created_at: int = 0
    """Nanoseconds since 1970, when it was reserved."""
    holder: str = ""
    """Who works on it: the journal of a process."""
    revision: int = 0
    """Grows with every change; given by the journal."""
    attributes: dict[str, str] = field(default_factory=dict)
    """What only the backend understands."""

    @property
    def pinned_to(self) -> Mapping[str, str]:
        """The domain it can be used from; empty is everywhere."""
        return self.segments if self.pinned else {}

    def created(self) -> JournalEntry:
        """The same, finished: nobody works on it."""
        return structs.replace(self, state=EntryState.CREATED, holder="")

    def deleting(self, holder: str) -> JournalEntry:
        """The same, while its image is removed."""
        return structs.replace(self, state=EntryState.DELETING, holder=holder)

    def held_by(self, holder: str) -> JournalEntry:
        """The same, taken over by somebody else."""
        return structs.replace(self, holder=holder)

    def resized(self, size: int) -> JournalEntry:
        """The same with more bytes."""
        return structs.replace(self, bytes=size)


class Holder(Enum):
    """Who works on an entry that is not finished."""

    OURS = "ours"
    OTHER = "other"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a reservation came to: an entry, or what is in its way."""

    entry: JournalEntry | None
    taken: JournalEntry | None = None
    """The entry that has the name, or the uuid, already."""
    free: int | None = None
    """What is free in the pool, if that is too little."""


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries, and where to go on; an empty token is the end."""

    entries: tuple[JournalEntry, ...]
    token: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """What is in a pool under an entry's name."""

    pool: str
    uuid: str
    bytes: int
    stored: Stored = Stored.VOLUME
    ours: bool = True
    """Whether it carries the mark of its entry; else somebody else made it."""
    complete: bool = True
    """Whether it was finished: a copy may have been interrupted."""


class JournalConflict(ZonewiseError):
    """The entry is not as it was read: somebody else changed it. Read again."""


class Journal(Protocol):
    """The contract every backend's journal keeps (``tests/csi/journal_contract.py``).

    Calls may block for one small durable write; what returned is on the disk. They may be made
    from several threads and processes.
    """

    @property
    def name(self) -> str:
        """Who writes: what ``holder`` of the entries is that are worked on from here."""

    def find(self, stored: Stored, name: str) -> JournalEntry | None:
        """The entry with a request's name: a point read."""

    def get(self, stored: Stored, uuid: str) -> JournalEntry | None:
        """The entry of an id: a point read."""

    def draw(self, stored: Stored, name: str) -> str:
        """A new uuid for an entry of that name: one that is quick to write here."""

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry if neither name nor uuid are taken and its pool has room.

        ``capacity`` is the pool's; None if somebody else watches over it.
        """

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read; raises JournalConflict.

        More bytes are promised if they fit ``capacity``; raises StorageError else.
        """

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read; gone already is fine."""

    def holder(self, entry: JournalEntry) -> Holder:
        """Who works on an entry."""

    def promised(self) -> Mapping[str, int]:
        """Bytes promised, by pool: what is there, not a sum over all entries."""

    def page(
        self,
        stored: Stored,
        *,
        token: str = "",
        limit: int = 0,
        source: str = "",
        states: frozenset[EntryState] = frozenset(EntryState),
    ) -> EntryPage:
        """Entries by uuid, after a token; 0 is no limit. Raises StorageError for a bad token.

        What is there from the first page to the last is listed exactly once, whatever comes and
        goes meanwhile.
        """

    def close(self) -> None:
        """Nobody works on anything in this one's name any more."""
