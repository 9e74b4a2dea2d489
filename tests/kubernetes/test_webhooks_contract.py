"""Our API server calls webhooks as a real one does: each situation has the same notes on both."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.webhook_bench import CA, Bench, WebhookPlayer
from tests.contract.webhook_cases import SITUATIONS, Situation
from tests.runtime.loopback import server_tls, web
from tools.realkube import ControlPlane

from zonewise.embedded.apiserver.server import ApiServer

pytestmark = pytest.mark.real


async def notes(kubeconfig: Path, situation: Situation) -> list[Any]:
    """The notes that a situation makes on a server."""
    stranger = WebhookPlayer()
    with web(stranger.answer, tls=server_tls(CA)) as listening:
        namespace = f"hooks-{situation.__name__.replace('_', '-')}"
        bench = Bench(kubeconfig, stranger, listening, namespace)
        await bench.open()
        try:
            await situation(bench)
        finally:
            await bench.close()
    return bench.notes


def differences(want: Any, have: Any, at: str = "") -> Iterator[str]:
    """Where two lists of notes differ."""
    if isinstance(want, dict) and isinstance(have, dict):
        for key in sorted({*want, *have}):
            yield from differences(want.get(key), have.get(key), f"{at}.{key}")
    elif isinstance(want, list | tuple) and isinstance(have, list | tuple):
        if len(want) != len(have):
            yield f"{at}: real {want!r}, ours {have!r}"
            return
        for n, (expected, other) in enumerate(zip(want, have, strict=True)):
            yield from differences(expected, other, f"{at}[{n}]")
    elif want != have:
        yield f"{at}: real {want!r}, ours {have!r}"


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
async def test_webhooks_are_called_as_by_a_real_server(
    situation: Situation, realapi: ControlPlane, tmp_path: Path
) -> None:
    """Requests to webhooks, answers, refusals and objects are those of a real server."""
    server = ApiServer(tmp_path, clock=time.time, rng=random.Random(1))
    await server.start(0)
    try:
        ours = await notes(server.identity.kubeconfig, situation)
    finally:
        await server.close()
    real = await notes(realapi.kubeconfig, situation)
    assert not list(differences(real, ours))
