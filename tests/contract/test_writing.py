"""Writes: names, versions, generations, bodies and what is refused of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.samples import BY_KIND, POD_SPEC, SELECTOR, TEMPLATE
from tests.contract.talking import PATCHES, Api

Obj = dict[str, Any]
STRICT: Obj = {"fieldValidation": "Strict"}


def test_generated_names(api: Api) -> None:
    """A generated name begins with the given prefix and is short enough."""
    path = f"{api.core}/configmaps"
    created = api.create(path, {"metadata": {"generateName": "some-"}}, expect="201 Created")
    assert created.meta["name"].startswith("some-")
    assert len(created.meta["name"]) == len("some-") + 5
    both = api.create(
        path, {"metadata": {"generateName": "some-", "name": "given"}}, expect="201 Created"
    )
    assert both.meta["name"] == "given"
    long = api.create(
        path, {"metadata": {"generateName": "x" * 300}}, quiet=True, expect="422 Invalid"
    )
    long = api.create(
        path, {"metadata": {"generateName": "x" * 200}}, quiet=True, expect="201 Created"
    )
    assert len(long.meta["name"]) == 63
    api.create(path, {"metadata": {"generateName": "Not_Good-"}}, quiet=True, expect="422 Invalid")
    api.create(path, {"metadata": {"generateName": "dry-"}}, dryRun="All", expect="201 Created")
    api.create(path, {"metadata": {"name": ""}}, expect="422 Invalid")
    api.create(path, {"metadata": {"name": "x" * 254}}, expect="422 Invalid")
    api.create(path, {"metadata": {"name": "a", "namespace": "another"}}, expect="400 BadRequest")
    api.create(
        path, {"metadata": {"name": "a", "labels": {"-bad": "x", "ok": "-"}}}, expect="422 Invalid"
    )
    api.create(
        path, {"metadata": {"name": "a", "annotations": {"bad key": "x"}}}, expect="422 Invalid"
    )
    api.create(
        path, {"metadata": {"name": "a", "finalizers": ["bad key", "plain"]}}, expect="422 Invalid"
    )


def test_owner_references(api: Api) -> None:
    """Owner references are validated; only one may be the controller."""
    path = f"{api.core}/configmaps"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-1"}
    for number, refs in enumerate(
        (
            [{"kind": "ConfigMap", "name": "o"}],
            [{**owner, "controller": True}, {**owner, "uid": "u-2", "controller": True}],
            [{**owner, "apiVersion": "a/b/c"}],
            [{**owner, "kind": "Event"}],
            [{**owner, "uid": ""}],
        )
    ):
        api.create(
            path,
            {"metadata": {"name": f"c{number}", "ownerReferences": refs}},
            expect="422 Invalid",
        )
    known = api.create(
        path, {"metadata": {"name": "o", "finalizers": ["zonewise.io/test"]}}, expect="201 Created"
    )
    real = {**owner, "uid": known.meta["uid"], "blockOwnerDeletion": True}
    child = api.create(
        path, {"metadata": {"name": "child", "ownerReferences": [real]}}, expect="201 Created"
    )
    assert child.meta["ownerReferences"][0]["blockOwnerDeletion"] is True


def test_owners_twice(api: Api) -> None:
    """An owner that is listed twice counts once, with a warning."""
    path = f"{api.core}/configmaps"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-1"}
    other = {**owner, "uid": "u-2"}
    for number, refs in enumerate(
        ([owner, owner], [owner, other, owner, other, owner], [owner, {**owner, "name": "p"}])
    ):
        created = api.create(
            path,
            {"metadata": {"name": f"a{number}", "ownerReferences": refs}},
            expect="201 Created",
        )
        api.note("warnings", created.warnings)
    body = api.create(path, {"metadata": {"name": "b"}}, quiet=True, expect="201 Created").body
    body["metadata"]["ownerReferences"] = [other, other]
    api.note("warnings", api.put(f"{path}/b", body).warnings)
    patch = {"metadata": {"ownerReferences": [owner, owner]}}
    api.note("warnings", api.patch(f"{path}/b", patch).warnings)


def test_odd_metadata(api: Api) -> None:
    """A negative generation and a dash as the prefix of a name are refused."""
    path = f"{api.core}/configmaps"
    api.create(path, {"metadata": {"name": "a", "generation": -1}}, expect="422 Invalid")
    dash = api.create(path, {"metadata": {"generateName": "-"}}, quiet=True, expect="422 Invalid")
    api.note("dash", [dash.status, dash.causes])


def test_no_change(api: Api) -> None:
    """A write that changes nothing keeps the version, whichever way it is written."""
    path = f"{api.core}/configmaps"
    created = api.create(
        path, {"metadata": {"name": "a"}, "data": {"x": "1"}}, expect="201 Created"
    )
    own = f"{path}/a"
    version = created.version
    assert api.put(own, created.body).version == version
    assert api.patch(own, {"data": {"x": "1"}}).version == version
    assert api.patch(own, {"data": {"x": "1"}}, "strategic").version == version
    assert api.patch(own, [], "json").version == version
    assert api.patch(own, {}).version == version
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    applied = api.apply(own, body, expect="200 OK")
    assert api.apply(own, body).version == applied.version


def test_generations(api: Api) -> None:
    """The generation counts changes that a controller acts on; which ones depends on the kind."""
    api.brief = True
    apps = api.group("apps/v1")
    slices = api.group("discovery.k8s.io/v1") + "/endpointslices"
    budgets = api.group("policy/v1") + "/poddisruptionbudgets"
    kinds: list[tuple[str, str, Obj]] = [
        (f"{apps}/deployments", "d", BY_KIND["Deployment"].fields),
        (f"{apps}/daemonsets", "d", BY_KIND["DaemonSet"].fields),
        (f"{apps}/statefulsets", "d", BY_KIND["StatefulSet"].fields),
        (f"{api.core}/pods", "p", {"spec": {**POD_SPEC, "nodeName": "n"}}),
        (slices, "s", BY_KIND["EndpointSlice"].fields),
        (budgets, "b", BY_KIND["PodDisruptionBudget"].fields),
        (f"{api.core}/services", "s", BY_KIND["Service"].fields),
    ]
    for path, name, fields in kinds:
        own = f"{path}/{name}"
        api.create(path, {"metadata": {"name": name}, **fields}, expect="201 Created")
        api.patch(own, {"metadata": {"labels": {"l": "1"}}}, expect="200 OK")
        api.patch(own, {"metadata": {"annotations": {"l": "1"}}}, expect="200 OK")
        api.patch(own, {"metadata": {"finalizers": ["zonewise.io/test"]}}, expect="200 OK")
        api.patch(own, {"metadata": {"generation": 77}}, expect="200 OK")
        api.delete(own, expect="200 OK")
        api.get(own, expect="200 OK")
    api.create(
        f"{apps}/deployments", {"metadata": {"name": "e"}, **kinds[0][2]}, expect="201 Created"
    )
    api.patch(f"{apps}/deployments/e", {"spec": {"replicas": 4}}, expect="200 OK")
    api.patch(f"{apps}/deployments/e/status", {"status": {"replicas": 4}}, expect="200 OK")
    api.patch(f"{apps}/deployments/e/scale", {"spec": {"replicas": 5}}, expect="200 OK")
    api.get(f"{apps}/deployments/e", expect="200 OK")


def test_micro_times(api: Api) -> None:
    """A Lease's times have six digits, or are refused."""
    path = api.group("coordination.k8s.io/v1") + "/leases"
    for number, (text, expected) in enumerate(
        (
            ("2024-01-02T03:04:05.000000Z", "201 Created"),
            ("2024-01-02T03:04:05Z", "400 BadRequest"),
            ("2024-01-02T03:04:05.123Z", "400 BadRequest"),
            ("2024-01-02T03:04:05.1234567Z", "400 BadRequest"),
            ("2024-01-02T03:04:05.000000+01:00", "201 Created"),
            ("yesterday", "400 BadRequest"),
        )
    ):
        body = {"metadata": {"name": f"l{number}"}, "spec": {"renewTime": text}}
        api.create(path, body, expect=expected)
    seen = api.get(f"{path}/l0", quiet=True).body
    assert seen["spec"]["renewTime"] == "2024-01-02T03:04:05.000000Z"


