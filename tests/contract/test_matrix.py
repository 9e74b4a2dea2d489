"""Every verb on every kind with rules of its own, and on its subresources.

Each test takes one group of verbs and runs it for one kind; the answers of a real server are the
cells of the matrix. A verb that a kind lacks is a cell too: its refusal.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.recordings import ANSWERS
from tests.contract.samples import SAMPLES, Sample
from tests.contract.talking import Answer, Api
from tests.contract.waiting import wait_for_status, wait_until_established

Obj = dict[str, Any]

KINDS = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
DRY: Obj = {"dryRun": "All"}
RBAC_KINDS = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
ANY_NAME = RBAC_KINDS | {"Event", "PodDisruptionBudget"}
"""Kinds whose names a real server does not check as DNS names."""
CREATED_BY_PUT = RBAC_KINDS | {"Service", "Lease", "Event", "LimitRange"}
"""Kinds that a PUT creates if they are missing."""
ONLY_WITH_VERSION = {
    "CSIDriver",
    "CSINode",
    "CustomResourceDefinition",
    "Lease",
    "MutatingWebhookConfiguration",
    "PodDisruptionBudget",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
}
"""Kinds that are only replaced by a PUT with a resourceVersion."""
FINALIZED = {"Namespace", "PersistentVolume", "PersistentVolumeClaim"}
"""Kinds whose objects stay after a deletion until their finalizers are removed."""


def first(api: Api, sample: Sample) -> tuple[str, str, Obj]:
    """One object of the kind: the path of its kind, its own path, and it."""
    here = sample.path(api.ns)
    obj = _create(api, sample, "x")
    return here, f"{here}/{obj['metadata']['name']}", obj


def _create(api: Api, sample: Sample, which: str) -> Obj:
    path = sample.path(api.ns)
    obj = api.create(
        path, with_namespace(api, sample.make(api.ns, which)), expect="201 Created"
    ).body
    own = f"{path}/{obj['metadata']['name']}"
    if sample.kind == "PersistentVolumeClaim":
        return settle(api, own).body
    if sample.kind == "CustomResourceDefinition":
        settled = wait_until_established(api, own)
        api.note("settled", settled)
        return settled
    return obj


def settle(api: Api, path: str) -> Answer:
    """A claim after a first write that changes nothing, which a real server stores all the same."""
    return api.patch(path, {}, quiet=True)


def with_namespace(api: Api, obj: Obj) -> Obj:
    """The object with the namespace's real name where it refers to it."""
    if "involvedObject" in obj:
        obj["involvedObject"]["namespace"] = api.ns
    return obj


@KINDS
def test_create(api: Api, sample: Sample) -> None:
    """A kind is created once: dry runs leave nothing, a second creation is refused."""
    here = sample.path(api.ns)
    obj = with_namespace(api, sample.make(api.ns, "x"))
    name = obj["metadata"]["name"]
    dry = api.create(here, obj, **DRY, expect="201 Created")
    assert "resourceVersion" not in dry.meta
    api.get(f"{here}/{name}", expect="404 NotFound")
    created = api.create(here, obj, expect="201 Created")
    assert created.meta["uid"] != dry.meta["uid"]
    api.create(here, obj, expect="409 AlreadyExists")
    api.create(here, obj, **DRY, expect="409 AlreadyExists")
    api.create(here, {**obj, "kind": "Other"}, expect="400 BadRequest")
    # A real server allocates a Service's address for its name before it looks at the name.
    expected = "201 Created" if sample.kind == "LimitRange" else "422 Invalid"
    quiet = sample.kind == "Service"
    api.create(here, {**obj, "metadata": {}}, quiet=quiet, expect=expected)
    versioned = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "7"}}
    api.create(here, versioned, expect="500 Internal Server Error")
    api.create(
        here, {**obj, "unknown": 1}, fieldValidation="Strict", **DRY, expect="400 BadRequest"
    )
    misnamed = {**obj, "metadata": {**obj["metadata"], "name": "Not_A.Name"}}
    expected = "201 Created" if sample.kind in ANY_NAME else "422 Invalid"
    api.create(here, misnamed, **DRY, expect=expected)


