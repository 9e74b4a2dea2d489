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
    """A generated name begins as asked and fits."""
    path = f"{api.core}/configmaps"
    made = api.made(path, {"metadata": {"generateName": "some-"}})
    assert made.meta["name"].startswith("some-")
    assert len(made.meta["name"]) == len("some-") + 5
    both = api.made(path, {"metadata": {"generateName": "some-", "name": "given"}})
    assert both.meta["name"] == "given"
    long = api.create(path, {"metadata": {"generateName": "x" * 300}}, quiet=True)
    assert long.status == 422
    long = api.create(path, {"metadata": {"generateName": "x" * 200}}, quiet=True)
    assert len(long.meta["name"]) == 63
    assert api.create(path, {"metadata": {"generateName": "Not_Good-"}}, quiet=True).status == 422
    api.create(path, {"metadata": {"generateName": "dry-"}}, dryRun="All")
    api.create(path, {"metadata": {"name": ""}})
    api.create(path, {"metadata": {"name": "x" * 254}})
    api.create(path, {"metadata": {"name": "a", "namespace": "another"}})
    api.create(path, {"metadata": {"name": "a", "labels": {"-bad": "x", "ok": "-"}}})
    api.create(path, {"metadata": {"name": "a", "annotations": {"bad key": "x"}}})
    api.create(path, {"metadata": {"name": "a", "finalizers": ["bad key", "plain"]}})


def test_owner_references(api: Api) -> None:
    """Owner references are checked for form; only one may be the controller."""
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
        api.create(path, {"metadata": {"name": f"c{number}", "ownerReferences": refs}})
    known = api.made(path, {"metadata": {"name": "o", "finalizers": ["zonewise.io/test"]}})
    real = {**owner, "uid": known.meta["uid"], "blockOwnerDeletion": True}
    child = api.made(path, {"metadata": {"name": "child", "ownerReferences": [real]}})
    assert child.meta["ownerReferences"][0]["blockOwnerDeletion"] is True


def test_owners_twice(api: Api) -> None:
    """An owner that is named twice in the same words counts once, with a warning."""
    path = f"{api.core}/configmaps"
    one = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-1"}
    other = {**one, "uid": "u-2"}
    for number, refs in enumerate(
        ([one, one], [one, other, one, other, one], [one, {**one, "name": "p"}])
    ):
        made = api.create(path, {"metadata": {"name": f"a{number}", "ownerReferences": refs}})
        api.note("warnings", made.warnings)
    body = api.made(path, {"metadata": {"name": "b"}}, quiet=True).body
    body["metadata"]["ownerReferences"] = [other, other]
    api.note("warnings", api.put(f"{path}/b", body).warnings)
    patch = {"metadata": {"ownerReferences": [one, one]}}
    api.note("warnings", api.patch(f"{path}/b", patch).warnings)


def test_odd_metadata(api: Api) -> None:
    """A generation is no number below zero, and a dash alone is the start of no name."""
    path = f"{api.core}/configmaps"
    api.create(path, {"metadata": {"name": "a", "generation": -1}})
    dash = api.create(path, {"metadata": {"generateName": "-"}}, quiet=True)
    api.note("dash", [dash.status, dash.causes])