def test_put_creates_leases(api: Api) -> None:
    """A PUT of a missing Lease creates it; of a missing ConfigMap it does not."""
    path = api.group("coordination.k8s.io/v1") + "/leases/new"
    body = {"metadata": {"name": "new"}, "spec": {"holderIdentity": "me"}}
    api.put(path, body, dryRun="All", expect="201 Created")
    api.put(path, body, expect="201 Created")
    api.put(path, body, expect="422 Invalid")
    api.put(f"{api.core}/configmaps/new", {"metadata": {"name": "new"}}, expect="404 NotFound")
    wrong = {"metadata": {"name": "other", "resourceVersion": "5"}}
    api.put(f"{api.group('coordination.k8s.io/v1')}/leases/other", wrong, expect="201 Created")


def test_unknown_fields(api: Api) -> None:
    """Strict names every unknown and duplicate field, Warn warns of them, Ignore drops them."""
    path = f"{api.core}/configmaps"
    text = b'{"metadata":{"name":"%b","spices":1},"data":{"a":"1","a":"2"},"unknown":{"deep":1}}'
    strict = api.ask("POST", path, text % b"a", **STRICT, expect="400 BadRequest")
    for phrase in (
        'unknown field "metadata.spices"',
        'unknown field "unknown"',
        'duplicate field "data.a"',
    ):
        assert phrase in strict.message
    default = api.ask("POST", path, text % b"b", expect="201 Created")
    assert len(default.warnings) == 3
    assert default.body["data"] == {"a": "2"}
    assert api.ask("POST", path, text % b"c", fieldValidation="Warn").warnings
    assert not api.ask("POST", path, text % b"d", fieldValidation="Ignore").warnings
    api.ask("POST", path, text % b"e", fieldValidation="Nonsense", expect="422 Invalid")
    api.ask("PUT", f"{path}/b", text % b"b", **STRICT, expect="400 BadRequest")
    api.ask("PUT", f"{path}/b", text % b"b", expect="200 OK")
    for kind in ("merge", "strategic"):
        api.patch(
            f"{path}/b",
            {"unknown": 1, "metadata": {"spices": 2}},
            kind,
            **STRICT,
            expect="422 Invalid",
        )
        api.patch(f"{path}/b", {"unknown": 1}, kind, expect="200 OK")
        api.ask(
            "PATCH",
            f"{path}/b",
            b'{"data":{"a":"1","a":"2"}}',
            type=PATCHES[kind],
            **STRICT,
            expect="422 Invalid",
        )
    api.patch(
        f"{path}/b",
        [{"op": "add", "path": "/unknown", "value": 1}],
        "json",
        **STRICT,
        expect="422 Invalid",
    )
    whole = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "unknown": 1}
    api.apply(f"{path}/b", whole, **STRICT, expect="500 Internal Server Error")
    api.apply(f"{path}/b", whole, expect="500 Internal Server Error")
    yaml = b"metadata:\n  name: y\nunknown: 1\ndata:\n  a: x\n  a: z\n"
    api.ask("POST", path, yaml, type="application/yaml", **STRICT, expect="400 BadRequest")
    deep = {
        "spec": {"containers": [{"name": "c", "image": "i", "imge": "x", "ports": [{"prt": 1}]}]}
    }
    pod = api.create(
        f"{api.core}/pods", {"metadata": {"name": "p"}, **deep}, **STRICT, expect="400 BadRequest"
    )
    assert "spec.containers[0].imge" in pod.message