@KINDS
def test_read(api: Api, sample: Sample) -> None:
    """A kind can be read, listed, watched, and printed as a table or as metadata alone."""
    here, path, obj = first(api, sample)
    mine = {"labelSelector": f"contract={api.ns}"}
    if sample.kind == "Namespace":
        mine = {"fieldSelector": f"metadata.name={obj['metadata']['name']}"}
    api.brief = True
    assert api.get(path).meta["uid"] == obj["metadata"]["uid"]
    api.wait_until_caught_up(here)
    api.get(path, resourceVersion="0", expect="200 OK")
    api.get(f"{path}-not", expect="404 NotFound")
    listed = api.get(here, **mine, expect="200 OK")
    assert listed.names == [obj["metadata"]["name"]]
    if sample.namespaced:
        everywhere = sample.path(api.ns).replace(f"/namespaces/{api.ns}", "")
        assert api.get(everywhere, **mine).names == listed.names
    api.get(
        here, fieldSelector=f"metadata.name={obj['metadata']['name']}", limit=1, expect="200 OK"
    )
    api.get(here, fieldSelector="metadata.nonsense=1", expect="400 BadRequest")
    api.get(path, headers={"Accept": METADATA}, expect="200 OK")
    api.get(here, headers={"Accept": METADATA_LIST}, **mine, expect="200 OK")
    api.brief = False
    table = api.get(here, headers={"Accept": TABLE}, quiet=True, **mine).body
    assert table["kind"] == "Table"
    api.note("columns", [[column["name"], column["type"]] for column in table["columnDefinitions"]])
    ages = [i for i, column in enumerate(table["columnDefinitions"]) if column["name"] in AGES]
    for row in table["rows"]:
        cells = ["<time>" if i in ages else cell for i, cell in enumerate(row["cells"])]
        api.note("row", [cells, row["object"]["kind"]])
    api.brief = True
    watch = api.watch(here, resourceVersion=listed.version, **mine)
    api.patch(path, {"metadata": {"annotations": {"note": "x"}}}, expect="200 OK")
    assert [event.type for event in watch.take(1)] == ["MODIFIED"]
    started = api.watch(here, **mine)
    assert [event.type for event in started.take(1)] == ["ADDED"]


AGES = {"Age", "Last Seen", "First Seen", "Created At", "Cluster-IP", "Port(s)"}


@KINDS
def test_update(api: Api, sample: Sample) -> None:
    """An object is replaced by a PUT with its current version."""
    here, path, obj = first(api, sample)
    api.brief = True
    same = api.put(path, obj, expect="200 OK")  # changes nothing
    obj["metadata"]["resourceVersion"] = same.version
    more = {**obj, "metadata": {**obj["metadata"]}}
    more["metadata"]["labels"] = {**obj["metadata"]["labels"], "more": "1"}
    api.put(path, more, **DRY, expect="200 OK")
    assert api.get(path).version == obj["metadata"]["resourceVersion"]
    changed = api.put(path, more, expect="200 OK")
    api.put(path, obj, expect="409 Conflict")
    wrong = {**changed.body, "metadata": {**changed.meta, "uid": "not-this-one"}}
    api.put(path, wrong, expect="409 Conflict")
    api.put(f"{path}-not", changed.body, expect="400 BadRequest")
    unversioned = {**changed.body, "metadata": {**changed.meta}}
    del unversioned["metadata"]["resourceVersion"]
    expected = "422 Invalid" if sample.kind in ONLY_WITH_VERSION else "200 OK"
    api.put(path, unversioned, expect=expected)
    api.put(
        path,
        {**changed.body, "metadata": {**changed.meta, "resourceVersion": "no"}},
        expect="500 Internal Server Error",
    )
    other = with_namespace(api, sample.make(api.ns, "missing"))
    expected = "201 Created" if sample.kind in CREATED_BY_PUT else "404 NotFound"
    api.put(f"{here}/{other['metadata']['name']}", other, **DRY, expect=expected)


@KINDS
def test_patch(api: Api, sample: Sample) -> None:
    """A kind takes all four patches; one that changes nothing writes nothing."""
    _, path, obj = first(api, sample)
    api.brief = True
    version = obj["metadata"]["resourceVersion"]
    for kind in ("merge", "strategic"):
        patch = {"metadata": {"annotations": {kind: "1"}}}
        api.patch(path, patch, kind, **DRY, expect="200 OK")
        changed = api.patch(path, patch, kind, expect="200 OK")
        assert changed.version != version
        version = changed.version
        assert api.patch(path, patch, kind).version == version
        api.patch(path, {"metadata": {"resourceVersion": "1"}}, kind, expect="409 Conflict")
    steps = [{"op": "add", "path": "/metadata/annotations/json", "value": "1"}]
    api.patch(path, steps, "json", **DRY, expect="200 OK")
    assert api.patch(path, steps, "json").version != version
    test = {"op": "test", "path": "/metadata/annotations/json", "value": "2"}
    api.patch(path, [test], "json", expect="422 Invalid")
    api.patch(path, {"metadata": {"name": "other"}}, expect="400 BadRequest")
    api.patch(path, {"metadata": {"labels": 7}}, expect="422 Invalid")
    api.patch(path, {"metadata": {"uid": "7"}}, expect="422 Invalid")
    api.patch(path, {"unknown": 1}, fieldValidation="Strict", expect="422 Invalid")
    api.patch(f"{path}-not", {}, expect="404 NotFound")
    api.ask("PATCH", path, {}, type="application/json", expect="415 UnsupportedMediaType")


