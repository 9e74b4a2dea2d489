"""Warnings: what is accepted, and said to be odd, old or without effect."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.samples import BY_KIND, POD_SPEC, SELECTOR, TEMPLATE
from tests.contract.talking import Api
from tests.contract.waiting import established, reached

Obj = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def warned(api: Api, method: str, path: str, body: Any = None, **more: Any) -> list[str]:
    """Ask, and note the warnings word by word."""
    answer = api.ask(method, path, body, quiet=True, **more)
    assert answer.status < 300, answer.text
    found = sorted(answer.warnings)
    api.note(f"{method} {path.replace(api.ns, 'NS')}", found)
    return found


def test_old_kinds(api: Api) -> None:
    """Whoever uses Endpoints or ComponentStatuses, in any way, hears what to use instead."""
    path = f"{api.core}/endpoints"
    body = {"metadata": {"name": "a"}, "subsets": []}
    said = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    assert warned(api, "POST", path, body) == [f'299 - "{said}"']
    warned(api, "GET", path)
    warned(api, "GET", path, headers=TABLE)
    warned(api, "GET", f"{path}/a")
    warned(api, "GET", "/api/v1/endpoints")
    warned(api, "PUT", f"{path}/a", body)
    warned(api, "PATCH", f"{path}/a", {"metadata": {"labels": {"a": "b"}}}, type=MERGE)
    warned(api, "DELETE", f"{path}/a")
    warned(api, "DELETE", path)
    warned(api, "GET", "/api/v1/componentstatuses")
    warned(api, "GET", "/api/v1/componentstatuses/etcd-0")
    found = api.get("/api/v1/componentstatuses", quiet=True).body["items"]
    api.note("components", sorted(found, key=lambda one: str(one["metadata"]["name"])))
    api.get("/api/v1/componentstatuses", fieldSelector="metadata.name=etcd-0")
    api.get("/api/v1/componentstatuses", labelSelector="a=b")
    api.get("/api/v1/componentstatuses/etcd-0")
    api.get("/api/v1/componentstatuses/none")
    missing = api.get(f"{path}/none", quiet=True)
    api.note("missing", [missing.status, missing.warnings])
    warned(api, "GET", f"{api.core}/services")


MERGE = "application/merge-patch+json"
SERVICES: dict[str, Obj] = {
    "external": {"externalIPs": ["192.0.2.7"]},
    "headless": {"clusterIP": "None", "externalIPs": ["192.0.2.7"]},
    "affine": {"clusterIP": "None", "sessionAffinity": "ClientIP"},
    "balanced": {"clusterIP": "None", "loadBalancerIP": "192.0.2.7"},
    "named": {"type": "ExternalName", "externalName": "a.example", "externalIPs": ["192.0.2.7"]},
    "unnamed": {"externalName": "a.example"},
    "close": {"trafficDistribution": "PreferClose"},
    "zoned": {"trafficDistribution": "PreferSameZone"},
    "zeros": {"type": "LoadBalancer", "loadBalancerIP": "192.0.02.7"},
    "six": {"externalIPs": ["2001:DB8::1"]},
    "mapped": {"externalIPs": ["::ffff:192.0.2.7"]},
    "ranges": {
        "type": "LoadBalancer",
        "loadBalancerSourceRanges": ["2001:DB8::/32", "10.0.0.0/8"],
    },
    "bits": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.7/24"]},
}


def test_services(api: Api) -> None:
    """Services hear of addresses that are old, oddly written or without effect."""
    path = f"{api.core}/services"
    for name, spec in SERVICES.items():
        body = {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}
        answer = api.create(path, body, quiet=True)
        api.note(name, [answer.status, answer.causes, sorted(answer.warnings)])
    notes = {"service.kubernetes.io/topology-aware-hints": "auto"}
    body = {"metadata": {"name": "hints", "annotations": notes}, "spec": {"ports": [{"port": 80}]}}
    warned(api, "POST", path, body)
    warned(api, "PATCH", f"{path}/hints", {"metadata": {"labels": {"a": "b"}}}, type=MERGE)
    warned(api, "PATCH", f"{path}/affine", {"metadata": {"labels": {"a": "b"}}}, type=MERGE)
    warned(api, "GET", f"{path}/affine")


def test_ingresses(api: Api) -> None:
    """The class of an Ingress is a field; who creates it with the old annotation hears so."""
    path = f"{api.group('networking.k8s.io/v1')}/ingresses"
    backend = {"service": {"name": "a", "port": {"number": 80}}}
    meta = {"name": "a", "annotations": {"kubernetes.io/ingress.class": "nginx"}}
    warned(api, "POST", path, {"metadata": meta, "spec": {"defaultBackend": backend}})
    warned(api, "PATCH", f"{path}/a", {"metadata": {"labels": {"a": "b"}}}, type=MERGE)


def test_storage(api: Api) -> None:
    """Volumes and claims hear of annotations that are fields now, and of old sources."""
    old = {"volume.beta.kubernetes.io/storage-class": "fast"}
    claims = f"{api.core}/persistentvolumeclaims"
    spec = BY_KIND["PersistentVolumeClaim"].fields["spec"]
    body: Obj = {"metadata": {"name": "a", "annotations": old}, "spec": spec}
    warned(api, "POST", claims, body)
    warned(api, "PATCH", f"{claims}/a", {"metadata": {"labels": {"a": "b"}}}, type=MERGE)
    part = {"requests": {"storage": "1500m"}}
    warned(api, "POST", claims, {"metadata": {"name": "b"}, "spec": {**spec, "resources": part}})
    volumes = "/api/v1/persistentvolumes"
    spec = BY_KIND["PersistentVolume"].fields["spec"]
    mount = {"volume.beta.kubernetes.io/mount-options": "ro"}
    base = {key: spec[key] for key in ("capacity", "accessModes")}
    term = {"key": "failure-domain.beta.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    cases: list[tuple[Obj, Obj]] = [
        (old | mount, {"nfs": {"server": "a", "path": "/"}}),
        ({}, {"hostPath": {"path": "/x"}, "persistentVolumeReclaimPolicy": "Recycle"}),
        ({}, {"rbd": {"monitors": ["a"], "image": "i"}}),
        ({}, {"cephfs": {"monitors": ["a"]}}),
        ({}, {"glusterfs": {"endpoints": "a", "path": "p"}}),
        ({}, {"hostPath": {"path": "/x"}, "nodeAffinity": {"required": required}}),
    ]
    for number, (notes, more) in enumerate(cases):
        meta = {"name": f"{api.ns}-{number}", "annotations": notes}
        warned(api, "POST", volumes, {"metadata": meta, "spec": {**base, **more}})
        api.delete(f"{volumes}/{api.ns}-{number}", quiet=True)
    topology = [{"matchLabelExpressions": [{"key": term["key"], "values": ["a"]}]}]
    warned(
        api,
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses",
        {"metadata": {"name": api.ns}, "provisioner": "a.example", "allowedTopologies": topology},
    )


LABELS = (
    "node-role.kubernetes.io/master",
    "app.kubernetes.io/created-by",
    "scheduler.alpha.kubernetes.io/preferAvoidPods",
    "beta.kubernetes.io/os",
)


@pytest.mark.parametrize("label", LABELS)
def test_old_labels(api: Api, label: str) -> None:
    """Pods, and what makes pods, hear of labels that nodes will not have for ever."""
    spec = {**POD_SPEC, "nodeSelector": {label: ""}}
    warned(api, "POST", f"{api.core}/pods", {"metadata": {"name": "a"}, "spec": spec})
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "nodeSelector": {label: ""}}}
    warned(
        api,
        "POST",
        f"{api.group('apps/v1')}/deployments",
        {"metadata": {"name": "a"}, "spec": {"selector": SELECTOR, "template": template}},
    )
    term = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = {**POD_SPEC, "affinity": {"nodeAffinity": required}}
    warned(api, "POST", f"{api.core}/pods", {"metadata": {"name": "b"}, "spec": spec})


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
    """A version that is deprecated says so, in its own words or in the server's."""
    said = "use v2, it is nicer"
    versions = [
        version("v1", storage=True, deprecated=True),
        version("v1beta1", deprecated=True, deprecationWarning=said),
        version("v2beta1"),
        version("v2"),
        version("v3alpha1", deprecated=True),
    ]
    api.made(DEFINITIONS, definition(api, versions), quiet=True)
    established(api, f"{DEFINITIONS}/doors.{api.ns}.example")
    for name in ("v1", "v1beta1", "v2", "v3alpha1"):
        path = f"/apis/{api.ns}.example/{name}/namespaces/{api.ns}/doors"
        reached(api, path, 200)
        head = {"apiVersion": f"{api.ns}.example/{name}", "kind": "Door"}
        warned(api, "POST", path, {**head, "metadata": {"name": name}, "spec": {}})
        warned(api, "GET", path)
        warned(api, "GET", f"{path}/{name}")
        warned(api, "DELETE", f"{path}/{name}")
    bad = version("v1", storage=True, deprecationWarning="none")
    api.create(DEFINITIONS, definition(api, [bad]), dryRun="All")
    for text in ("", "x" * 257, "a\nb"):
        bad = version("v1", storage=True, deprecated=True, deprecationWarning=text)
        api.create(DEFINITIONS, definition(api, [bad]), dryRun="All")


