"""OpenAPI documents: what kubectl and generators read from them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.embedded.machinery.schema.by_path import by_path

from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.discovery.openapi import OpenApiDocuments
from zonewise.embedded.apiserver.request.call import Answer, Call, User
from zonewise.embedded.machinery.schema.kinds import Kind, served_kinds
from zonewise.embedded.machinery.schema.schema import ANY

KINDS = served_kinds()
REF = "#/components/schemas/"
CUSTOM = Kind(
    resource=Resource("example.com", "v1", "Sample", "samples", True),
    singular="sample",
    list_kind="SampleList",
    verbs=("create", "get", "list", "patch"),
    build_schema=lambda: ANY,
    storage="example.com/samples",
    custom=True,
    openapi_schema={
        "type": "object",
        "description": "A sample",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "inner": {"type": "object", "x-kubernetes-embedded-resource": True},
                    "items": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                },
            }
        },
    },
)


def ask(documents: OpenApiDocuments, path: str, query: str = "", **headers: str) -> Answer | None:
    """The answer to a GET."""
    parameters = {"hash": query} if query else {}
    call = Call(method="GET", path=path, user=User("x"), headers=headers, query=parameters)
    return documents.answer(path, call)


def document(name: str, *kinds: Kind) -> Any:
    """One decoded document."""
    response = ask(OpenApiDocuments(kinds or KINDS), f"/openapi/v3/{name}")
    assert response is not None
    return json.loads(response.body)


def references(value: Any) -> set[str]:
    """All names that a document refers to."""
    if isinstance(value, dict):
        own = {value["$ref"].removeprefix(REF)} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("name", sorted({kind.resource.root[1:] for kind in KINDS}))
def test_a_document_is_complete(name: str) -> None:
    """Every reference can be resolved, and every kind is found by group, version and kind."""
    openapi = document(name)
    schemas = openapi["components"]["schemas"]
    assert references(openapi) <= schemas.keys()
    named = [
        tuple(gvk.values())
        for schema in schemas.values()
        for gvk in schema.get("x-kubernetes-group-version-kind", ())
    ]
    for kind in KINDS:
        if kind.resource.root[1:] == name:
            resource = kind.resource
            assert named.count((resource.group, resource.version, resource.kind)) == 1


def test_kubectl_finds_the_parameter_it_asks_for() -> None:
    """PATCH of every kind has the parameter fieldValidation."""
    for name in ("api/v1", "apis/apps/v1"):
        for path, operations in document(name)["paths"].items():
            patch = operations.get("patch")
            if patch is not None:
                names = {parameter["name"] for parameter in patch["parameters"]}
                assert {"fieldValidation", "dryRun", "force"} <= names, path
                assert patch["x-kubernetes-action"] == "patch"
                assert patch["x-kubernetes-group-version-kind"]["kind"]


def test_fields_carry_what_merging_needs() -> None:
    """List types, keys and patch strategies are published as by a real server."""
    schemas = document("api/v1")["components"]["schemas"]
    ports = schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"]
    assert ports["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
    assert ports["x-kubernetes-patch-merge-key"] == "containerPort"
    volumes = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"]
    assert volumes["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    claim = schemas["io.k8s.api.core.v1.PersistentVolumeSpec"]["properties"]["claimRef"]
    assert claim["x-kubernetes-map-type"] == "granular"
    assert schemas["io.k8s.api.core.v1.ObjectReference"]["x-kubernetes-map-type"] == "atomic"


def test_scalars_with_names_are_described() -> None:
    """Quantities, times and ports have the types that generators expect."""
    schemas = document("api/v1")["components"]["schemas"]
    assert schemas["io.k8s.apimachinery.pkg.apis.meta.v1.Time"] == {
        "type": "string",
        "format": "date-time",
    }
    assert schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"] == {
        "oneOf": [{"type": "string"}, {"type": "number"}]
    }
    assert schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]["format"] == "int-or-string"


def test_custom_resources_are_published_as_written() -> None:
    """A custom resource is published with its definition's schema and descriptions, and the
    metadata of every object.
    """
    schemas = document("apis/example.com/v1", CUSTOM)["components"]["schemas"]
    sample = schemas["com.example.v1.Sample"]
    assert sample["description"] == "A sample"
    assert sample["properties"]["spec"]["properties"]["items"]["items"]["minimum"] == 1
    meta = {"allOf": [{"$ref": REF + "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]}
    assert sample["properties"]["metadata"] == meta
    inner = sample["properties"]["spec"]["properties"]["inner"]
    assert inner["properties"]["metadata"] == meta
    assert schemas["com.example.v1.SampleList"]["x-kubernetes-group-version-kind"] == [
        {"group": "example.com", "version": "v1", "kind": "SampleList"}
    ]


def test_fields_of_the_sources_are_published() -> None:
    """`kubectl explain service.spec.trafficPolicy` works on the embedded server."""
    schemas = document("api/v1")["components"]["schemas"]
    spec = schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]
    assert spec["trafficPolicy"]["enum"] == ["Cluster", "Local", "PreferZone"]
    budget = document("apis/policy/v1beta1")["components"]["schemas"]
    assert (
        "nodeSelectorTerm"
        in (budget["io.k8s.api.policy.v1beta1.PodDisruptionBudgetSpec"]["properties"])
    )


def test_the_index_names_each_document_with_its_hash() -> None:
    """A hash changes with its document and only then, so the document may be cached."""
    response = ask(OpenApiDocuments(KINDS), "/openapi/v3")
    assert response is not None
    index = json.loads(response.body)["paths"]
    url = index["apis/apps/v1"]["serverRelativeURL"]
    path, _, tag = url.partition("?hash=")
    cacheable = ask(OpenApiDocuments(KINDS), path, tag)
    assert cacheable is not None
    assert cacheable.headers["Cache-Control"] == "public, immutable"
    unchanged = ask(OpenApiDocuments(KINDS), path, **{"if-none-match": f'"{tag}"'})
    assert unchanged is not None
    assert unchanged.status == 304
    fewer = tuple(kind for kind in KINDS if kind.resource.plural != "daemonsets")
    changed = ask(OpenApiDocuments(fewer), "/openapi/v3")
    assert changed is not None
    others = json.loads(changed.body)["paths"]
    assert others["apis/apps/v1"] != index["apis/apps/v1"]
    assert others["api/v1"] == index["api/v1"]


def test_unknown_documents_are_not_found() -> None:
    """Only groups and versions that are served have a document."""
    documents = OpenApiDocuments([by_path(KINDS)["", "v1", "pods"]])
    assert ask(documents, "/openapi/v3/apis/apps/v1") is None
    assert ask(documents, "/openapi") is None


def test_version_2_is_there_and_empty() -> None:
    """If kubectl looks for an unknown kind, it finds a version 2 without definitions."""
    documents = OpenApiDocuments([by_path(KINDS)["", "v1", "pods"]])
    answer = ask(documents, "/openapi/v2")
    assert answer is not None
    assert answer.body.startswith(b"\x0a\x032.0")