BODIES = {
    b"": "400 BadRequest",
    b"null": "422 Invalid",
    b"[]": "400 BadRequest",
    b"7": "400 BadRequest",
    b'"x"': "400 BadRequest",
    b"{": "400 BadRequest",
    b"{}": "422 Invalid",
    b'{"metadata":7}': "400 BadRequest",
    b'{"metadata":{"name":"a","labels":[]}}': "400 BadRequest",
    b'{"metadata":{"name":7}}': "400 BadRequest",
    b'{"metadata":{"name":"a"},"data":{"x":1}}': "400 BadRequest",
    b'{"metadata":{"name":"a"},"data":null,"immutable":null}': "201 Created",
    b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"}}': "400 BadRequest",
    b'{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"a"}}': "400 BadRequest",
    b'{"kind":"ConfigMap","apiVersion":"apps/v1","metadata":{"name":"a"}}': "400 BadRequest",
    b'{"kind":"ConfigMap","metadata":{"name":"a"}}': "201 Created",
    b'{"apiVersion":"v1","metadata":{"name":"a"}}': "201 Created",
    b'{"metadata":{"name":"a"}} trailing': "400 BadRequest",
    b'{"metadata":{"name":"a\xff"}}': "422 Invalid",
    b'{"metadata":{"name":"a","creationTimestamp":"yesterday"}}': "400 BadRequest",
    (
        b'{"metadata":{"name":"a","deletionTimestamp":"2024-01-01T00:00:00Z","uid":"mine"}}'
    ): "201 Created",
    b'{"metadata":{"name":"a","generation":9,"selfLink":"x"}}': "201 Created",
    b'{"Metadata":{"name":"a"}}': "422 Invalid",
}


