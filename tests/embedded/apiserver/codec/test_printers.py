"""Tables: durations, and cells with special rules."""

from __future__ import annotations

from typing import Any

import pytest
from tests.embedded.machinery.schema.by_path import by_path

from zonewise.embedded.apiserver.codec.printers.base import PRINTERS, format_duration
from zonewise.embedded.apiserver.codec.table import printer_of
from zonewise.embedded.machinery.schema.kinds import served_kinds

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
    """A duration has two units at most."""
    assert format_duration(seconds) == text


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


def test_a_kind_without_a_printer_has_columns_of_every_object_only() -> None:
    """All other columns have a printer: `<none>` never means a missing one."""
    plain = {"Name", "Age", "Created At"}
    missing = {
        kind.storage
        for kind in served_kinds()
        if kind.storage not in PRINTERS and "get" in kind.verbs
        for column in kind.columns
        if column.name not in plain
    }
    assert missing == set()


def test_a_pod_that_is_being_deleted() -> None:
    """A pod with a deletion timestamp is Terminating, whatever its phase."""
    pod = {
        "metadata": {"deletionTimestamp": NOW},
        "spec": {"containers": [{"name": "a"}]},
        "status": {"phase": "Running"},
    }
    assert cells("", "v1", "pods", pod)["Status"] == "Terminating"


def test_a_pod_that_crashes() -> None:
    """The reason why a container waits is the pod's status; restarts show how long ago."""
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
    row = cells("", "v1", "pods", pod)
    assert row["Status"] == "CrashLoopBackOff"
    assert row["Ready"] == "1/2"
    assert row["Restarts"] == "3 (60s ago)"


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
    """Unknown values are shown as such; from the third metric on only the number is shown."""
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
    row = cells("autoscaling", "v2", "horizontalpodautoscalers", {"spec": spec, "status": status})
    assert row["Reference"] == "Deployment/web"
    assert row["Targets"] == "cpu: 35%/80%, <unknown>/5 + 1 more..."
    assert (row["MinPods"], row["MaxPods"], row["Replicas"]) == ("<unset>", 9, 2)


@pytest.mark.parametrize(
    ("condition", "row"),
    [
        (("Healthy", "True", "ok"), {"Status": "Healthy", "Message": "ok", "Error": ""}),
        (("Healthy", "False", "no"), {"Status": "Unhealthy", "Message": "no", "Error": ""}),
        (("Other", "True", "ok"), {"Status": "Unknown", "Message": "", "Error": ""}),
    ],
)
def test_components_are_healthy_or_not(
    condition: tuple[str, str, str], row: dict[str, str]
) -> None:
    """`kubectl get cs` shows the state of each component, and its message."""
    kind, status, message = condition
    component = {"conditions": [{"type": kind, "status": status, "message": message}]}
    assert cells("", "v1", "componentstatuses", component) == {"Name": "x", **row}


@pytest.mark.parametrize(
    ("plural", "rules", "column"),
    [
        ("validatingadmissionpolicies", "validations", "Validations"),
        ("mutatingadmissionpolicies", "mutations", "Mutations"),
    ],
)
def test_policies_count_their_rules(plural: str, rules: str, column: str) -> None:
    """A policy shows how many rules it has, and which kind parameterizes it, if any does."""
    group = "admissionregistration.k8s.io"
    spec: dict[str, Any] = {rules: [{}, {}], "variables": [{}]}
    row = {"Name": "x", column: 2, "ParamKind": "<unset>", "Age": "10m"}
    assert cells(group, "v1", plural, {"spec": spec}) == row
    spec["paramKind"] = {"apiVersion": "v1", "kind": "ConfigMap"}
    assert cells(group, "v1", plural, {"spec": spec}) == {**row, "ParamKind": "v1/ConfigMap"}
    assert cells(group, "v1", plural, {"spec": {}})[column] == 0


