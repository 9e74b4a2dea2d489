"""Webhooks of the embedded API server: every situation of the contract, and our own rules."""

from __future__ import annotations

import asyncio
import base64
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.webhook_bench import (
    CA,
    MERGE_PATCH,
    Answer,
    Bench,
    WebhookPlayer,
    allow,
    deny,
    rule,
)
from tests.contract.webhook_cases import SITUATIONS, Situation, configmap_path, create
from tests.runtime.loopback import Reply, Web, server_tls, web

from zonewise.api.objects.admissionregistration import ServiceReference, WebhookClientConfig
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.embedded.apiserver.webhooks.caller import (
    ANSWER_LIMIT,
    ServiceResolver,
    WebhookCaller,
    WebhookCallError,
)


@pytest.fixture
def stranger() -> WebhookPlayer:
    return WebhookPlayer()


@pytest.fixture
def listening(stranger: WebhookPlayer) -> Iterator[Web]:
    with web(stranger.answer, tls=server_tls(CA)) as running:
        yield running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path, clock=time.time, rng=random.Random(1))
    await server.start(0)
    yield server
    await server.close()


@pytest.fixture
async def bench(server: ApiServer, stranger: WebhookPlayer, listening: Web) -> AsyncIterator[Bench]:
    bench = Bench(server.identity.kubeconfig, stranger, listening, "bench")
    await bench.open()
    yield bench
    await bench.close()


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda case: case.__name__)
async def test_situations_have_the_outcome_they_state(situation: Situation, bench: Bench) -> None:
    """Every situation of the contract holds on the embedded server."""
    await situation(bench)
    assert bench.notes, "a situation notes what the server answered"


SERVICE: dict[str, Any] = {"spec": {"ports": [{"name": "https", "port": 8443}]}}


def _slice(port: int, *, ready: bool = True, name: str = "https") -> dict[str, Any]:
    """An EndpointSlice; the API refuses loopback addresses, so these are not stored through it."""
    return {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}],
        "ports": [{"name": name, "port": port}],
    }


async def _called(
    slices: list[dict[str, Any]], *, service: dict[str, Any] | None = SERVICE, port: int = 8443
) -> bytes:
    caller = WebhookCaller(
        ServiceResolver(lambda *_: service, lambda *_: slices, lambda endpoints: endpoints[0])
    )
    reference = ServiceReference(namespace="ns", name="hook", path="/behind", port=port)
    bundle = base64.b64encode(CA.cert_pem.bytes()).decode()
    try:
        config = WebhookClientConfig(service=reference, ca_bundle=bundle)
        return await caller.call(config, b"{}", 10.0)
    finally:
        await caller.close()


async def test_a_service_is_called_at_a_ready_endpoint_under_its_own_name() -> None:
    """Without a service network a webhook's Service is reached by its EndpointSlices."""
    with web(lambda _: Reply(body=b"here"), tls=server_tls(CA, "hook.ns.svc")) as behind:
        others = [_slice(1, ready=False), _slice(2, name="metrics")]
        assert await _called([*others, _slice(behind.port)]) == b"here"
        assert behind.seen[-1].header("host") == "hook.ns.svc"
        assert behind.seen[-1].path == "/behind?timeout=10s"


async def test_a_service_whose_certificate_is_for_another_name_is_not_trusted() -> None:
    """The certificate must be for the Service's name."""
    tls = server_tls(CA, "other.ns.svc")
    with web(tls=tls) as behind, pytest.raises(WebhookCallError, match="certificate"):
        await _called([_slice(behind.port)])


async def test_a_service_without_endpoints_is_reported() -> None:
    """A missing Service, port or ready endpoint each has its error."""
    with pytest.raises(WebhookCallError, match='service "hook" not found'):
        await _called([], service=None)
    with pytest.raises(WebhookCallError, match='no service port 1 found for service "hook"'):
        await _called([_slice(1)], port=1)
    with pytest.raises(WebhookCallError, match="has no service network"):
        await _called([_slice(1, ready=False)])


