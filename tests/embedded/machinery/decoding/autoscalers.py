"""Fields of HorizontalPodAutoscalers that both of their versions have."""

from __future__ import annotations

from typing import Any

TARGET = {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}
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
