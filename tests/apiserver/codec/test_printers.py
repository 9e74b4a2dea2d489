"""Tables: lengths of time, and the cells whose rules are not obvious."""

from __future__ import annotations

from typing import Any

import pytest
from tests.machinery.schema.by_path import by_path

from zonewise.apiserver.codec.printers import duration, printer_of
from zonewise.machinery.schema.kinds import served_kinds

NOW = "2026-01-01T00:10:00Z"
KINDS = by_path(served_kinds())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (3600, "60m"),
        (3 * 3600, "3h"),
        (7 * 3600 + 60, "7h1m"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (7 * 86400 + 3600, "7d1h"),
        (100 * 86400, "100d"),
        (3 * 365 * 86400, "3y"),
        (-5, "<invalid>"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """A length of time has two units at most."""
    assert duration(seconds) == text


def cells(group: str, version: str, plural: str, obj: dict[str, Any]) -> dict[str, Any]:
    """The cells of an object by their columns."""
    kind = KINDS[group, version, plural]
    obj.setdefault("metadata", {}).setdefault("name", "x")
    obj["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
    row = printer_of(kind)(obj, NOW)
    assert len(row) == len(kind.columns)
    return dict(zip([column.name for column in kind.columns], row, strict=True))


def test_every_kind_fills_its_columns() -> None:
    """Each kind's printer makes one cell per column, even of an empty object."""
    for kind in served_kinds():
        if kind.columns and "get" in kind.verbs:
            obj = {"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}}
            row = printer_of(kind)(obj, NOW)
            assert len(row) == len(kind.columns), kind.resource.kind


def test_a_pod_that_is_being_deleted() -> None:
    """A marked pod is Terminating whatever its phase."""
    pod = {
        "metadata": {"deletionTimestamp": NOW},
        "spec": {"containers": [{"name": "a"}]},
        "status": {"phase": "Running"},
    }
    assert cells("", "v1", "pods", pod)["Status"] == "Terminating"


def test_a_pod_that_crashes() -> None:
    """The reason a container waits for is the pod's status, restarts tell how long ago."""
    pod = {
        "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "a",
                    "restartCount": 3,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"finishedAt": "2026-01-01T00:09:00Z"}},
                },
                {"name": "b", "ready": True, "restartCount": 0, "state": {"running": {}}},
            ],
        },
    }
    found = cells("", "v1", "pods", pod)
    assert found["Status"] == "CrashLoopBackOff"
    assert found["Ready"] == "1/2"
    assert found["Restarts"] == "3 (60s ago)"


def test_a_pod_that_initializes() -> None:
    """Init containers count until the last has ended."""
    pod = {
        "spec": {"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]},
        "status": {
            "phase": "Pending",
            "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}},
                {"name": "j", "state": {"waiting": {"reason": "PodInitializing"}}},
            ],
        },
    }
    assert cells("", "v1", "pods", pod)["Status"] == "Init:1/2"


def test_an_autoscaler_shows_its_target_and_its_first_metrics() -> None:
    """What nobody measures is unknown; from the third metric on only their number is told."""
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    load = {"metric": {"name": "load"}, "target": {"type": "AverageValue", "averageValue": "5"}}
    outside = {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "30"}}
    spec = {
        "scaleTargetRef": {"kind": "Deployment", "name": "web"},
        "maxReplicas": 9,
        "metrics": [
            {"type": "Resource", "resource": cpu},
            {"type": "Pods", "pods": load},
            {"type": "External", "external": outside},
        ],
    }
    current = {"name": "cpu", "current": {"averageUtilization": 35, "averageValue": "1"}}
    status = {"currentReplicas": 2, "currentMetrics": [{"type": "Resource", "resource": current}]}
    found = cells("autoscaling", "v2", "horizontalpodautoscalers", {"spec": spec, "status": status})
    assert found["Reference"] == "Deployment/web"
    assert found["Targets"] == "cpu: 35%/80%, <unknown>/5 + 1 more..."
    assert (found["MinPods"], found["MaxPods"], found["Replicas"]) == ("<unset>", 9, 2)