def test_no_change(api: Api) -> None:
    """A write that changes nothing keeps the version, whichever way it is written."""
    path = f"{api.core}/configmaps"
    made = api.made(path, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    own = f"{path}/a"
    version = made.version
    assert api.put(own, made.body).version == version
    assert api.patch(own, {"data": {"x": "1"}}).version == version
    assert api.patch(own, {"data": {"x": "1"}}, "strategic").version == version
    assert api.patch(own, [], "json").version == version
    assert api.patch(own, {}).version == version
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    applied = api.apply(own, body)
    assert api.apply(own, body).version == applied.version


def test_generations(api: Api) -> None:
    """Generation counts what somebody has to act on; each kind has its own opinion."""
    api.brief = True
    apps = api.group("apps/v1")
    slices = api.group("discovery.k8s.io/v1") + "/endpointslices"
    budgets = api.group("policy/v1") + "/poddisruptionbudgets"
    made: list[tuple[str, str, Obj]] = [
        (f"{apps}/deployments", "d", BY_KIND["Deployment"].fields),
        (f"{apps}/daemonsets", "d", BY_KIND["DaemonSet"].fields),
        (f"{apps}/statefulsets", "d", BY_KIND["StatefulSet"].fields),
        (f"{api.core}/pods", "p", {"spec": {**POD_SPEC, "nodeName": "n"}}),
        (slices, "s", BY_KIND["EndpointSlice"].fields),
        (budgets, "b", BY_KIND["PodDisruptionBudget"].fields),
        (f"{api.core}/services", "s", BY_KIND["Service"].fields),
    ]
    for path, name, fields in made:
        own = f"{path}/{name}"
        api.made(path, {"metadata": {"name": name}, **fields})
        api.patch(own, {"metadata": {"labels": {"l": "1"}}})
        api.patch(own, {"metadata": {"annotations": {"l": "1"}}})
        api.patch(own, {"metadata": {"finalizers": ["zonewise.io/test"]}})
        api.patch(own, {"metadata": {"generation": 77}})
        api.delete(own)
        api.get(own)
    api.made(f"{apps}/deployments", {"metadata": {"name": "e"}, **made[0][2]})
    api.patch(f"{apps}/deployments/e", {"spec": {"replicas": 4}})
    api.patch(f"{apps}/deployments/e/status", {"status": {"replicas": 4}})
    api.patch(f"{apps}/deployments/e/scale", {"spec": {"replicas": 5}})
    api.get(f"{apps}/deployments/e")


def test_micro_times(api: Api) -> None:
    """A Lease's times have six digits, or are refused."""
    path = api.group("coordination.k8s.io/v1") + "/leases"
    for number, text in enumerate(
        (
            "2024-01-02T03:04:05.000000Z",
            "2024-01-02T03:04:05Z",
            "2024-01-02T03:04:05.123Z",
            "2024-01-02T03:04:05.1234567Z",
            "2024-01-02T03:04:05.000000+01:00",
            "yesterday",
        )
    ):
        api.create(path, {"metadata": {"name": f"l{number}"}, "spec": {"renewTime": text}})
    seen = api.get(f"{path}/l0", quiet=True).body
    assert seen["spec"]["renewTime"] == "2024-01-02T03:04:05.000000Z"


def test_put_creates_leases(api: Api) -> None:
    """A PUT of a missing Lease creates it; of a missing ConfigMap it does not."""
    path = api.group("coordination.k8s.io/v1") + "/leases/new"
    body = {"metadata": {"name": "new"}, "spec": {"holderIdentity": "me"}}
    assert api.put(path, body, dryRun="All").status == 201
    assert api.put(path, body).status == 201
    assert api.put(path, body).status == 422
    assert api.put(f"{api.core}/configmaps/new", {"metadata": {"name": "new"}}).status == 404
    wrong = {"metadata": {"name": "other", "resourceVersion": "5"}}
    api.put(f"{api.group('coordination.k8s.io/v1')}/leases/other", wrong)


def test_unknown_fields(api: Api) -> None:
    """Strict names every unknown and duplicate field, Warn warns of them, Ignore drops them."""
    path = f"{api.core}/configmaps"
    text = b'{"metadata":{"name":"%b","spices":1},"data":{"a":"1","a":"2"},"unknown":{"deep":1}}'
    strict = api.ask("POST", path, text % b"a", **STRICT)
    assert strict.status == 400
    for phrase in (
        'unknown field "metadata.spices"',
        'unknown field "unknown"',
        'duplicate field "data.a"',
    ):
        assert phrase in strict.message
    default = api.ask("POST", path, text % b"b")
    assert len(default.warnings) == 3
    assert default.body["data"] == {"a": "2"}
    assert api.ask("POST", path, text % b"c", fieldValidation="Warn").warnings
    assert not api.ask("POST", path, text % b"d", fieldValidation="Ignore").warnings
    api.ask("POST", path, text % b"e", fieldValidation="Nonsense")
    api.ask("PUT", f"{path}/b", text % b"b", **STRICT)
    api.ask("PUT", f"{path}/b", text % b"b")
    for kind in ("merge", "strategic"):
        api.patch(f"{path}/b", {"unknown": 1, "metadata": {"spices": 2}}, kind, **STRICT)
        api.patch(f"{path}/b", {"unknown": 1}, kind)
        api.ask("PATCH", f"{path}/b", b'{"data":{"a":"1","a":"2"}}', type=PATCHES[kind], **STRICT)
    api.patch(f"{path}/b", [{"op": "add", "path": "/unknown", "value": 1}], "json", **STRICT)
    whole = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "unknown": 1}
    api.apply(f"{path}/b", whole, **STRICT)
    api.apply(f"{path}/b", whole)
    yaml = b"metadata:\n  name: y\nunknown: 1\ndata:\n  a: x\n  a: z\n"
    api.ask("POST", path, yaml, type="application/yaml", **STRICT)
    deep = {
        "spec": {"containers": [{"name": "c", "image": "i", "imge": "x", "ports": [{"prt": 1}]}]}
    }
    pod = api.create(f"{api.core}/pods", {"metadata": {"name": "p"}, **deep}, **STRICT)
    assert "spec.containers[0].imge" in pod.message


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b'"x"',
        b"{",
        b"{}",
        b'{"metadata":7}',
        b'{"metadata":{"name":"a","labels":[]}}',
        b'{"metadata":{"name":7}}',
        b'{"metadata":{"name":"a"},"data":{"x":1}}',
        b'{"metadata":{"name":"a"},"data":null,"immutable":null}',
        b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"}}',
        b'{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"a"}}',
        b'{"kind":"ConfigMap","apiVersion":"apps/v1","metadata":{"name":"a"}}',
        b'{"kind":"ConfigMap","metadata":{"name":"a"}}',
        b'{"apiVersion":"v1","metadata":{"name":"a"}}',
        b'{"metadata":{"name":"a"}} trailing',
        b'{"metadata":{"name":"a\xff"}}',
        b'{"metadata":{"name":"a","creationTimestamp":"yesterday"}}',
        b'{"metadata":{"name":"a","deletionTimestamp":"2024-01-01T00:00:00Z","uid":"mine"}}',
        b'{"metadata":{"name":"a","generation":9,"selfLink":"x"}}',
        b'{"Metadata":{"name":"a"}}',
    ],
    ids=lambda text: "".join(c if c.isalnum() else "." for c in text.decode("latin-1"))[:60],
)
def test_odd_bodies(api: Api, text: bytes) -> None:
    """A body that is no object of the kind is refused in the server's own way."""
    api.ask("POST", f"{api.core}/configmaps", text)


