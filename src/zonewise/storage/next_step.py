"""What a request does next, given what the journal and the pool have. Pure, for every backend.

A create writes in this order: entry (RESERVED), image, entry (CREATED), answer. Where a complete
image alone proves that its entry is finished (``evident``), the answer comes before CREATED. A
delete: entry (DELETING), remove the image, remove the entry, answer. So whichever process was
killed when, one of these is found:

=================  ==================  ====================================================
entry              image               a create with the same name
=================  ==================  ====================================================
none               cannot be known     RESERVE: nothing has begun
RESERVED           none                MAKE it where the entry says; UNDO if that no longer fits
RESERVED           half, ours          REMAKE it
RESERVED           complete, ours      FINISH: it was killed before the second write; ALREADY_EXISTS
                                       if it is evident and the request is another one
RESERVED           not ours            RENAME: never adopted, never touched
CREATED            complete            ANSWER, or ALREADY_EXISTS if the request is another one
CREATED            none                INTERNAL: data is lost, and that is not hidden
DELETING           any                 UNDO: finish the deletion, then start again
=================  ==================  ====================================================

An entry that is not finished and whose holder is alive is being worked on: ABORTED, retry. The id
of a RESERVED entry whose image is not complete, or that is not evident, has never been returned to
a client. That is why one that does not fit the repeated request may be undone: refusing it would
leave an image behind that no client could ever delete. One that is ``proven`` may have been
returned: it is never undone and never made again, whichever process holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from zonewise.api.reason import Reason
from zonewise.storage.errors import CsiCode, Refusal
from zonewise.storage.journal import EntryState, Holder, Image, JournalEntry
from zonewise.storage.placement_reasons import domain, size


class Step(Enum):
    """What to do next for a request."""

    RESERVE = "reserve"
    """Choose a pool and reserve."""
    MAKE = "make"
    """Take the entry over if it is not ours, and make the image where the entry says."""
    REMAKE = "remake"
    """The same, after removing what an interrupted attempt left."""
    FINISH = "finish"
    """The image exists: mark the entry created."""
    ANSWER = "answer"
    """Done: answer with the entry, or that it is deleted."""
    UNDO = "undo"
    """Mark the entry deleting, remove its image, forget the entry; look again.

    Only an image that is ours is removed: a delete may run before that is found out.
    """
    RENAME = "rename"
    """An image that is not ours has this uuid: forget the entry, leave the image; look again."""
    REMOVE = "remove"
    """As UNDO, and then it is done."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next; a refusal if nothing."""

    step: Step
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A create request, as far as a repeated one must agree with what exists."""

    name: str
    required: int = 0
    """Bytes; 0 is any."""
    limit: int = 0
    """Bytes; 0 is none."""
    access: str = ""
    parameters: str = ""
    source: str = ""


def next_for_create(
    request: StoredRequest,
    entry: JournalEntry | None,
    image: Image | None,
    *,
    holder: Holder,
    fits: bool,
) -> NextStep:
    """What a create request does next.

    ``fits`` says whether something where the entry says is what the request could have got
    (``placement.still_fits``).
    """
    if entry is None:
        return NextStep(Step.RESERVE)
    differs = _difference(request, entry, fits=fits)
    if proven(entry, image):
        if differs:
            return _refuse(CsiCode.ALREADY_EXISTS, _taken(entry, differs))
        return NextStep(Step.FINISH)
    if entry.state is not EntryState.CREATED and holder is Holder.OTHER:
        return _busy(entry)
    match entry.state:
        case EntryState.DELETING:
            return NextStep(Step.UNDO)
        case EntryState.RESERVED:
            if image is not None and not image.ours:
                return NextStep(Step.RENAME)
            if differs:
                return NextStep(Step.UNDO)
            if image is None:
                return NextStep(Step.MAKE)
            return NextStep(Step.FINISH if _whole(entry, image) else Step.REMAKE)
        case EntryState.CREATED:
            if differs:
                return _refuse(CsiCode.ALREADY_EXISTS, _taken(entry, differs))
            if image is None or not image.ours:
                return _refuse(CsiCode.INTERNAL, _lost(entry))
            return NextStep(Step.ANSWER)


def proven(entry: JournalEntry, image: Image | None) -> bool:
    """Whether a reserved entry is finished, because its image says so."""
    reserved = entry.state is EntryState.RESERVED and entry.evident
    return reserved and image is not None and image.ours and _whole(entry, image)


def next_for_delete(entry: JournalEntry | None, *, holder: Holder) -> NextStep:
    """What a delete request does next; ANSWER if there is nothing to delete."""
    if entry is None:
        return NextStep(Step.ANSWER)
    if entry.state is not EntryState.CREATED and holder is Holder.OTHER:
        return _busy(entry)
    return NextStep(Step.REMOVE)


@dataclass(frozen=True, slots=True)
class JournalFindings:
    """What does not agree; ``agrees`` if nothing."""

    orphans: tuple[Image, ...] = ()
    """Images without an entry. They are reported, and never deleted without a request."""
    missing: tuple[JournalEntry, ...] = ()
    """Entries that are created and have no image."""
    unfinished: tuple[JournalEntry, ...] = ()
    """Entries that are worked on, or were left half done; a repeated request finishes them."""

    @property
    def agrees(self) -> bool:
        """Whether journal and pools agree."""
        return not (self.orphans or self.missing)


def compare(entries: Iterable[JournalEntry], images: Iterable[Image]) -> JournalFindings:
    """What journal and pools disagree about, in the order of uuids."""
    known = {(entry.stored, entry.pool, entry.uuid): entry for entry in entries}
    there = {(image.stored, image.pool, image.uuid): image for image in images}
    listed = sorted(known.values(), key=lambda entry: (entry.stored.value, entry.uuid))
    orphans = [image for key, image in there.items() if key not in known or not image.ours]
    return JournalFindings(
        tuple(sorted(orphans, key=lambda image: (image.stored.value, image.pool, image.uuid))),
        tuple(
            entry
            for entry in listed
            if entry.state is EntryState.CREATED
            and (entry.stored, entry.pool, entry.uuid) not in there
        ),
        tuple(entry for entry in listed if entry.state is not EntryState.CREATED),
    )


def _whole(entry: JournalEntry, image: Image) -> bool:
    return image.complete and image.bytes >= entry.bytes


def _difference(request: StoredRequest, entry: JournalEntry, *, fits: bool) -> str:
    """What a request specifies differently from the entry; empty if they agree."""
    if request.required > entry.bytes:
        return f"it has {size(entry.bytes)}, at least {size(request.required)} are asked for"
    if request.limit and request.limit < entry.bytes:
        return f"it has {size(entry.bytes)}, at most {size(request.limit)} are asked for"
    if request.source != entry.source:
        made = f"was made from {entry.source}" if entry.source else "was made empty"
        return f"it {made}, {request.source or 'an empty one'} is asked for"
    if request.access != entry.access:
        return f"it is for {entry.access}, {request.access} is asked for"
    if request.parameters != entry.parameters:
        return "it was made with other parameters"
    if not fits:
        return f"it can be used from {domain(entry.segments)} only, which is not asked for"
    return ""


def _taken(entry: JournalEntry, differs: str) -> Reason:
    return Reason(
        code="NameTaken",
        message=f"{entry.stored.value} {entry.name} is there already: {differs}",
        object=f"{entry.stored.value.capitalize()}/{entry.name}",
        numbers={"bytes": entry.bytes},
        fix="Use another name, or delete the one that is there.",
    )


def _lost(entry: JournalEntry) -> Reason:
    return Reason(
        code="ImageMissing",
        message=f"{entry.stored.value} {entry.name} is recorded, and its image {entry.uuid} is not"
        f" in pool {entry.pool}",
        object=f"Pool/{entry.pool}",
        fix=f"Bring the image back, or delete the {entry.stored.value}.",
    )


def _busy(entry: JournalEntry) -> NextStep:
    doing = "being deleted" if entry.state is EntryState.DELETING else "being made"
    why = Reason(
        code="InProgress",
        message=f"{entry.stored.value} {entry.name} is {doing} by {entry.holder}",
        object=f"{entry.stored.value.capitalize()}/{entry.name}",
        fix="Try again.",
    )
    return _refuse(CsiCode.ABORTED, why)


def _refuse(code: CsiCode, why: Reason) -> NextStep:
    return NextStep(Step.REFUSE, Refusal(code, why))
