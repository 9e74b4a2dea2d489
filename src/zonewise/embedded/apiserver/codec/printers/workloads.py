"""What makes pods: deployments, sets, jobs, budgets."""

from __future__ import annotations

from typing import Any

from zonewise.api.values import times
from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    Obj,
    age_of,
    containers_of,
    duration,
    labels_of,
    name_of,
    prints,
    since,
    spec_of,
    status_of,
    template_of,
)

UNKNOWN = "<unknown>"


@prints("apps/deployments")
def _deployment(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    return [
        name_of(obj),
        f"{status.get('readyReplicas', 0)}/{spec_of(obj).get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age_of(obj, now),
        *containers_of(template_of(obj)),
        labels_of(spec_of(obj).get("selector")),
    ]


@prints("apps/replicasets", "/replicationcontrollers")
def _replica_set(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    return [
        name_of(obj),
        spec_of(obj).get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        age_of(obj, now),
        *containers_of(template_of(obj)),
        labels_of(spec_of(obj).get("selector")),
    ]


@prints("apps/statefulsets")
def _stateful_set(obj: Obj, now: str) -> list[Any]:
    return [
        name_of(obj),
        f"{status_of(obj).get('readyReplicas', 0)}/{spec_of(obj).get('replicas', 0)}",
        age_of(obj, now),
        *containers_of(template_of(obj)),
    ]


@prints("apps/daemonsets")
def _daemon_set(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    return [
        name_of(obj),
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        labels_of(template_of(obj).get("nodeSelector")),
        age_of(obj, now),
        *containers_of(template_of(obj)),
        labels_of(spec_of(obj).get("selector")),
    ]


@prints("batch/jobs")
def _job(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    done = status.get("succeeded", 0)
    if spec.get("completions") is not None:
        completions = f"{done}/{spec['completions']}"
    else:
        parallel = spec.get("parallelism") or 0
        completions = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    length = ""
    if status.get("startTime"):
        end = status.get("completionTime") or now
        gone = times.parse(end) - times.parse(status["startTime"])
        length = duration(gone.total_seconds())
    conditions = {
        one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"
    }
    state = "Running"
    for name, shown in (
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if name in conditions:
            state = shown
            break
    else:
        if obj["metadata"].get("deletionTimestamp"):
            state = "Terminating"
    return [
        name_of(obj),
        state,
        completions,
        length,
        age_of(obj, now),
        *containers_of(template_of(obj)),
        labels_of(spec.get("selector")),
    ]


@prints("batch/cronjobs")
def _cron_job(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    last = status.get("lastScheduleTime")
    return [
        name_of(obj),
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        "True" if spec.get("suspend") else "False",
        len(status.get("active") or ()),
        since(last, now) if last else NONE,
        age_of(obj, now),
        *containers_of((job.get("template") or {}).get("spec")),
        labels_of(job.get("selector")),
    ]


@prints("apps/controllerrevisions")
def _revision(obj: Obj, now: str) -> list[Any]:
    owner = next(
        (one for one in obj["metadata"].get("ownerReferences") or () if one.get("controller")), None
    )
    shown = NONE
    if owner:
        group = owner.get("apiVersion", "").rpartition("/")[0]
        kind = owner["kind"].lower() + (f".{group}" if group else "")
        shown = f"{kind}/{owner['name']}"
    return [name_of(obj), shown, obj.get("revision", 0), age_of(obj, now)]


@prints("policy/poddisruptionbudgets")
def _budget(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    return [
        name_of(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        status_of(obj).get("disruptionsAllowed", 0),
        age_of(obj, now),
    ]


@prints("scheduling.k8s.io/priorityclasses")
def _priority_class(obj: Obj, now: str) -> list[Any]:
    return [
        name_of(obj),
        obj.get("value", 0),
        bool(obj.get("globalDefault")),
        age_of(obj, now),
        obj.get("preemptionPolicy", ""),
    ]


@prints("node.k8s.io/runtimeclasses")
def _runtime_class(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), obj.get("handler", ""), age_of(obj, now)]


@prints("autoscaling/horizontalpodautoscalers")
def _autoscaler(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    target = spec.get("scaleTargetRef") or {}
    least = spec.get("minReplicas")
    return [
        name_of(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics(spec.get("metrics") or [], status.get("currentMetrics") or []),
        "<unset>" if least is None else str(least),
        spec.get("maxReplicas", 0),
        status.get("currentReplicas", 0),
        age_of(obj, now),
    ]


def _metrics(wanted: list[Obj], present: list[Obj]) -> str:
    """Current and target value of the first two metrics."""
    shown = [
        _metric(one, present[number] if number < len(present) else {})
        for number, one in enumerate(wanted)
    ]
    more = f" + {len(shown) - 2} more..." if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more if shown else NONE


def _metric(wanted: Obj, present: Obj) -> str:
    kind = wanted.get("type", "")
    source = kind[:1].lower() + kind[1:]
    spec, target = wanted.get(source) or {}, (wanted.get(source) or {}).get("target") or {}
    current = (present.get(source) or {}).get("current") or {}
    if kind in {"Resource", "ContainerResource"}:
        if "averageValue" in target:
            has, aim = current.get("averageValue", UNKNOWN), target["averageValue"]
        else:
            has = _percent(current.get("averageUtilization"), UNKNOWN)
            aim = _percent(target.get("averageUtilization"), "<auto>")
        return f"{spec.get('name', '')}: {has}/{aim}"
    if "averageValue" in target:
        end = "" if kind == "Pods" else " (avg)"
        return f"{current.get('averageValue', UNKNOWN)}/{target['averageValue']}{end}"
    return f"{current.get('value', UNKNOWN)}/{target.get('value', '')}"


def _percent(number: int | None, otherwise: str) -> str:
    return otherwise if number is None else f"{number}%"
