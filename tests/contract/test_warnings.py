"""Warnings: what is accepted although it is unusual, old or without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.samples import BY_KIND, POD_SPEC, SELECTOR, TEMPLATE
from tests.contract.talking import Api
from tests.contract.waiting import wait_for_status, wait_until_established

Obj = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LABELLED = {"metadata": {"labels": {"a": "b"}}}
MERGE = "application/merge-patch+json"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def expect_warnings(
    api: Api, warnings: list[str], method: str, path: str, body: Any = None, **more: Any
) -> None:
    """Send a request that succeeds, with exactly these warnings."""
    outcome = "201 Created" if method == "POST" else "200 OK"
    answer = api.ask(method, path, body, quiet=True, expect=outcome, **more)
    assert sorted(answer.warnings) == [f"299 - {json.dumps(text)}" for text in warnings]
    api.note(f"{method} {path.replace(api.ns, 'NS')}", sorted(answer.warnings))


def test_old_kinds(api: Api) -> None:
    """Every request for Endpoints or ComponentStatuses is answered with what to use instead."""
    path = f"{api.core}/endpoints"
    body = {"metadata": {"name": "a"}, "subsets": []}
    old = ["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"]
    expect_warnings(api, old, "POST", path, body)
    expect_warnings(api, old, "GET", path)
    expect_warnings(api, old, "GET", path, headers=TABLE)
    expect_warnings(api, old, "GET", f"{path}/a")
    expect_warnings(api, old, "GET", "/api/v1/endpoints")
    expect_warnings(api, old, "PUT", f"{path}/a", body)
    expect_warnings(api, old, "PATCH", f"{path}/a", LABELLED, type=MERGE)
    expect_warnings(api, old, "DELETE", f"{path}/a")
    expect_warnings(api, old, "DELETE", path)
    statuses = "/api/v1/componentstatuses"
    expect_warnings(api, ["v1 ComponentStatus is deprecated in v1.19+"], "GET", statuses)
    etcd = f"{statuses}/etcd-0"
    expect_warnings(api, ["v1 ComponentStatus is deprecated in v1.19+"], "GET", etcd)
    components = api.get(statuses, quiet=True, expect="200 OK").body["items"]
    api.note("components", sorted(components, key=lambda item: str(item["metadata"]["name"])))
    api.get(statuses, fieldSelector="metadata.name=etcd-0", expect="200 OK")
    api.get(statuses, labelSelector="a=b", expect="200 OK")
    api.get(etcd, expect="200 OK")
    api.get(f"{statuses}/none", expect="404 NotFound")
    missing = api.get(f"{path}/none", quiet=True, expect="404 NotFound")
    assert len(missing.warnings) == 1
    api.note("missing", [missing.status, missing.warnings])
    expect_warnings(api, [], "GET", f"{api.core}/services")


UPPER_CASE = (
    'spec.externalIPs[0]: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format'
    ' ("2001:db8::1")'
)
UPPER_CASE_RANGE = (
    'spec.loadBalancerSourceRanges[0]: IPv6 CIDR value "2001:DB8::/32" should be in RFC 5952'
    ' canonical format ("2001:db8::/32")'
)
EXTERNAL = "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
SERVICES: dict[str, tuple[Obj, list[str] | None]] = {
    "external": ({"externalIPs": ["192.0.2.7"]}, [EXTERNAL]),
    "headless": (
        {"clusterIP": "None", "externalIPs": ["192.0.2.7"]},
        ["spec.externalIPs is ignored for headless services"],
    ),
    "affine": (
        {"clusterIP": "None", "sessionAffinity": "ClientIP"},
        ["spec.SessionAffinity is ignored for headless services"],
    ),
    "balanced": (
        {"clusterIP": "None", "loadBalancerIP": "192.0.2.7"},
        ["spec.loadBalancerIP is ignored for headless services"],
    ),
    "named": (
        {"type": "ExternalName", "externalName": "a.example", "externalIPs": ["192.0.2.7"]},
        ['spec.externalIPs is ignored when spec.type is "ExternalName"'],
    ),
    "unnamed": (
        {"externalName": "a.example"},
        ['spec.externalName is ignored when spec.type is not "ExternalName"'],
    ),
    "close": (
        {"trafficDistribution": "PreferClose"},
        ['spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'],
    ),
    "zoned": ({"trafficDistribution": "PreferSameZone"}, []),
    "zeros": (
        {"type": "LoadBalancer", "loadBalancerIP": "192.0.02.7"},
        ['spec.loadBalancerIP: non-standard IP address "192.0.02.7" is invalid: use "192.0.2.7"'],
    ),
    "six": ({"externalIPs": ["2001:DB8::1"]}, [EXTERNAL, UPPER_CASE]),
    "mapped": ({"externalIPs": ["::ffff:192.0.2.7"]}, None),
    "ranges": (
        {"type": "LoadBalancer", "loadBalancerSourceRanges": ["2001:DB8::/32", "10.0.0.0/8"]},
        [UPPER_CASE_RANGE],
    ),
    "bits": ({"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.7/24"]}, None),
}
"""Services by name: what is special in their spec, and the warnings; none if it is refused."""


def test_services(api: Api) -> None:
    """Addresses of Services that are old, unusually written or without effect are warned about."""
    path = f"{api.core}/services"
    for name, (spec, warnings) in SERVICES.items():
        body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}
        outcome = "422 Invalid" if warnings is None else "201 Created"
        answer = api.create(path, body, quiet=True, expect=outcome)
        assert sorted(answer.warnings) == [f"299 - {json.dumps(text)}" for text in warnings or ()]
        api.note(name, [answer.status, answer.causes, sorted(answer.warnings)])
    old, new = (f"service.kubernetes.io/topology-{name}" for name in ("aware-hints", "mode"))
    meta = {"name": "hints", "annotations": {old: "auto"}}
    hints = [f"annotation {old} is deprecated, please use {new} instead"]
    body = {"metadata": meta, "spec": {"ports": [{"port": 80}]}}
    expect_warnings(api, hints, "POST", path, body)
    expect_warnings(api, hints, "PATCH", f"{path}/hints", LABELLED, type=MERGE)
    affine = "spec.SessionAffinity is ignored for headless services"
    expect_warnings(api, [affine], "PATCH", f"{path}/affine", LABELLED, type=MERGE)
    expect_warnings(api, [], "GET", f"{path}/affine")


def test_ingresses(api: Api) -> None:
    """The class of an Ingress is a field; one created with the old annotation is warned about."""
    path = f"{api.group('networking.k8s.io/v1')}/ingresses"
    backend = {"service": {"name": "a", "port": {"number": 80}}}
    old = "kubernetes.io/ingress.class"
    warning = f"annotation \"{old}\" is deprecated, please use 'spec.ingressClassName' instead"
    meta = {"name": "a", "annotations": {old: "nginx"}}
    body = {"metadata": meta, "spec": {"defaultBackend": backend}}
    expect_warnings(api, [warning], "POST", path, body)
    expect_warnings(api, [], "PATCH", f"{path}/a", LABELLED, type=MERGE)


def test_storage(api: Api) -> None:
    """Annotations of volumes and claims that are fields now, and old sources, are warned about."""
    old, mount, zone = (
        "volume.beta.kubernetes.io/storage-class",
        "volume.beta.kubernetes.io/mount-options",
        "failure-domain.beta.kubernetes.io/zone",
    )
    annotations = "metadata.annotations"
    claims = f"{api.core}/persistentvolumeclaims"
    spec = BY_KIND["PersistentVolumeClaim"].fields["spec"]
    body: Obj = {"metadata": {"name": "a", "annotations": {old: "fast"}}, "spec": spec}
    claim = [
        f'{annotations}[{old}]: deprecated since v1.8; use "storageClassName" attribute instead'
    ]
    expect_warnings(api, claim, "POST", claims, body)
    expect_warnings(api, claim, "PATCH", f"{claims}/a", LABELLED, type=MERGE)
    fraction = (
        'spec.resources.requests[storage]: fractional byte value "1500m" is invalid, must be an'
        " integer"
    )
    body = {
        "metadata": {"name": "b"},
        "spec": {**spec, "resources": {"requests": {"storage": "1500m"}}},
    }
    expect_warnings(api, [fraction], "POST", claims, body)
    volumes = "/api/v1/persistentvolumes"
    spec = BY_KIND["PersistentVolume"].fields["spec"]
    base = {key: spec[key] for key in ("capacity", "accessModes")}
    term = {"key": zone, "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    use_zone = 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead'
    cases: list[tuple[Obj, Obj, list[str]]] = [
        (
            {old: "fast", mount: "ro"},
            {"nfs": {"server": "a", "path": "/"}},
            [
                f'{annotations}[{mount}]: deprecated since v1.31; use "mountOptions" attribute'
                " instead",
                f'{annotations}[{old}]: deprecated since v1.8; use "storageClassName" attribute'
                " instead",
            ],
        ),
        (
            {},
            {"hostPath": {"path": "/x"}, "persistentVolumeReclaimPolicy": "Recycle"},
            [
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated."
                " Instead, the recommended approach is to use dynamic provisioning."
            ],
        ),
        (
            {},
            {"rbd": {"monitors": ["a"], "image": "i"}},
            ["spec.rbd: deprecated in v1.28, non-functional in v1.31+"],
        ),
        (
            {},
            {"cephfs": {"monitors": ["a"]}},
            ["spec.cephfs: deprecated in v1.28, non-functional in v1.31+"],
        ),
        (
            {},
            {"glusterfs": {"endpoints": "a", "path": "p"}},
            ["spec.glusterfs: deprecated in v1.25, non-functional in v1.26+"],
        ),
        (
            {},
            {"hostPath": {"path": "/x"}, "nodeAffinity": {"required": required}},
            [
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key:"
                f" {zone} is {use_zone}"
            ],
        ),
    ]
    for number, (notes, more, warnings) in enumerate(cases):
        meta = {"name": f"{api.ns}-{number}", "annotations": notes}
        body = {"metadata": meta, "spec": {**base, **more}}
        expect_warnings(api, warnings, "POST", volumes, body)
        api.delete(f"{volumes}/{api.ns}-{number}", quiet=True, expect="200 OK")
    topology = [{"matchLabelExpressions": [{"key": zone, "values": ["a"]}]}]
    expect_warnings(
        api,
        [f"allowedTopologies[0].matchLabelExpressions[0].key: {use_zone}"],
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses",
        {"metadata": {"name": api.ns}, "provisioner": "a.example", "allowedTopologies": topology},
    )


OLD_LABELS = {
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": (
        "deprecated since v1.22; use Taints and Tolerations instead"
    ),
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
}
NODE_AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize("label", OLD_LABELS)
def test_old_labels(api: Api, label: str) -> None:
    """Pods and workloads that select nodes by an old label are warned about."""
    advice = OLD_LABELS[label]
    spec = {**POD_SPEC, "nodeSelector": {label: ""}}
    body = {"metadata": {"name": "a"}, "spec": spec}
    selector = f"spec.nodeSelector[{label}]: {advice}"
    expect_warnings(api, [selector], "POST", f"{api.core}/pods", body)
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "nodeSelector": {label: ""}}}
    expect_warnings(
        api,
        [f"spec.template.{selector}"],
        "POST",
        f"{api.group('apps/v1')}/deployments",
        {"metadata": {"name": "a"}, "spec": {"selector": SELECTOR, "template": template}},
    )
    term = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = {**POD_SPEC, "affinity": {"nodeAffinity": required}}
    key = f"{NODE_AFFINITY}.nodeSelectorTerms[0].matchExpressions[0].key"
    body = {"metadata": {"name": "b"}, "spec": spec}
    expect_warnings(api, [f"{key}: {label} is {advice}"], "POST", f"{api.core}/pods", body)


def definition(api: Api, versions: list[Obj], **meta: Any) -> Obj:
    """A definition of Doors in a group of the test's own."""
    group = f"{api.ns}.example"
    return {
        "metadata": {"name": f"doors.{group}", **meta},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "doors", "kind": "Door"},
            "versions": versions,
        },
    }


