"""Whether the journal and the pools agree, as ``zonewise csi check`` reports it.

Entries and images are read one after the other, so what is made or removed meanwhile would look
like a fault. Only a disagreement that remains when both are read a second time is reported. Nothing
is changed: an orphan may be a user's only copy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from zonewise.csi.answering import collect_answers
from zonewise.csi.backends.contract import ControllerBackend
from zonewise.csi.driver import DriverStorage
from zonewise.csi.errors import CsiError
from zonewise.csi.services.plugin import is_finished
from zonewise.csi.services.requests import id_of
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import Image, Journal, JournalEntry
from zonewise.storage.next_step import JournalFindings, compare


def check_all(
    storage: DriverStorage, configuration: StorageConfiguration
) -> tuple[dict[str, Any], bool]:
    """The same for all clusters, with what a backend adds; raises if none answers.

    With several clusters each item that has no id names its cluster, and ``away`` are those that do
    not answer.
    """
    unanswered: dict[str, CsiError] = {}
    names = [*storage.clusters()]
    reports = collect_answers(
        {name: partial(_check_cluster, storage, configuration, name) for name in names}, unanswered
    )
    if len(names) == 1:
        return reports[names[0]]
    report: dict[str, Any] = {}
    for name, (report_of_cluster, _) in sorted(reports.items()):
        for kind, items in report_of_cluster.items():
            named = [item if "id" in item else {"cluster": name, **item} for item in items]
            report[kind] = [*report.get(kind, []), *named]
    away = sorted(unanswered.items())
    report["away"] = [{"cluster": name, "why": str(error)} for name, error in away]
    return report, not unanswered and all(agrees for _, agrees in reports.values())


def _check_cluster(
    storage: DriverStorage, configuration: StorageConfiguration, cluster: str
) -> tuple[dict[str, Any], bool]:
    volume_storage = storage.clusters()[cluster]
    report, agrees = check(volume_storage.journal, volume_storage.backend)
    extra = storage.check_cluster(configuration, cluster)
    return report | extra, agrees and not extra.get("affinity") and not extra.get("pools")


def check(journal: Journal, backend: ControllerBackend) -> tuple[dict[str, Any], bool]:
    """What there is and what does not agree, and whether all does."""
    entries, findings = _compare(journal, backend)
    if not findings.agrees:
        first = findings
        entries, findings = _compare(journal, backend)
        findings = JournalFindings(
            orphans=tuple(image for image in findings.orphans if image in first.orphans),
            missing=tuple(entry for entry in findings.missing if entry in first.missing),
            unfinished=findings.unfinished,
        )
    report = {
        "volumes": [
            _entry_fields(entry.as_created() if is_finished(entry, backend) else entry)
            for entry in entries
            if entry.kind is StoredKind.VOLUME
        ],
        "snapshots": [
            {**_entry_fields(entry), "source": entry.source}
            for entry in entries
            if entry.kind is StoredKind.SNAPSHOT
        ],
        "orphans": [_image_fields(image) for image in findings.orphans],
        "missing": [_entry_fields(entry) for entry in findings.missing],
    }
    return report, findings.agrees


def _compare(
    journal: Journal, backend: ControllerBackend
) -> tuple[list[JournalEntry], JournalFindings]:
    entries = [entry for kind in StoredKind for entry in journal.list_page(kind).entries]
    return entries, compare(entries, backend.list_images())


def _entry_fields(entry: JournalEntry) -> dict[str, Any]:
    return {
        "id": id_of(entry),
        "name": entry.name,
        "pool": entry.pool,
        "state": entry.state.value,
        "bytes": entry.bytes,
    }


def _image_fields(image: Image) -> dict[str, Any]:
    return {
        "pool": image.pool,
        "kind": image.kind.value,
        "uuid": image.uuid,
        "bytes": image.bytes,
        "complete": image.complete,
    }
