"""Server-side apply: owners and conflicts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.samples import SELECTOR, TEMPLATE
from tests.contract.talking import PATCHES, Api

Obj = dict[str, Any]


@pytest.fixture(autouse=True)
def _owners(api: Api) -> None:
    """Remember managed fields, too."""
    api.managed = True


def config(name: str, **data: str) -> Obj:
    """A ConfigMap as it is applied."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_ownership(api: Api) -> None:
    """A field that its owner no longer applies is removed, unless it has another owner."""
    path = f"{api.core}/configmaps/a"
    api.apply(path, config("a", x="1", y="1"), expect="201 Created")
    api.apply(path, config("a", y="1", z="1"), "two", expect="200 OK")
    api.apply(path, config("a", y="1"), expect="200 OK")
    nothing = config("a")
    del nothing["data"]
    api.apply(path, nothing, expect="200 OK")
    seen = api.get(path, quiet=True).body
    assert seen["data"] == {"y": "1", "z": "1"}
    assert [entry["manager"] for entry in seen["metadata"]["managedFields"]] == ["two"]


def test_conflicts(api: Api) -> None:
    """A different value is a conflict, an equal one is shared, and force takes the field over."""
    path = f"{api.core}/configmaps/a"
    api.apply(path, config("a", x="1"), expect="201 Created")
    api.apply(path, config("a", x="1"), "two", expect="200 OK")
    refused = api.apply(path, config("a", x="2"), "three", expect="409 Conflict")
    assert ("FieldManagerConflict", ".data.x") in refused.causes
    api.apply(path, config("a", x="2"), "three", force="true", expect="200 OK")
    api.patch(path, {"data": {"x": "3"}}, fieldManager="hand", expect="200 OK")
    api.apply(path, config("a", x="4"), "three", expect="409 Conflict")
    api.put(
        path, {"metadata": {"name": "a"}, "data": {"w": "1"}}, fieldManager="put", expect="200 OK"
    )


def test_lists(api: Api) -> None:
    """Ports are owned by their keys, defaults included; an atomic list has one owner."""
    path = f"{api.core}/services/s"
    body: Obj = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    api.apply(path, {**body, "spec": {"ports": [{"port": 80, "name": "a"}]}}, expect="201 Created")
    api.apply(
        path, {**body, "spec": {"ports": [{"port": 81, "name": "b"}]}}, "two", expect="200 OK"
    )
    api.apply(path, {**body, "spec": {"ports": [{"port": 82, "name": "c"}]}}, expect="200 OK")
    api.apply(
        path,
        {**body, "spec": {"ports": [{"port": 80}, {"port": 80}]}},
        "three",
        expect="500 Internal Server Error",
    )
    slices = f"{api.group('discovery.k8s.io/v1')}/endpointslices/e"
    head: Obj = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    head |= {"metadata": {"name": "e"}, "addressType": "IPv4"}
    api.apply(slices, {**head, "endpoints": [{"addresses": ["10.0.0.1"]}]}, expect="201 Created")
    api.apply(
        slices, {**head, "endpoints": [{"addresses": ["10.0.0.2"]}]}, "two", expect="409 Conflict"
    )
    deployments = f"{api.group('apps/v1')}/deployments/d"
    whole: Obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    api.apply(
        deployments,
        {**whole, "spec": {"selector": SELECTOR, "template": TEMPLATE}},
        expect="201 Created",
    )
    env = [{"name": "A", "value": "1"}]
    side = {"spec": {"containers": [{"name": "app", "env": env}, {"name": "s", "image": "i"}]}}
    api.apply(deployments, {**whole, "spec": {"template": side}}, "two", expect="200 OK")
    api.patch(
        f"{deployments}/scale", {"spec": {"replicas": 4}}, fieldManager="hpa", expect="200 OK"
    )
    api.apply(deployments, {**whole, "spec": {"replicas": 2}}, "two", expect="200 OK")
    api.patch(
        f"{deployments}/status", {"status": {"replicas": 2}}, fieldManager="ctl", expect="200 OK"
    )


