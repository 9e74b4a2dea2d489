"""The printed roles are enough for all that the programs do, and each verb of them is needed.

The controllers run under the installed service accounts, the controller's and the webhook's, on an
embedded server with the printed policies in force, in virtual time. Each of them does everything it
ever does: slices are created, changed and deleted, hints come and go often enough for events to be
counted up, the lease is taken, renewed and released, the certificate is made, published and used.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, virtual_cluster
from tests.explain.dumps import AUTO, endpoint, node, part, pod, service
from tests.install.accounts import Accounts, Verb, install, list_verbs, until_refused, without

from zonewise.api import EndpointSlice, Event, Node, Pod, Service, convert
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.api.objects.locator import PodLocator
from zonewise.api.values import times
from zonewise.controllers.hints.controller import HintsController, HintsSettings, SliceRole
from zonewise.controllers.locators.controller import LocatorsController
from zonewise.install.installation import LEASE, NAME, WEBHOOK, Installation, Obj
from zonewise.install.installation import Role as Choice
from zonewise.install.manifests import render_manifests
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.watch import WatchOptions
from zonewise.runtime.controller.recorder import Recorder
from zonewise.runtime.election.election import Election
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.webhook.certificates import Certificates, ConfigurationKind
from zonewise.webhook.hints import HintInjection

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

BOX = [{"name": "box", "image": "box"}]
OURS = {"managed-by": "endpointslice-controller.k8s.io"}
KINDS: dict[str, type[Any]] = {
    "Service": Service,
    "EndpointSlice": EndpointSlice,
    "Pod": Pod,
    "Node": Node,
}


async def put(cluster: VirtualCluster, item: Obj) -> None:
    """Create an object with its status."""
    cls = KINDS[item["kind"]]
    stored = await cluster.client.create(convert(cls, item))
    if "status" in item:
        body = {"status": item["status"]}
        space = stored.metadata.namespace or None
        await cluster.client.patch(cls, stored.metadata.name, space, body, subresource="status")


async def forever() -> None:
    """Lead until cancelled."""
    await asyncio.Event().wait()


async def life(cluster: VirtualCluster, accounts: Accounts, choice: Choice) -> None:
    """Everything the programs do."""
    loop, rng = asyncio.get_running_loop(), random.Random(2)

    def clock() -> float:
        return EPOCH + loop.time()

    client = accounts.controller
    cache, webhook_cache = (
        Cache(account, options=WatchOptions(watch_list=False))
        for account in (client, accounts.webhook)
    )
    recorder = Recorder(
        client, controller=NAME, instance=NAME, now=lambda: times.from_epoch(clock()), rng=rng
    )
    context = ControllerContext(client=client, cache=cache, recorder=recorder, clock=clock, rng=rng)
    hints = HintsController(context, HintsSettings(role=SliceRole(choice)))
    locators = LocatorsController(context)
    configurations: list[tuple[ConfigurationKind, str]] = [(ValidatingWebhookConfiguration, NAME)]
    if choice == "adopt":
        HintInjection(webhook_cache)
        configurations.append((MutatingWebhookConfiguration, NAME))
    certificates = Certificates(
        accounts.webhook,
        secret=WEBHOOK,
        namespace=NAME,
        hosts=["localhost"],
        configurations=configurations,
        serve=lambda certificate, key: None,
        rng=rng,
    )
    election = Election(
        Client(client.transport, retries=0), name=LEASE, namespace=NAME, clock=loop.time, rng=rng
    )
    async with asyncio.TaskGroup() as tasks:
        parts = [
            tasks.create_task(part_of_it)
            for part_of_it in (
                cache.run(),
                webhook_cache.run(),
                recorder.run(),
                hints.run(),
                locators.run(),
                certificates.run(),
            )
        ]
        leading = tasks.create_task(election.run(forever))
        await certificates.serving.wait()
        for zone in "ab":
            await put(cluster, node(f"n-{zone}", zone))
        await put(cluster, service())
        for number, zone in enumerate("ab"):
            await put(cluster, pod(f"10.0.0.{number}", f"n-{zone}", containers=BOX))
        await asyncio.sleep(5)
        relabel = {"metadata": {"labels": {"example.com/rack": "r"}}}
        await cluster.client.patch(Node, "n-a", None, relabel)
        orphan = {"metadata": {"name": "orphan", "namespace": "default"}}
        await cluster.client.create(convert(PodLocator, orphan))
        if choice == "own":
            await put(cluster, part([endpoint("10.9.9.9")], name="left-over", **OURS))
        else:
            rows = [endpoint(f"10.0.0.{n}", zone, on=f"n-{zone}") for n, zone in enumerate("ab")]
            await put(cluster, part(rows, **OURS))
        for mode in ("Disabled", "Auto") * 3:
            await asyncio.sleep(5)
            body = {"metadata": {"annotations": {next(iter(AUTO)): mode}}}
            await cluster.client.patch(Service, "web", "default", body)
        for _ in range(2):
            # Transitions are no series; this is what a fault looks like that comes again.
            recorder.event(
                convert(Service, service()), "SlicesTooLarge", "Route", "again", type="Warning"
            )
            await asyncio.sleep(90)
        for task in (leading, *parts):
            task.cancel()


async def check_work(cluster: VirtualCluster, choice: Choice) -> None:
    """Check that everything was done."""
    slices = await cluster.client.list(EndpointSlice, "default")
    ours = [piece for piece in slices if piece.metadata.labels.get("kubernetes.io/service-name")]
    hinted = {bool(row.hints) for piece in ours for row in piece.endpoints or ()}
    assert hinted == {choice != "observe"}
    assert "left-over" not in {piece.metadata.name for piece in ours}
    located = await cluster.client.list(PodLocator, "default")
    assert {
        locator.node_name: "example.com/rack" in (locator.node_labels or {}) for locator in located
    } == {
        "n-a": True,
        "n-b": False,
    }
    events = await cluster.client.list(Event, "default")
    assert any(event.series is not None for event in events)


@pytest.mark.parametrize("choice", ["own", "adopt", "observe"])
async def test_what_is_printed_is_enough(choice: Choice) -> None:
    """With the printed roles nothing that the programs do is refused."""
    async with virtual_cluster({}) as cluster:
        await install(cluster, render_manifests(Installation(role=choice)))
        accounts = Accounts.of(cluster)
        await life(cluster, accounts, choice)
        assert accounts.refusals.refused == []
        await check_work(cluster, choice)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "less"),
    [
        pytest.param(choice, less, id=f"{choice}-{less}")
        for choice in ("own", "adopt")
        for less in list_verbs(Installation(role=choice))
    ],
)
async def test_one_verb_less_fails(choice: Choice, less: Verb) -> None:
    """Without any single verb of the printed roles, something the programs do is refused."""
    async with virtual_cluster({}) as cluster:
        await install(cluster, without(render_manifests(Installation(role=choice)), less))
        accounts = Accounts.of(cluster)
        await until_refused(life(cluster, accounts, choice), accounts.refusals)
        refused = accounts.refusals.refused
        assert refused
        assert all(less.resource.partition("/")[0] in path for path in refused)
