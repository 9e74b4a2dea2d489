"""Reflectors against a real API server behind a proxy that injects faults.

At the end every store equals the server, no change was applied twice or out of order, a failing
watch sends at most one request a second, and many watches do not reconnect at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, get_args

import pytest
from tests.kubernetes.breaking_proxy import BreakingProxy, Fault

from tools import realkube as real
from zonewise.api.errors import NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.coordination import Lease, LeaseSpec
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.cache.reflector import Reflector
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.client.watch import WatchOptions
from zonewise.runtime.config.cluster import ClusterConfig, load_config

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

NAMESPACE = "faults"
ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
Namespace = unstructured(Resource("", "v1", "Namespace", "namespaces", namespaced=False))


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    settings = real.Settings(controllers=(), scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


def proxy(plane: real.ControlPlane, *, seed: int = 0) -> BreakingProxy:
    context = ssl.create_default_context(cafile=str(plane.certificate_authority))
    keys = plane.folder / "pki"
    context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
    return BreakingProxy(int(plane.url.rpartition(":")[2]), context, seed=seed)


@asynccontextmanager
async def direct(plane: real.ControlPlane) -> AsyncIterator[Client]:
    """A client that goes past the proxy, with the namespace of these tests in place."""
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        await client.apply(Namespace, NAMESPACE, None, {})
        yield client


class Follower:
    """A reflector behind the proxy, and every change of its store."""

    def __init__(self, client: Client, cls: type[Any], store: Store[Any], **scope: Any) -> None:
        self.cls = cls
        self.scope = scope
        self.store = store
        self.changes: list[tuple[Key, str | None, str | None]] = []
        store.on_change(self.note)
        self.reflector = Reflector(client, cls, store, namespace=NAMESPACE, **scope)

    def note(self, old: Any, new: Any) -> None:
        versions = [item.metadata.resource_version if item else None for item in (old, new)]
        self.changes.append(((new or old).key, versions[0], versions[1]))

    async def equals(self, client: Client) -> bool:
        """Whether the store holds exactly what the server has."""
        there = await client.list(
            self.cls, NAMESPACE, label_selector=self.scope.get("label_selector", "")
        )
        stored = {item.key: item.metadata.resource_version for item in self.store}
        return stored == {item.key: item.metadata.resource_version for item in there}

    def assert_in_order(self) -> None:
        """Each change begins where the last one of that object ended, and versions only grow."""
        versions: dict[Key, str | None] = {}
        newest: dict[Key, int] = {}
        for key, old, new in self.changes:
            assert versions.get(key) == old, (
                f"{key} was {versions.get(key)}, the change begins at {old}"
            )
            versions[key] = new
            if new is not None:
                assert int(new) > newest.get(key, 0), f"{key} went back to {new}"
                newest[key] = int(new)


@asynccontextmanager
async def running(followers: list[Follower]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(follower.reflector.run()) for follower in followers]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Any], *, seconds: float) -> None:
    """Wait for a condition, which may be asynchronous."""
    for _ in range(round(seconds * 5)):
        answer = condition()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"not within {seconds} s: {condition}")


async def write(client: Client, rng: random.Random, number: int) -> None:
    """One random change: create, change, relabel or delete."""
    name = f"object-{rng.randrange(30)}"
    try:
        match rng.randrange(8):
            case 0:
                await client.delete(ConfigMap, name, NAMESPACE)
            case 1 | 2 | 3:
                labels = {"chosen": rng.choice(["yes", "no"])}
                body = {"metadata": {"labels": labels}, "data": {"number": str(number)}}
                await client.apply(ConfigMap, name, NAMESPACE, body, force=True)
            case 4:
                spec = LeaseSpec(holder_identity=f"holder-{number}")
                await client.apply(Lease, name, NAMESPACE, {"spec": spec}, force=True)
            case 5:
                endpoints = [{"addresses": [f"10.0.0.{octet}"]} for octet in range(number % 100)]
                body = {"addressType": "IPv4", "endpoints": endpoints, "ports": []}
                await client.apply(EndpointSlice, name, NAMESPACE, body, force=True)
            case 6:
                await client.delete(Lease, name, NAMESPACE)
            case 7:
                await client.delete(EndpointSlice, name, NAMESPACE)
    except NotFound:
        pass


async def keep_writing(client: Client) -> None:
    rng = random.Random(5)
    for number in itertools.count():
        await write(client, rng, number)
        await asyncio.sleep(0.02)


async def test_stores_equal_the_server_after_a_storm_of_faults(plane: real.ControlPlane) -> None:
    """After all faults and a restart, stores are equal, and each change came once and in order."""
    options = WatchOptions(silence=3.0, base=0.3, cap=2.0)
    pages = WatchOptions(silence=3.0, base=0.3, cap=2.0, watch_list=False)
    async with (
        direct(plane) as client,
        proxy(plane) as breaking,
        Client(HttpsTransport(ClusterConfig(server=breaking.url))) as broken,
    ):
        followers = [
            Follower(broken, ConfigMap, Store(), options=options),
            Follower(broken, ConfigMap, Store(), options=pages, label_selector="chosen=yes"),
            Follower(broken, Lease, Store(), options=options),
            Follower(broken, EndpointSlice, Store(compact=True), options=pages),
        ]
        async with running(followers):
            writing = asyncio.create_task(keep_writing(client))
            for follower in followers:
                await asyncio.wait_for(follower.reflector.synced.wait(), 30)
            faults: list[Fault] = [*get_args(Fault)]
            for fault in faults:
                breaking.fault = fault
                if fault not in ("none", "silent"):
                    breaking.cut()
                await asyncio.sleep(1.2)
                breaking.fault = "none"
                if fault == "silent":
                    breaking.freeze()
                await asyncio.sleep(1.0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            # A restarted server has forgotten the changes since: a real "too old".
            await asyncio.to_thread(plane.restart_apiserver)
            again = asyncio.create_task(keep_writing(client))
            await asyncio.sleep(2.0)
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)
            for follower in followers:
                await until(partial(follower.equals, client), seconds=60)
    for follower in followers:
        follower.assert_in_order()
        assert len(follower.changes) > 20
        stats = follower.reflector.stats
        assert stats.restarts > 5, stats
        assert stats.relists > 1, stats
        assert stats.too_old > 0, stats


LASTING: tuple[Fault, ...] = ("refuse", "cut", "429", "500", "410", "too old", "ended")


async def test_a_failing_watch_asks_at_most_once_a_second(plane: real.ControlPlane) -> None:
    """Over 30 seconds of any fault no watch sends more than 30 requests, and then it heals."""
    options = WatchOptions(cap=10.0)
    async with direct(plane) as client, AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(proxy(plane)) for _ in LASTING]
        clients = [
            await stack.enter_async_context(
                Client(HttpsTransport(ClusterConfig(server=breaking.url)))
            )
            for breaking in proxies
        ]
        followers = [Follower(broken, ConfigMap, Store(), options=options) for broken in clients]
        async with running(followers):
            for follower in followers:
                await asyncio.wait_for(follower.reflector.synced.wait(), 30)
            for breaking, fault in zip(proxies, LASTING, strict=True):
                breaking.fault = fault
                breaking.cut()
            await asyncio.sleep(30)
            now = time.monotonic()
            counts = {
                fault: breaking.within(30, before=now)
                for fault, breaking in zip(LASTING, proxies, strict=True)
            }
            body = {"data": {"written": "while nobody could see it"}}
            await client.apply(ConfigMap, "unseen", NAMESPACE, body, force=True)
            for breaking in proxies:
                breaking.fault = "none"
                breaking.cut()
            for follower in followers:
                await until(partial(follower.equals, client), seconds=40)
    assert all(2 <= count <= 30 for count in counts.values()), counts
    for follower in followers:
        follower.assert_in_order()


async def test_fifty_watches_do_not_come_back_in_one_burst(plane: real.ControlPlane) -> None:
    """When a server loses all its connections, clients reconnect spread over time."""
    async with (
        direct(plane),
        proxy(plane) as breaking,
        Client(HttpsTransport(ClusterConfig(server=breaking.url))) as broken,
    ):
        followers = [Follower(broken, Lease, Store()) for _ in range(50)]
        async with running(followers):
            for follower in followers:
                await asyncio.wait_for(follower.reflector.synced.wait(), 60)
            before = len(breaking.seen)
            moment = time.monotonic()
            breaking.cut()
            await until(lambda: len(breaking.seen) - before >= 50, seconds=20)
            await until(
                lambda: all(follower.reflector.stats.connected for follower in followers),
                seconds=20,
            )
    moments = sorted(seen.at - moment for seen in breaking.seen[before:])
    crowded = max(sum(0 <= other - start < 0.1 for other in moments) for start in moments)
    assert crowded <= 12, moments
    assert moments[-1] - moments[0] > 1.0, moments


def test_every_fault_of_the_proxy_is_used() -> None:
    """The list of lasting faults leaves out only what is not a failure of requests."""
    assert set(get_args(Fault)) - set(LASTING) == {"none", "silent", "trickle"}