def test_content_types(api: Api) -> None:
    """JSON and YAML are read and written; what is not known is refused by name."""
    path = f"{api.core}/configmaps"
    yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: why\ndata:\n  a: 'y'\n"
    assert api.ask("POST", path, yaml, type="application/yaml").status == 201
    assert api.ask("POST", path, b"{}", type="text/plain").status == 415
    assert api.ask("POST", path, b"{}", type="application/xml").status == 415
    assert api.get(f"{path}/why", headers={"Accept": "application/xml"}).status == 406
    assert api.get(f"{path}/why", headers={"Accept": "text/html, */*"}).status == 200
    assert api.get(f"{path}/why", headers={"Accept": ""}).status == 200
    shown = api.get(f"{path}/why", headers={"Accept": "application/yaml"}, quiet=True)
    assert shown.headers["Content-Type"] == "application/yaml"
    assert b"kind: ConfigMap" in shown.text
    assert api.patch(f"{path}/why", {}, "merge", headers={"Accept": "application/yaml"}, quiet=True)
    plain = api.ask("POST", path, json.dumps({"metadata": {"name": "z"}}).encode(), type="")
    api.note("no content type", plain.status)
    assert api.ask("PATCH", f"{path}/why", b"{}", type="application/json").status == 415
    charset = "application/json; charset=utf-8"
    assert api.ask("POST", path, b'{"metadata":{"name":"c"}}', type=charset).status == 201


def test_protobuf(api: Api) -> None:
    """The format of Go's clients is read for built-in kinds."""
    meta = b"\x0a\x04prot"
    config = b"\x0a" + bytes([len(meta)]) + meta + b"\x12\x06\x0a\x01k\x12\x01v"
    kind = b"\x0a\x02v1\x12\x09ConfigMap"
    unknown = b"\x0a" + bytes([len(kind)]) + kind + b"\x12" + bytes([len(config)]) + config
    body = b"k8s\x00" + unknown + b"\x1a\x00\x22\x00"
    made = api.ask(
        "POST", f"{api.core}/configmaps", body, type="application/vnd.kubernetes.protobuf"
    )
    assert made.status == 201
    assert made.body["data"] == {"k": "v"}


def test_sizes(api: Api) -> None:
    """A body above 3 MiB is too large; a ConfigMap above 1 MiB is invalid; just below is fine."""
    path = f"{api.core}/configmaps"
    fine = {"metadata": {"name": "fine"}, "data": {"a": "x" * (1024 * 1024 - 10)}}
    assert api.create(path, fine, quiet=True).status == 201
    large = {"metadata": {"name": "a"}, "data": {"a": "x" * (1024 * 1024 + 1)}}
    assert api.create(path, large).status == 422
    huge = {"metadata": {"name": "a"}, "data": {"a": "x" * (3 * 1024 * 1024)}}
    refused = api.create(path, huge)
    assert (refused.status, refused.reason) == (413, "RequestEntityTooLarge")
    noted = {"metadata": {"name": "b", "annotations": {"a": "x" * (256 * 1024 + 1)}}}
    assert api.create(path, noted).status == 422
    steps = [{"op": "test", "path": "/kind", "value": "ConfigMap"}] * 10_001
    assert api.patch(f"{path}/fine", steps, "json").status == 413


