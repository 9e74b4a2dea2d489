"""The CustomResourceDefinitions of budgets, ledgers and rollouts, as ``install`` prints them.

What a schema and a rule can refuse is refused by the API server itself, with the field's path: a
budget with both numbers or none, a percentage above 100, an unknown operator. Rules are on single
fields where they can be, so that their cost stays far below the server's limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zonewise.api.objects.budgets import (
    DEFAULT_KEY,
    GROUP,
    VERSION,
    DisruptionLedger,
    DomainRollout,
    TopologyDisruptionBudget,
)
from zonewise.disruption.definitions.descriptions import DESCRIPTIONS

Obj = dict[str, Any]

TEXT: Obj = {"type": "string"}
COUNT: Obj = {"type": "integer", "format": "int32"}
GENERATION: Obj = {"type": "integer", "format": "int64"}
PERCENT = r"^(100|[0-9]{1,2})%$"
KEY_LENGTH = 317
VALUE_LENGTH = 63


def resource_definitions() -> list[Obj]:
    """The three definitions."""
    return [_budget_definition(), _ledger_definition(), _rollout_definition()]


def _budget_definition() -> Obj:
    columns = [
        _column("Max Unavailable", ".spec.maxUnavailable", "string"),
        _column("Min Available", ".spec.minAvailable", "string"),
        _column("Allowed", ".status.allowed", "string"),
        _column("Holds", ".spec.holds", "string", priority=1),
        _column("Mode", ".spec.mode", "string", priority=1),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    schema = {
        "type": "object",
        "description": "How many pods may be disrupted in each failure domain.",
        "required": ["spec"],
        "properties": {"spec": _budget_spec(), "status": _budget_status()},
    }
    resource = TopologyDisruptionBudget.resource
    return _definition(
        resource.kind, resource.plural, ["tdb"], schema, columns=columns, subresource=True
    )


def _budget_spec() -> Obj:
    portion: Obj = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-validations": [
            {
                "rule": f"type(self) == int ? self >= 0 : self.matches('{PERCENT}')",
                "message": "must be a number of pods, or 0% to 100%",
            }
        ],
    }
    max_unavailable = {
        "description": "How many of a domain's expected pods may be missing.",
        **portion,
    }
    min_available = {"description": "How many pods must be healthy in each domain.", **portion}
    return {
        "type": "object",
        "required": ["selector"],
        "x-kubernetes-validations": [
            {
                "rule": "has(self.maxUnavailable) != has(self.minAvailable)",
                "message": "give exactly one of maxUnavailable and minAvailable",
            }
        ],
        "properties": {
            "selector": _selector(),
            "maxUnavailable": max_unavailable,
            "minAvailable": min_available,
            "nodeSelectorTerm": _term(),
            "topologyKeys": {
                "description": "Node labels whose values name the domains; without them, those"
                " with Exists in nodeSelectorTerm.",
                "type": "array",
                "maxItems": 8,
                "x-kubernetes-list-type": "set",
                "items": {**TEXT, "minLength": 1, "maxLength": KEY_LENGTH},
            },
            "crossDomain": _choice("Independent", "Exclusive"),
            "unhealthyPodEvictionPolicy": _choice("IfHealthyBudget", "AlwaysAllow"),
            "expectedPods": _choice("Remembered", "ReplicasPerDomain"),
            "holds": _choice("Disruptions", "Updates"),
            "mode": _choice("Enforce", "Observe"),
        },
    }


def _selector() -> Obj:
    operators = ["In", "NotIn", "Exists", "DoesNotExist"]
    return {
        "description": "The pods that are covered; an empty selector covers all of the namespace.",
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object",
                "additionalProperties": {**TEXT, "maxLength": VALUE_LENGTH},
            },
            "matchExpressions": _expressions(operators),
        },
    }


def _term() -> Obj:
    operators = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    fields = _expressions(["In", "NotIn"])
    return {
        "description": "Which nodes are considered, and by which labels they are grouped.",
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {"matchExpressions": _expressions(operators), "matchFields": fields},
    }


def _expressions(operators: list[str]) -> Obj:
    rules = [
        {
            "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
            " : true",
            "message": "In and NotIn need values",
            "fieldPath": ".values",
        },
        {
            "rule": "self.operator in ['Exists', 'DoesNotExist'] ?"
            " !has(self.values) || size(self.values) == 0 : true",
            "message": "Exists and DoesNotExist take no values",
            "fieldPath": ".values",
        },
    ]
    if "Gt" in operators:
        rules.append(
            {
                "rule": "self.operator in ['Gt', 'Lt'] ? has(self.values) && size(self.values) == 1"
                " : true",
                "message": "Gt and Lt need one value",
                "fieldPath": ".values",
            }
        )
    return {
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["key", "operator"],
            "x-kubernetes-validations": rules,
            "properties": {
                "key": {**TEXT, "minLength": 1, "maxLength": KEY_LENGTH},
                "operator": {**TEXT, "enum": operators},
                "values": {
                    "type": "array",
                    "maxItems": 256,
                    "x-kubernetes-list-type": "atomic",
                    "items": {**TEXT, "maxLength": 253},
                },
            },
        },
    }


def _budget_status() -> Obj:
    domain = {
        "type": "object",
        "required": ["domain"],
        "properties": {
            "domain": TEXT,
            "expectedPods": COUNT,
            "desiredHealthy": COUNT,
            "currentHealthy": COUNT,
            "disruptionsAllowed": COUNT,
        },
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": GENERATION,
            "fingerprint": {
                **TEXT,
                "description": "Of which selector and keys expectedPods was counted.",
            },
            "allowed": {
                **TEXT,
                "description": "What is allowed in each domain, in one line; updates only means"
                " that evictions of pods of the newest revision are not limited.",
            },
            "domains": _list_map("domain", domain),
            "conditions": _conditions(),
        },
    }


def _conditions() -> Obj:
    condition = {
        "type": "object",
        "required": ["type", "status", "reason", "lastTransitionTime"],
        "properties": {
            "type": TEXT,
            "status": {**TEXT, "enum": ["True", "False", "Unknown"]},
            "reason": TEXT,
            "message": TEXT,
            "observedGeneration": GENERATION,
            "lastTransitionTime": {**TEXT, "format": "date-time"},
        },
    }
    return _list_map("type", condition)


def _list_map(key: str, items: Obj) -> Obj:
    return {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
        "items": items,
    }


def _ledger_definition() -> Obj:
    grant = {
        "type": "object",
        "required": ["uid", "pod", "time"],
        "properties": {"uid": TEXT, "pod": TEXT, "time": {**TEXT, "format": "date-time"}},
    }
    spec = {
        "type": "object",
        "properties": {
            "grants": {"type": "array", "x-kubernetes-list-type": "atomic", "items": grant},
            "judged": {"type": "object", "additionalProperties": TEXT},
        },
    }
    schema = {
        "type": "object",
        "description": "What was granted in a namespace; written by Zonewise only.",
        "properties": {"spec": spec},
    }
    resource = DisruptionLedger.resource
    columns = [_column("Age", ".metadata.creationTimestamp", "date")]
    return _definition(resource.kind, resource.plural, [], schema, columns=columns)


def _rollout_definition() -> Obj:
    columns = [
        _column("Kind", ".spec.workloadRef.kind", "string"),
        _column("Workload", ".spec.workloadRef.name", "string"),
        _column("Done", ".status.progress", "string"),
        _column("Domain", ".status.domain", "string"),
        _column("State", ".status.reason", "string"),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    schema = {
        "type": "object",
        "description": "A workload is updated one failure domain after the other.",
        "required": ["spec"],
        "x-kubernetes-validations": [
            {
                "rule": "size(self.metadata.name) <= 240",
                "message": "the name may have at most 240 characters: its budget is named after it",
            }
        ],
        "properties": {"spec": _rollout_spec(), "status": _rollout_status()},
    }
    resource = DomainRollout.resource
    return _definition(
        resource.kind, resource.plural, ["dro"], schema, columns=columns, subresource=True
    )


def _rollout_spec() -> Obj:
    name: Obj = {**TEXT, "minLength": 1, "maxLength": 253}
    fixed = [{"rule": "self == oldSelf", "message": "cannot be changed; create another rollout"}]
    workload = {
        "type": "object",
        "description": "The workload whose pods are updated; in the same namespace.",
        "required": ["kind", "name"],
        "x-kubernetes-validations": fixed,
        "properties": {
            "kind": {**TEXT, "enum": ["Deployment", "StatefulSet", "DaemonSet"]},
            "name": name,
        },
    }
    order = {
        "type": "object",
        "description": "Which domain comes first; without it, the one with the fewest pods.",
        "x-kubernetes-validations": [
            {
                "rule": "!(has(self.domains) && has(self.nodeLabel))",
                "message": "give one of domains and nodeLabel",
            }
        ],
        "properties": {
            "domains": {
                "description": "In this order; those that are not named come after them.",
                "type": "array",
                "minItems": 1,
                "maxItems": 256,
                "x-kubernetes-list-type": "set",
                "items": {**TEXT, "minLength": 1, "maxLength": VALUE_LENGTH},
            },
            "nodeLabel": {
                "description": "By the values of this label of the domains' nodes.",
                **TEXT,
                "minLength": 1,
                "maxLength": KEY_LENGTH,
            },
        },
    }
    max_unavailable = {
        "description": "How many pods of the open domain may be unavailable during an update,"
        " also if the workload's own strategy allows more.",
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "default": 1,
        "x-kubernetes-validations": [
            {
                "rule": "type(self) == int ? self >= 1 :"
                f" self.matches('{PERCENT}') && !self.matches('^0+%$')",
                "message": "must be a number of pods from 1, or 1% to 100%",
            }
        ],
    }
    return {
        "type": "object",
        "required": ["workloadRef"],
        "properties": {
            "workloadRef": workload,
            "topologyKey": {
                "description": "The node label whose values name the domains.",
                **TEXT,
                "default": DEFAULT_KEY,
                "minLength": 1,
                "maxLength": KEY_LENGTH,
                "x-kubernetes-validations": fixed,
            },
            "order": order,
            "maxUnavailable": max_unavailable,
            "pauseSeconds": {
                "description": "How long to wait between two domains.",
                **COUNT,
                "minimum": 0,
                "default": 0,
            },
            "paused": {
                "description": "Nothing more is updated while this is set.",
                "type": "boolean",
                "default": False,
            },
        },
    }


def _rollout_status() -> Obj:
    domain = {
        "type": "object",
        "required": ["domain"],
        "properties": {
            "domain": TEXT,
            "state": {**TEXT, "enum": ["Done", "Doing", "Next", "Later"]},
            "pods": COUNT,
            "updated": COUNT,
            "ready": COUNT,
            "finishedAt": {**TEXT, "format": "date-time"},
        },
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": GENERATION,
            "domain": {**TEXT, "description": "The domain that is being worked on."},
            "progress": {**TEXT, "description": "How many domains are done, of how many."},
            "reason": {**TEXT, "description": "Why the rollout is where it is."},
            "domains": _list_map("domain", domain),
            "conditions": _conditions(),
        },
    }


def _definition(
    kind: str,
    plural: str,
    short: list[str],
    schema: Obj,
    *,
    columns: list[Obj],
    subresource: bool = False,
) -> Obj:
    version: Obj = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _add_descriptions(schema, "", DESCRIPTIONS[kind])},
        "additionalPrinterColumns": columns,
    }
    if subresource:
        version["subresources"] = {"status": {}}
    names: Obj = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
    }
    if short:
        names["shortNames"] = short
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _choice(*values: str) -> Obj:
    return {**TEXT, "enum": list(values), "default": values[0]}


def _column(name: str, path: str, kind: str, *, priority: int = 0) -> Obj:
    column: Obj = {"name": name, "type": kind, "jsonPath": path}
    return column | ({"priority": priority} if priority else {})


def _add_descriptions(schema: Obj, path: str, texts: Mapping[str, str]) -> Obj:
    """The schema with a description of every field; existing ones stay."""
    described = dict(schema)
    if path in texts:
        described.setdefault("description", texts[path])
    if "properties" in described:
        described["properties"] = {
            name: _add_descriptions(value, f"{path}.{name}".removeprefix("."), texts)
            for name, value in described["properties"].items()
        }
    if isinstance(described.get("items"), dict):
        described["items"] = _add_descriptions(described["items"], f"{path}[]", texts)
    return described