def version(name: str, schema: Obj | None = None, **more: Any) -> Obj:
    """One version of Doors."""
    whole = {"type": "object", "properties": {"spec": schema or {"type": "object"}}}
    return {
        "name": name,
        "served": True,
        "storage": False,
        "schema": {"openAPIV3Schema": whole},
        **more,
    }


def test_old_versions(api: Api) -> None:
    """A deprecated version is warned about, with the definition's words or the server's."""
    own_words = "use v2, it is nicer"
    versions = [
        version("v1", storage=True, deprecated=True),
        version("v1beta1", deprecated=True, deprecationWarning=own_words),
        version("v2beta1"),
        version("v2"),
        version("v3alpha1", deprecated=True),
    ]
    api.create(DEFINITIONS, definition(api, versions), quiet=True, expect="201 Created")
    wait_until_established(api, f"{DEFINITIONS}/doors.{api.ns}.example")
    group = f"{api.ns}.example"
    for name, warnings in (
        ("v1", [f"{group}/v1 Door is deprecated; use {group}/v2 Door"]),
        ("v1beta1", [own_words]),
        ("v2", []),
        ("v3alpha1", [f"{group}/v3alpha1 Door is deprecated; use {group}/v2 Door"]),
    ):
        path = f"/apis/{group}/{name}/namespaces/{api.ns}/doors"
        wait_for_status(api, path, 200)
        body = {"apiVersion": f"{group}/{name}", "kind": "Door", "metadata": {"name": name}}
        expect_warnings(api, warnings, "POST", path, {**body, "spec": {}})
        expect_warnings(api, warnings, "GET", path)
        expect_warnings(api, warnings, "GET", f"{path}/{name}")
        expect_warnings(api, warnings, "DELETE", f"{path}/{name}")
    bad = version("v1", storage=True, deprecationWarning="none")
    api.create(DEFINITIONS, definition(api, [bad]), dryRun="All", expect="422 Invalid")
    for text in ("", "x" * 257, "a\nb"):
        bad = version("v1", storage=True, deprecated=True, deprecationWarning=text)
        api.create(DEFINITIONS, definition(api, [bad]), dryRun="All", expect="422 Invalid")


