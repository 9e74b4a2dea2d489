"""The tables of ``tests/embedded/rules`` put to a real API server: the embedded one says the same.

The record of the real server's answers, which the ordinary tests use, is checked on the way; with
``ZONEWISE_RECORD=1`` it is written instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.rules import asked
from tests.embedded.rules.asking import Obj, Send
from tools.realkube import ControlPlane

from zonewise.embedded.call import parse_query
from zonewise.runtime.cluster import load_config
from zonewise.runtime.transport import HttpsTransport, Request

pytestmark = [
    pytest.mark.real,
    # A ConfigMap above its limit is more than aiohttp likes to be given in one piece.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]

AS_JOE = {
    "Impersonate-User": asked.JOE.name,
    "Impersonate-Group": "devs",
}


@pytest.fixture
async def real(realapi: ControlPlane) -> AsyncIterator[HttpsTransport]:
    """Connections to a real server on which the cases' namespace is there."""
    transport = HttpsTransport(load_config(realapi.kubeconfig))
    await asked.open_namespace(_send(transport))
    yield transport
    await transport.close()


@pytest.mark.parametrize("name", asked.TABLES)
async def test_table(name: str, real: HttpsTransport, tmp_path: Path) -> None:
    """Both servers give the same answers to a table, and those are the recorded ones."""
    theirs = await asked.table_answers(_send(real), name)
    server = await asked.embedded_server(tmp_path)
    try:
        ours = await asked.table_answers(asked.embedded(server), name)
    finally:
        await server.close()
    _record(name, asked.short(theirs))
    assert {label: one for label, one in ours.items() if one != theirs[label]} == {}


async def test_escalation(real: HttpsTransport, tmp_path: Path) -> None:
    """Both servers refuse and allow the same steps of somebody who holds little."""
    theirs = await asked.story_answers(_send(real), _send(real, AS_JOE))
    server = await asked.embedded_server(tmp_path)
    try:
        ours = await asked.story_answers(asked.embedded(server), asked.embedded(server, asked.JOE))
    finally:
        await server.close()
    _record(asked.STORY, asked.short(theirs))
    assert ours == theirs


def _send(transport: HttpsTransport, more: dict[str, str] | None = None) -> Send:
    async def send(method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Obj]:
        path, _, query = path.partition("?")
        request = Request(
            method=method,
            path=path,
            query=parse_query(query),
            headers={**headers, **(more or {})},
            body=None if body is None else json.dumps(body).encode(),
        )
        response = await transport.send(request)
        try:
            content = await response.read()
        finally:
            await response.close()
        return response.status, json.loads(content)

    return send


def _record(name: str, answers: dict[str, list[Obj]]) -> None:
    known = json.loads(asked.ANSWERS.read_text()) if asked.ANSWERS.exists() else {}
    if os.environ.get("ZONEWISE_RECORD"):
        text = json.dumps(known | {name: answers}, indent=0, sort_keys=True)
        asked.ANSWERS.write_text(text + "\n")
    else:
        assert known[name] == answers
