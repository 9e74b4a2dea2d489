"""Printers of workloads: deployments, sets, jobs, budgets, autoscalers."""

from __future__ import annotations

from typing import Any

from zonewise.api.values import times
from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    UNKNOWN,
    UNSET,
    Obj,
    age_of,
    container_cells,
    format_age,
    format_duration,
    format_selector,
    name_of,
    printer_for,
    spec_of,
    status_of,
    template_of,
)


@printer_for("apps/deployments")
def _print_deployment(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    return [
        name_of(obj),
        f"{status.get('readyReplicas', 0)}/{spec_of(obj).get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age_of(obj, now),
        *container_cells(template_of(obj)),
        format_selector(spec_of(obj).get("selector")),
    ]


@printer_for("apps/replicasets", "/replicationcontrollers")
def _print_replica_set(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    return [
        name_of(obj),
        spec_of(obj).get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        age_of(obj, now),
        *container_cells(template_of(obj)),
        format_selector(spec_of(obj).get("selector")),
    ]


@printer_for("apps/statefulsets")
def _print_stateful_set(obj: Obj, now: str) -> list[Any]:
    return [
        name_of(obj),
        f"{status_of(obj).get('readyReplicas', 0)}/{spec_of(obj).get('replicas', 0)}",
        age_of(obj, now),
        *container_cells(template_of(obj)),
    ]


@printer_for("apps/daemonsets")
def _print_daemon_set(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    return [
        name_of(obj),
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        format_selector(template_of(obj).get("nodeSelector")),
        age_of(obj, now),
        *container_cells(template_of(obj)),
        format_selector(spec_of(obj).get("selector")),
    ]


@printer_for("batch/jobs")
def _print_job(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    succeeded = status.get("succeeded", 0)
    if spec.get("completions") is not None:
        completions = f"{succeeded}/{spec['completions']}"
    else:
        parallel = spec.get("parallelism") or 0
        completions = f"{succeeded}/1 of {parallel}" if parallel > 1 else f"{succeeded}/1"
    duration_text = ""
    if status.get("startTime"):
        end = status.get("completionTime") or now
        elapsed = times.parse(end) - times.parse(status["startTime"])
        duration_text = format_duration(elapsed.total_seconds())
    conditions = {
        condition.get("type")
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }
    state = "Running"
    for name in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if name in conditions:
            state = name
            break
    else:
        if obj["metadata"].get("deletionTimestamp"):
            state = "Terminating"
    return [
        name_of(obj),
        state,
        completions,
        duration_text,
        age_of(obj, now),
        *container_cells(template_of(obj)),
        format_selector(spec.get("selector")),
    ]


@printer_for("batch/cronjobs")
def _print_cron_job(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    last = status.get("lastScheduleTime")
    return [
        name_of(obj),
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        "True" if spec.get("suspend") else "False",
        len(status.get("active") or ()),
        format_age(last, now) if last else NONE,
        age_of(obj, now),
        *container_cells((job.get("template") or {}).get("spec")),
        format_selector(job.get("selector")),
    ]


@printer_for("apps/controllerrevisions")
def _print_revision(obj: Obj, now: str) -> list[Any]:
    owner = next(
        (
            reference
            for reference in obj["metadata"].get("ownerReferences") or ()
            if reference.get("controller")
        ),
        None,
    )
    owner_text = NONE
    if owner:
        group = owner.get("apiVersion", "").rpartition("/")[0]
        kind = owner["kind"].lower() + (f".{group}" if group else "")
        owner_text = f"{kind}/{owner['name']}"
    return [name_of(obj), owner_text, obj.get("revision", 0), age_of(obj, now)]


@printer_for("policy/poddisruptionbudgets")
def _print_budget(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    return [
        name_of(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        status_of(obj).get("disruptionsAllowed", 0),
        age_of(obj, now),
    ]


@printer_for("scheduling.k8s.io/priorityclasses")
def _print_priority_class(obj: Obj, now: str) -> list[Any]:
    return [
        name_of(obj),
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        age_of(obj, now),
        obj.get("preemptionPolicy", ""),
    ]


@printer_for("node.k8s.io/runtimeclasses")
def _print_runtime_class(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), obj.get("handler", ""), age_of(obj, now)]


@printer_for("autoscaling/horizontalpodautoscalers")
def _print_autoscaler(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    target = spec.get("scaleTargetRef") or {}
    min_replicas = spec.get("minReplicas")
    return [
        name_of(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _format_metrics(spec.get("metrics") or [], status.get("currentMetrics") or []),
        UNSET if min_replicas is None else str(min_replicas),
        spec.get("maxReplicas", 0),
        status.get("currentReplicas", 0),
        age_of(obj, now),
    ]


def _format_metrics(metrics: list[Obj], current_metrics: list[Obj]) -> str:
    """Current and target value of the first two metrics."""
    texts = [
        _format_metric(metric, current_metrics[number] if number < len(current_metrics) else {})
        for number, metric in enumerate(metrics)
    ]
    suffix = f" + {len(texts) - 2} more..." if len(texts) > 2 else ""
    return ", ".join(texts[:2]) + suffix if texts else NONE


def _format_metric(metric: Obj, current_metric: Obj) -> str:
    metric_type = metric.get("type", "")
    source = metric_type[:1].lower() + metric_type[1:]
    spec, target = metric.get(source) or {}, (metric.get(source) or {}).get("target") or {}
    current = (current_metric.get(source) or {}).get("current") or {}
    if metric_type in {"Resource", "ContainerResource"}:
        if "averageValue" in target:
            current_text, target_text = current.get("averageValue", UNKNOWN), target["averageValue"]
        else:
            current_text = _format_percent(current.get("averageUtilization"), UNKNOWN)
            target_text = _format_percent(target.get("averageUtilization"), "<auto>")
        return f"{spec.get('name', '')}: {current_text}/{target_text}"
    if "averageValue" in target:
        suffix = "" if metric_type == "Pods" else " (avg)"
        return f"{current.get('averageValue', UNKNOWN)}/{target['averageValue']}{suffix}"
    return f"{current.get('value', UNKNOWN)}/{target.get('value', '')}"


def _format_percent(number: int | None, absent: str) -> str:
    return absent if number is None else f"{number}%"
