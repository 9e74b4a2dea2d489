"""What the status of a Job may say: a finished job stays finished, and counts do not shrink.

Most checks apply only where the fields they are about have changed, so that a status that was
stored can always be written again.
"""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.numbers import count_faults
from zonewise.embedded.apiserver.strategy.workload.job_policies import index_set, read_indexes

CONDITIONS = "status.conditions"


def _true(status: Obj, *kinds: str) -> bool:
    return any(
        one.get("type") in kinds and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )


def status_faults(obj: Obj, old: Obj) -> Faults:
    """What is wrong with a new status of a Job."""
    status, before = obj.get("status") or {}, old.get("status") or {}
    spec = obj["spec"]
    found = count_faults(status, "status", "active", "succeeded", "failed", "ready", "terminating")
    found += _uncounted(status.get("uncountedTerminatedPods") or {})
    found += _condition_faults(status, before, spec)
    found += _time_faults(status, before, spec)
    found += _index_faults(status, before, spec)
    finished = _true(status, "Complete", "Failed")
    turned = finished != _true(before, "Complete", "Failed")

    def moved(key: str) -> bool:
        return bool(status.get(key) != before.get(key))

    for key in ("active", "terminating"):
        if finished and status.get(key, 0) > 0 and (turned or moved(key)):
            text = f"{key}>0 is invalid for finished job"
            found.append(field_errors.invalid(f"status.{key}", status[key], text))
    pending = status.get("uncountedTerminatedPods") or {}
    if (
        finished
        and (pending.get("succeeded") or pending.get("failed"))
        and (turned or moved("uncountedTerminatedPods"))
    ):
        text = "must be empty for finished job"
        found.append(field_errors.invalid("status.uncountedTerminatedPods", pending, text))
    ready = status.get("ready")
    if (
        ready is not None
        and ready > status.get("active", 0)
        and (moved("ready") or moved("active"))
    ):
        text = "cannot set more ready pods than active"
        found.append(field_errors.invalid("status.ready", ready, text))
    for key in ("failed", "succeeded"):
        tandem = spec.get("completionMode") == "Indexed" and (
            spec.get("completions") == spec.get("parallelism")
        )
        if status.get(key, 0) < before.get(key, 0) and not (key == "succeeded" and tandem):
            text = f"cannot decrease the {key} counter"
            found.append(field_errors.invalid(f"status.{key}", status.get(key, 0), text))
    return found


def _uncounted(pods: Obj) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for key in ("succeeded", "failed"):
        for index, uid in enumerate(pods.get(key) or ()):
            at = f"status.uncountedTerminatedPods.{key}[{index}]"
            if not uid:
                found.append(field_errors.invalid(at, uid, "must not be empty"))
            elif uid in seen:
                found.append(field_errors.duplicate(at, uid))
            seen.add(uid)
    return found


def _condition_faults(status: Obj, before: Obj, spec: Obj) -> Faults:
    sentences = []
    for first, second in (
        ("Complete", "Failed"),
        ("Complete", "FailureTarget"),
        ("SuccessCriteriaMet", "Failed"),
        ("SuccessCriteriaMet", "FailureTarget"),
    ):
        if _true(status, first) and _true(status, second):
            sentences.append(f"cannot set {first}=True and {second}=true conditions")
    for kind, needed in (("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")):
        turned = _true(status, kind) != _true(before, kind)
        if _true(status, kind) and not _true(status, needed) and turned:
            sentences.append(f"cannot set {kind}=True condition without {needed}=true")
    for kind in ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet"):
        if _true(before, kind) and not _true(status, kind):
            sentences.append(f"cannot disable the terminal {kind}=True condition")
    if (
        spec.get("successPolicy") is not None
        and _true(status, "Complete")
        and not _true(status, "SuccessCriteriaMet")
    ):
        sentences.append("cannot set Complete=True unless SuccessCriteriaMet=True")
    return [field_errors.invalid(CONDITIONS, None, text) for text in sentences]


def _time_faults(status: Obj, before: Obj, spec: Obj) -> Faults:
    found: Faults = []
    complete = _true(status, "Complete")
    turned = complete != _true(before, "Complete")
    start, end = status.get("startTime"), status.get("completionTime")
    ended = end != before.get("completionTime")
    started = start != before.get("startTime")
    if end is not None and not complete and (turned or ended):
        text = "cannot set completionTime when there is no Complete=True condition"
        found.append(field_errors.invalid("status.completionTime", end, text))
    if end is None and complete and (turned or ended):
        text = "completionTime is required for Complete jobs"
        found.append(field_errors.required("status.completionTime", text))
    if start is not None and end is not None and end < start and (started or ended):
        text = "must be equal to or after `startTime`"
        found.append(field_errors.invalid("status.completionTime", end, text))
    if end is not None and before.get("completionTime") is not None and ended:
        found.append(field_errors.invalid("status.completionTime", end, "field is immutable"))
    finished = _true(status, "Complete", "Failed")
    finishing = finished != _true(before, "Complete", "Failed")
    idle = spec.get("suspend") and spec.get("completions") == 0
    if start is None and finished and (finishing or started) and not idle:
        text = "startTime is required for finished job"
        found.append(field_errors.required("status.startTime", text))
    resumes = _true(before, "Suspended") and any(
        one.get("type") == "Suspended" and one.get("status") == "False"
        for one in status.get("conditions") or ()
    )
    if before.get("startTime") and started and not resumes and not spec.get("suspend"):
        text = "field is immutable for unsuspended job once set"
        found.append(field_errors.invalid("status.startTime", start, text))
    return found


def _index_faults(status: Obj, before: Obj, spec: Obj) -> Faults:
    found: Faults = []
    done, failed = status.get("completedIndexes", ""), status.get("failedIndexes")
    wanted = spec.get("completions")
    done_moved = done != before.get("completedIndexes", "")
    failed_moved = failed != before.get("failedIndexes")
    if done_moved:
        why = read_indexes(done, wanted)[1] if wanted is not None else ""
        if why:
            found.append(field_errors.invalid("status.completedIndexes", done, why))
        if done and spec.get("completionMode") != "Indexed":
            text = "cannot set non-empty completedIndexes when non-indexed completion mode"
            found.append(field_errors.invalid("status.completedIndexes", done, text))
    if failed is None:
        return found
    if failed_moved:
        if spec.get("backoffLimitPerIndex") is None:
            text = "cannot set non-null failedIndexes when backoffLimitPerIndex is null"
            found.append(field_errors.invalid("status.failedIndexes", failed, text))
        elif wanted is not None and read_indexes(failed, wanted)[1]:
            why = read_indexes(failed, wanted)[1]
            found.append(field_errors.invalid("status.failedIndexes", failed, why))
    if (done_moved or failed_moved) and wanted is not None:
        for low, high in index_set(done, wanted):
            if any(start <= high and low <= end for start, end in index_set(failed, wanted)):
                text = "failedIndexes and completedIndexes overlap"
                found.append(field_errors.invalid("status.failedIndexes", failed, text))
                break
    return found
