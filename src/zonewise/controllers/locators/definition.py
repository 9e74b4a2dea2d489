"""The CustomResourceDefinition of PodLocators."""

from __future__ import annotations

from typing import Any

from zonewise.api.objects.locator import PodLocator
from zonewise.topology.nodes import ZONE_LABEL

Obj = dict[str, Any]


def definition() -> Obj:
    """The definition, as YAML would have it."""
    resource = PodLocator.resource
    escaped = ZONE_LABEL.replace(".", "\\.")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
            },
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _schema()},
                    "additionalPrinterColumns": [
                        {"name": "IP", "type": "string", "jsonPath": ".ips[0].ip"},
                        {"name": "Node", "type": "string", "jsonPath": ".nodeName"},
                        {"name": "Zone", "type": "string", "jsonPath": f".nodeLabels.{escaped}"},
                    ],
                }
            ],
        },
    }


def _schema() -> Obj:
    address: Obj = {
        "type": "object",
        "required": ["ip"],
        "properties": {"ip": {"type": "string", "description": "An address of the pod."}},
    }
    return {
        "type": "object",
        "description": "Where a pod is: the PodLocator of a pod has its namespace and its name.",
        "properties": {
            "ips": {
                "type": "array",
                "description": "The pod's addresses; none once the pod has finished.",
                "default": [],
                "items": address,
            },
            "nodeName": {
                "type": "string",
                "description": "The pod's node; empty if it has none, or the node was deleted.",
                "default": "",
            },
            "nodeLabels": {
                "type": "object",
                "description": "The labels of that node.",
                "default": {},
                "additionalProperties": {"type": "string"},
            },
            "nodeLabelKeys": {
                "type": "array",
                "description": "The labels that were looked for; without this list, all of them.",
                "items": {"type": "string"},
            },
        },
    }