FORMATS: list[tuple[Obj, list[str]]] = [
    ({"type": "string", "format": "made-up"}, ["made-up"]),
    ({"type": "string", "format": "date-time"}, []),
    ({"type": "string", "format": "k8s-short-name"}, []),
    ({"type": "string", "format": "k8s-long-name"}, []),
    ({"type": "string", "format": "int32"}, ["int32"]),
    ({"type": "integer", "format": "int32"}, []),
    ({"type": "integer", "format": "uint32"}, ["uint32"]),
    ({"type": "number", "format": "double"}, []),
    ({"type": "number", "format": "int32"}, ["int32"]),
    ({"type": "boolean", "format": "truth"}, ["truth"]),
    ({"type": "array", "items": {"type": "string", "format": "deep"}}, ["deep"]),
    (
        {"type": "object", "additionalProperties": {"type": "string", "format": "deeper"}},
        ["deeper"],
    ),
    (
        {
            "type": "object",
            "format": "mess",
            "properties": {"a": {"type": "string", "format": "x"}},
        },
        ["mess", "x"],
    ),
    ({"type": "string", "anyOf": [{"format": "either"}, {"format": "uri"}]}, ["either"]),
]


@pytest.mark.parametrize("number", range(len(FORMATS)))
def test_formats(api: Api, number: int) -> None:
    """An unknown format is warned about once, when it is new."""
    field, unknown = FORMATS[number]
    properties = {"a": field, "b": field}
    schema = {"type": "object", "properties": properties}
    body = definition(api, [version("v1", schema, storage=True)])
    warnings = [f'unrecognized format "{name}"' for name in unknown]
    expect_warnings(api, warnings, "POST", DEFINITIONS, body)
    own = f"{DEFINITIONS}/doors.{api.ns}.example"
    expect_warnings(api, [], "PATCH", own, LABELLED, type=MERGE)
    properties["c"] = {"type": "string", "format": "new"}
    changed = {"spec": {"versions": [version("v1", schema, storage=True)]}}
    expect_warnings(api, ['unrecognized format "new"'], "PATCH", own, changed, type=MERGE)
