"""How many pods a Job requests: it has no scale, and its controller replaces pods all the same.

That many run at a time: ``parallelism``, and towards the end only as many as still have to succeed.
If a Job's pods were counted as they are, a budget would follow each pod that goes, and never hold
the next one. A Job without ``completions`` starts no pod after the first success; then, as for
owners without a number, those that exist are expected.
"""

from __future__ import annotations

from typing import Any

from zonewise.api.unstructured import Unstructured

FINISHED = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})


def count_job_pods(job: Unstructured) -> int | None:
    """How many pods a Job should have now; None if it has no number."""
    parallelism = job.get("spec", "parallelism")
    if not _is_count(parallelism):
        return None
    if job.get("spec", "suspend") is True or _is_finished(job):
        return 0
    completions = job.get("spec", "completions")
    succeeded = job.get("status", "succeeded", default=0)
    if not _is_count(succeeded):
        return None
    if not _is_count(completions):
        return None if succeeded else int(parallelism)
    failed = _count_indexes(job.get("status", "failedIndexes", default=""))
    return int(max(0, min(parallelism, completions - succeeded - failed)))


def _is_finished(job: Unstructured) -> bool:
    conditions = job.get("status", "conditions", default=())
    return isinstance(conditions, list) and any(
        isinstance(condition, dict)
        and condition.get("type") in FINISHED
        and condition.get("status") == "True"
        for condition in conditions
    )


def _count_indexes(text: Any) -> int:
    """How many indexes a text like ``0,3-5`` names; what cannot be read names none."""
    count = 0
    for part in text.split(",") if isinstance(text, str) else ():
        first, _, last = part.partition("-")
        last = last or first
        if all(number.isascii() and number.isdigit() for number in (first, last)):
            count += max(0, int(last[:18]) - int(first[:18]) + 1)
    return count


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
