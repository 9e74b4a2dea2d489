"""Whether the journal and the pools agree, as ``zonewise csi check`` tells it.

Entries and images are read one after the other, so what is made or removed meanwhile would look
like a fault. Only a disagreement that is still there when both are read a second time is reported.
Nothing is changed: an orphan may be somebody's only copy.
"""

from __future__ import annotations

from typing import Any

from zonewise.csi.backends.contract import ControllerBackend
from zonewise.csi.services.requests import id_of
from zonewise.storage.identifiers import Stored
from zonewise.storage.journal import Image, Journal, JournalEntry
from zonewise.storage.next_step import JournalFindings, compare


def check(journal: Journal, backend: ControllerBackend) -> tuple[dict[str, Any], bool]:
    """What there is and what does not agree, and whether all does."""
    entries, found = _compared(journal, backend)
    if not found.agrees:
        first = found
        entries, found = _compared(journal, backend)
        found = JournalFindings(
            orphans=tuple(image for image in found.orphans if image in first.orphans),
            missing=tuple(entry for entry in found.missing if entry in first.missing),
            unfinished=found.unfinished,
        )
    report = {
        "volumes": [_plain(entry) for entry in entries if entry.stored is Stored.VOLUME],
        "snapshots": [
            {**_plain(entry), "source": entry.source}
            for entry in entries
            if entry.stored is Stored.SNAPSHOT
        ],
        "orphans": [_plain_image(image) for image in found.orphans],
        "missing": [_plain(entry) for entry in found.missing],
    }
    return report, found.agrees


def _compared(
    journal: Journal, backend: ControllerBackend
) -> tuple[list[JournalEntry], JournalFindings]:
    entries = [entry for stored in Stored for entry in journal.page(stored).entries]
    return entries, compare(entries, backend.images())


def _plain(entry: JournalEntry) -> dict[str, Any]:
    return {
        "id": id_of(entry),
        "name": entry.name,
        "pool": entry.pool,
        "state": entry.state.value,
        "bytes": entry.bytes,
    }


def _plain_image(image: Image) -> dict[str, Any]:
    return {
        "pool": image.pool,
        "kind": image.stored.value,
        "uuid": image.uuid,
        "bytes": image.bytes,
        "complete": image.complete,
    }
