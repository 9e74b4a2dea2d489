"""Custom resources: served by what their definition says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.talking import Api
from tests.contract.waiting import until, wait_for_status, wait_until_established

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
    api.create(definitions, body, quiet=True, expect="201 Created")
    wait_until_established(api, f"{definitions}/widgets.{group}")
    path = f"/apis/{group}/v1/namespaces/{api.ns}/widgets"
    wait_for_status(api, path, 200)
    wait_for_status(api, path.replace("/v1/", "/v2/"), 200)
    return path


def widget(api: Api, which: str, version: str = "v1", **spec: Any) -> Obj:
    """A Widget."""
    head = {"apiVersion": f"{api.ns}.example/{version}", "kind": "Widget"}
    return {**head, "metadata": {"name": which}, "spec": {"size": 1, **spec}}


def test_verbs(api: Api) -> None:
    """All verbs but the strategic patch work; generations count; a PUT needs a version."""
    path = define(api)
    created = api.create(path, widget(api, "a"), expect="201 Created")
    own = f"{path}/a"
    api.create(path, widget(api, "a"), expect="409 AlreadyExists")
    api.get(own, expect="200 OK")
    api.get(path, expect="200 OK")
    assert api.put(own, created.body).version == created.version
    unversioned = widget(api, "a", size=2)
    api.put(own, unversioned, expect="422 Invalid")
    api.put(own, {**created.body, "spec": {"size": 3}}, expect="200 OK")
    api.put(own, created.body, expect="409 Conflict")
    api.patch(own, {"spec": {"size": 4}}, expect="200 OK")
    api.patch(own, [{"op": "replace", "path": "/spec/size", "value": 5}], "json", expect="200 OK")
    api.patch(own, {"spec": {"size": 4}}, "strategic", expect="415 UnsupportedMediaType")
    api.managed = True
    api.apply(own, widget(api, "a", color="blue"), expect="409 Conflict")
    api.apply(own, widget(api, "a", size=6), "two", expect="409 Conflict")
    api.apply(
        own, widget(api, "a", size=6, parts=[{"key": "k"}]), "two", force="true", expect="200 OK"
    )
    api.apply(own, widget(api, "a", size=6, parts=[{"key": "l"}]), "three", expect="200 OK")
    api.managed = False
    api.patch(own, {"status": {"replicas": 3}}, expect="200 OK")
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/test"]}}, expect="200 OK")
    api.delete(own, expect="200 OK")
    api.get(own, expect="200 OK")
    api.patch(own, {"metadata": {"finalizers": None}}, expect="200 OK")
    api.create(path, widget(api, "b"), expect="201 Created")
    api.delete(f"{path}/b", {"preconditions": {"uid": "x"}}, expect="409 Conflict")
    assert api.delete(f"{path}/b").body["kind"] == "Status"
    api.create(path, {**widget(api, "c"), "kind": "Other"}, expect="422 Invalid")
    api.create(path, {"metadata": {"name": "c"}, "spec": {"size": 1}}, expect="400 BadRequest")
    api.create(path, {**widget(api, "c"), "metadata": {"name": "C_c"}}, expect="422 Invalid")
    api.put(f"{path}/missing", widget(api, "missing"), expect="404 NotFound")
    api.get(f"{own}/status", expect="404 NotFound")
    api.get(f"{own}/scale", expect="404 NotFound")


SPECS: list[tuple[Obj, str]] = [
    ({"size": 0}, "422 Invalid"),
    ({"size": 10}, "422 Invalid"),
    ({"size": "x"}, "422 Invalid"),
    ({"size": None}, "422 Invalid"),
    ({"color": "green"}, "422 Invalid"),
    ({"color": None}, "201 Created"),
    ({"name": None}, "201 Created"),
    ({"name": "UPPER"}, "422 Invalid"),
    ({"name": "toolong"}, "422 Invalid"),
    ({"either": "x"}, "201 Created"),
    ({"either": True}, "422 Invalid"),
    ({"any": {"whatever": [1, {"a": 1}]}}, "201 Created"),
    ({"unknown": 1, "parts": [{"key": "a", "odd": 1}]}, "201 Created"),
    ({"parts": [{"key": "a"}, {"key": "a"}]}, "422 Invalid"),
    ({"parts": [{"value": "a"}]}, "422 Invalid"),
    ({"parts": [{"key": k} for k in "abcd"]}, "422 Invalid"),
    ({"size": 8}, "422 Invalid"),
    ({"size": 8, "color": "blue"}, "201 Created"),
    ({"replicas": 2.5}, "422 Invalid"),
    ({"replicas": 3.0}, "201 Created"),
]
UNKNOWN_FIELDS = 12
"""The spec whose unknown fields are dropped, or refused where validation is strict."""


def test_schema(api: Api) -> None:
    """Defaults, pruning, bounds and rules of the schema hold."""
    path = define(api)
    for number, (spec, expected) in enumerate(SPECS):
        strict = "400 BadRequest" if number == UNKNOWN_FIELDS else expected
        api.create(path, widget(api, f"a{number}", **spec), fieldValidation="Strict", expect=strict)
        api.create(path, widget(api, f"b{number}", **spec), expect=expected)


def test_transitions(api: Api) -> None:
    """A rule about the old value applies only to updates."""
    path = define(api)
    api.create(path, widget(api, "a", fixed="x"), expect="201 Created")
    api.patch(f"{path}/a", {"spec": {"fixed": "y"}}, expect="422 Invalid")
    api.patch(f"{path}/a", {"spec": {"fixed": None}}, expect="200 OK")
    api.patch(f"{path}/a", {"spec": {"fixed": "z"}}, expect="200 OK")
    api.patch(f"{path}/a", {"spec": None}, expect="200 OK")
    api.patch(f"{path}/a", {"spec": {"color": None}}, expect="422 Invalid")


def test_subresources(api: Api) -> None:
    """Status and scale are subresources if the definition says so."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    path = define(api, subresources={"status": {}, "scale": scale})
    body = {**widget(api, "a"), "status": {"replicas": 7}}
    created = api.create(path, body, expect="201 Created")
    assert "status" not in created.body
    own = f"{path}/a"
    api.patch(own, {"status": {"replicas": 3}}, expect="200 OK")
    api.patch(
        f"{own}/status",
        {"status": {"replicas": 3, "selector": "a=b"}, "spec": {"size": 9}},
        expect="200 OK",
    )
    api.put(f"{own}/status", {**created.body, "status": {"replicas": 1}}, expect="409 Conflict")
    api.get(f"{own}/status", expect="200 OK")
    api.get(f"{own}/scale", expect="200 OK")
    api.patch(f"{own}/scale", {"spec": {"replicas": 5}}, expect="200 OK")
    api.patch(f"{own}/scale", {"spec": {"replicas": -1}}, expect="422 Invalid")
    api.get(own, expect="200 OK")
    api.patch(f"{own}/status", {"status": {"replicas": "x"}}, expect="422 Invalid")
    api.apply(
        f"{own}/status", {**widget(api, "a"), "status": {"replicas": 2}}, expect="409 Conflict"
    )