def test_refused(api: Api) -> None:
    """An apply needs a manager, a kind, a matching name and matching types."""
    path = f"{api.core}/configmaps/a"
    api.ask("PATCH", path, config("a"), type=PATCHES["apply"], expect="422 Invalid")
    api.apply(path, {"metadata": {"name": "a"}}, expect="400 BadRequest")
    api.apply(path, {**config("a"), "kind": "Secret"}, expect="400 BadRequest")
    api.apply(path, config("b"), expect="400 BadRequest")
    api.apply(path, {**config("a"), "data": ["x"]}, expect="500 Internal Server Error")
    api.apply(
        path,
        {**config("a"), "metadata": {"name": "a", "managedFields": []}},
        expect="400 BadRequest",
    )
    api.apply(
        path,
        {**config("a"), "metadata": {"name": "a", "resourceVersion": "1"}},
        expect="201 Created",
    )
    api.apply(path, {**config("a"), "metadata": {"name": "a", "uid": "x"}}, expect="422 Invalid")
    api.apply(path, config("a"), force="nonsense", expect="200 OK")
    api.patch(path, {}, force="true", expect="422 Invalid")
    yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: y}\n"
    api.ask(
        "PATCH",
        path,
        yaml,
        type=PATCHES["apply"],
        fieldManager="one",
        expect="500 Internal Server Error",
    )
    api.ask(
        "PATCH", path, b"a: [", type=PATCHES["apply"], fieldManager="one", expect="400 BadRequest"
    )
    api.ask("PATCH", path, b"", type=PATCHES["apply"], fieldManager="one", expect="400 BadRequest")


def test_managed_fields_by_hand(api: Api) -> None:
    """Managed fields can be cleared by a patch; invalid ones are refused or dropped."""
    path = f"{api.core}/configmaps/a"
    api.apply(path, config("a", x="1"), expect="201 Created")
    api.patch(path, {"metadata": {"managedFields": [{}]}}, expect="200 OK")
    api.apply(path, config("a", x="2"), "two", expect="409 Conflict")
    api.patch(
        path,
        {"metadata": {"managedFields": [{"manager": "x", "operation": "Nonsense"}]}},
        expect="200 OK",
    )
    api.patch(path, {"metadata": {"managedFields": None}}, expect="200 OK")
    api.apply(path, config("a", x="3"), "three", expect="409 Conflict")


def test_items_without_keys(api: Api) -> None:
    """An item of a list that leaves out its key has the key's default, as any other field."""
    path = f"{api.group('apps/v1')}/deployments/a"
    template = {"metadata": TEMPLATE["metadata"], "spec": {"containers": [{"image": "x"}]}}
    body: Obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
    api.apply(
        path, {**body, "spec": {"selector": SELECTOR, "template": template}}, expect="422 Invalid"
    )
    spec = {**TEMPLATE["spec"], "imagePullSecrets": [{}]}
    template = {"metadata": TEMPLATE["metadata"], "spec": spec}
    api.apply(
        path, {**body, "spec": {"selector": SELECTOR, "template": template}}, expect="201 Created"
    )
    api.create(f"{api.core}/pods", {"metadata": {"name": "a"}, "spec": spec}, expect="201 Created")


def test_only_yaml(api: Api) -> None:
    """An apply is accepted only with the media type of YAML, although JSON is YAML, too."""
    path = f"{api.core}/configmaps/a"
    api.ask(
        "PATCH",
        path,
        config("a"),
        type="application/apply-patch+json",
        fieldManager="one",
        expect="415 UnsupportedMediaType",
    )


def test_scaled_to_nothing(api: Api) -> None:
    """A Scale of 0 leaves its size out, so no manager owns the field."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 2}
    body: Obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
    api.create(path, {**body, "spec": spec}, expect="201 Created")
    for replicas in (0, 3, 0):
        api.patch(
            f"{path}/a/scale",
            {"spec": {"replicas": replicas}},
            fieldManager="hand",
            expect="200 OK",
        )
        api.get(f"{path}/a", expect="200 OK")
    api.apply(f"{path}/a", {**body, "spec": {"replicas": 4}}, "two", expect="200 OK")
