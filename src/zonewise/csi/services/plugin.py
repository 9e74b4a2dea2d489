"""What the services of one driver share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from zonewise.csi.backends.contract import ControllerBackend
from zonewise.csi.locks import Locks
from zonewise.csi.status import Code, CsiError
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import Stored, parse_id
from zonewise.storage.journal import EntryPage, EntryState, Journal, JournalEntry

M = TypeVar("M", bound=Message)

PAGE_BYTES = 3 << 20
PAGE_ENTRIES = 5000

_FINISHED = frozenset({EntryState.CREATED})


class NodeDomain(Protocol):
    """Where this node is."""

    def segments(self) -> dict[str, str]:
        """Short label names to values; raises UNAVAILABLE as long as it is not known."""

    def problem(self) -> str | None:
        """Why it is not known; None if it is."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A driver: its name, what it was told, and what it keeps.

    ``configuration`` gives what the file says now; a call reads it once, so that it sees one state
    of the file from its beginning to its end.
    """

    name: str
    version: str
    labels: DomainLabels
    configuration: Callable[[], StorageConfiguration]
    journal: Journal
    backend: ControllerBackend
    locks: Locks

    def page(
        self,
        stored: Stored,
        token: str,
        most: int,
        build: Callable[[EntryPage], M],
        source: str = "",
    ) -> M:
        """An answer with a page of what is finished, as many as were asked for and fit.

        Callers wait ten seconds and take messages of four MiB, so a page has a most, and one that
        would be larger is asked for again, shorter; its token leads to the rest.
        """
        most = min(most or PAGE_ENTRIES, PAGE_ENTRIES)
        while True:
            found = self.journal.page(
                stored, token=token, limit=most, source=source, states=_FINISHED
            )
            answer = build(found)
            if answer.ByteSize() <= PAGE_BYTES:
                return answer
            most = len(found.entries) * PAGE_BYTES // (answer.ByteSize() + 1)

    def entry(self, id: str, stored: Stored) -> JournalEntry | None:
        """The finished volume or snapshot of an id; None if there is none."""
        parsed = parse_id(id, stored)
        entry = self.journal.get(stored, parsed.uuid) if parsed is not None else None
        return entry if entry is not None and entry.state is EntryState.CREATED else None

    def existing(self, id: str, stored: Stored) -> JournalEntry:
        """The same, or NOT_FOUND; INVALID_ARGUMENT if no id was given."""
        if not id:
            raise CsiError(Code.INVALID_ARGUMENT, f"{stored.value}_id is missing")
        entry = self.entry(id, stored)
        if entry is None:
            raise CsiError(Code.NOT_FOUND, f"there is no {stored.value} {id[:128]!r}")
        return entry
