"""The tables of ``embedded/apiserver/strategy`` sent to a real API server: both answer the same.

The recorded answers of the real server, which the ordinary tests use, are checked as well; with
``ZONEWISE_RECORD=1`` they are written instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.apiserver.strategy import case_tables
from tests.embedded.apiserver.strategy.case_runner import Obj, Send
from tools.realkube import ControlPlane

from zonewise.embedded.apiserver.request.call import parse_query
from zonewise.runtime.client.transport import HttpsTransport, Request
from zonewise.runtime.config.cluster import load_config

pytestmark = [
    pytest.mark.real,
    # aiohttp warns about the large body of a ConfigMap above its limit.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]

AS_JOE = {
    "Impersonate-User": case_tables.JOE.name,
    "Impersonate-Group": "devs",
}


@pytest.fixture
async def real(realapi: ControlPlane) -> AsyncIterator[HttpsTransport]:
    """Connections to a real server that has the cases' namespace."""
    transport = HttpsTransport(load_config(realapi.kubeconfig))
    await case_tables.open_namespace(_send(transport))
    yield transport
    await transport.close()


@pytest.mark.parametrize("name", case_tables.TABLES)
async def test_table(name: str, real: HttpsTransport, tmp_path: Path) -> None:
    """Both servers give the same answers to a table, and those are the recorded ones."""
    theirs = await case_tables.table_answers(_send(real), name)
    server = await case_tables.embedded_server(tmp_path)
    try:
        ours = await case_tables.table_answers(case_tables.embedded(server), name)
    finally:
        await server.close()
    _record(name, case_tables.short(theirs))
    assert {label: answer for label, answer in ours.items() if answer != theirs[label]} == {}


async def test_escalation(real: HttpsTransport, tmp_path: Path) -> None:
    """Both servers refuse and allow the same steps of a user with few rights."""
    theirs = await case_tables.story_answers(_send(real), _send(real, AS_JOE))
    server = await case_tables.embedded_server(tmp_path)
    try:
        ours = await case_tables.story_answers(
            case_tables.embedded(server), case_tables.embedded(server, case_tables.JOE)
        )
    finally:
        await server.close()
    _record(case_tables.STORY, case_tables.short(theirs))
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
    known = json.loads(case_tables.ANSWERS.read_text()) if case_tables.ANSWERS.exists() else {}
    if os.environ.get("ZONEWISE_RECORD"):
        text = json.dumps(known | {name: answers}, indent=0, sort_keys=True)
        case_tables.ANSWERS.write_text(text + "\n")
    else:
        assert known[name] == answers
