"""The recorded answers about pods and workloads are those of the real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qsl

import pytest
from tests.embedded.apiserver.strategy import recorded_answers
from tests.embedded.apiserver.strategy.cases import Ask, answer
from tests.kubernetes.real_server import RealServer

from tools import realkube as real

NAMESPACE = "rules-a"


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """An API server with the ServiceAccount controller, which pods need."""
    settings = real.Settings(
        controllers=("serviceaccount-controller",), scheduler=False, fsync=False
    )
    with real.start(settings, binaries=real_binaries) as started:
        yield started


@pytest.fixture
async def ask(plane: real.ControlPlane) -> AsyncIterator[Ask]:
    """A real server with a namespace that is ready for pods."""
    server = RealServer(plane)

    async def send(method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        resource, _, query = path.partition("?")
        response = await server.ask(method, resource, body, **dict(parse_qsl(query)))
        return response.status, response.body

    try:
        await send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        await send("POST", accounts, {"metadata": {"name": "default"}})
        yield send
    finally:
        await server.close()


@pytest.mark.real
async def test_recorded_answers_are_current(ask: Ask) -> None:
    """Asked again, the real server's answer to every case is the recorded one."""
    known = recorded_answers.load()
    wrong = {}
    for case in recorded_answers.CASES:
        current = await answer(ask, case, NAMESPACE)
        if recorded_answers.short(current) != known[case.label]:
            wrong[case.label] = (known[case.label], current)
    assert not wrong
