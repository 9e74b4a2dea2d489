"""Every verb on every kind with rules of its own, and on its subresources.

Each test takes one group of verbs and runs it for one kind; the answers of a real server are the
cells of the matrix. A verb that a kind lacks is a cell too: its refusal.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.conftest import ANSWERS
from tests.contract.samples import SAMPLES, Sample
from tests.contract.talking import Answer, Api
from tests.contract.waiting import established, reached

Obj = dict[str, Any]

KINDS = pytest.mark.parametrize("sample", SAMPLES, ids=lambda one: one.kind)
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
DRY: Obj = {"dryRun": "All"}


def first(api: Api, sample: Sample) -> tuple[str, str, Obj]:
    """One object of the kind: the path of its kind, its own path, and it."""
    here = sample.path(api.ns)
    obj = _made(api, sample, "x")
    return here, f"{here}/{obj['metadata']['name']}", obj


def _made(api: Api, sample: Sample, which: str) -> Obj:
    path = sample.path(api.ns)
    obj = api.made(path, place(api, sample.make(api.ns, which))).body
    own = f"{path}/{obj['metadata']['name']}"
    if sample.kind == "PersistentVolumeClaim":
        return settle(api, own).body
    if sample.kind == "CustomResourceDefinition":
        settled = established(api, own)
        api.note("settled", settled)
        return settled
    return obj


def settle(api: Api, path: str) -> Answer:
    """A claim after a first write that changes nothing, which a real server stores all the same."""
    return api.patch(path, {}, quiet=True)


def place(api: Api, obj: Obj) -> Obj:
    """The object with the namespace's real name where it speaks of it."""
    if "involvedObject" in obj:
        obj["involvedObject"]["namespace"] = api.ns
    return obj


@KINDS
def test_create(api: Api, sample: Sample) -> None:
    """A kind is created once: dry runs leave nothing, a second creation is refused."""
    here = sample.path(api.ns)
    obj = place(api, sample.make(api.ns, "x"))
    name = obj["metadata"]["name"]
    dry = api.create(here, obj, **DRY)
    assert dry.status == 201
    assert "resourceVersion" not in dry.meta
    assert api.get(f"{here}/{name}").status == 404
    made = api.create(here, obj)
    assert made.status == 201
    assert made.meta["uid"] != dry.meta["uid"]
    again = api.create(here, obj)
    assert (again.status, again.reason) == (409, "AlreadyExists")
    assert api.create(here, obj, **DRY).status == 409
    assert api.create(here, {**obj, "kind": "Other"}).status == 400
    # A real server allocates a Service's address for its name before it looks at the name.
    unnamed = api.create(here, {**obj, "metadata": {}}, quiet=sample.kind == "Service")
    assert unnamed.status == (201 if sample.kind == "LimitRange" else 422)
    versioned = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "7"}}
    assert api.create(here, versioned).status in {400, 409, 422, 500}
    api.create(here, {**obj, "unknown": 1}, fieldValidation="Strict", **DRY)
    api.create(here, {**obj, "metadata": {**obj["metadata"], "name": "Not_A.Name"}}, **DRY)


@KINDS
def test_read(api: Api, sample: Sample) -> None:
    """A kind is got, listed, watched and shown as a table or as metadata alone."""
    here, path, obj = first(api, sample)
    mine = {"labelSelector": f"contract={api.ns}"}
    if sample.kind == "Namespace":
        mine = {"fieldSelector": f"metadata.name={obj['metadata']['name']}"}
    api.brief = True
    assert api.get(path).meta["uid"] == obj["metadata"]["uid"]
    api.caught_up(here)
    api.get(path, resourceVersion="0")
    assert api.get(f"{path}-not").status == 404
    listed = api.get(here, **mine)
    assert listed.names == [obj["metadata"]["name"]]
    if sample.namespaced:
        everywhere = sample.path(api.ns).replace(f"/namespaces/{api.ns}", "")
        assert api.get(everywhere, **mine).names == listed.names
    api.get(here, fieldSelector=f"metadata.name={obj['metadata']['name']}", limit=1)
    assert api.get(here, fieldSelector="metadata.nonsense=1").status == 400
    api.get(path, headers={"Accept": METADATA})
    api.get(here, headers={"Accept": METADATA_LIST}, **mine)
    api.brief = False
    table = api.get(here, headers={"Accept": TABLE}, quiet=True, **mine).body
    assert table["kind"] == "Table"
    api.note("columns", [[one["name"], one["type"]] for one in table["columnDefinitions"]])
    ages = [i for i, one in enumerate(table["columnDefinitions"]) if one["name"] in AGES]
    for row in table["rows"]:
        cells = ["<time>" if i in ages else cell for i, cell in enumerate(row["cells"])]
        api.note("row", [cells, row["object"]["kind"]])
    api.brief = True
    watch = api.watch(here, resourceVersion=listed.version, **mine)
    api.patch(path, {"metadata": {"annotations": {"note": "x"}}})
    assert [one.type for one in watch.take(1)] == ["MODIFIED"]
    started = api.watch(here, **mine)
    assert [one.type for one in started.take(1)] == ["ADDED"]


