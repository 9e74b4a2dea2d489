"""Custom resources: served by what their definition says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.talking import Api
from tests.contract.waiting import established, reached, until

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


APPROVED = "api-approved.kubernetes.io"
APPROVALS: dict[str, str | None] = {
    "missing": None,
    "empty": "",
    "link": "https://github.com/kubernetes/enhancements/pull/1111",
    "path": "/pull/1111",
    "excuse": "unapproved, it is a test",
    "words": "surely",
}


@pytest.mark.parametrize("what", APPROVALS)
@pytest.mark.parametrize("family", ["k8s.io", "kubernetes.io"])
def test_approval(api: Api, what: str, family: str) -> None:
    """A group of Kubernetes' own needs somebody's approval, or an excuse, and says which."""
    group = f"{api.ns}.{family}"
    schema = {"openAPIV3Schema": {"type": "object"}}
    text = APPROVALS[what]
    body: Obj = {
        "metadata": {
            "name": f"doors.{group}",
            "annotations": {} if text is None else {APPROVED: text},
        },
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": "doors", "kind": "Door"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = api.create(definitions, body)
    assert (made.status == 201) == (what in {"link", "excuse"})
    if made.status != 201:
        api.note("message", made.body["message"])
        return
    own = f"{definitions}/doors.{group}"

    def conditions(count: int) -> list[Obj]:
        found: list[Obj] = []

        def all_there() -> bool:
            found[:] = api.get(own, quiet=True).body["status"].get("conditions") or []
            return len([one for one in found if one["reason"] != "Installing"]) == count

        until(all_there)
        return sorted(found, key=lambda one: str(one["type"]))

    api.note("conditions", conditions(3))
    assert api.patch(own, {"metadata": {"annotations": {APPROVED: None}}}).status == 422
    changed = {"metadata": {"annotations": {APPROVED: "unapproved, still"}}}
    assert api.patch(own, changed, quiet=True).status == 200
    until(lambda: "unapproved, still" in str(conditions(3)))
    api.note("conditions", conditions(3))


RULES = (
    "self.metadata.name.size() < 5",
    "self.metadata.name == 'x'",
    "self.metadata.name.matches('^a+$')",
    "!self.metadata.name.contains('x')",
    "self.metadata.name.contains(self.metadata.name)",
    "self.spec.n.contains(self.metadata.name)",
    "self.metadata.name.split('.').size() < 4",
    "self.metadata.name.lowerAscii() == 'a'",
    "self.spec.l.all(x, x != self.metadata.name)",
    "self.spec.l.exists(x, x.contains(self.metadata.name))",
    "self.metadata.generateName.find('a') == 'a'",
    "self.kind.matches('a')",
    "self.apiVersion.contains(self.kind)",
    "self.metadata.namespace == 'a'",
    "self.inner.metadata.name.matches('^a')",
    "self.inner.metadata.name.contains(self.metadata.name)",
    "self.?spec.n == optional.none()",
    "self.?spec.n == null",
    "self.?spec.n != null",
    "null == self.?spec.n",
    "self.?spec.n.orValue('') == null",
    "self.spec.?n.hasValue() || self.spec.?n == null",
    "self.spec.n == null",
    "self.spec.l == null",
    "optional.of(1) == null",
    "optional.none() == null",
    "optional.of(1) == 1",
    "self.?spec.n in [null]",
    "self.?spec.?n != null ? true : false",
    "self.spec == null",
    "self.metadata != null",
    "duration('1s') == null",
    "timestamp('2020-01-01T00:00:00Z') == null",
    "quantity('1') == null",
    "ip('::1') == null",
    "url('https://a.example') == null",
    "[1] == null",
    "{'a': 1} == null",
    "type(1) == null",
    "true == null",
    "[optional.of(1), null] == []",
    "true ? optional.of(1) == null : null == null",
)
METADATA: dict[str, Obj | None] = {
    "without": None,
    "plain": {"type": "object"},
    "bounded": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "generateName": {"type": "string", "maxLength": 20},
        },
    },
}


@pytest.mark.parametrize("metadata", METADATA)
def test_rules_of_every_object(api: Api, metadata: str) -> None:
    """What rules say of names costs as much as the longest of them; null is no optional's value."""
    text = {"type": "string", "maxLength": 10}
    spec = {"n": text, "l": {"type": "array", "maxItems": 100, "items": text}}
    inner = {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    properties: Obj = {"spec": {"type": "object", "properties": spec}, "inner": inner}
    if METADATA[metadata] is not None:
        properties["metadata"] = METADATA[metadata]
    for rule in RULES:
        schema = {
            "type": "object",
            "properties": properties,
            "x-kubernetes-validations": [{"rule": rule}],
        }
        group = f"{api.ns}.example"
        body: Obj = {
            "metadata": {"name": f"doors.{group}"},
            "spec": {
                "group": group,
                "scope": "Cluster",
                "names": {"plural": "doors", "kind": "Door"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                    }
                ],
            },
        }
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        made = api.create(definitions, body, quiet=True, dryRun="All")
        api.note(rule, [made.status, made.causes])


NULLS = (
    "self.?spec.n == null",
    "self.?spec.n != null",
    "self.?spec.none == null",
    "self.?spec.none != null",
    "self.spec == null",
    "self.spec != null",
    "optional.none() == null",
    "self.?spec.n in [null]",
)


def test_nulls(api: Api) -> None:
    """Neither an optional that has a value nor one that has none is null."""
    text = {"type": "string", "maxLength": 10}
    rules = [{"rule": rule, "message": rule} for rule in NULLS]
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"n": text, "none": text}}},
        "x-kubernetes-validations": rules,
    }
    path = define(api, schema={"openAPIV3Schema": schema})
    answer = api.create(path, {**widget(api, "a"), "spec": {"n": "x"}})
    api.note("message", answer.body["message"])


SELECTED = {"selectableFields": [{"jsonPath": ".spec.nothing"}]}
COLUMN = {"additionalPrinterColumns": [{"name": "a", "type": "x", "jsonPath": "b"}]}


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        ({"preserveUnknownFields": True}, {}),
        ({}, SELECTED),
        ({}, COLUMN),
        ({}, {"subresources": {"scale": {}}}),
    ],
    ids=("preserved", "selected", "column", "scale"),
)
def test_definitions_refused(api: Api, spec: Obj, version: Obj) -> None:
    """Definitions whose fields, columns or paths lead nowhere."""
    group = f"{api.ns}.example"
    schema = {"openAPIV3Schema": SCHEMA}
    one = {"name": "v1", "served": True, "storage": True, "schema": schema, **version}
    other = {"openAPIV3Schema": {**SCHEMA, "description": "another one"}}
    more = {"name": "v2", "served": True, "storage": False, "schema": other}
    names = {"plural": "widgets", "kind": "Widget"}
    for versions in ([one], [one, more]):
        body = {"group": group, "scope": "Namespaced", "names": names, "versions": versions, **spec}
        api.create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            {"metadata": {"name": f"widgets.{group}"}, "spec": body},
            dryRun="All",
        )


def test_finalizers(api: Api) -> None:
    """A finalizer that anybody could use is warned about once; an unknown subresource is none."""
    path = define(api)
    body = widget(api, "a")
    body["metadata"]["finalizers"] = ["plain", "example.com/mine", "orphan"]
    api.note("warnings", api.create(path, body).warnings)
    for finalizers in (["plain", "other", "more"], ["plain"], []):
        patch = {"metadata": {"finalizers": finalizers}}
        api.note("warnings", api.patch(f"{path}/a", patch).warnings)
    api.get(f"{path}/a/nothing")