@pytest.mark.parametrize(
    "text",
    BODIES,
    ids=lambda text: "".join(c if c.isalnum() else "." for c in text.decode("latin-1"))[:60],
)
def test_odd_bodies(api: Api, text: bytes) -> None:
    """A body that is not an object of the kind is refused."""
    api.ask("POST", f"{api.core}/configmaps", text, expect=BODIES[text])


def test_content_types(api: Api) -> None:
    """JSON and YAML are read and written; other media types are refused."""
    path = f"{api.core}/configmaps"
    yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: why\ndata:\n  a: 'y'\n"
    api.ask("POST", path, yaml, type="application/yaml", expect="201 Created")
    api.ask("POST", path, b"{}", type="text/plain", expect="415 UnsupportedMediaType")
    api.ask("POST", path, b"{}", type="application/xml", expect="415 UnsupportedMediaType")
    api.get(f"{path}/why", headers={"Accept": "application/xml"}, expect="406 NotAcceptable")
    api.get(f"{path}/why", headers={"Accept": "text/html, */*"}, expect="200 OK")
    api.get(f"{path}/why", headers={"Accept": ""}, expect="200 OK")
    as_yaml = api.get(
        f"{path}/why", headers={"Accept": "application/yaml"}, quiet=True, expect="200 OK"
    )
    assert as_yaml.headers["Content-Type"] == "application/yaml"
    assert b"kind: ConfigMap" in as_yaml.text
    assert api.patch(f"{path}/why", {}, "merge", headers={"Accept": "application/yaml"}, quiet=True)
    plain = api.ask(
        "POST",
        path,
        json.dumps({"metadata": {"name": "z"}}).encode(),
        type="",
        expect="201 Created",
    )
    api.note("no content type", plain.status)
    api.ask(
        "PATCH", f"{path}/why", b"{}", type="application/json", expect="415 UnsupportedMediaType"
    )
    charset = "application/json; charset=utf-8"
    api.ask("POST", path, b'{"metadata":{"name":"c"}}', type=charset, expect="201 Created")


def test_protobuf(api: Api) -> None:
    """The format of Go's clients is read for built-in kinds."""
    meta = b"\x0a\x04prot"
    config = b"\x0a" + bytes([len(meta)]) + meta + b"\x12\x06\x0a\x01k\x12\x01v"
    kind = b"\x0a\x02v1\x12\x09ConfigMap"
    unknown = b"\x0a" + bytes([len(kind)]) + kind + b"\x12" + bytes([len(config)]) + config
    body = b"k8s\x00" + unknown + b"\x1a\x00\x22\x00"
    created = api.ask(
        "POST",
        f"{api.core}/configmaps",
        body,
        type="application/vnd.kubernetes.protobuf",
        expect="201 Created",
    )
    assert created.body["data"] == {"k": "v"}


def test_sizes(api: Api) -> None:
    """A body above 3 MiB is too large; a ConfigMap above 1 MiB is invalid; just below is fine."""
    path = f"{api.core}/configmaps"
    fine = {"metadata": {"name": "fine"}, "data": {"a": "x" * (1024 * 1024 - 10)}}
    api.create(path, fine, quiet=True, expect="201 Created")
    large = {"metadata": {"name": "a"}, "data": {"a": "x" * (1024 * 1024 + 1)}}
    api.create(path, large, expect="422 Invalid")
    huge = {"metadata": {"name": "a"}, "data": {"a": "x" * (3 * 1024 * 1024)}}
    api.create(path, huge, expect="413 RequestEntityTooLarge")
    noted = {"metadata": {"name": "b", "annotations": {"a": "x" * (256 * 1024 + 1)}}}
    api.create(path, noted, expect="422 Invalid")
    steps = [{"op": "test", "path": "/kind", "value": "ConfigMap"}] * 10_001
    api.patch(f"{path}/fine", steps, "json", expect="413 RequestEntityTooLarge")


