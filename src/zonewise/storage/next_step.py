"""What a request does next, by what the journal and the pool have. Pure, for every backend.

A create writes in this order: entry (RESERVED), image, entry (CREATED), answer. Where a complete
image alone proves that its entry is finished (``evident``), the answer comes before CREATED. A
delete: entry (DELETING), remove the image, remove the entry, answer. So whichever process was
killed when, the state is one of these:

=================  ==================  ====================================================
entry              image               a create with the same name
=================  ==================  ====================================================
none               unknown             RESERVE: nothing has begun
RESERVED           none                MAKE it in the entry's pool; UNDO if that no longer fits
RESERVED           incomplete, ours    REMAKE it
RESERVED           complete, ours      FINISH: it was killed before the second write; ALREADY_EXISTS
                                       if it is evident and the request is another one
RESERVED           not ours            RENAME: never adopted, never touched
CREATED            complete            ANSWER, or ALREADY_EXISTS if the request is another one
CREATED            none                INTERNAL: data is lost, and the caller is told
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
from zonewise.storage.placement_reasons import describe_domain, format_size


class Step(Enum):
    """What to do next for a request."""

    RESERVE = "reserve"
    """Choose a pool and reserve."""
    MAKE = "make"
    """Take the entry over if it is not ours, and create the image in the entry's pool."""
    REMAKE = "remake"
    """As MAKE, after removing what an interrupted attempt left."""
    FINISH = "finish"
    """The image exists: mark the entry created."""
    ANSWER = "answer"
    """Done: answer with the entry, or that nothing is left to delete."""
    UNDO = "undo"
    """Mark the entry deleting, remove its image, forget the entry; read again.

    Only an image that is ours is removed: a delete may run before that was checked.
    """
    RENAME = "rename"
    """An image that is not ours has this uuid: forget the entry, leave the image; read again."""
    REMOVE = "remove"
    """As UNDO, and that is the end."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step; with a refusal if it is REFUSE."""

    step: Step
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The part of a create request in which a repeated one must agree with what exists."""

    name: str
    required_bytes: int = 0
    """0: any size."""
    limit_bytes: int = 0
    """0: no limit."""
    access: str = ""
    parameters: str = ""
    source: str = ""


def next_create_step(
    request: CreateRequest,
    entry: JournalEntry | None,
    image: Image | None,
    *,
    holder: Holder,
    fits: bool,
) -> NextStep:
    """What a create request does next.

    ``fits`` says whether the entry's placement is one that the request could have got
    (``placement.fits_requirement``).
    """
    if entry is None:
        return NextStep(Step.RESERVE)
    difference = _find_difference(request, entry, fits=fits)
    if is_proven(entry, image):
        if difference:
            return _refuse(CsiCode.ALREADY_EXISTS, _name_taken(entry, difference))
        return NextStep(Step.FINISH)
    if entry.state is not EntryState.CREATED and holder is Holder.OTHER:
        return _refuse_busy(entry)
    match entry.state:
        case EntryState.DELETING:
            return NextStep(Step.UNDO)
        case EntryState.RESERVED:
            if image is not None and not image.ours:
                return NextStep(Step.RENAME)
            if difference:
                return NextStep(Step.UNDO)
            if image is None:
                return NextStep(Step.MAKE)
            return NextStep(Step.FINISH if _is_complete(entry, image) else Step.REMAKE)
        case EntryState.CREATED:
            if difference:
                return _refuse(CsiCode.ALREADY_EXISTS, _name_taken(entry, difference))
            if image is None or not image.ours:
                return _refuse(CsiCode.INTERNAL, _image_missing(entry))
            return NextStep(Step.ANSWER)


def is_proven(entry: JournalEntry, image: Image | None) -> bool:
    """Whether the image of a reserved entry proves that it is finished."""
    reserved = entry.state is EntryState.RESERVED and entry.evident
    return reserved and image is not None and image.ours and _is_complete(entry, image)


def next_delete_step(entry: JournalEntry | None, *, holder: Holder) -> NextStep:
    """What a delete request does next; ANSWER if there is nothing to delete."""
    if entry is None:
        return NextStep(Step.ANSWER)
    if entry.state is not EntryState.CREATED and holder is Holder.OTHER:
        return _refuse_busy(entry)
    return NextStep(Step.REMOVE)


@dataclass(frozen=True, slots=True)
class JournalFindings:
    """Where journal and pools disagree."""

    orphans: tuple[Image, ...] = ()
    """Images without an entry. They are reported, and never deleted without a request."""
    missing: tuple[JournalEntry, ...] = ()
    """Entries that are created and have no image."""
    unfinished: tuple[JournalEntry, ...] = ()
    """Entries that are worked on, or were interrupted; a repeated request finishes them."""

    @property
    def agrees(self) -> bool:
        """Whether journal and pools agree."""
        return not (self.orphans or self.missing)


def compare(entries: Iterable[JournalEntry], images: Iterable[Image]) -> JournalFindings:
    """Compare journal and pools; findings are sorted by uuid."""
    entries_by_key = {(entry.kind, entry.pool, entry.uuid): entry for entry in entries}
    images_by_key = {(image.kind, image.pool, image.uuid): image for image in images}
    sorted_entries = sorted(
        entries_by_key.values(), key=lambda entry: (entry.kind.value, entry.uuid)
    )
    orphans = [
        image for key, image in images_by_key.items() if key not in entries_by_key or not image.ours
    ]
    return JournalFindings(
        tuple(sorted(orphans, key=lambda image: (image.kind.value, image.pool, image.uuid))),
        tuple(
            entry
            for entry in sorted_entries
            if entry.state is EntryState.CREATED
            and (entry.kind, entry.pool, entry.uuid) not in images_by_key
        ),
        tuple(entry for entry in sorted_entries if entry.state is not EntryState.CREATED),
    )


def _is_complete(entry: JournalEntry, image: Image) -> bool:
    return image.complete and image.bytes >= entry.bytes


def _find_difference(request: CreateRequest, entry: JournalEntry, *, fits: bool) -> str:
    """What a request specifies differently from the entry; empty if they agree."""
    size = format_size(entry.bytes)
    if request.required_bytes > entry.bytes:
        return f"it has {size}, at least {format_size(request.required_bytes)} are requested"
    if request.limit_bytes and request.limit_bytes < entry.bytes:
        return f"it has {size}, at most {format_size(request.limit_bytes)} are requested"
    if request.source != entry.source:
        origin = f"was made from {entry.source}" if entry.source else "was made empty"
        return f"it {origin}, {request.source or 'an empty one'} is requested"
    if request.access != entry.access:
        return f"it is for {entry.access}, {request.access} is requested"
    if request.parameters != entry.parameters:
        return "it was made with other parameters"
    if not fits:
        domain = describe_domain(entry.segments)
        return f"it can be used from {domain} only, which was not requested"
    return ""


def _name_taken(entry: JournalEntry, difference: str) -> Reason:
    return Reason(
        code="NameTaken",
        message=f"{entry.kind.value} {entry.name} already exists: {difference}",
        object=f"{entry.kind.value.capitalize()}/{entry.name}",
        numbers={"bytes": entry.bytes},
        fix="Use another name, or delete the existing one.",
    )


def _image_missing(entry: JournalEntry) -> Reason:
    return Reason(
        code="ImageMissing",
        message=f"{entry.kind.value} {entry.name} is in the journal, and its image {entry.uuid} is"
        f" not in pool {entry.pool}",
        object=f"Pool/{entry.pool}",
        fix=f"Restore the image, or delete the {entry.kind.value}.",
    )


def _refuse_busy(entry: JournalEntry) -> NextStep:
    operation = "being deleted" if entry.state is EntryState.DELETING else "being made"
    reason = Reason(
        code="InProgress",
        message=f"{entry.kind.value} {entry.name} is {operation} by {entry.holder}",
        object=f"{entry.kind.value.capitalize()}/{entry.name}",
        fix="Try again.",
    )
    return _refuse(CsiCode.ABORTED, reason)


def _refuse(code: CsiCode, reason: Reason) -> NextStep:
    return NextStep(Step.REFUSE, Refusal(code, reason))