def test_versions(api: Api) -> None:
    """An object can be read in every served version."""
    path = define(api)
    created = api.create(path, widget(api, "a"), expect="201 Created")
    other = path.replace("/v1/", "/v2/")
    seen = api.get(f"{other}/a", expect="200 OK")
    assert seen.body["apiVersion"].endswith("/v2")
    assert seen.version == created.version
    api.create(other, widget(api, "b", "v2"), expect="201 Created")
    api.get(path, expect="200 OK")
    api.create(path, widget(api, "c", "v2"), expect="400 BadRequest")
    watch = api.watch(other, resourceVersion=created.version)
    assert [event.object["apiVersion"] for event in watch.take(1)] == [f"{api.ns}.example/v2"]
    api.get(path.replace("/v1/", "/v3/"), expect="404 Not Found")
    api.get(f"/apis/{api.ns}.example/v1", quiet=True, expect="200 OK")


def test_columns(api: Api) -> None:
    """Printer columns are cells of the table."""
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
        {"name": "None", "type": "string", "jsonPath": ".spec.none"},
        {"name": "Part", "type": "string", "jsonPath": ".spec.parts[0].key"},
    ]
    path = define(api, additionalPrinterColumns=columns)
    api.create(path, widget(api, "a", parts=[{"key": "k"}]), expect="201 Created")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = api.get(path, headers=accept, quiet=True).body
    keys = ("name", "type", "format", "priority")
    api.note("columns", [[column[key] for key in keys] for column in table["columnDefinitions"]])
    api.note("cells", [row["cells"] for row in table["rows"]])


def test_selectable_fields(api: Api) -> None:
    """Objects can be selected by the fields that the definition lists."""
    path = define(api, selectableFields=[{"jsonPath": ".spec.color"}])
    api.create(path, widget(api, "a"), expect="201 Created")
    api.create(path, widget(api, "b", color="blue"), expect="201 Created")
    assert api.get(path, fieldSelector="spec.color=blue").names == ["b"]
    api.get(path, fieldSelector="spec.size=1", expect="400 BadRequest")


def test_end(api: Api) -> None:
    """Deleting a definition deletes its objects and its paths."""
    path = define(api)
    api.create(path, widget(api, "a"), expect="201 Created")
    api.delete(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{api.ns}.example",
        quiet=True,
        expect="200 OK",
    )
    wait_for_status(api, path, 404)


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
    """A group of Kubernetes' own needs the annotation of an approval, and shows its state."""
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
    if what not in {"link", "excuse"}:
        refused = api.create(definitions, body, expect="422 Invalid")
        api.note("message", refused.message)
        return
    api.create(definitions, body, expect="201 Created")
    own = f"{definitions}/doors.{group}"

    def conditions(count: int) -> list[Obj]:
        current: list[Obj] = []

        def all_there() -> bool:
            current[:] = api.get(own, quiet=True).body["status"].get("conditions") or []
            return (
                len([condition for condition in current if condition["reason"] != "Installing"])
                == count
            )

        until(all_there)
        return sorted(current, key=lambda condition: str(condition["type"]))

    api.note("conditions", conditions(3))
    api.patch(own, {"metadata": {"annotations": {APPROVED: None}}}, expect="422 Invalid")
    changed = {"metadata": {"annotations": {APPROVED: "unapproved, still"}}}
    api.patch(own, changed, quiet=True, expect="200 OK")
    until(lambda: "unapproved, still" in str(conditions(3)))
    api.note("conditions", conditions(3))