def test_json_patch(api: Api) -> None:
    """A JSON patch is carried out whole or not at all."""
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    own = f"{path}/a"
    for steps in (
        [{"op": "test", "path": "/data/x", "value": "2"}],
        [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "remove", "path": "/data/none"}],
        [{"op": "replace", "path": "/data/none", "value": "1"}],
        [{"op": "add", "path": "/none/deep", "value": "1"}],
        [{"op": "copy", "from": "/data/x", "path": "/data/y"}],
        [{"op": "move", "from": "/data/y", "path": "/data/z"}],
        [{"op": "nonsense", "path": "/data/x"}],
        [{"op": "add", "path": "no-slash", "value": "1"}],
        [{"op": "replace", "path": "", "value": {}}],
        [{"op": "add", "path": "/data/n", "value": 7}],
        {"op": "add"},
        [7],
    ):
        api.patch(own, steps, "json")
    assert api.get(own).body["data"] == {"none": "1", "x": "1", "z": "1"}


def test_merge_patch(api: Api) -> None:
    """A merge patch removes with null; a wrong type is invalid, not malformed."""
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"x": "1", "y": "2"}})
    own = f"{path}/a"
    api.patch(own, {"data": {"x": None, "z": "3"}})
    api.patch(own, {"data": {"x": 7}})
    api.patch(own, {"data": ["x"]})
    api.patch(own, {"metadata": None})
    api.patch(own, {"metadata": {"labels": None}})
    api.patch(own, [])
    api.ask("PATCH", own, b"{", type=PATCHES["merge"])
    api.patch(own, {"kind": "Secret"})
    api.patch(own, {"metadata": {"resourceVersion": "no"}})
    api.patch(own, {"metadata": {"namespace": "other"}})


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
    api.made(path, {"metadata": {"name": "d"}, "spec": body})
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
        {"containers": [{"image": "no-name"}]},
        {"containers": {"name": "x"}},
        {"$patch": "nonsense"},
    ):
        api.patch(own, {"spec": {"template": {"spec": change}}}, "strategic")
    finalizers = {"metadata": {"finalizers": ["zonewise.io/a", "zonewise.io/b"]}}
    api.patch(own, finalizers, "strategic")
    drop = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["zonewise.io/a"]}}
    api.patch(own, drop, "strategic")
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/c"]}}, "strategic")


def test_patched_kinds(api: Api) -> None:
    """A merge patch may not make another kind of an object; a strategic one never does."""
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "a"}})
    for patch in ({"kind": "Pod"}, {"apiVersion": "v3"}, {"kind": None}):
        for kind in ("merge", "strategic"):
            api.patch(f"{path}/a", patch, kind)


def test_dry_run_values(api: Api) -> None:
    """Only All is a dry run; anything else is refused."""
    path = f"{api.core}/configmaps"
    body = {"metadata": {"name": "a"}}
    api.create(path, body, dryRun="Some")
    api.create(path, body, dryRun="")
    api.put(f"{path}/a", body, dryRun="Some")
    api.patch(f"{path}/a", {}, dryRun="Some")
    api.delete(f"{path}/a", dryRun="Some")
    api.delete(f"{path}/a", {"dryRun": ["Some"]})
    api.delete(f"{path}/a", {"dryRun": ["All"]})
    api.get(f"{path}/a")
    api.create(path, {"metadata": {"name": "b"}}, fieldManager="x" * 129)
    api.patch(f"{path}/a", {}, fieldManager="bad\x01name")


SCALES: list[Obj] = [
    {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 7}},
    {"apiVersion": "apps/v1", "kind": "Scale", "spec": {"replicas": 7}},
    {"apiVersion": "autoscaling/v2", "kind": "Scale", "spec": {"replicas": 7}},
    {"apiVersion": "extensions/v1beta1", "kind": "Scale", "spec": {"replicas": 7}},
    {"apiVersion": "v1", "kind": "Pod", "spec": {}},
    {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}},
    {"apiVersion": "made.up/v1", "kind": "Nonsense", "spec": {"replicas": 7}},
    {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "spec": {}},
    {"kind": "Deployment", "spec": {"replicas": 7}},
    {"kind": "Scale", "spec": {"replicas": 2}},
    {"apiVersion": "autoscaling/v1", "spec": {"replicas": 3}},
    {"apiVersion": "apps/v1", "spec": {"replicas": 7}},
    {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 4}},
    {"spec": {"replicas": 5}},
    {"spec": {"replicas": "x"}},
    {},
]