@pytest.mark.parametrize(
    ("parameters", "rendered"),
    [
        (None, "<unset>"),
        ({}, "<unset>"),
        ({"name": "p", "namespace": "n"}, "n/p"),
        ({"name": "p"}, "*/p"),
        (
            {"selector": {}},
            "&LabelSelector{MatchLabels:map[string]string{},"
            "MatchExpressions:[]LabelSelectorRequirement{},}",
        ),
        (
            {
                "selector": {
                    "matchLabels": {"b": "2", "a": "1"},
                    "matchExpressions": [
                        {"key": "k", "operator": "In", "values": ["x", "y"]},
                        {"key": "l", "operator": "Exists"},
                    ],
                }
            },
            "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},"
            "MatchExpressions:[]LabelSelectorRequirement{"
            "LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},"
            "LabelSelectorRequirement{Key:l,Operator:Exists,Values:[],},},}",
        ),
    ],
)
@pytest.mark.parametrize("sort", ["validating", "mutating"])
def test_bindings_name_their_policy_and_parameters(
    sort: str, parameters: dict[str, Any] | None, rendered: str
) -> None:
    """Parameters are shown with a namespace, `*` if there is none; a selector as Go prints it."""
    spec = {"policyName": "p"} | ({} if parameters is None else {"paramRef": parameters})
    group, plural = "admissionregistration.k8s.io", f"{sort}admissionpolicybindings"
    row = {"Name": "x", "PolicyName": "p", "ParamRef": rendered, "Age": "10m"}
    assert cells(group, "v1", plural, {"spec": spec}) == row


@pytest.mark.parametrize(
    ("deleted", "status", "state"),
    [
        (False, None, "pending"),
        (False, {"allocation": {}}, "allocated"),
        (False, {"allocation": {}, "reservedFor": [{"name": "p"}]}, "allocated,reserved"),
        (False, {"reservedFor": [{"name": "p"}]}, "pending"),
        (True, None, "deleted"),
        (True, {"allocation": {}, "reservedFor": [{"name": "p"}]}, "deleted,allocated,reserved"),
    ],
)
def test_the_state_of_a_claim_for_devices(
    deleted: bool, status: dict[str, Any] | None, state: str
) -> None:
    """A claim is pending, allocated or reserved for pods; deletion is shown first."""
    obj: dict[str, Any] = {"metadata": {"deletionTimestamp": NOW} if deleted else {}}
    if status is not None:
        obj["status"] = status
    row = {"Name": "x", "State": state, "Age": "10m"}
    assert cells("resource.k8s.io", "v1", "resourceclaims", obj) == row


def test_slices_of_devices() -> None:
    """A slice shows its driver and pool, and its node if the devices are on one."""
    spec: dict[str, Any] = {"driver": "d.example.com", "pool": {"name": "p"}, "allNodes": True}
    row = {"Name": "x", "Node": "", "Driver": "d.example.com", "Pool": "p", "Age": "10m"}
    assert cells("resource.k8s.io", "v1", "resourceslices", {"spec": spec}) == row
    spec["nodeName"] = "n1"
    assert cells("resource.k8s.io", "v1", "resourceslices", {"spec": spec}) == {**row, "Node": "n1"}


@pytest.mark.parametrize(
    ("spec", "conditions", "service", "available"),
    [
        ({}, [{"type": "Available", "status": "True", "reason": "Local"}], "Local", "True"),
        (
            {"service": {"namespace": "n", "name": "s"}},
            [{"type": "Available", "status": "False", "reason": "ServiceNotFound"}],
            "n/s",
            "False (ServiceNotFound)",
        ),
        ({}, [{"type": "Available", "status": "False"}], "Local", "False"),
        ({}, [{"type": "Other", "status": "True"}], "Local", "Unknown"),
    ],
)
def test_services_of_apis_are_available_or_say_why_not(
    spec: dict[str, Any], conditions: list[dict[str, str]], service: str, available: str
) -> None:
    """`kubectl get apiservices` shows the server of an API, and why it is not available."""
    api_service = {"spec": spec, "status": {"conditions": conditions}}
    row = {"Name": "x", "Service": service, "Available": available, "Age": "10m"}
    assert cells("apiregistration.k8s.io", "v1", "apiservices", api_service) == row