def test_json_patch(api: Api) -> None:
    """A JSON patch is carried out whole or not at all."""
    path = f"{api.core}/configmaps"
    api.create(path, {"metadata": {"name": "a"}, "data": {"x": "1"}}, expect="201 Created")
    own = f"{path}/a"
    for steps in (
        [{"op": "test", "path": "/data/x", "value": "2"}],
        [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "remove", "path": "/data/none"}],
    ):
        api.patch(own, steps, "json", expect="422 Invalid")
    for step, expected in (
        ({"op": "replace", "path": "/data/none", "value": "1"}, "200 OK"),
        ({"op": "add", "path": "/none/deep", "value": "1"}, "422 Invalid"),
        ({"op": "copy", "from": "/data/x", "path": "/data/y"}, "200 OK"),
        ({"op": "move", "from": "/data/y", "path": "/data/z"}, "200 OK"),
        ({"op": "nonsense", "path": "/data/x"}, "422 Invalid"),
        ({"op": "add", "path": "no-slash", "value": "1"}, "422 Invalid"),
        ({"op": "replace", "path": "", "value": {}}, "400 BadRequest"),
        ({"op": "add", "path": "/data/n", "value": 7}, "422 Invalid"),
    ):
        api.patch(own, [step], "json", expect=expected)
    api.patch(own, {"op": "add"}, "json", expect="400 BadRequest")
    api.patch(own, [7], "json", expect="400 BadRequest")
    assert api.get(own).body["data"] == {"none": "1", "x": "1", "z": "1"}


def test_merge_patch(api: Api) -> None:
    """A merge patch removes with null; a wrong type is invalid, not malformed."""
    path = f"{api.core}/configmaps"
    api.create(
        path,
        {"metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"x": "1", "y": "2"}},
        expect="201 Created",
    )
    own = f"{path}/a"
    api.patch(own, {"data": {"x": None, "z": "3"}}, expect="200 OK")
    api.patch(own, {"data": {"x": 7}}, expect="422 Invalid")
    api.patch(own, {"data": ["x"]}, expect="422 Invalid")
    api.patch(own, {"metadata": None}, expect="400 BadRequest")
    api.patch(own, {"metadata": {"labels": None}}, expect="200 OK")
    api.patch(own, [], expect="400 BadRequest")
    api.ask("PATCH", own, b"{", type=PATCHES["merge"], expect="400 BadRequest")
    api.patch(own, {"kind": "Secret"}, expect="422 Invalid")
    api.patch(own, {"metadata": {"resourceVersion": "no"}}, expect="500 Internal Server Error")
    api.patch(own, {"metadata": {"namespace": "other"}}, expect="400 BadRequest")


def test_strategic_patch(api: Api) -> None:
    """Containers, env and conditions merge by key, tolerations and taints are replaced."""
    path = api.group("apps/v1") + "/deployments"
    spec = {
        **TEMPLATE["spec"],
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "containers": [
            {"name": "app", "image": "i:1", "env": [{"name": "A", "value": "1"}]},
            {"name": "side", "image": "s:1"},
        ],
    }
    body = {"selector": SELECTOR, "template": {**TEMPLATE, "spec": spec}}
    api.create(path, {"metadata": {"name": "d"}, "spec": body}, expect="201 Created")
    own = f"{path}/d"
    for change in (
        {"containers": [{"name": "app", "env": [{"name": "B", "value": "2"}]}]},
        {"containers": [{"name": "new", "image": "n:1"}]},
        {"containers": [{"name": "side", "$patch": "delete"}]},
        {"$setElementOrder/containers": [{"name": "app"}, {"name": "new"}], "containers": []},
        {"tolerations": [{"key": "b", "operator": "Exists"}]},
        {"tolerations": None},
        {"$retainKeys": ["containers"], "containers": [{"name": "app", "image": "i:2"}]},
        {"containers": [{"$patch": "replace"}, {"name": "only", "image": "o:1"}]},
    ):
        api.patch(own, {"spec": {"template": {"spec": change}}}, "strategic", expect="200 OK")
    for refused, expected in (
        ({"containers": [{"image": "no-name"}]}, "500 Internal Server Error"),
        ({"containers": {"name": "x"}}, "422 Invalid"),
        ({"$patch": "nonsense"}, "500 Internal Server Error"),
    ):
        api.patch(own, {"spec": {"template": {"spec": refused}}}, "strategic", expect=expected)
    finalizers = {"metadata": {"finalizers": ["zonewise.io/a", "zonewise.io/b"]}}
    api.patch(own, finalizers, "strategic", expect="200 OK")
    drop = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["zonewise.io/a"]}}
    api.patch(own, drop, "strategic", expect="200 OK")
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/c"]}}, "strategic", expect="200 OK")