def test_no_scale(api: Api) -> None:
    """What is put to a scale must be one."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    api.made(path, {"metadata": {"name": "a"}, "spec": spec}, quiet=True)
    for body in SCALES:
        answer = api.put(f"{path}/a/scale", {**body, "metadata": {"name": "a"}})
        api.note("message", answer.body.get("message", ""))


def test_scales_of_others(api: Api) -> None:
    """What is put to a scale is of this object and this version; what a patch makes is a Scale."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    api.made(path, {"metadata": {"name": "a"}, "spec": spec})
    for number, meta in enumerate(
        ({"uid": "u"}, {"resourceVersion": "x"}, {"resourceVersion": "1"}, {"resourceVersion": "0"})
    ):
        body = {"metadata": {"name": "a", **meta}, "spec": {"replicas": number}}
        api.put(f"{path}/a/scale", body)
    api.put(f"{path}/none/scale", {})
    for replicas in ("3", 1.5, 99999999999):
        api.patch(f"{path}/a/scale", {"spec": {"replicas": replicas}})
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 5}}
    api.apply(f"{path}/a/scale", {**scale, "metadata": {"name": "b"}})
    api.get(f"{path}/a")


def test_beyond_subresources(api: Api) -> None:
    """A path that goes on after a subresource is nobody's."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    made = api.made(path, {"metadata": {"name": "a"}, "spec": spec}, quiet=True)
    for below in ("status/x", "scale/x", "scale/x/y"):
        assert api.get(f"{path}/a/{below}", quiet=True).status == 404
        assert api.put(f"{path}/a/{below}", made.body, quiet=True).status == 404
        assert api.patch(f"{path}/a/{below}", {"spec": {"replicas": 3}}, quiet=True).status == 404
    assert api.get(f"/api/v1/namespaces/{api.ns}/status/x", quiet=True).status == 404
    assert api.get(f"{path}/a", quiet=True).body == made.body


def test_nameless(api: Api) -> None:
    """An object that is put, or what a patch makes of one, has to say its name."""
    configs, apps = f"{api.core}/configmaps", api.group("apps/v1")
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}
    kept = [
        api.made(configs, {"metadata": {"name": "a"}, "data": {"x": "1"}}, quiet=True).body,
        api.made(f"{apps}/deployments", {"metadata": {"name": "a"}, "spec": spec}, quiet=True).body,
    ]
    config, deployment = f"{configs}/a", f"{apps}/deployments/a"
    lease = f"{api.group('coordination.k8s.io/v1')}/leases/a"
    scale = f"{deployment}/scale"
    answers = [
        api.put(path, body, quiet=True)
        for path in (config, deployment, f"{deployment}/status", scale, lease)
        for body in ({}, {"metadata": {"labels": {"a": "b"}}}, {"metadata": {"name": ""}})
    ]
    answers += [
        api.patch(path, {"metadata": {"name": None}}, quiet=True) for path in (config, scale)
    ]
    for answer in answers:
        assert (answer.status, answer.reason) == (400, "BadRequest")
        assert "(a based on URL) was undeterminable: name must be provided" in answer.message
    assert [api.get(path, quiet=True).body for path in (config, deployment)] == kept
    elsewhere = {"metadata": {"name": "a", "namespace": "elsewhere"}}
    assert api.put(scale, elsewhere, quiet=True).status == 400


def test_versions_of_new_objects(api: Api) -> None:
    """A new object has no version; one that is none, or of a dry run, is let pass."""
    path = f"{api.core}/configmaps"
    for number, version in enumerate(("7", "0", "no", "-1", "")):
        body = {"metadata": {"name": f"a{number}", "resourceVersion": version}}
        for query in ({"dryRun": "All"}, {}):
            answer = api.create(path, body, quiet=True, **query)
            kept = answer.body.get("metadata", {}).get("resourceVersion", "")
            kept = kept if kept == version else "another"
            api.note(f"{version} {query}", [answer.status, answer.body.get("message"), kept])
    again = {"metadata": {"name": "a2", "resourceVersion": "7"}}
    api.create(path, again, dryRun="All")
    api.create(path, again)