RULES = {
    "self.metadata.name.size() < 5": "201 Created",
    "self.metadata.name == 'x'": "201 Created",
    "self.metadata.name.matches('^a+$')": "201 Created",
    "!self.metadata.name.contains('x')": "201 Created",
    "self.metadata.name.contains(self.metadata.name)": "422 Invalid",
    "self.spec.n.contains(self.metadata.name)": "201 Created",
    "self.metadata.name.split('.').size() < 4": "201 Created",
    "self.metadata.name.lowerAscii() == 'a'": "201 Created",
    "self.spec.l.all(x, x != self.metadata.name)": "201 Created",
    "self.spec.l.exists(x, x.contains(self.metadata.name))": "422 Invalid",
    "self.metadata.generateName.find('a') == 'a'": "201 Created",
    "self.kind.matches('a')": "201 Created",
    "self.apiVersion.contains(self.kind)": "422 Invalid",
    "self.metadata.namespace == 'a'": "422 Invalid",
    "self.inner.metadata.name.matches('^a')": "201 Created",
    "self.inner.metadata.name.contains(self.metadata.name)": "422 Invalid",
    "self.?spec.n == optional.none()": "201 Created",
    "self.?spec.n == null": "201 Created",
    "self.?spec.n != null": "201 Created",
    "null == self.?spec.n": "201 Created",
    "self.?spec.n.orValue('') == null": "422 Invalid",
    "self.spec.?n.hasValue() || self.spec.?n == null": "201 Created",
    "self.spec.n == null": "422 Invalid",
    "self.spec.l == null": "422 Invalid",
    "optional.of(1) == null": "201 Created",
    "optional.none() == null": "201 Created",
    "optional.of(1) == 1": "422 Invalid",
    "self.?spec.n in [null]": "201 Created",
    "self.?spec.?n != null ? true : false": "201 Created",
    "self.spec == null": "201 Created",
    "self.metadata != null": "201 Created",
    "duration('1s') == null": "201 Created",
    "timestamp('2020-01-01T00:00:00Z') == null": "201 Created",
    "quantity('1') == null": "201 Created",
    "ip('::1') == null": "201 Created",
    "url('https://a.example') == null": "201 Created",
    "[1] == null": "422 Invalid",
    "{'a': 1} == null": "422 Invalid",
    "type(1) == null": "422 Invalid",
    "true == null": "422 Invalid",
    "[optional.of(1), null] == []": "422 Invalid",
    "true ? optional.of(1) == null : null == null": "201 Created",
}
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
    """The cost of rules on names counts the longest name; an optional is never equal to null."""
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
    for rule, expected in RULES.items():
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
        answer = api.create(definitions, body, quiet=True, dryRun="All", expect=expected)
        api.note(rule, [answer.status, answer.causes])


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
    answer = api.create(path, {**widget(api, "a"), "spec": {"n": "x"}}, expect="422 Invalid")
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
    """Definitions with invalid selectable fields, columns or scale paths are refused."""
    group = f"{api.ns}.example"
    schema = {"openAPIV3Schema": SCHEMA}
    first = {"name": "v1", "served": True, "storage": True, "schema": schema, **version}
    other = {"openAPIV3Schema": {**SCHEMA, "description": "another one"}}
    more = {"name": "v2", "served": True, "storage": False, "schema": other}
    names = {"plural": "widgets", "kind": "Widget"}
    for versions in ([first], [first, more]):
        body = {"group": group, "scope": "Namespaced", "names": names, "versions": versions, **spec}
        api.create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            {"metadata": {"name": f"widgets.{group}"}, "spec": body},
            dryRun="All",
            expect="422 Invalid",
        )


def test_finalizers(api: Api) -> None:
    """A finalizer without a domain is warned about when it is added."""
    path = define(api)
    body = widget(api, "a")
    body["metadata"]["finalizers"] = ["plain", "example.com/mine", "orphan"]
    created = api.create(path, body, expect="201 Created")
    assert len(created.warnings) == 1
    api.note("warnings", created.warnings)
    for finalizers, unqualified in ((["plain", "other", "more"], 2), (["plain"], 0), ([], 0)):
        patch = {"metadata": {"finalizers": finalizers}}
        answer = api.patch(f"{path}/a", patch, expect="200 OK")
        assert len(answer.warnings) == unqualified, finalizers
        api.note("warnings", answer.warnings)
    api.get(f"{path}/a/nothing", expect="404 NotFound")
