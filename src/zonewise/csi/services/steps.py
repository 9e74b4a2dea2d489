"""The steps of a create and of a delete, for volumes and snapshots alike.

Each does what a pure decision of ``storage.next_step`` says; then the journal is read again. Their
number is bounded: a call that loses so many races in a row gets ABORTED and is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from zonewise.csi.errors import Code, CsiError, aborted, internal, invalid, not_found, precondition
from zonewise.csi.locks import Locks
from zonewise.csi.services.plugin import CallScope, Plugin
from zonewise.csi.services.requests import id_of
from zonewise.runtime.process.logs import logger
from zonewise.storage.errors import StorageError
from zonewise.storage.identifiers import StoredKind, parse_id
from zonewise.storage.journal import (
    JOURNAL_FULL,
    EntryState,
    Holder,
    Journal,
    JournalConflict,
    JournalEntry,
)
from zonewise.storage.next_step import CreateRequest, Step, next_create_step, next_delete_step

MOST_STEPS = 12

_log = logger("csi")


def name_lock(stored: StoredKind, name: str, cluster: str) -> str:
    """The key of the lock for making, growing and removing; a name belongs to a cluster."""
    return f"{stored.value} {name} {cluster}".rstrip()


def entry_lock(entry: JournalEntry) -> str:
    """The same of an entry."""
    return name_lock(entry.kind, entry.name, entry.attributes.get("cluster", ""))


def mount_lock(entry: JournalEntry) -> str:
    """The key of the lock that keeps mounts and copies of one image apart."""
    return f"mounts of {id_of(entry)}"


def lock_source(locks: Locks, source: JournalEntry, stack: ExitStack) -> None:
    """Lock a source while it is copied: neither removed nor mounted, but copied by others too."""
    stack.enter_context(locks.hold(entry_lock(source), shared=True))
    stack.enter_context(locks.hold(mount_lock(source), shared=True))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new entry, and where it would be."""

    entry: JournalEntry
    capacity: int | None
    """That of its pool."""
    why: str = ""
    """Why it would be there, if that was chosen."""


def journal_lookups(
    scope: CallScope, request: CreateRequest, kind: StoredKind, known: JournalEntry | None
) -> Iterator[JournalEntry | None]:
    """What the journal has of a name, before each step of a create.

    ``known`` None does not mean that there is none: reserving a name shows whether it is taken, and
    looking first would be one more round trip.
    """
    yield known
    for _ in range(MOST_STEPS - 1):
        yield scope.journal.find(kind, request.name)


def lost_all_races(name: str) -> CsiError:
    """Others changed it before each of our steps."""
    return aborted(f"{name} is changed by others all the time; try again")


def begin_create(
    scope: CallScope, proposal: Proposal, source: JournalEntry | None
) -> JournalEntry | None:
    """Reserve, make and record; None if the name turns out to be taken."""
    journal = scope.journal
    entry = journal.reserve(proposal.entry, proposal.capacity).entry
    if entry is None:
        return None
    if proposal.why:
        _log.info("placed", name=entry.name, pool=entry.pool, why=proposal.why)
    try:
        created = _make(scope, entry, source)
    except CsiError as error:
        if error.code is Code.PERMISSION_DENIED:  # without permission nothing was written
            journal.forget(entry)
        elif error.code is Code.INTERNAL:  # its source is lost: it cannot be finished
            with suppress(CsiError):
                _remove(scope, entry)
        raise
    if created is None:  # its uuid is new: what exists is not ours
        journal.forget(entry)
    return created


def continue_create(
    scope: CallScope,
    request: CreateRequest,
    entry: JournalEntry,
    source: JournalEntry | None,
    *,
    fits: Callable[[JournalEntry], bool],
) -> JournalEntry | None:
    """Do the next step of what exists; None if there are more."""
    journal, backend = scope.journal, scope.backend
    # The holder is read first: then what it finished while alive is seen.
    holder = journal.holder_of(entry)
    image = backend.find_image(entry)
    decision = next_create_step(request, entry, image, holder=holder, fits=fits(entry))
    if decision.refusal is not None:
        raise StorageError(decision.refusal)
    match decision.step:
        case Step.ANSWER:
            return entry
        case Step.MAKE:
            return _make(scope, _take_over(journal, entry), source)
        case Step.REMAKE:
            entry = _take_over(journal, entry)
            backend.remove(entry)
            return _make(scope, entry, source)
        case Step.FINISH:
            return journal.change(entry, entry.as_created())
        case Step.UNDO | Step.REMOVE:
            _remove(scope, entry)
        case Step.RENAME:
            journal.forget(entry)
        case _:
            raise internal(f"{decision.step.value} is not a step of a create")
    return None


def _take_over(journal: Journal, entry: JournalEntry) -> JournalEntry:
    """The entry, taken over from the process that left it half done."""
    if entry.holder == journal.name:
        return entry
    return journal.change(entry, entry.with_holder(journal.name))


def _make(
    scope: CallScope, entry: JournalEntry, source: JournalEntry | None
) -> JournalEntry | None:
    """Make the image of an entry and record it; None if another image has its uuid.

    Where there is no space, or its class asks for what cannot be made, nothing remains.
    """
    if entry.source and source is None:
        _remove(scope, entry)
        raise not_found(f"the source {entry.source} is gone")
    try:
        is_new = scope.backend.make(entry, source)
    except CsiError as error:
        if error.code in (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT):
            _remove(scope, entry)
        raise
    return scope.journal.mark_created(entry) if is_new else None


def remove(plugin: Plugin, stored: StoredKind, id: str) -> None:
    """Remove what an id means; nothing is fine."""
    if not id:
        raise invalid(f"{stored.value}_id is missing")
    parsed, scope = parse_id(id, stored), plugin.find_scope(id, stored)
    entry = scope.journal.get(stored, parsed.uuid) if parsed is not None and scope else None
    if parsed is None or scope is None or entry is None:
        plugin.require_cluster(parsed)
        _log.info("nothing to remove", id=id[:128])
        return
    with scope.locks.hold(entry_lock(entry)), scope.locks.hold(mount_lock(entry)):
        for _ in range(MOST_STEPS):
            entry = scope.journal.get(stored, parsed.uuid)
            holder = scope.journal.holder_of(entry) if entry is not None else Holder.NOBODY
            if entry is not None and holder is Holder.OTHER:
                entry = scope.record_if_finished(entry)
            decision = next_delete_step(entry, holder=holder)
            if decision.refusal is not None:
                raise StorageError(decision.refusal)
            if entry is None or decision.step is Step.ANSWER:
                return
            user = scope.backend.find_user(entry)
            if user:
                raise precondition(f"{id} is in use at {user}; unpublish and unstage it first")
            try:
                _remove(scope, entry)
            except JournalConflict:
                continue
            return
    raise lost_all_races(id)


def _remove(scope: CallScope, entry: JournalEntry) -> None:
    journal = scope.journal
    if entry.state is not EntryState.DELETING:
        try:
            entry = journal.change(entry, entry.as_deleting(journal.name))
        except StorageError as error:
            if error.reason.code != JOURNAL_FULL:
                raise
            # What is removed may be all that can make room for saying that it is.
            scope.backend.remove(entry)
            entry = journal.change(entry, entry.as_deleting(journal.name))
    scope.backend.remove(entry)
    journal.forget(entry)
