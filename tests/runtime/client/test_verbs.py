"""The typed client against API servers: the embedded one, and a real one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contract.embedded import embedded
from tests.system_guard import starts_programs

from zonewise.api.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Invalid,
    NotFound,
    Terminal,
    TooManyRequests,
    UnsupportedMediaType,
)
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.coordination import Lease, LeaseSpec
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.cache.reflector import Reflector
from zonewise.runtime.cache.snapshot import Snapshot
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.scope import Scope
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
Namespace = unstructured(Resource("", "v1", "Namespace", "namespaces", namespaced=False))
ServiceAccount = unstructured(Resource("", "v1", "ServiceAccount", "serviceaccounts"))
AnyPod = unstructured(Resource("", "v1", "Pod", "pods"))
Budget = unstructured(Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"))
Definition = unstructured(
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
    )
)
Widget = unstructured(Resource("example.com", "v1", "Widget", "widgets"))


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=pytest.mark.real)])
@starts_programs
def kubeconfig(request: pytest.FixtureRequest) -> Iterator[Path]:
    if request.param == "real":
        yield request.getfixturevalue("realapi").kubeconfig
        return
    with embedded() as path:
        yield path


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    async with Client(HttpsTransport(load_config(kubeconfig)), field_manager="verbs") as connected:
        yield connected


@pytest.fixture
async def space(client: Client) -> str:
    """A namespace for the test, in which pods can be created."""
    name = f"v-{secrets.token_hex(4)}"
    await client.create(Namespace({"metadata": {"name": name}}))
    with suppress(AlreadyExists):
        await client.create(ServiceAccount({"metadata": {"name": "default", "namespace": name}}))
    return name


async def put_map(client: Client, space: str, name: str, value: str) -> str:
    body = {"data": {"value": value}, "metadata": {"labels": {"value": value}}}
    applied = await client.apply(ConfigMap, name, space, body)
    return applied.metadata.resource_version


async def test_create_get_and_the_ways_they_fail(client: Client, space: str) -> None:
    """A typed object is created and read; a second create is AlreadyExists, a missing object
    NotFound.
    """
    lease = Lease(
        metadata=ObjectMeta(name="l", namespace=space), spec=LeaseSpec(holder_identity="me")
    )
    created = await client.create(lease)
    assert created.metadata.uid
    read = await client.get(Lease, "l", space)
    assert read.spec.holder_identity == "me"
    assert read.metadata.resource_version == created.metadata.resource_version
    with pytest.raises(AlreadyExists) as twice:
        await client.create(lease)
    assert twice.value.details.name == "l"
    with pytest.raises(NotFound, match='"nobody" not found'):
        await client.get(Lease, "nobody", space)
    with pytest.raises(NotFound):
        await client.list(Widget)
    with pytest.raises(Invalid) as refused:
        await client.create(Lease(metadata=ObjectMeta(name="Bad_Name", namespace=space)))
    assert refused.value.details.causes


async def test_a_patch_of_a_successor_is_a_conflict(client: Client, space: str) -> None:
    """A patch of an object that was deleted and created again is a Conflict."""
    lease = Lease(metadata=ObjectMeta(name="again", namespace=space))
    first = await client.create(lease)
    await client.delete(Lease, "again", space)
    await client.create(lease)
    body = {"metadata": {"uid": first.metadata.uid}, "spec": {"holderIdentity": "me"}}
    with pytest.raises(Conflict) as refused:
        await client.patch(Lease, "again", space, body)
    assert not isinstance(refused.value, Terminal)
    with pytest.raises(Conflict):
        await client.apply(Lease, "again", space, body)
    with pytest.raises(Invalid):
        await client.patch(Lease, "again", space, {"spec": {"leaseDurationSeconds": -1}})


async def test_a_dry_run_leaves_nothing(client: Client, space: str) -> None:
    """Every write has a dry run that changes nothing."""
    item = ConfigMap({"metadata": {"name": "c", "namespace": space}, "data": {"a": "1"}})
    assert (await client.create(item, dry_run=True)).metadata.name == "c"
    with pytest.raises(NotFound):
        await client.get(ConfigMap, "c", space)
    created = await client.create(item)
    body = {"data": {"a": "2"}}
    tried = await client.patch(ConfigMap, "c", space, body, dry_run=True)
    assert tried.get("data", "a") == "2"
    assert (await client.apply(ConfigMap, "c", space, body, force=True, dry_run=True)).get(
        "data", "a"
    ) == "2"
    await client.replace(ConfigMap({**created.raw, "data": {"a": "3"}}), dry_run=True)
    await client.delete(ConfigMap, "c", space, dry_run=True)
    assert (await client.get(ConfigMap, "c", space)).get("data", "a") == "1"


async def test_replace_checks_the_version(client: Client, space: str) -> None:
    """An object is replaced only if it was not changed meanwhile."""
    item = ConfigMap({"metadata": {"name": "c", "namespace": space}, "data": {"a": "1"}})
    created = await client.create(item)
    changed = await client.replace(ConfigMap({**created.raw, "data": {"a": "2"}}))
    assert changed.get("data") == {"a": "2"}
    with pytest.raises(Conflict, match="the object has been modified"):
        await client.replace(ConfigMap({**created.raw, "data": {"a": "3"}}))


async def test_patches_of_every_kind(client: Client, space: str) -> None:
    """Merge, JSON and strategic patches are applied, and check the version."""
    pod = {"containers": [{"name": "c", "image": "example.com/one"}]}
    await client.create(AnyPod({"metadata": {"name": "p", "namespace": space}, "spec": pod}))
    first = await client.patch(Pod, "p", space, {"metadata": {"labels": {"a": "1", "b": "2"}}})
    assert first.metadata.labels == {"a": "1", "b": "2"}
    removal = [{"op": "remove", "path": "/metadata/labels/b"}]
    second = await client.patch(Pod, "p", space, removal, kind="json")
    assert second.metadata.labels == {"a": "1"}
    image = {"spec": {"containers": [{"name": "c", "image": "example.com/two"}]}}
    third = await client.patch(AnyPod, "p", space, image, kind="strategic")
    assert third.get("spec", "containers", 0, "image") == "example.com/two"
    stale = {"metadata": {"resourceVersion": first.metadata.resource_version, "labels": {"c": ""}}}
    with pytest.raises(Conflict):
        await client.patch(Pod, "p", space, stale)
    ready = {"status": {"phase": "Running"}}
    assert (await client.patch(Pod, "p", space, ready, subresource="status")).status.phase
    with pytest.raises((BadRequest, Invalid)):
        await client.patch(Pod, "p", space, {"spec": {"containers": 5}})


async def test_apply_owns_fields(client: Client, space: str) -> None:
    """A field of another manager is a conflict until it is forced, and then it is ours."""
    await client.apply(ConfigMap, "c", space, {"data": {"a": "1"}}, field_manager="one")
    with pytest.raises(Conflict, match='conflict with "one"'):
        await client.apply(ConfigMap, "c", space, {"data": {"a": "2"}}, field_manager="two")
    forced = await client.apply(
        ConfigMap, "c", space, {"data": {"a": "2"}}, field_manager="two", force=True
    )
    assert forced.get("data", "a") == "2"
    nothing = await client.apply(ConfigMap, "c", space, {}, field_manager="two")
    assert nothing.get("data", "a") is None


async def test_deletion_can_be_conditional(client: Client, space: str) -> None:
    """A wrong uid or version deletes nothing; what is returned depends on the kind."""
    version = await put_map(client, space, "c", "1")
    with pytest.raises(Conflict):
        await client.delete(ConfigMap, "c", space, uid="somebody-else")
    with pytest.raises(Conflict):
        await client.delete(ConfigMap, "c", space, resource_version=str(int(version) - 1))
    assert await client.delete(ConfigMap, "c", space, resource_version=version) is None
    with pytest.raises(NotFound):
        await client.delete(ConfigMap, "c", space)
    pod = {"containers": [{"name": "c", "image": "example.com/one"}]}
    await client.create(AnyPod({"metadata": {"name": "p", "namespace": space}, "spec": pod}))
    gone = await client.delete(Pod, "p", space, grace_period=0)
    assert gone is not None
    assert gone.metadata.name == "p"


async def test_an_eviction_that_a_budget_refuses(client: Client, space: str) -> None:
    """429 is raised at once; without a budget the pod is deleted."""
    pod = {"nodeName": "n", "containers": [{"name": "c", "image": "example.com/one"}]}
    for name in ("guarded", "free"):
        meta = {"name": name, "namespace": space, "labels": {"app": name}}
        await client.create(AnyPod({"metadata": meta, "spec": pod}))
        running = {"status": {"phase": "Running"}}
        await client.patch(Pod, name, space, running, subresource="status")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    await client.create(Budget({"metadata": {"name": "b", "namespace": space}, "spec": budget}))
    assert (await client.get(PodDisruptionBudget, "b", space)).metadata.name == "b"
    with pytest.raises(TooManyRequests) as refused:
        await client.evict("guarded", space)
    assert refused.value.retry_after
    await client.evict("free", space, dry_run=True)
    assert (await client.get(Pod, "free", space)).metadata.deletion_timestamp is None
    with pytest.raises(Conflict):
        await client.evict("free", space, uid="somebody-else")
    await client.evict("free", space, grace_period=7)
    marked = await client.get(Pod, "free", space)
    assert marked.metadata.deletion_grace_period_seconds == 7


async def test_lists_in_pages_are_one_state(client: Client, space: str) -> None:
    """Pages show the state of the first, and the server applies the selectors."""
    for number in range(7):
        await put_map(client, space, f"c-{number}", str(number % 2))
    whole = await client.list(ConfigMap, space, label_selector="value", limit=0)
    paged = await client.list(ConfigMap, space, label_selector="value", limit=3)
    assert [item.key for item in paged] == [item.key for item in whole]
    assert len(paged) == 7
    odd = await client.list(ConfigMap, space, label_selector="value=1")
    assert len(odd) == 3
    named = await client.list(ConfigMap, space, field_selector="metadata.name=c-3")
    assert [item.key for item in named] == [(space, "c-3")]
    versions = []
    async for version, items in client.pages(Scope(ConfigMap, space, "value"), limit=3):
        versions.append(version)
        await put_map(client, space, f"late-{len(versions)}", "x")
        assert not any(item.metadata.name.startswith("late") for item in items)
    assert len(set(versions)) == 1
    with pytest.raises(BadRequest):
        await client.list(ConfigMap, space, label_selector="((")


async def test_a_watch_sees_changes_in_order(client: Client, space: str) -> None:
    """Events are typed and start at a version; an object that leaves the selection is DELETED."""
    await put_map(client, space, "before", "1")
    start = (await client.list(ConfigMap, space)).resource_version
    await put_map(client, space, "c", "1")
    await put_map(client, space, "c", "2")
    await client.delete(ConfigMap, "c", space)
    seen = []
    async with asyncio.timeout(20):
        async for event in client.watch(
            ConfigMap, space, resource_version=start, label_selector="value"
        ):
            seen.append((event.type, event.object.get("data", "value")))
            if event.type == "DELETED":
                break
    assert seen == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]
    left = []
    async with asyncio.timeout(20):
        async for event in client.watch(
            ConfigMap, space, resource_version=start, label_selector="value=1"
        ):
            left.append(event.type)
            if event.type == "DELETED":
                break
    assert left == ["ADDED", "DELETED"]


async def test_the_first_list_is_streamed(client: Client, space: str) -> None:
    """Both servers have WatchList, so a reflector needs no list at all."""
    for number in range(3):
        await put_map(client, space, f"c-{number}", "1")
    store: Store[Lease] = Store()
    await client.create(Lease(metadata=ObjectMeta(name="l", namespace=space)))
    reflector = Reflector(client, Lease, store, namespace=space)
    task = asyncio.create_task(reflector.run())
    async with asyncio.timeout(20):
        await reflector.synced.wait()
    task.cancel()
    await asyncio.wait([task])
    assert store.keys() == ((space, "l"),)
    assert client.refused_watch_list == set()
    assert int(store.resource_version) > 0


async def test_custom_resources_need_no_class(client: Client, space: str) -> None:
    """A kind that was just defined can be created, patched (not strategically), listed, watched."""
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    definition = {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
    }
    await client.create(Definition(definition))
    try:
        start = (await client.list(Definition)).resource_version
        async with asyncio.timeout(20):
            current = await client.get(Definition, "widgets.example.com")
            events = client.watch(Definition, resource_version=start)
            while not any(
                condition["type"] == "Established" and condition["status"] == "True"
                for condition in current.get("status", "conditions", default=[])
            ):
                current = (await anext(events)).object
            item = Widget({"metadata": {"name": "w", "namespace": space}, "spec": {"size": 1}})
            while True:
                try:
                    await client.create(item)
                    break
                except NotFound:
                    # Established and served are two moments on a real server.
                    await asyncio.sleep(0.1)
        changed = await client.patch(Widget, "w", space, {"spec": {"size": 2}})
        assert changed.get("spec", "size") == 2
        with pytest.raises(UnsupportedMediaType):
            await client.patch(Widget, "w", space, {}, kind="strategic")
        assert len(await client.list(Widget)) == 1
        snapshot = await Snapshot.live(client, [Widget, Node], namespace=space)
        assert [item.key for item in snapshot.all(Widget)] == [(space, "w")]
    finally:
        await client.delete(Definition, "widgets.example.com")


async def test_the_server_has_a_version(client: Client) -> None:
    """Both servers report their version of Kubernetes."""
    assert (await client.server_version()).git_version.startswith("v1.36")