async def test_only_https_is_called() -> None:
    """A URL of another scheme is refused before anything is sent."""
    caller = WebhookCaller(
        ServiceResolver(lambda *_: None, lambda *_: [], lambda endpoints: endpoints[0])
    )
    with pytest.raises(WebhookCallError, match="https only"):
        await caller.call(WebhookClientConfig(url="http://127.0.0.1:1/"), b"{}", 1.0)


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(bench: Bench) -> None:
    """The limit of an answer is three mebibytes."""
    await bench.register("long", lambda _: Reply(body=b" " * (ANSWER_LIMIT + 1)))
    refused = await create(bench, "a")
    assert refused.status == 500
    assert "longer than" in refused.body["message"]


async def test_connections_are_used_again(bench: Bench, stranger: WebhookPlayer) -> None:
    """Twenty sequential calls use one connection."""
    await bench.register("yes")
    before = set(stranger.connections)
    for number in range(20):
        assert (await create(bench, f"c-{number}")).status == 201
    assert stranger.connections == before


async def test_of_several_refusals_the_first_in_order_is_given(
    bench: Bench, stranger: WebhookPlayer
) -> None:
    """The refusal of the first webhook in order wins, even if it is the slowest."""
    heard = threading.Event()

    def slow(_: dict[str, Any]) -> dict[str, Any]:
        assert heard.wait(10)
        return {"allowed": False, "status": {"message": "from the first"}}

    def quick(_: dict[str, Any]) -> dict[str, Any]:
        heard.set()
        return {"allowed": False, "status": {"message": "from the second"}}

    await bench.register("first", slow, more={"second": quick})
    refused = await create(bench, "a")
    assert "from the first" in refused.body["message"]


async def test_a_write_that_a_webhook_denies_charges_no_quota(
    bench: Bench, stranger: WebhookPlayer
) -> None:
    """Quotas come after webhooks: what these deny leaves the last free place of a quota free."""
    await bench.register("no", deny(message="not now"), rules=[rule("configmaps", "secrets")])
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "1"}}}
    assert (await bench.ask("POST", f"{bench.path}/resourcequotas", quota)).status == 201

    async def post_secret(name: str) -> Answer:
        return await bench.ask("POST", f"{bench.path}/secrets", {"metadata": {"name": name}})

    for _ in range(2):
        assert "denied the request: not now" in (await post_secret("a")).body["message"]
    stranger.handlers["no"] = allow()
    assert (await post_secret("a")).status == 201
    assert "exceeded quota: q" in (await post_secret("b")).body["message"]


async def test_a_patch_starts_over_when_a_webhook_took_too_long(
    bench: Bench, stranger: WebhookPlayer, server: ApiServer
) -> None:
    """A concurrent write during a call of a webhook is not lost."""
    await bench.register("thinks")
    assert (await create(bench, "a", x="1")).status == 201
    called, go_on = threading.Event(), threading.Event()

    def think(request: dict[str, Any]) -> dict[str, Any]:
        if request["object"]["data"].get("slow") and not go_on.is_set():
            called.set()
            assert go_on.wait(10)
        return {"allowed": True}

    stranger.handlers["thinks"] = think
    change = {"data": {"slow": "1"}}
    slow = asyncio.create_task(
        bench.ask("PATCH", configmap_path(bench, "a"), change, kind=MERGE_PATCH)
    )
    assert await asyncio.to_thread(called.wait, 10)
    quick = await bench.ask(
        "PATCH", configmap_path(bench, "a"), {"data": {"y": "2"}}, kind=MERGE_PATCH
    )
    assert quick.status == 200
    go_on.set()
    assert (await slow).body["data"] == {"x": "1", "y": "2", "slow": "1"}


async def test_a_write_without_webhooks_needs_one_lookup(bench: Bench, server: ApiServer) -> None:
    """Kinds without webhooks need one lookup; so do all kinds when the last one is deleted."""
    hooks = server.webhooks
    configmaps = server.registry.by_path("", "v1", "configmaps")
    secrets = server.registry.by_path("", "v1", "secrets")
    assert configmaps is not None and secrets is not None
    assert not hooks.may_match(configmaps, "CREATE", "")
    await bench.register("yes", rules=[rule(operations=("CREATE",))])
    assert hooks.may_match(configmaps, "CREATE", "")
    assert not hooks.may_match(configmaps, "UPDATE", "status")
    assert not hooks.may_match(secrets, "CREATE", "")
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    assert (await bench.ask("DELETE", path)).status == 200
    assert not hooks.may_match(configmaps, "CREATE", "")
