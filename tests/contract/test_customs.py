"""Custom resources: served by what their definition says."""

from __future__ import annotations

from typing import Any

from tests.contract.talking import Api
from tests.contract.waiting import established, reached

Obj = dict[str, Any]
SCHEMA: Obj = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "replicas": {"type": "integer", "default": 1},
                "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "nullable": True},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "either": {"x-kubernetes-int-or-string": True},
                "parts": {
                    "type": "array",
                    "maxItems": 3,
                    "items": {
                        "type": "object",
                        "required": ["key"],
                        "properties": {"key": {"type": "string"}, "value": {"type": "string"}},
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["key"],
                },
                "fixed": {
                    "type": "string",
                    "x-kubernetes-validations": [
                        {"rule": "self == oldSelf", "message": "fixed is fixed"}
                    ],
                },
            },
            "x-kubernetes-validations": [
                {"rule": "self.size < 8 || self.color == 'blue'", "message": "large is blue"}
            ],
        },
        "status": {
            "type": "object",
            "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}},
        },
    },
}


def define(api: Api, **version: Any) -> str:
    """Define Widgets in a group of the test's own; gives their path."""
    group = f"{api.ns}.example"
    versions = [
        {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": SCHEMA},
            **version,
        },
        {
            "name": "v2",
            "served": True,
            "storage": False,
            "schema": {"openAPIV3Schema": SCHEMA},
            **version,
        },
    ]
    body = {
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": versions,
        },
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.made(definitions, body, quiet=True)
    established(api, f"{definitions}/widgets.{group}")
    path = f"/apis/{group}/v1/namespaces/{api.ns}/widgets"
    reached(api, path, 200)
    reached(api, path.replace("/v1/", "/v2/"), 200)
    return path


def widget(api: Api, which: str, version: str = "v1", **spec: Any) -> Obj:
    """A Widget."""
    head = {"apiVersion": f"{api.ns}.example/{version}", "kind": "Widget"}
    return {**head, "metadata": {"name": which}, "spec": {"size": 1, **spec}}


def test_verbs(api: Api) -> None:
    """All verbs but the strategic patch; generation counts, a version is needed to replace."""
    path = define(api)
    made = api.made(path, widget(api, "a"))
    own = f"{path}/a"
    assert api.create(path, widget(api, "a")).status == 409
    api.get(own)
    api.get(path)
    assert api.put(own, made.body).version == made.version
    unversioned = widget(api, "a", size=2)
    assert api.put(own, unversioned).status == 422
    api.put(own, {**made.body, "spec": {"size": 3}})
    assert api.put(own, made.body).status == 409
    api.patch(own, {"spec": {"size": 4}})
    api.patch(own, [{"op": "replace", "path": "/spec/size", "value": 5}], "json")
    assert api.patch(own, {"spec": {"size": 4}}, "strategic").status == 415
    api.managed = True
    api.apply(own, widget(api, "a", color="blue"))
    api.apply(own, widget(api, "a", size=6), "two")
    api.apply(own, widget(api, "a", size=6, parts=[{"key": "k"}]), "two", force="true")
    api.apply(own, widget(api, "a", size=6, parts=[{"key": "l"}]), "three")
    api.managed = False
    api.patch(own, {"status": {"replicas": 3}})
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/test"]}})
    api.delete(own)
    api.get(own)
    api.patch(own, {"metadata": {"finalizers": None}})
    api.made(path, widget(api, "b"))
    api.delete(f"{path}/b", {"preconditions": {"uid": "x"}})
    assert api.delete(f"{path}/b").body["kind"] == "Status"
    api.create(path, {**widget(api, "c"), "kind": "Other"})
    api.create(path, {"metadata": {"name": "c"}, "spec": {"size": 1}})
    api.create(path, {**widget(api, "c"), "metadata": {"name": "C_c"}})
    api.put(f"{path}/missing", widget(api, "missing"))
    api.get(f"{own}/status")
    api.get(f"{own}/scale")


