"""From a wish to a finished entry and back, one step at a time: the same for volumes and snapshots.

``Maker`` and ``remove`` do what the pure decisions of ``storage.journal`` say and look again after
each step. They are bounded: whoever loses so many races in a row is told ABORTED and comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from zonewise.csi.locks import Locks
from zonewise.csi.services.plugin import Plugin
from zonewise.csi.services.requests import id_of
from zonewise.csi.status import Code, CsiError, aborted, invalid, precondition
from zonewise.runtime.process.logs import logger
from zonewise.storage.errors import StorageError
from zonewise.storage.identifiers import Stored, parse_id
from zonewise.storage.journal import EntryState, Holder, JournalConflict, JournalEntry
from zonewise.storage.next_step import Step, StoredRequest, next_for_create, next_for_delete

MOST_STEPS = 12

_log = logger("csi")


def name_lock(stored: Stored, name: str) -> str:
    """The key of the lock for making, growing and removing."""
    return f"{stored.value} {name}"


def mount_lock(entry: JournalEntry) -> str:
    """The key of the lock that keeps mounts and copies of one image apart."""
    return f"mounts of {id_of(entry)}"


def copy_locks(locks: Locks, source: JournalEntry, held: ExitStack) -> None:
    """Hold a source while it is copied: neither removed nor mounted, but copied by others too."""
    held.enter_context(locks.held(name_lock(source.stored, source.name), shared=True))
    held.enter_context(locks.held(mount_lock(source), shared=True))


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes what a request wants, or finds it made."""

    plugin: Plugin
    stored: Stored
    wanted: StoredRequest
    source: JournalEntry | None
    reserve: Callable[[], tuple[JournalEntry, int | None]]
    """A new entry and the capacity of its pool; raises if there is no place."""
    fits: Callable[[JournalEntry], bool]
    """Whether where an entry is suits the request."""

    def run(self, known: JournalEntry | None) -> JournalEntry:
        """The finished entry, from the one just found; raises if there cannot be one."""
        entry = known
        for _ in range(MOST_STEPS):
            with suppress(JournalConflict):
                done = self._step(entry)
                if done is not None:
                    return done
            entry = self.plugin.journal.find(self.stored, self.wanted.name)
        raise aborted(f"{self.wanted.name} is changed by others all the time; ask again")

    def _step(self, entry: JournalEntry | None) -> JournalEntry | None:
        journal, backend = self.plugin.journal, self.plugin.backend
        decision = next_for_create(
            self.wanted,
            entry,
            backend.image(entry) if entry is not None else None,
            holder=journal.holder(entry) if entry is not None else Holder.NOBODY,
            fits=entry is None or self.fits(entry),
        )
        if decision.refusal is not None:
            raise StorageError(decision.refusal)
        if decision.step is Step.RESERVE:
            fresh, capacity = self.reserve()
            made = journal.reserve(fresh, capacity).entry
            if made is None:
                return None
            try:
                done = self._make(made)
            except CsiError as error:
                if error.code is Code.PERMISSION_DENIED:  # who may not write has written nothing
                    journal.forget(made)
                elif error.code is Code.INTERNAL:  # its source is lost: nobody will finish it
                    with suppress(CsiError):
                        _remove(self.plugin, made)
                raise
            if done is None:  # nobody knew its uuid before: what is there is somebody else's
                journal.forget(made)
            return done
        assert entry is not None
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
                _remove(self.plugin, entry)
            case Step.RENAME:
                journal.forget(entry)
            case _:
                raise CsiError(Code.INTERNAL, f"{decision.step.value} is no step of a create")
        return None

    def _ours(self, entry: JournalEntry) -> JournalEntry:
        """The entry, taken over from whoever left it half done."""
        journal = self.plugin.journal
        if entry.holder == journal.name:
            return entry
        return journal.change(entry, entry.held_by(journal.name))

    def _make(self, entry: JournalEntry) -> JournalEntry | None:
        """Make it and say so; None if something is there already. Without room, nothing stays."""
        if entry.source and self.source is None:
            _remove(self.plugin, entry)
            raise CsiError(Code.NOT_FOUND, f"the source {entry.source} is gone")
        try:
            made = self.plugin.backend.make(entry, self.source)
        except CsiError as error:
            if error.code is Code.RESOURCE_EXHAUSTED:
                _remove(self.plugin, entry)
            raise
        return self.plugin.journal.change(entry, entry.created()) if made else None


def remove(plugin: Plugin, stored: Stored, id: str) -> None:
    """Remove what an id means; nothing is fine."""
    if not id:
        raise invalid(f"{stored.value}_id is missing")
    parsed = parse_id(id, stored)
    entry = plugin.journal.get(stored, parsed.uuid) if parsed is not None else None
    if parsed is None or entry is None:
        _log.info("nothing to remove", id=id[:128])
        return
    with plugin.locks.held(name_lock(stored, entry.name)), plugin.locks.held(mount_lock(entry)):
        for _ in range(MOST_STEPS):
            entry = plugin.journal.get(stored, parsed.uuid)
            holder = plugin.journal.holder(entry) if entry is not None else Holder.NOBODY
            decision = next_for_delete(entry, holder=holder)
            if decision.refusal is not None:
                raise StorageError(decision.refusal)
            if entry is None or decision.step is Step.ANSWER:
                return
            user = plugin.backend.in_use(entry)
            if user:
                raise precondition(f"{id} is in use at {user}; unpublish and unstage it first")
            try:
                _remove(plugin, entry)
            except JournalConflict:
                continue
            return
    raise aborted(f"{id} is changed by others all the time; ask again")


def _remove(plugin: Plugin, entry: JournalEntry) -> None:
    if entry.state is not EntryState.DELETING:
        entry = plugin.journal.change(entry, entry.deleting(plugin.journal.name))
    plugin.backend.remove(entry)
    plugin.journal.forget(entry)
