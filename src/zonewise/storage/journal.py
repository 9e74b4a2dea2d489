"""The journal: which volumes and snapshots exist, and the state of each.

One journal has the volumes of all pools. A request is looked up by its name first; an entry pins
the pool, whatever the request prefers by now. Entries change by compare-and-set (``revision``), so
two controllers need no lock: one of them wins, the other reads again.

::

    (none) --reserve--> RESERVED --created()--> CREATED --deleting()--> DELETING --forget--> (none)
                            └---------------------------------------------^

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
from zonewise.storage.identifiers import Stored


class EntryState(Enum):
    """The state of an entry."""

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
    evident: bool = False
    """Whether its complete image alone says that it is finished: CREATED may be written later."""
    created_at: int = 0
    """Nanoseconds since 1970, when it was reserved."""
    holder: str = ""
    """The process that works on it, by the name of its journal."""
    revision: int = 0
    """Grows with every change; given by the journal."""
    attributes: dict[str, str] = field(default_factory=dict)
    """What only the backend understands."""

    @property
    def pinned_to(self) -> Mapping[str, str]:
        """The domain it can be used from; empty is everywhere."""
        return self.segments if self.pinned else {}

    def created(self) -> JournalEntry:
        """The same, finished: no process works on it."""
        return structs.replace(self, state=EntryState.CREATED, holder="")

    def deleting(self, holder: str) -> JournalEntry:
        """The same, while its image is removed."""
        return structs.replace(self, state=EntryState.DELETING, holder=holder)

    def held_by(self, holder: str) -> JournalEntry:
        """The same, taken over by another process."""
        return structs.replace(self, holder=holder)

    def resized(self, size: int) -> JournalEntry:
        """The same with more bytes."""
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
    taken: JournalEntry | None = None
    """The entry that has the name, or the uuid, already."""
    free: int | None = None
    """What is free in the pool, if that is too little."""


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries, and where to go on; an empty token is the end."""

    entries: tuple[JournalEntry, ...]
    token: str = ""


def merged(pages: Sequence[EntryPage], limit: int) -> EntryPage:
    """One page of several journals' pages, each of so many at most: the smallest uuids of all.

    What is in two of them is one: a cluster may have two names.
    """
    if len(pages) == 1:
        return pages[0]
    known = {one.uuid: one for page in pages for one in page.entries}
    entries = [known[uuid] for uuid in sorted(known)]
    if not limit or (len(entries) <= limit and not any(page.token for page in pages)):
        return EntryPage(tuple(entries))
    return EntryPage(tuple(entries[:limit]), entries[:limit][-1].uuid)


@dataclass(frozen=True, slots=True)
class Image:
    """What is in a pool under an entry's name."""

    pool: str
    uuid: str
    bytes: int
    stored: Stored = Stored.VOLUME
    ours: bool = True
    """Whether it carries the mark of its entry; else something else made it."""
    complete: bool = True
    """Whether it was finished: a copy may have been interrupted."""


JOURNAL_FULL = "JournalFull"
"""The reason of a refusal where the journal's disk is full: nothing was written."""


class JournalConflict(ZonewiseError):
    """The entry is not as it was read: another process changed it. Read again."""


class Journal(Protocol):
    """The contract every backend's journal keeps (``tests/csi/journal_contract.py``).

    Calls may block for one small durable write; what returned is on the disk. They may be made
    from several threads and processes.
    """

    @property
    def name(self) -> str:
        """The writer's name: the ``holder`` of the entries that are worked on from here."""

    def find(self, stored: Stored, name: str) -> JournalEntry | None:
        """The entry with a request's name: a point read."""

    def get(self, stored: Stored, uuid: str) -> JournalEntry | None:
        """The entry of an id: a point read."""

    def draw(self, stored: Stored, name: str) -> str:
        """A new uuid for an entry of that name: one that is quick to write here."""

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

    def settle(self, entry: JournalEntry) -> JournalEntry:
        """The entry, created: its image is complete. Raises JournalConflict.

        Where the image proves it (``evident``) and no process can have taken the entry over since
        it was reserved here, CREATED may be written later; a read from here before that finds it
        written.
        """

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read; not found is fine."""

    def holder(self, entry: JournalEntry) -> Holder:
        """Which process works on an entry."""

    def promised(self) -> Mapping[str, int]:
        """Bytes promised, by pool: a stored value, not a sum over all entries."""

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

        An entry that exists from the first page to the last is listed exactly once, whatever is
        added or removed meanwhile.
        """

    def close(self) -> None:
        """Nothing is worked on in this journal's name any more."""