AGES = {"Age", "Last Seen", "First Seen", "Created At", "Cluster-IP", "Port(s)"}


@KINDS
def test_update(api: Api, sample: Sample) -> None:
    """A kind is replaced by who knows its version."""
    here, path, obj = first(api, sample)
    api.brief = True
    same = api.put(path, obj)  # changes nothing
    obj["metadata"]["resourceVersion"] = same.version
    more = {**obj, "metadata": {**obj["metadata"]}}
    more["metadata"]["labels"] = {**obj["metadata"]["labels"], "more": "1"}
    api.put(path, more, **DRY)
    assert api.get(path).version == obj["metadata"]["resourceVersion"]
    changed = api.put(path, more)
    assert changed.status == 200
    stale = api.put(path, obj)
    assert (stale.status, stale.reason) == (409, "Conflict")
    wrong = {**changed.body, "metadata": {**changed.meta, "uid": "not-this-one"}}
    assert api.put(path, wrong).status == 409
    assert api.put(f"{path}-not", changed.body).status == 400
    unversioned = {**changed.body, "metadata": {**changed.meta}}
    del unversioned["metadata"]["resourceVersion"]
    api.put(path, unversioned)
    api.put(path, {**changed.body, "metadata": {**changed.meta, "resourceVersion": "no"}})
    other = sample.make(api.ns, "missing")
    api.put(f"{here}/{other['metadata']['name']}", place(api, other), **DRY)


@KINDS
def test_patch(api: Api, sample: Sample) -> None:
    """A kind takes all four patches; one that changes nothing writes nothing."""
    _, path, obj = first(api, sample)
    api.brief = True
    version = obj["metadata"]["resourceVersion"]
    for kind in ("merge", "strategic"):
        patch = {"metadata": {"annotations": {kind: "1"}}}
        api.patch(path, patch, kind, **DRY)
        changed = api.patch(path, patch, kind)
        assert changed.status == 200
        assert changed.version != version
        version = changed.version
        assert api.patch(path, patch, kind).version == version
        api.patch(path, {"metadata": {"resourceVersion": "1"}}, kind)
    steps = [{"op": "add", "path": "/metadata/annotations/json", "value": "1"}]
    api.patch(path, steps, "json", **DRY)
    assert api.patch(path, steps, "json").version != version
    test = {"op": "test", "path": "/metadata/annotations/json", "value": "2"}
    assert api.patch(path, [test], "json").status == 422
    api.patch(path, {"metadata": {"name": "other"}})
    api.patch(path, {"metadata": {"labels": 7}})
    api.patch(path, {"metadata": {"uid": "7"}})
    api.patch(path, {"unknown": 1}, fieldValidation="Strict")
    assert api.patch(f"{path}-not", {}).status == 404
    assert api.ask("PATCH", path, {}, type="application/json").status == 415


@KINDS
def test_apply(api: Api, sample: Sample) -> None:
    """A kind is applied: created, changed, fought over and forced."""
    here = sample.path(api.ns)
    obj = place(api, sample.make(api.ns, "x"))
    path = f"{here}/{obj['metadata']['name']}"
    api.managed = True
    obj["metadata"]["annotations"] = {"a": "1"}
    api.apply(path, obj, **DRY)
    made = api.apply(path, obj)
    assert made.status == 201
    if sample.kind == "CustomResourceDefinition":
        established(api, path)
    if sample.kind == "PersistentVolumeClaim":
        settle(api, path)
    api.apply(path, obj, quiet=True)
    again = api.apply(path, obj)
    assert api.apply(path, obj).version == again.version
    other = {key: obj[key] for key in ("apiVersion", "kind")}
    other["metadata"] = {"name": obj["metadata"]["name"], "annotations": {"a": "2"}}
    if sample.fields:
        other |= {key: obj[key] for key in sample.fields}
    refused = api.apply(path, other, "two")
    assert (refused.status, refused.reason) == (409, "Conflict")
    assert api.apply(path, other, "two", force="true", **DRY).status == 200
    assert api.apply(path, other, "two", force="true").status == 200
    unowned = {key: obj[key] for key in ("apiVersion", "kind")}
    unowned["metadata"] = {"name": obj["metadata"]["name"]}
    api.apply(path, unowned, "two")


@KINDS
def test_status(api: Api, sample: Sample) -> None:
    """A kind's status is a subresource of its own, or there is none."""
    _, path, obj = first(api, sample)
    api.brief = sample.status is None
    status = f"{path}/status"
    body = {"status": sample.status or {}, "metadata": {"annotations": {"via": "status"}}}
    api.get(status)
    api.put(status, {**obj, "status": sample.status or {}}, **DRY)
    api.patch(status, body, **DRY)
    api.patch(status, body)
    api.patch(status, body, "strategic")
    api.patch(status, [{"op": "add", "path": "/metadata/labels/via", "value": "x"}], "json")
    whole = {"apiVersion": sample.api, "kind": sample.kind, "status": sample.status or {}}
    api.apply(status, whole)
    api.put(status, obj)
    api.get(path)
    assert api.create(status, obj).status in {404, 405}
    assert api.delete(status).status in {404, 405}