def test_patched_kinds(api: Api) -> None:
    """A merge patch may not make another kind of an object; a strategic one never does."""
    path = f"{api.core}/configmaps"
    api.create(path, {"metadata": {"name": "a"}}, expect="201 Created")
    for patch, expected in (
        ({"kind": "Pod"}, "422 Invalid"),
        ({"apiVersion": "v3"}, "422 Invalid"),
        ({"kind": None}, "200 OK"),
    ):
        api.patch(f"{path}/a", patch, "merge", expect=expected)
        api.patch(f"{path}/a", patch, "strategic", expect="200 OK")


def test_dry_run_values(api: Api) -> None:
    """Only All is a value of dryRun; anything else is refused."""
    path = f"{api.core}/configmaps"
    body = {"metadata": {"name": "a"}}
    api.create(path, body, dryRun="Some", expect="422 Invalid")
    api.create(path, body, dryRun="", expect="422 Invalid")
    api.put(f"{path}/a", body, dryRun="Some", expect="422 Invalid")
    api.patch(f"{path}/a", {}, dryRun="Some", expect="422 Invalid")
    api.delete(f"{path}/a", dryRun="Some", expect="422 Invalid")
    api.delete(f"{path}/a", {"dryRun": ["Some"]}, expect="422 Invalid")
    api.delete(f"{path}/a", {"dryRun": ["All"]}, expect="404 NotFound")
    api.get(f"{path}/a", expect="404 NotFound")
    api.create(path, {"metadata": {"name": "b"}}, fieldManager="x" * 129, expect="422 Invalid")
    api.patch(f"{path}/a", {}, fieldManager="bad\x01name", expect="422 Invalid")


SCALES: list[tuple[Obj, str]] = [
    ({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 7}}, "400 BadRequest"),
    ({"apiVersion": "apps/v1", "kind": "Scale", "spec": {"replicas": 7}}, "400 BadRequest"),
    ({"apiVersion": "autoscaling/v2", "kind": "Scale", "spec": {"replicas": 7}}, "400 BadRequest"),
    (
        {"apiVersion": "extensions/v1beta1", "kind": "Scale", "spec": {"replicas": 7}},
        "400 BadRequest",
    ),
    ({"apiVersion": "v1", "kind": "Pod", "spec": {}}, "400 BadRequest"),
    ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}, "400 BadRequest"),
    ({"apiVersion": "made.up/v1", "kind": "Nonsense", "spec": {"replicas": 7}}, "400 BadRequest"),
    (
        {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "spec": {}},
        "400 BadRequest",
    ),
    ({"kind": "Deployment", "spec": {"replicas": 7}}, "400 BadRequest"),
    ({"kind": "Scale", "spec": {"replicas": 2}}, "200 OK"),
    ({"apiVersion": "autoscaling/v1", "spec": {"replicas": 3}}, "200 OK"),
    ({"apiVersion": "apps/v1", "spec": {"replicas": 7}}, "400 BadRequest"),
    ({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 4}}, "200 OK"),
    ({"spec": {"replicas": 5}}, "200 OK"),
    ({"spec": {"replicas": "x"}}, "400 BadRequest"),
    ({}, "200 OK"),
]


