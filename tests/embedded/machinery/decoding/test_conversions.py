"""Two versions of one stored object; tests/kubernetes compares them with a real server."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from tests.embedded.machinery.decoding.autoscalers import BEHAVIOR, CPU, METRICS, TARGET, resource

from zonewise.embedded.machinery.decoding.conversions import STORAGE_CONVERSIONS

EVENTS = STORAGE_CONVERSIONS["events.k8s.io", "v1", "events"]
SCALERS = STORAGE_CONVERSIONS["autoscaling", "v1", "horizontalpodautoscalers"]


def scaler(metrics: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A stored autoscaler."""
    return {
        "metadata": {"name": "a"},
        "spec": {"minReplicas": 1, "maxReplicas": 2, "scaleTargetRef": TARGET, "metrics": metrics},
        "status": {"desiredReplicas": 0, "currentMetrics": None},
    } | more


def test_an_event_has_two_sets_of_names() -> None:
    """The newer API has an old event with its own field names, without empty fields."""
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
    converted = copy.deepcopy(event)
    EVENTS.from_storage(converted)
    assert converted == {
        "regarding": {"kind": "Pod"},
        "note": "m",
        "deprecatedSource": {"component": "c"},
        "deprecatedCount": 2,
        "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
        "deprecatedLastTimestamp": None,
        "eventTime": None,
    }
    EVENTS.to_storage(converted)
    assert converted == event


def test_v1_has_one_target_and_annotations_for_the_rest() -> None:
    """The CPU target is a field; other metrics and the behaviour are JSON annotations."""
    converted = scaler([*METRICS[:1], CPU, *METRICS[1:]])
    converted["spec"]["behavior"] = BEHAVIOR
    SCALERS.from_storage(converted)
    annotations = converted["metadata"]["annotations"]
    assert converted["spec"] == {
        "minReplicas": 1,
        "maxReplicas": 2,
        "scaleTargetRef": TARGET,
        "targetCPUUtilizationPercentage": 5,
    }
    assert converted["status"] == {"currentReplicas": 0, "desiredReplicas": 0}
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
def test_an_autoscaler_can_be_converted_and_back(metrics: list[dict[str, Any]]) -> None:
    """Fields that v1 lacks are not lost when a v1 client reads and writes the object."""
    stored = scaler(copy.deepcopy(metrics))
    stored["spec"]["behavior"] = copy.deepcopy(BEHAVIOR)
    stored["status"]["conditions"] = [{"type": "AbleToScale", "status": "True"}]
    converted = copy.deepcopy(stored)
    SCALERS.from_storage(converted)
    SCALERS.to_storage(converted)
    assert converted == stored


def test_a_v1_autoscaler_without_a_target_aims_at_80_percent() -> None:
    """A v1 autoscaler without a target has a CPU metric of 80 % in v2."""
    scaler_v1: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"maxReplicas": 2}}
    SCALERS.to_storage(scaler_v1)
    assert scaler_v1["spec"]["metrics"] == [
        resource("cpu", type="Utilization", averageUtilization=80)
    ]


def test_current_cpu_is_a_field_of_its_own() -> None:
    """The CPU metric of v2 is a percentage in v1."""
    stored = scaler([CPU])
    current = {"averageUtilization": 70, "averageValue": "70m"}
    stored["status"]["currentMetrics"] = [
        {"type": "Resource", "resource": {"name": "cpu", "current": current}}
    ]
    SCALERS.from_storage(stored)
    assert stored["status"]["currentCPUUtilizationPercentage"] == 70


@pytest.mark.parametrize("text", ["", "x", "{}", "[1]", "null", "[" * 5000])
def test_invalid_annotations_are_ignored(text: str) -> None:
    """An invalid annotation is no metric, and no error."""
    scaler_v1: dict[str, Any] = {
        "metadata": {"annotations": {"autoscaling.alpha.kubernetes.io/metrics": text, "a": "b"}},
        "spec": {"targetCPUUtilizationPercentage": 5},
    }
    SCALERS.to_storage(scaler_v1)
    assert scaler_v1["spec"]["metrics"] == [CPU]
    assert scaler_v1["metadata"]["annotations"] == {"a": "b"}