SPECS: list[Obj] = [
    {"size": 0},
    {"size": 10},
    {"size": "x"},
    {"size": None},
    {"color": "green"},
    {"color": None},
    {"name": None},
    {"name": "UPPER"},
    {"name": "toolong"},
    {"either": "x"},
    {"either": True},
    {"any": {"whatever": [1, {"a": 1}]}},
    {"unknown": 1, "parts": [{"key": "a", "odd": 1}]},
    {"parts": [{"key": "a"}, {"key": "a"}]},
    {"parts": [{"value": "a"}]},
    {"parts": [{"key": k} for k in "abcd"]},
    {"size": 8},
    {"size": 8, "color": "blue"},
    {"replicas": 2.5},
    {"replicas": 3.0},
]


def test_schema(api: Api) -> None:
    """Defaults, pruning, bounds and rules of the schema hold."""
    path = define(api)
    for number, spec in enumerate(SPECS):
        api.create(path, widget(api, f"a{number}", **spec), fieldValidation="Strict")
        api.create(path, widget(api, f"b{number}", **spec))


def test_transitions(api: Api) -> None:
    """A rule about the old value speaks only when there is one."""
    path = define(api)
    api.made(path, widget(api, "a", fixed="x"))
    assert api.patch(f"{path}/a", {"spec": {"fixed": "y"}}).status == 422
    api.patch(f"{path}/a", {"spec": {"fixed": None}})
    api.patch(f"{path}/a", {"spec": {"fixed": "z"}})
    api.patch(f"{path}/a", {"spec": None})
    api.patch(f"{path}/a", {"spec": {"color": None}})


def test_subresources(api: Api) -> None:
    """Status and scale are apart once the definition says so."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    path = define(api, subresources={"status": {}, "scale": scale})
    body = {**widget(api, "a"), "status": {"replicas": 7}}
    made = api.made(path, body)
    assert "status" not in made.body
    own = f"{path}/a"
    api.patch(own, {"status": {"replicas": 3}})
    api.patch(f"{own}/status", {"status": {"replicas": 3, "selector": "a=b"}, "spec": {"size": 9}})
    api.put(f"{own}/status", {**made.body, "status": {"replicas": 1}})
    api.get(f"{own}/status")
    api.get(f"{own}/scale")
    api.patch(f"{own}/scale", {"spec": {"replicas": 5}})
    api.patch(f"{own}/scale", {"spec": {"replicas": -1}})
    api.get(own)
    api.patch(f"{own}/status", {"status": {"replicas": "x"}})
    api.apply(f"{own}/status", {**widget(api, "a"), "status": {"replicas": 2}})


def test_versions(api: Api) -> None:
    """An object is seen in every served version, as one object."""
    path = define(api)
    made = api.made(path, widget(api, "a"))
    other = path.replace("/v1/", "/v2/")
    seen = api.get(f"{other}/a")
    assert seen.body["apiVersion"].endswith("/v2")
    assert seen.version == made.version
    api.create(other, widget(api, "b", "v2"))
    api.get(path)
    api.create(path, widget(api, "c", "v2"))
    watch = api.watch(other, resourceVersion=made.version)
    assert [one.object["apiVersion"] for one in watch.take(1)] == [f"{api.ns}.example/v2"]
    api.get(path.replace("/v1/", "/v3/"))
    api.get(f"/apis/{api.ns}.example/v1", quiet=True)


def test_columns(api: Api) -> None:
    """Printer columns are cells of the table."""
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
        {"name": "None", "type": "string", "jsonPath": ".spec.none"},
        {"name": "Part", "type": "string", "jsonPath": ".spec.parts[0].key"},
    ]
    path = define(api, additionalPrinterColumns=columns)
    api.made(path, widget(api, "a", parts=[{"key": "k"}]))
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = api.get(path, headers=accept, quiet=True).body
    keys = ("name", "type", "format", "priority")
    api.note("columns", [[one[key] for key in keys] for one in table["columnDefinitions"]])
    api.note("cells", [row["cells"] for row in table["rows"]])


def test_selectable_fields(api: Api) -> None:
    """Fields of the definition's choice can be selected by."""
    path = define(api, selectableFields=[{"jsonPath": ".spec.color"}])
    api.made(path, widget(api, "a"))
    api.made(path, widget(api, "b", color="blue"))
    assert api.get(path, fieldSelector="spec.color=blue").names == ["b"]
    assert api.get(path, fieldSelector="spec.size=1").status == 400


def test_end(api: Api) -> None:
    """With the definition go its objects and its paths."""
    path = define(api)
    api.made(path, widget(api, "a"))
    api.delete(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{api.ns}.example",
        quiet=True,
    )
    reached(api, path, 404)