@KINDS
def test_apply(api: Api, sample: Sample) -> None:
    """An apply creates and changes an object; conflicts are refused, or forced."""
    here = sample.path(api.ns)
    obj = with_namespace(api, sample.make(api.ns, "x"))
    path = f"{here}/{obj['metadata']['name']}"
    api.managed = True
    obj["metadata"]["annotations"] = {"a": "1"}
    api.apply(path, obj, **DRY, expect="201 Created")
    api.apply(path, obj, expect="201 Created")
    if sample.kind == "CustomResourceDefinition":
        wait_until_established(api, path)
    if sample.kind == "PersistentVolumeClaim":
        settle(api, path)
    api.apply(path, obj, quiet=True, expect="200 OK")
    again = api.apply(path, obj, expect="200 OK")
    assert api.apply(path, obj).version == again.version
    other = {key: obj[key] for key in ("apiVersion", "kind")}
    other["metadata"] = {"name": obj["metadata"]["name"], "annotations": {"a": "2"}}
    if sample.fields:
        other |= {key: obj[key] for key in sample.fields}
    api.apply(path, other, "two", expect="409 Conflict")
    api.apply(path, other, "two", force="true", **DRY, expect="200 OK")
    api.apply(path, other, "two", force="true", expect="200 OK")
    unowned = {key: obj[key] for key in ("apiVersion", "kind")}
    unowned["metadata"] = {"name": obj["metadata"]["name"]}
    api.apply(path, unowned, "two", expect="200 OK")


@KINDS
def test_status(api: Api, sample: Sample) -> None:
    """A kind's status is a subresource, or the kind has none."""
    _, path, obj = first(api, sample)
    api.brief = sample.status is None
    status = f"{path}/status"
    body = {"status": sample.status or {}, "metadata": {"annotations": {"via": "status"}}}
    has_status = sample.status is not None
    served = "200 OK" if has_status else "404 NotFound"
    api.get(status, expect=served)
    api.put(status, {**obj, "status": sample.status or {}}, **DRY, expect=served)
    api.patch(status, body, **DRY, expect=served)
    api.patch(status, body, expect=served)
    api.patch(status, body, "strategic", expect=served)
    steps = [{"op": "add", "path": "/metadata/labels/via", "value": "x"}]
    api.patch(status, steps, "json", expect=served)
    whole = {"apiVersion": sample.api, "kind": sample.kind, "status": sample.status or {}}
    api.apply(status, whole, expect=served)
    api.put(status, obj, expect="409 Conflict" if has_status else "404 NotFound")
    api.get(path, expect="200 OK")
    refused = "405 MethodNotAllowed" if has_status else "404 NotFound"
    api.create(status, obj, expect=refused)
    api.delete(status, expect=refused)


@KINDS
def test_scale(api: Api, sample: Sample) -> None:
    """A kind with replicas has a Scale; the others have none."""
    _, path, _ = first(api, sample)
    scale = f"{path}/scale"
    has_scale = sample.kind in {"ReplicaSet", "Deployment", "StatefulSet"}
    served = "200 OK" if has_scale else "404 NotFound"
    current = api.get(scale, expect=served).body
    api.patch(scale, {"spec": {"replicas": 3}}, **DRY, expect=served)
    api.patch(scale, {"spec": {"replicas": 3}}, expect=served)
    negative = {"spec": {"replicas": -1}}
    api.patch(scale, negative, expect="422 Invalid" if has_scale else "404 NotFound")
    steps = [{"op": "replace", "path": "/spec/replicas", "value": 5}]
    api.patch(scale, steps, "json", expect=served)
    api.put(scale, current, expect="409 Conflict" if has_scale else "404 NotFound")
    body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 2}}
    body["metadata"] = {"name": current.get("metadata", {}).get("name", "x")}
    api.put(scale, body, expect=served)
    api.apply(scale, body, expect=served)
    api.get(scale, expect=served)
    api.delete(scale, expect="405 MethodNotAllowed" if has_scale else "404 NotFound")


@KINDS
def test_refused_verbs(api: Api, sample: Sample) -> None:
    """A verb that has no meaning for a path is refused."""
    here, path, obj = first(api, sample)
    api.brief = True
    api.create(path, obj, expect="405 MethodNotAllowed")
    api.put(here, obj, expect="405 MethodNotAllowed")
    api.patch(here, {}, expect="405 MethodNotAllowed")
    api.get(f"{path}/nonsense", expect="404 NotFound")
    api.ask("OPTIONS", path, expect="405 MethodNotAllowed")
    api.ask("HEAD", path, expect="405 Method Not Allowed")
    api.ask("MOVE", path, {}, expect="405 MethodNotAllowed")