@KINDS
def test_scale(api: Api, sample: Sample) -> None:
    """A kind that has replicas has a Scale; the others know of none."""
    _, path, _ = first(api, sample)
    scale = f"{path}/scale"
    seen = api.get(scale)
    api.patch(scale, {"spec": {"replicas": 3}}, **DRY)
    api.patch(scale, {"spec": {"replicas": 3}})
    api.patch(scale, {"spec": {"replicas": -1}})
    api.patch(scale, [{"op": "replace", "path": "/spec/replicas", "value": 5}], "json")
    api.put(scale, seen.body)
    body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 2}}
    body["metadata"] = {"name": seen.body.get("metadata", {}).get("name", "x")}
    api.put(scale, body)
    api.apply(scale, body)
    api.get(scale)
    assert api.delete(scale).status in {404, 405}


@KINDS
def test_refused_verbs(api: Api, sample: Sample) -> None:
    """A verb that has no meaning for a path is refused."""
    here, path, obj = first(api, sample)
    api.brief = True
    assert api.create(path, obj).status == 405
    assert api.put(here, obj).status == 405
    assert api.patch(here, {}).status == 405
    assert api.get(f"{path}/nonsense").status == 404
    api.ask("OPTIONS", path)
    api.ask("HEAD", path)
    api.ask("MOVE", path, {})


@KINDS
def test_delete(api: Api, sample: Sample) -> None:
    """A kind is deleted by who means this very object, and answers in its own way."""
    here, path, obj = first(api, sample)
    if sample.kind == "Namespace":
        hold(api, obj["metadata"]["name"])
    assert api.delete(path, **DRY).status == 200
    other = {"preconditions": {"uid": "not-this-one"}}
    assert api.delete(path, other).status == 409
    assert api.delete(path, {"preconditions": {"resourceVersion": "1"}}).status == 409
    this = {"preconditions": {"uid": obj["metadata"]["uid"]}}
    api.brief = sample.kind in {
        "Namespace",
        "CustomResourceDefinition",
    }  # controllers work on these
    assert api.delete(path, this).status == 200
    if sample.kind == "CustomResourceDefinition":
        reached(api, path, 404)  # its objects are looked for first
    left = api.get(path)
    if left.status == 200 and sample.kind != "Namespace":
        again = api.patch(path, {"metadata": {"finalizers": None}})
        assert again.status == 200
        assert api.get(path).status == 404
    if sample.kind != "Namespace":
        assert api.delete(path).status == 404
    obj = _made(api, sample, "y")
    path = f"{here}/{obj['metadata']['name']}"
    if sample.kind == "Namespace":
        hold(api, obj["metadata"]["name"])
    kept = api.patch(path, {"metadata": {"finalizers": ["zonewise.io/test"]}})
    assert kept.status == 200
    marked = api.delete(path)
    busy = sample.kind == "CustomResourceDefinition"  # a controller takes its own finalizer away
    api.get(path, quiet=busy)
    api.patch(path, {"metadata": {"finalizers": ["zonewise.io/test", "zonewise.io/more"]}})
    assert marked.status == 200
    assert marked.meta["deletionTimestamp"]
    foreground = {"propagationPolicy": "Foreground", "dryRun": ["All"]}
    api.delete(path, foreground, quiet=busy)
    api.delete(path, {"propagationPolicy": "Nonsense"})
    gone = api.patch(path, {"metadata": {"finalizers": None}}, quiet=busy)
    assert gone.status == 200


def hold(api: Api, namespace: str) -> None:
    """Something in a namespace that keeps it from going."""
    meta = {"name": "held", "finalizers": ["zonewise.io/test"]}
    api.made(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": meta})


@KINDS
def test_delete_collection(api: Api, sample: Sample) -> None:
    """A collection is deleted by selector: the others stay."""
    here = sample.path(api.ns)
    api.brief = True
    names = [_made(api, sample, which)["metadata"]["name"] for which in ("x", "y", "z")]
    api.patch(f"{here}/{names[0]}", {"metadata": {"labels": {"contract": f"{api.ns}-not"}}})
    mine: Obj = {"labelSelector": f"contract={api.ns}"}
    api.delete(here, **DRY, **mine)
    assert api.get(f"{here}/{names[2]}").status == 200
    deleted = api.delete(here, **mine)
    if sample.kind == "CustomResourceDefinition":
        reached(api, f"{here}/{names[1]}", 404)
        reached(api, f"{here}/{names[2]}", 404)
    for name in names:
        api.get(f"{here}/{name}")
    if deleted.status == 200:
        assert [name for name in deleted.names if name in names] == names[1:]


def test_no_cell_is_empty() -> None:
    """A real server's answer is known for every kind and every group of verbs."""
    lines = [json.loads(line) for line in (ANSWERS / "matrix.jsonl").read_text().splitlines()]
    cells = {name for name, _, _ in lines}
    verbs = [
        name for name in globals() if name.startswith("test_") and name != "test_no_cell_is_empty"
    ]
    missing = [f"{verb}[{one.kind}]" for verb in verbs for one in SAMPLES]
    assert sorted(cells) == sorted(missing)