def test_no_scale(api: Api) -> None:
    """A PUT to a scale needs the body of a Scale."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    api.create(path, {"metadata": {"name": "a"}, "spec": spec}, quiet=True, expect="201 Created")
    for body, expected in SCALES:
        answer = api.put(f"{path}/a/scale", {**body, "metadata": {"name": "a"}}, expect=expected)
        api.note("message", answer.body.get("message", ""))


def test_scales_of_others(api: Api) -> None:
    """A Scale that is written has the uid and version of its object, and a valid number."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    api.create(path, {"metadata": {"name": "a"}, "spec": spec}, expect="201 Created")
    for number, (meta, expected) in enumerate(
        (
            ({"uid": "u"}, "409 Conflict"),
            ({"resourceVersion": "x"}, "500 Internal Server Error"),
            ({"resourceVersion": "1"}, "409 Conflict"),
            ({"resourceVersion": "0"}, "200 OK"),
        )
    ):
        body = {"metadata": {"name": "a", **meta}, "spec": {"replicas": number}}
        api.put(f"{path}/a/scale", body, expect=expected)
    api.put(f"{path}/none/scale", {}, expect="400 BadRequest")
    for replicas in ("3", 1.5, 99999999999):
        api.patch(f"{path}/a/scale", {"spec": {"replicas": replicas}}, expect="422 Invalid")
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 5}}
    api.apply(f"{path}/a/scale", {**scale, "metadata": {"name": "b"}}, expect="409 Conflict")
    api.get(f"{path}/a", expect="200 OK")


def test_beyond_subresources(api: Api) -> None:
    """A path below a subresource is unknown."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    created = api.create(
        path, {"metadata": {"name": "a"}, "spec": spec}, quiet=True, expect="201 Created"
    )
    for below in ("status/x", "scale/x", "scale/x/y"):
        api.get(f"{path}/a/{below}", quiet=True, expect="404 NotFound")
        api.put(f"{path}/a/{below}", created.body, quiet=True, expect="404 NotFound")
        api.patch(f"{path}/a/{below}", {"spec": {"replicas": 3}}, quiet=True, expect="404 NotFound")
    api.get(f"/api/v1/namespaces/{api.ns}/status/x", quiet=True, expect="404 NotFound")
    assert api.get(f"{path}/a", quiet=True).body == created.body


def test_nameless(api: Api) -> None:
    """A PUT without a name, or a patch that removes it, is refused."""
    configs, apps = f"{api.core}/configmaps", api.group("apps/v1")
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    originals = [
        api.create(
            configs,
            {"metadata": {"name": "a"}, "data": {"x": "1"}},
            quiet=True,
            expect="201 Created",
        ).body,
        api.create(
            f"{apps}/deployments",
            {"metadata": {"name": "a"}, "spec": spec},
            quiet=True,
            expect="201 Created",
        ).body,
    ]
    config, deployment = f"{configs}/a", f"{apps}/deployments/a"
    lease = f"{api.group('coordination.k8s.io/v1')}/leases/a"
    scale = f"{deployment}/scale"
    answers = [
        api.put(path, body, quiet=True, expect="400 BadRequest")
        for path in (config, deployment, f"{deployment}/status", scale, lease)
        for body in ({}, {"metadata": {"labels": {"a": "b"}}}, {"metadata": {"name": ""}})
    ]
    answers += [
        api.patch(path, {"metadata": {"name": None}}, quiet=True, expect="400 BadRequest")
        for path in (config, scale)
    ]
    for answer in answers:
        assert "(a based on URL) was undeterminable: name must be provided" in answer.message
    assert [api.get(path, quiet=True).body for path in (config, deployment)] == originals
    elsewhere = {"metadata": {"name": "a", "namespace": "elsewhere"}}
    api.put(scale, elsewhere, quiet=True, expect="400 BadRequest")


def test_versions_of_new_objects(api: Api) -> None:
    """A new object with a version is refused; invalid versions and dry runs are accepted."""
    path = f"{api.core}/configmaps"
    for number, version in enumerate(("7", "0", "no", "-1", "")):
        body = {"metadata": {"name": f"a{number}", "resourceVersion": version}}
        refused = "500 Internal Server Error" if version == "7" else "201 Created"
        for query, expected in (({"dryRun": "All"}, "201 Created"), ({}, refused)):
            answer = api.create(path, body, quiet=True, expect=expected, **query)
            stored = answer.body.get("metadata", {}).get("resourceVersion", "")
            stored = stored if stored == version else "another"
            api.note(f"{version} {query}", [answer.status, answer.body.get("message"), stored])
    again = {"metadata": {"name": "a2", "resourceVersion": "7"}}
    api.create(path, again, dryRun="All", expect="409 AlreadyExists")
    api.create(path, again, expect="500 Internal Server Error")