@KINDS
def test_delete(api: Api, sample: Sample) -> None:
    """An object is deleted if the preconditions hold, at once or after its finalizers."""
    here, path, obj = first(api, sample)
    if sample.kind == "Namespace":
        hold(api, obj["metadata"]["name"])
    api.delete(path, **DRY, expect="200 OK")
    other = {"preconditions": {"uid": "not-this-one"}}
    api.delete(path, other, expect="409 Conflict")
    api.delete(path, {"preconditions": {"resourceVersion": "1"}}, expect="409 Conflict")
    this = {"preconditions": {"uid": obj["metadata"]["uid"]}}
    # Controllers work on these.
    api.brief = sample.kind in {"Namespace", "CustomResourceDefinition"}
    api.delete(path, this, expect="200 OK")
    if sample.kind == "CustomResourceDefinition":
        wait_for_status(api, path, 404)  # its objects are looked for first
    if sample.kind in FINALIZED:
        api.get(path, expect="200 OK")
        if sample.kind != "Namespace":
            api.patch(path, {"metadata": {"finalizers": None}}, expect="200 OK")
    if sample.kind != "Namespace":
        api.get(path, expect="404 NotFound")
        api.delete(path, expect="404 NotFound")
    obj = _create(api, sample, "y")
    path = f"{here}/{obj['metadata']['name']}"
    if sample.kind == "Namespace":
        hold(api, obj["metadata"]["name"])
    api.patch(path, {"metadata": {"finalizers": ["zonewise.io/test"]}}, expect="200 OK")
    marked = api.delete(path, expect="200 OK")
    busy = sample.kind == "CustomResourceDefinition"  # a controller takes its own finalizer away
    api.get(path, quiet=busy, expect="200 OK")
    api.patch(
        path,
        {"metadata": {"finalizers": ["zonewise.io/test", "zonewise.io/more"]}},
        expect="422 Invalid",
    )
    assert marked.meta["deletionTimestamp"]
    foreground = {"propagationPolicy": "Foreground", "dryRun": ["All"]}
    api.delete(path, foreground, quiet=busy, expect="200 OK")
    api.delete(path, {"propagationPolicy": "Nonsense"}, expect="422 Invalid")
    api.patch(path, {"metadata": {"finalizers": None}}, quiet=busy, expect="200 OK")


def hold(api: Api, namespace: str) -> None:
    """Create an object with a finalizer, which keeps a namespace from being removed."""
    meta = {"name": "held", "finalizers": ["zonewise.io/test"]}
    api.create(
        f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": meta}, expect="201 Created"
    )


@KINDS
def test_delete_collection(api: Api, sample: Sample) -> None:
    """A collection is deleted by selector: the others stay."""
    here = sample.path(api.ns)
    api.brief = True
    names = [_create(api, sample, which)["metadata"]["name"] for which in ("x", "y", "z")]
    api.patch(
        f"{here}/{names[0]}",
        {"metadata": {"labels": {"contract": f"{api.ns}-not"}}},
        expect="200 OK",
    )
    mine: Obj = {"labelSelector": f"contract={api.ns}"}
    one_by_one = sample.kind == "Namespace"
    expected = "405 MethodNotAllowed" if one_by_one else "200 OK"
    api.delete(here, **DRY, **mine, expect=expected)
    api.get(f"{here}/{names[2]}", expect="200 OK")
    deleted = api.delete(here, **mine, expect=expected)
    if sample.kind == "CustomResourceDefinition":
        wait_for_status(api, f"{here}/{names[1]}", 404)
        wait_for_status(api, f"{here}/{names[2]}", 404)
    for name in names:
        remains = name == names[0] or sample.kind in FINALIZED
        api.get(f"{here}/{name}", expect="200 OK" if remains else "404 NotFound")
    if not one_by_one:
        assert [name for name in deleted.names if name in names] == names[1:]


def test_no_cell_is_empty() -> None:
    """A real server's answer is known for every kind and every group of verbs."""
    lines = [json.loads(line) for line in (ANSWERS / "matrix.jsonl").read_text().splitlines()]
    cells = {name for name, _, _ in lines}
    verbs = [
        name for name in globals() if name.startswith("test_") and name != "test_no_cell_is_empty"
    ]
    missing = [f"{verb}[{sample.kind}]" for verb in verbs for sample in SAMPLES]
    assert sorted(cells) == sorted(missing)
