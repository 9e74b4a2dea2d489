"""Server-side apply: who owns what, who fights whom."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.samples import SELECTOR, TEMPLATE
from tests.contract.talking import PATCHES, Api

Obj = dict[str, Any]


@pytest.fixture(autouse=True)
def _owners(api: Api) -> None:
    """Owners are what these tests are about."""
    api.managed = True


def config(name: str, **data: str) -> Obj:
    """A ConfigMap as it is applied."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_ownership(api: Api) -> None:
    """What an owner no longer applies goes, unless somebody else owns it too."""
    path = f"{api.core}/configmaps/a"
    api.apply(path, config("a", x="1", y="1"))
    api.apply(path, config("a", y="1", z="1"), "two")
    api.apply(path, config("a", y="1"))
    nothing = config("a")
    del nothing["data"]
    api.apply(path, nothing)
    seen = api.get(path, quiet=True).body
    assert seen["data"] == {"y": "1", "z": "1"}
    assert [one["manager"] for one in seen["metadata"]["managedFields"]] == ["two"]


def test_conflicts(api: Api) -> None:
    """Another value is a conflict, an equal one is shared, force takes it."""
    path = f"{api.core}/configmaps/a"
    api.apply(path, config("a", x="1"))
    assert api.apply(path, config("a", x="1"), "two").status == 200
    refused = api.apply(path, config("a", x="2"), "three")
    assert refused.status == 409
    assert ("FieldManagerConflict", ".data.x") in refused.causes
    api.apply(path, config("a", x="2"), "three", force="true")
    api.patch(path, {"data": {"x": "3"}}, fieldManager="hand")
    assert api.apply(path, config("a", x="4"), "three").status == 409
    api.put(path, {"metadata": {"name": "a"}, "data": {"w": "1"}}, fieldManager="put")


def test_lists(api: Api) -> None:
    """Ports are owned by their keys, defaults included; atomic lists are owned whole."""
    path = f"{api.core}/services/s"
    body: Obj = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    api.apply(path, {**body, "spec": {"ports": [{"port": 80, "name": "a"}]}})
    api.apply(path, {**body, "spec": {"ports": [{"port": 81, "name": "b"}]}}, "two")
    api.apply(path, {**body, "spec": {"ports": [{"port": 82, "name": "c"}]}})
    api.apply(path, {**body, "spec": {"ports": [{"port": 80}, {"port": 80}]}}, "three")
    slices = f"{api.group('discovery.k8s.io/v1')}/endpointslices/e"
    head: Obj = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    head |= {"metadata": {"name": "e"}, "addressType": "IPv4"}
    api.apply(slices, {**head, "endpoints": [{"addresses": ["10.0.0.1"]}]})
    api.apply(slices, {**head, "endpoints": [{"addresses": ["10.0.0.2"]}]}, "two")
    deployments = f"{api.group('apps/v1')}/deployments/d"
    whole: Obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    api.apply(deployments, {**whole, "spec": {"selector": SELECTOR, "template": TEMPLATE}})
    env = [{"name": "A", "value": "1"}]
    side = {"spec": {"containers": [{"name": "app", "env": env}, {"name": "s", "image": "i"}]}}
    api.apply(deployments, {**whole, "spec": {"template": side}}, "two")
    api.patch(f"{deployments}/scale", {"spec": {"replicas": 4}}, fieldManager="hpa")
    api.apply(deployments, {**whole, "spec": {"replicas": 2}}, "two")
    api.patch(f"{deployments}/status", {"status": {"replicas": 2}}, fieldManager="ctl")


def test_refused(api: Api) -> None:
    """An apply needs a manager, a kind, a name that fits, and types that fit."""
    path = f"{api.core}/configmaps/a"
    api.ask("PATCH", path, config("a"), type=PATCHES["apply"])
    api.apply(path, {"metadata": {"name": "a"}})
    api.apply(path, {**config("a"), "kind": "Secret"})
    api.apply(path, config("b"))
    api.apply(path, {**config("a"), "data": ["x"]})
    api.apply(path, {**config("a"), "metadata": {"name": "a", "managedFields": []}})
    api.apply(path, {**config("a"), "metadata": {"name": "a", "resourceVersion": "1"}})
    api.apply(path, {**config("a"), "metadata": {"name": "a", "uid": "x"}})
    api.apply(path, config("a"), force="nonsense")
    api.patch(path, {}, force="true")
    yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: y}\n"
    api.ask("PATCH", path, yaml, type=PATCHES["apply"], fieldManager="one")
    api.ask("PATCH", path, b"a: [", type=PATCHES["apply"], fieldManager="one")
    api.ask("PATCH", path, b"", type=PATCHES["apply"], fieldManager="one")


def test_managed_fields_by_hand(api: Api) -> None:
    """Owners can be cleared by hand, and nonsense in them is refused or dropped."""
    path = f"{api.core}/configmaps/a"
    api.apply(path, config("a", x="1"))
    api.patch(path, {"metadata": {"managedFields": [{}]}})
    api.apply(path, config("a", x="2"), "two")
    api.patch(path, {"metadata": {"managedFields": [{"manager": "x", "operation": "Nonsense"}]}})
    api.patch(path, {"metadata": {"managedFields": None}})
    api.apply(path, config("a", x="3"), "three")


def test_items_without_keys(api: Api) -> None:
    """An item of a list that leaves out its key has the key's default, as any other field."""
    path = f"{api.group('apps/v1')}/deployments/a"
    template = {"metadata": TEMPLATE["metadata"], "spec": {"containers": [{"image": "x"}]}}
    body: Obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
    api.apply(path, {**body, "spec": {"selector": SELECTOR, "template": template}})
    spec = {**TEMPLATE["spec"], "imagePullSecrets": [{}]}
    template = {"metadata": TEMPLATE["metadata"], "spec": spec}
    api.apply(path, {**body, "spec": {"selector": SELECTOR, "template": template}})
    api.create(f"{api.core}/pods", {"metadata": {"name": "a"}, "spec": spec})


def test_only_yaml(api: Api) -> None:
    """An apply is sent as YAML, which JSON is too, under that name alone."""
    path = f"{api.core}/configmaps/a"
    api.ask("PATCH", path, config("a"), type="application/apply-patch+json", fieldManager="one")


def test_scaled_to_nothing(api: Api) -> None:
    """A Scale of 0 says nothing of its size, so who writes it owns none; nobody else does."""
    path = f"{api.group('apps/v1')}/deployments"
    spec = {"selector": SELECTOR, "template": TEMPLATE, "replicas": 2}
    body: Obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
    api.made(path, {**body, "spec": spec})
    for replicas in (0, 3, 0):
        api.patch(f"{path}/a/scale", {"spec": {"replicas": replicas}}, fieldManager="hand")
        api.get(f"{path}/a")
    api.apply(f"{path}/a", {**body, "spec": {"replicas": 4}}, "two")