FORMATS: list[Obj] = [
    {"type": "string", "format": "made-up"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "k8s-short-name"},
    {"type": "string", "format": "k8s-long-name"},
    {"type": "string", "format": "int32"},
    {"type": "integer", "format": "int32"},
    {"type": "integer", "format": "uint32"},
    {"type": "number", "format": "double"},
    {"type": "number", "format": "int32"},
    {"type": "boolean", "format": "truth"},
    {"type": "array", "items": {"type": "string", "format": "deep"}},
    {"type": "object", "additionalProperties": {"type": "string", "format": "deeper"}},
    {"type": "object", "format": "mess", "properties": {"a": {"type": "string", "format": "x"}}},
    {"type": "string", "anyOf": [{"format": "either"}, {"format": "uri"}]},
]


@pytest.mark.parametrize("number", range(len(FORMATS)))
def test_formats(api: Api, number: int) -> None:
    """A format that means nothing is named, once, when it comes."""
    properties = {"a": FORMATS[number], "b": FORMATS[number]}
    schema = {"type": "object", "properties": properties}
    body = definition(api, [version("v1", schema, storage=True)])
    warned(api, "POST", DEFINITIONS, body)
    own = f"{DEFINITIONS}/doors.{api.ns}.example"
    warned(api, "PATCH", own, {"metadata": {"labels": {"a": "b"}}}, type=MERGE)
    properties["c"] = {"type": "string", "format": "new"}
    changed = {"versions": [version("v1", schema, storage=True)]}
    warned(api, "PATCH", own, {"spec": changed}, type=MERGE)
