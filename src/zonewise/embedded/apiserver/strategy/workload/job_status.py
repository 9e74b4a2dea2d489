"""What the status of a Job may say: a finished job stays finished, and counts do not shrink.

Most rules apply only where the fields they are about have changed, so that a status that was stored
can always be written again.
"""

from __future__ import annotations

from zonewise.api.field_cursor import IMMUTABLE, Field
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.workload.job_policies import (
    count_indexes,
    index_intervals,
)
from zonewise.embedded.apiserver.strategy.workload.replicated import validate_not_negative


def has_condition(status: Obj, *types: str, value: str = "True") -> bool:
    """Whether a condition of one of these types has this status."""
    return any(
        condition.get("type") in types and condition.get("status") == value
        for condition in status.get("conditions") or ()
    )


def validate_job_status_update(obj: Field, old: Obj) -> None:
    """A new status of a Job."""
    status, before = obj["status"], old.get("status") or {}
    fields, spec = status.value or {}, obj.value["spec"]
    validate_not_negative(status, "active", "succeeded", "failed", "ready", "terminating")
    _validate_uncounted_pods(status["uncountedTerminatedPods"])
    _validate_conditions(status["conditions"], fields, before, spec)
    _validate_times(status, before, spec)
    _validate_indexes(status, before, spec)
    is_finished = has_condition(fields, "Complete", "Failed")
    finishes = is_finished != has_condition(before, "Complete", "Failed")

    def has_moved(key: str) -> bool:
        return bool(fields.get(key) != before.get(key))

    for key in ("active", "terminating"):
        if is_finished and fields.get(key, 0) > 0 and (finishes or has_moved(key)):
            status[key].invalid(f"{key}>0 is invalid for finished job")
    uncounted = status["uncountedTerminatedPods"]
    if (
        is_finished
        and (uncounted["succeeded"].value or uncounted["failed"].value)
        and (finishes or has_moved("uncountedTerminatedPods"))
    ):
        uncounted.invalid("must be empty for finished job")
    ready = status["ready"]
    if (
        ready.value is not None
        and ready.value > fields.get("active", 0)
        and (has_moved("ready") or has_moved("active"))
    ):
        ready.invalid("cannot set more ready pods than active")
    is_elastic = spec.get("completionMode") == "Indexed" and (
        spec.get("completions") == spec.get("parallelism")
    )
    for key in ("failed", "succeeded"):
        count = status.get(key, 0)
        if count.value < before.get(key, 0) and not (key == "succeeded" and is_elastic):
            count.invalid(f"cannot decrease the {key} counter")


def _validate_uncounted_pods(pods: Field) -> None:
    uids: set[str] = set()
    for key in ("succeeded", "failed"):
        for uid in pods[key].each():
            if not uid.value:
                uid.invalid("must not be empty")
            else:
                uid.unique(uids)


def _validate_conditions(conditions: Field, status: Obj, before: Obj, spec: Obj) -> None:
    def reject(detail: str) -> None:
        conditions.invalid(detail, None)

    for first, second in (
        ("Complete", "Failed"),
        ("Complete", "FailureTarget"),
        ("SuccessCriteriaMet", "Failed"),
        ("SuccessCriteriaMet", "FailureTarget"),
    ):
        if has_condition(status, first) and has_condition(status, second):
            reject(f"cannot set {first}=True and {second}=true conditions")
    for kind, needed in (("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")):
        is_new = has_condition(status, kind) and not has_condition(before, kind)
        if is_new and not has_condition(status, needed):
            reject(f"cannot set {kind}=True condition without {needed}=true")
    for kind in ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet"):
        if has_condition(before, kind) and not has_condition(status, kind):
            reject(f"cannot disable the terminal {kind}=True condition")
    if (
        spec.get("successPolicy") is not None
        and has_condition(status, "Complete")
        and not has_condition(status, "SuccessCriteriaMet")
    ):
        reject("cannot set Complete=True unless SuccessCriteriaMet=True")


def _validate_times(status: Field, before: Obj, spec: Obj) -> None:
    fields = status.value or {}
    start, end = status["startTime"], status["completionTime"]
    is_complete = has_condition(fields, "Complete")
    completes = is_complete != has_condition(before, "Complete")
    end_moved = end.value != before.get("completionTime")
    start_moved = start.value != before.get("startTime")
    if completes or end_moved:
        if end.value is not None and not is_complete:
            end.invalid("cannot set completionTime when there is no Complete=True condition")
        if end.value is None and is_complete:
            end.missing("completionTime is required for Complete jobs")
    if end.value is not None:
        if start.value is not None and end.value < start.value and (start_moved or end_moved):
            end.invalid("must be equal to or after `startTime`")
        if before.get("completionTime") is not None and end_moved:
            end.invalid(IMMUTABLE)
    is_finished = has_condition(fields, "Complete", "Failed")
    finishes = is_finished != has_condition(before, "Complete", "Failed")
    is_idle = spec.get("suspend") and spec.get("completions") == 0
    if start.value is None and is_finished and (finishes or start_moved) and not is_idle:
        start.missing("startTime is required for finished job")
    resumes = has_condition(before, "Suspended") and has_condition(
        fields, "Suspended", value="False"
    )
    if before.get("startTime") and start_moved and not resumes and not spec.get("suspend"):
        start.invalid("field is immutable for unsuspended job once set")


def _validate_indexes(status: Field, before: Obj, spec: Obj) -> None:
    completed, failed = status.get("completedIndexes", ""), status["failedIndexes"]
    completions = spec.get("completions")
    completed_moved = completed.value != before.get("completedIndexes", "")
    failed_moved = failed.value != before.get("failedIndexes")
    if completed_moved:
        _validate_index_list(completed, completions)
        if completed.value and spec.get("completionMode") != "Indexed":
            completed.invalid(
                "cannot set non-empty completedIndexes when non-indexed completion mode"
            )
    if failed.value is None:
        return
    if failed_moved:
        if spec.get("backoffLimitPerIndex") is None:
            failed.invalid("cannot set non-null failedIndexes when backoffLimitPerIndex is null")
        else:
            _validate_index_list(failed, completions)
    if (completed_moved or failed_moved) and completions is not None:
        failed_intervals = index_intervals(failed.value, completions)
        if any(
            start <= high and low <= end
            for low, high in index_intervals(completed.value, completions)
            for start, end in failed_intervals
        ):
            failed.invalid("failedIndexes and completedIndexes overlap")


def _validate_index_list(indexes: Field, completions: int | None) -> None:
    if completions is not None:
        indexes.invalid_if(count_indexes(indexes.value, completions)[1])
