"""Whether the journal and the pools agree, as ``zonewise csi check`` reports it.

Entries and images are read one after the other, so what is made or removed meanwhile would look
like a fault. Only a disagreement that remains when both are read a second time is reported. Nothing
is changed: an orphan may be a user's only copy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from zonewise.csi.answering import answered
from zonewise.csi.backends.contract import ControllerBackend
from zonewise.csi.driver import DriverStorage
from zonewise.csi.services.plugin import finished
from zonewise.csi.services.requests import id_of
from zonewise.csi.status import CsiError
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.identifiers import Stored
from zonewise.storage.journal import Image, Journal, JournalEntry
from zonewise.storage.next_step import JournalFindings, compare


def check_all(
    storage: DriverStorage, configuration: StorageConfiguration
) -> tuple[dict[str, Any], bool]:
    """The same for all clusters, with what a backend adds; raises if none answers.

    With several clusters each item that has no id names its cluster, and ``away`` are those that do
    not answer.
    """
    away: dict[str, CsiError] = {}
    names = [*storage.clusters()]
    found = answered(
        {name: partial(_checked, storage, configuration, name) for name in names}, away
    )
    if len(names) == 1:
        return found[names[0]]
    report: dict[str, Any] = {}
    for name, (one, _) in sorted(found.items()):
        for kind, items in one.items():
            named = [item if "id" in item else {"cluster": name, **item} for item in items]
            report[kind] = [*report.get(kind, []), *named]
    report["away"] = [{"cluster": name, "why": str(error)} for name, error in sorted(away.items())]
    return report, not away and all(agrees for _, agrees in found.values())


def _checked(
    storage: DriverStorage, configuration: StorageConfiguration, cluster: str
) -> tuple[dict[str, Any], bool]:
    one = storage.clusters()[cluster]
    report, agrees = check(one.journal, one.backend)
    more = storage.findings(configuration, cluster)
    return report | more, agrees and not more.get("affinity") and not more.get("pools")


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
        "volumes": [
            _plain(entry.created() if finished(entry, backend) else entry)
            for entry in entries
            if entry.stored is Stored.VOLUME
        ],
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
