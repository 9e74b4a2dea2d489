"""From a request to a finished entry and back, step by step: for volumes and snapshots alike.

``Maker`` and ``remove`` do what the pure decisions of ``storage.journal`` say and look again after
each step. They are bounded: a call that loses so many races in a row gets ABORTED and is retried.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from zonewise.csi.locks import Locks
from zonewise.csi.services.plugin import CallScope, Plugin
from zonewise.csi.services.requests import id_of
from zonewise.csi.status import Code, CsiError, aborted, invalid, precondition
from zonewise.runtime.process.logs import logger
from zonewise.storage.errors import StorageError
from zonewise.storage.identifiers import Stored, parse_id
from zonewise.storage.journal import (
    JOURNAL_FULL,
    EntryState,
    Holder,
    JournalConflict,
    JournalEntry,
)
from zonewise.storage.next_step import Step, StoredRequest, next_for_create, next_for_delete

MOST_STEPS = 12

_log = logger("csi")


def name_lock(stored: Stored, name: str, cluster: str) -> str:
    """The key of the lock for making, growing and removing; a name belongs to a cluster."""
    return f"{stored.value} {name} {cluster}".rstrip()


def entry_lock(entry: JournalEntry) -> str:
    """The same of an entry."""
    return name_lock(entry.stored, entry.name, entry.attributes.get("cluster", ""))


def mount_lock(entry: JournalEntry) -> str:
    """The key of the lock that keeps mounts and copies of one image apart."""
    return f"mounts of {id_of(entry)}"


def copy_locks(locks: Locks, source: JournalEntry, held: ExitStack) -> None:
    """Hold a source while it is copied: neither removed nor mounted, but copied by others too."""
    held.enter_context(locks.held(entry_lock(source), shared=True))
    held.enter_context(locks.held(mount_lock(source), shared=True))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new entry, and where it would be."""

    entry: JournalEntry
    capacity: int | None
    """That of its pool."""
    why: str = ""
    """Why it would be there, if that was chosen."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes what a request specifies, or finds it made."""

    scope: CallScope
    stored: Stored
    wanted: StoredRequest
    source: JournalEntry | None
    propose: Callable[[], Proposal]
    """What to reserve; raises if there is no place."""
    fits: Callable[[JournalEntry], bool]
    """Whether where an entry is suits the request."""

    def run(self, known: JournalEntry | None) -> JournalEntry:
        """The finished entry, from the one just found; raises if there cannot be one.

        ``known`` None does not mean that there is none: reserving a name shows whether it is taken,
        and looking first would be one more round trip.
        """
        entry = known
        for _ in range(MOST_STEPS):
            with suppress(JournalConflict):
                done = self._step(entry)
                if done is not None:
                    return done
            entry = self.scope.journal.find(self.stored, self.wanted.name)
        raise aborted(f"{self.wanted.name} is changed by others all the time; try again")

    def _step(self, entry: JournalEntry | None) -> JournalEntry | None:
        if entry is None:
            return self._fresh()
        journal, backend = self.scope.journal, self.scope.backend
        # The holder is read first: then what it finished while alive is seen.
        holder = journal.holder(entry)
        decision = next_for_create(
            self.wanted, entry, backend.image(entry), holder=holder, fits=self.fits(entry)
        )
        if decision.refusal is not None:
            raise StorageError(decision.refusal)
        match decision.step:
            case Step.ANSWER:
                return entry
            case Step.MAKE:
                return self._make(self._ours(entry))
            case Step.REMAKE:
                ours = self._ours(entry)
                backend.remove(ours)
                return self._make(ours)
            case Step.FINISH:
                return journal.change(entry, entry.created())
            case Step.UNDO | Step.REMOVE:
                _remove(self.scope, entry)
            case Step.RENAME:
                journal.forget(entry)
            case _:
                raise CsiError(Code.INTERNAL, f"{decision.step.value} is not a step of a create")
        return None

    def _fresh(self) -> JournalEntry | None:
        """Reserve and make; None if the name turns out to be taken."""
        journal = self.scope.journal
        try:
            proposal = self.propose()
        except (CsiError, StorageError):
            if journal.find(self.stored, self.wanted.name) is None:
                raise
            return None  # what exists needs no placement
        made = journal.reserve(proposal.entry, proposal.capacity).entry
        if made is None:
            return None
        if proposal.why:
            _log.info("placed", name=made.name, pool=made.pool, why=proposal.why)
        try:
            done = self._make(made)
        except CsiError as error:
            if error.code is Code.PERMISSION_DENIED:  # without permission nothing was written
                journal.forget(made)
            elif error.code is Code.INTERNAL:  # its source is lost: it cannot be finished
                with suppress(CsiError):
                    _remove(self.scope, made)
            raise
        if done is None:  # its uuid is new: what exists is not ours
            journal.forget(made)
        return done

    def _ours(self, entry: JournalEntry) -> JournalEntry:
        """The entry, taken over from the process that left it half done."""
        journal = self.scope.journal
        if entry.holder == journal.name:
            return entry
        return journal.change(entry, entry.held_by(journal.name))

    def _make(self, entry: JournalEntry) -> JournalEntry | None:
        """Make it and say so; None if something is there already.

        Where there is no room, or its class asks for what cannot be made, nothing stays.
        """
        if entry.source and self.source is None:
            _remove(self.scope, entry)
            raise CsiError(Code.NOT_FOUND, f"the source {entry.source} is gone")
        try:
            made = self.scope.backend.make(entry, self.source)
        except CsiError as error:
            if error.code in (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT):
                _remove(self.scope, entry)
            raise
        return self.scope.journal.settle(entry) if made else None


def remove(plugin: Plugin, stored: Stored, id: str) -> None:
    """Remove what an id means; nothing is fine."""
    if not id:
        raise invalid(f"{stored.value}_id is missing")
    parsed, scope = parse_id(id, stored), plugin.of_id(id, stored)
    entry = scope.journal.get(stored, parsed.uuid) if parsed is not None and scope else None
    if parsed is None or scope is None or entry is None:
        plugin.require_cluster(parsed)
        _log.info("nothing to remove", id=id[:128])
        return
    with scope.locks.held(entry_lock(entry)), scope.locks.held(mount_lock(entry)):
        for _ in range(MOST_STEPS):
            entry = scope.journal.get(stored, parsed.uuid)
            holder = scope.journal.holder(entry) if entry is not None else Holder.NOBODY
            if entry is not None and holder is Holder.OTHER:
                entry = scope.recorded(entry)
            decision = next_for_delete(entry, holder=holder)
            if decision.refusal is not None:
                raise StorageError(decision.refusal)
            if entry is None or decision.step is Step.ANSWER:
                return
            user = scope.backend.in_use(entry)
            if user:
                raise precondition(f"{id} is in use at {user}; unpublish and unstage it first")
            try:
                _remove(scope, entry)
            except JournalConflict:
                continue
            return
    raise aborted(f"{id} is changed by others all the time; try again")


def _remove(scope: CallScope, entry: JournalEntry) -> None:
    journal = scope.journal
    if entry.state is not EntryState.DELETING:
        try:
            entry = journal.change(entry, entry.deleting(journal.name))
        except StorageError as error:
            if error.reason.code != JOURNAL_FULL:
                raise
            # What is removed may be all that can make room for saying that it is.
            scope.backend.remove(entry)
            entry = journal.change(entry, entry.deleting(journal.name))
    scope.backend.remove(entry)
    journal.forget(entry)
