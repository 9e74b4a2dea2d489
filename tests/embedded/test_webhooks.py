"""Webhooks of the embedded API server: every situation of the contract, and what only ours has."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.hooked import SITUATIONS, Situation
from tests.contract.hooking import CA, Bench, Stranger
from tests.runtime.loopback import Web, server_tls, web

from zonewise.embedded.server import ApiServer


@pytest.fixture
def stranger() -> Stranger:
    return Stranger()


@pytest.fixture
def listening(stranger: Stranger) -> Iterator[Web]:
    with web(stranger.answer, tls=server_tls(CA)) as running:
        yield running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path, clock=time.time, rng=random.Random(1))
    await server.start(0)
    yield server
    await server.close()


@pytest.fixture
async def bench(server: ApiServer, stranger: Stranger, listening: Web) -> AsyncIterator[Bench]:
    bench = Bench(server.identity.kubeconfig, stranger, listening, "bench")
    await bench.open()
    yield bench
    await bench.close()


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.__name__)
async def test_situations_have_the_outcome_they_state(situation: Situation, bench: Bench) -> None:
    """Every situation of the contract holds on the embedded server."""
    await situation(bench)
