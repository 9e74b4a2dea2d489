"""Two forms of one stored object; tests/kubernetes asks a real server for the same."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from zonewise.embedded.machinery.decoding.conversions import WAYS

EVENTS = WAYS["events.k8s.io", "v1", "events"]
SCALERS = WAYS["autoscaling", "v1", "horizontalpodautoscalers"]
TARGET = {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}


def scaler(metrics: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A stored autoscaler."""
    return {
        "metadata": {"name": "a"},
        "spec": {"minReplicas": 1, "maxReplicas": 2, "scaleTargetRef": TARGET, "metrics": metrics},
        "status": {"desiredReplicas": 0, "currentMetrics": None},
    } | more


def resource(name: str, **target: Any) -> dict[str, Any]:
    """A metric of a resource."""
    return {"type": "Resource", "resource": {"name": name, "target": target}}


CPU = resource("cpu", type="Utilization", averageUtilization=5)
METRICS = [
    resource("memory", type="Utilization", averageUtilization=7),
    resource("cpu", type="AverageValue", averageValue="5"),
    {
        "type": "ContainerResource",
        "containerResource": {
            "name": "cpu",
            "container": "a",
            "target": {"type": "AverageValue", "averageValue": "5"},
        },
    },
    {
        "type": "Pods",
        "pods": {
            "metric": {"name": "m", "selector": {"matchLabels": {"a": "b"}}},
            "target": {"type": "AverageValue", "averageValue": "100m"},
        },
    },
    {
        "type": "Object",
        "object": {
            "describedObject": {"kind": "Service", "name": "a", "apiVersion": "v1"},
            "metric": {"name": "m"},
            "target": {"type": "Value", "value": "5"},
        },
    },
    {
        "type": "External",
        "external": {
            "metric": {"name": "m", "selector": {"matchLabels": {"a": "b"}}},
            "target": {"type": "AverageValue", "averageValue": "5"},
        },
    },
]
BEHAVIOR = {
    "scaleUp": {
        "stabilizationWindowSeconds": 3,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}],
    },
    "scaleDown": {
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    },
}


def test_an_event_has_two_sets_of_names() -> None:
    """The newer API shows an old event under its own names and leaves out what is empty."""
    event = {
        "involvedObject": {"kind": "Pod"},
        "message": "m",
        "source": {"component": "c"},
        "count": 2,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    }
    shown = copy.deepcopy(event)
    EVENTS.from_storage(shown)
    assert shown == {
        "regarding": {"kind": "Pod"},
        "note": "m",
        "deprecatedSource": {"component": "c"},
        "deprecatedCount": 2,
        "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
        "deprecatedLastTimestamp": None,
        "eventTime": None,
    }
    EVENTS.to_storage(shown)
    assert shown == event


def test_v1_has_one_target_and_annotations_for_the_rest() -> None:
    """The CPU target is a field; other metrics and the behaviour are kept as JSON."""
    shown = scaler([*METRICS[:1], CPU, *METRICS[1:]])
    shown["spec"]["behavior"] = BEHAVIOR
    SCALERS.from_storage(shown)
    annotations = shown["metadata"]["annotations"]
    assert shown["spec"] == {
        "minReplicas": 1,
        "maxReplicas": 2,
        "scaleTargetRef": TARGET,
        "targetCPUUtilizationPercentage": 5,
    }
    assert shown["status"] == {"currentReplicas": 0, "desiredReplicas": 0}
    metrics = json.loads(annotations["autoscaling.alpha.kubernetes.io/metrics"])
    assert metrics[0] == {
        "type": "Resource",
        "resource": {"name": "memory", "targetAverageUtilization": 7},
    }
    assert metrics[3]["pods"] == {
        "metricName": "m",
        "selector": {"matchLabels": {"a": "b"}},
        "targetAverageValue": "100m",
    }
    assert metrics[4]["object"] == {
        "target": {"kind": "Service", "name": "a", "apiVersion": "v1"},
        "metricName": "m",
        "targetValue": "5",
    }
    behavior = json.loads(annotations["autoscaling.alpha.kubernetes.io/behavior"])
    assert behavior["ScaleDown"]["StabilizationWindowSeconds"] is None
    assert behavior["ScaleUp"]["Policies"] == [{"Type": "Pods", "Value": 4, "PeriodSeconds": 15}]


@pytest.mark.parametrize("metrics", [[CPU], [*METRICS, CPU], METRICS])
def test_an_autoscaler_survives_the_way_there_and_back(metrics: list[dict[str, Any]]) -> None:
    """What v1 cannot say is not lost when a v1 client reads and writes back."""
    stored = scaler(copy.deepcopy(metrics))
    stored["spec"]["behavior"] = copy.deepcopy(BEHAVIOR)
    stored["status"]["conditions"] = [{"type": "AbleToScale", "status": "True"}]
    shown = copy.deepcopy(stored)
    SCALERS.from_storage(shown)
    SCALERS.to_storage(shown)
    assert shown == stored


def test_a_v1_autoscaler_without_a_target_aims_at_80_percent() -> None:
    """v2 always has a metric."""
    made: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"maxReplicas": 2}}
    SCALERS.to_storage(made)
    assert made["spec"]["metrics"] == [resource("cpu", type="Utilization", averageUtilization=80)]


def test_current_cpu_is_a_field_of_its_own() -> None:
    """What v2 reports as a metric, v1 reports as a percentage."""
    stored = scaler([CPU])
    current = {"averageUtilization": 70, "averageValue": "70m"}
    stored["status"]["currentMetrics"] = [
        {"type": "Resource", "resource": {"name": "cpu", "current": current}}
    ]
    SCALERS.from_storage(stored)
    assert stored["status"]["currentCPUUtilizationPercentage"] == 70


@pytest.mark.parametrize("text", ["", "x", "{}", "[1]", "null", "[" * 5000])
def test_annotations_that_cannot_be_read_say_nothing(text: str) -> None:
    """People write annotations: nonsense in one is no metric, and no failure."""
    made: dict[str, Any] = {
        "metadata": {"annotations": {"autoscaling.alpha.kubernetes.io/metrics": text, "a": "b"}},
        "spec": {"targetCPUUtilizationPercentage": 5},
    }
    SCALERS.to_storage(made)
    assert made["spec"]["metrics"] == [CPU]
    assert made["metadata"]["annotations"] == {"a": "b"}
