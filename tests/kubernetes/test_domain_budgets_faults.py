"""Budgets per failure domain on real Kubernetes under faults: no budget is exceeded, and no
rollout is stuck.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle

import pytest
from tests.kubernetes.budget_scene import AUDIT, ZONE, BudgetScene, image, scene

from tools import realkube as real
from zonewise.api import Namespace, Node, Pod
from zonewise.api.errors import NotFound, TooManyRequests, ZonewiseError
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.budgets import DisruptionLedger, TopologyDisruptionBudget
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.asyncio]

QUICK_LOSS = ("--node-monitor-grace-period=20s", "--node-monitor-period=1s")


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A whole control plane; its long grace period keeps nodes Ready on a busy machine."""
    patient = ("--node-monitor-grace-period=10m",)
    settings = real.Settings(fsync=False, audit=AUDIT, controller_manager_args=patient)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


@pytest.fixture
def impatient(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane that notices lost nodes soon."""
    settings = real.Settings(fsync=False, audit=AUDIT, controller_manager_args=QUICK_LOSS)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


@asynccontextmanager
async def balanced(*ports: int) -> AsyncIterator[int]:
    """A port whose connections go to each of some ports in turn."""
    turns = cycle(ports)
    links: set[asyncio.Task[None] | None] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links.add(asyncio.current_task())
        ends = [writer]
        # A task is cancelled only at the end of the test, and that is no error.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            inner, outer = await asyncio.open_connection("127.0.0.1", next(turns))
            ends.append(outer)
            await asyncio.gather(pump(reader, outer), pump(inner, writer))
        for end in ends:
            end.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for link in links:
            if link is not None:
                link.cancel()
        await asyncio.gather(*(link for link in links if link), return_exceptions=True)


async def cordon(here: BudgetScene) -> None:
    """Cordon every node."""
    for node in (await here.client.list(Node)).items:
        body = {"spec": {"unschedulable": True}}
        await here.client.patch(Node, node.metadata.name, None, body)


def old_pods(here: BudgetScene) -> Counter[str]:
    """Pods of the first image by zone."""
    return Counter(pod.spec.node_name[-2] for pod in here.pods() if image(pod) == "c:1")


async def test_two_replicas_of_the_gate_grant_what_is_allowed(plane: real.ControlPlane) -> None:
    """Fifty evictions at once under three budgets, by two webhooks in turn: three grants."""
    async with scene(plane, "replicas") as here:
        await here.deploy(50)
        await here.budget(ZONE, maxUnavailable=1)
        for name, spec in (("total", {"maxUnavailable": 40}), ("node", {"maxUnavailable": 3})):
            keys = {"topologyKeys": ["kubernetes.io/hostname"]} if name == "node" else {}
            await here.budget(name=name, **spec, **keys)
        first = await here.installed.heard("webhook", "webhooks are served")
        second = await here.installed.another_webhook("webhook-2")
        async with balanced(first["port"], second) as port:
            await here.installed.lead_to(port)
            await cordon(here)

            answers = await asyncio.gather(*map(here.evict, here.pods()))
            assert sum(answers) == 3
            ledger = await here.client.get(DisruptionLedger, "zonewise", here.namespace)
            assert len(ledger.spec.grants) == 3


async def test_two_drains_at_once_end(plane: real.ControlPlane) -> None:
    """``kubectl drain`` of two nodes in two zones ends, and no zone lacks more than one pod."""
    async with scene(plane, "drains") as here:
        await here.deploy(12)
        await here.budget(ZONE, maxUnavailable=1)
        here.begin()
        nodes = ("drains-a0", "drains-b0")

        async def drain(node: str) -> None:
            words = ("drain", node, "--timeout=170s", "--pod-selector=app=web")
            await asyncio.to_thread(plane.kubectl, *words, timeout=180.0)

        await asyncio.gather(*map(drain, nodes))
        await here.ready(12)
        assert {pod.spec.node_name for pod in here.pods()}.isdisjoint(nodes)
        assert all(count >= 3 for count in here.least.values()), here.evidence()


async def test_only_evictions_fail_without_the_gate(plane: real.ControlPlane) -> None:
    """Without the webhook evictions fail; garbage collection, namespaces and kubelets go on.

    With it back a rollout ends within its budget.
    """
    async with scene(plane, "down") as here:
        await here.deploy(9)
        await here.budget(ZONE, maxUnavailable=1)
        here.installed.end("webhook")
        with pytest.raises(ZonewiseError) as raised:
            await here.client.evict(here.pods()[0].metadata.name, here.namespace)
        assert not isinstance(raised.value, TooManyRequests | NotFound)
        other = "down-other"
        labels = {"zonewise.io/budgets": "enforce"}
        await here.client.create(Namespace(metadata=ObjectMeta(name=other, labels=labels)))
        await here.client.delete(Namespace, other)
        gone = here.pods()[0]
        await here.client.delete(Pod, gone.metadata.name, here.namespace)
        await here.ready(9)

        async def there() -> bool:
            return other in {
                namespace.metadata.name for namespace in await here.client.list(Namespace)
            }

        while await there():  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await here.installed.start("webhook", "--listen", "127.0.0.1:0", "--host", "127.0.0.1")
        here.begin()
        await here.update()
        await here.ready(9, "c:2")
        assert all(count >= 2 for count in here.least.values()), here.evidence()


async def test_a_rollout_outlives_its_leader(plane: real.ControlPlane) -> None:
    """The controller is killed in the middle of a rollout; the next one takes over."""
    async with scene(plane, "leader") as here:
        await here.deploy(12)
        await here.budget(ZONE, maxUnavailable=1)
        here.begin()
        await here.update()
        await here.until(lambda: any(image(pod) == "c:2" for pod in here.pods()), "a new pod")
        here.installed.end("controller")
        await here.installed.lead("controller-2")
        await here.ready(12, "c:2")
        assert all(count >= 3 for count in here.least.values()), here.evidence()


async def test_a_budget_that_is_edited_during_a_rollout(plane: real.ControlPlane) -> None:
    """A rollout stops at maxUnavailable 0, and continues when the budget allows pods again."""
    async with scene(plane, "edited") as here:
        await here.deploy(12)
        await here.budget(ZONE, maxUnavailable=1)
        here.begin()

        async def most(number: int) -> None:
            body = {"spec": {"maxUnavailable": number}}
            await here.client.patch(TopologyDisruptionBudget, "web", here.namespace, body)
            await here.counted()

        await here.update()
        await here.until(lambda: any(image(pod) == "c:2" for pod in here.pods()), "a new pod")
        await most(0)
        # A deletion that the clamp had let through and the closed budget refuses leaves one more.
        await here.until(
            lambda: len(here.pods()) >= 12 and all(map(is_pod_ready, here.pods())),
            "a rollout that rests",
        )
        stopped = old_pods(here)
        await asyncio.sleep(5)
        assert old_pods(here) == stopped
        await most(2)
        await here.ready(12, "c:2")
        assert all(count >= 2 for count in here.least.values()), here.evidence()


async def test_a_zone_fails_during_a_rollout(impatient: real.ControlPlane) -> None:
    """If a zone fails during a rollout the others stay within their budget, and the rollout ends
    when the zone is back.
    """
    async with scene(impatient, "outage") as here:
        await here.deploy(9, unavailable=6)
        await here.budget(ZONE, maxUnavailable=1)
        here.begin()
        await here.update()
        await here.until(lambda: any(image(pod) == "c:2" for pod in here.pods()), "a new pod")
        lost = ("outage-b0", "outage-b1")
        for node in lost:
            body = {"metadata": {"annotations": {FAILED_ANNOTATION: "true"}}}
            await here.client.patch(Node, node, None, body)
        await here.until(
            lambda: not any(is_pod_ready(pod) for pod in here.pods() if pod.spec.node_name in lost),
            "the zone is seen lost",
        )
        for node in lost:
            healed = {"metadata": {"annotations": {FAILED_ANNOTATION: None}}}
            await here.client.patch(Node, node, None, healed)
        await here.ready(9, "c:2")
        others = {zone: count for zone, count in here.least.items() if zone != "b"}
        assert all(count >= 2 for count in others.values()), here.evidence()
