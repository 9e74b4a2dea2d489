"""The tables of this folder, and how an embedded server in this process answers them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.embedded.apiserver.strategy import (
    cases_core,
    cases_escalation,
    cases_mixed,
    cases_network,
    cases_roles,
    cases_slices,
    cases_storage,
    cases_webhooks,
)
from tests.embedded.apiserver.strategy.case_runner import (
    MERGE,
    PLAIN,
    Case,
    Obj,
    Send,
    ask,
    clean,
    placed,
)

from zonewise.embedded.apiserver.request.call import Call, User, parse_query
from zonewise.embedded.apiserver.server import OWNER, ApiServer

TABLES: Mapping[str, tuple[Case, ...]] = {
    "core": cases_core.CASES,
    "hooks": cases_webhooks.CASES,
    "more": cases_mixed.CASES,
    "network": cases_network.CASES,
    "roles": cases_roles.CASES,
    "slices": cases_slices.CASES,
    "storage": cases_storage.CASES,
}
STORY = "escalation"
NAMESPACE = "zw-rules"
ANSWERS = Path(__file__).parent / "data" / "core_answers.json"
LONGEST = 3000
JOE = User(cases_escalation.USER, (*cases_escalation.GROUPS, "system:authenticated"))


def embedded(server: ApiServer, user: User = OWNER) -> Send:
    """A function that asks an embedded server as a user."""

    async def send(method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Obj]:
        path, _, query = path.partition("?")
        answer = await server.handle(
            Call(
                method=method,
                path=path,
                user=user,
                query=parse_query(query),
                headers=headers,
                body=b"" if body is None else json.dumps(body).encode(),
            )
        )
        return answer.status, json.loads(answer.body)

    return send


async def embedded_server(folder: Path) -> ApiServer:
    """A server with the namespace of the cases, without a port."""
    server = ApiServer(folder, clock=lambda: 1.8e9, rng=random.Random(7), inline=True)
    await server.boot()
    await open_namespace(embedded(server))
    return server


async def open_namespace(send: Send) -> None:
    """Create the namespace of the cases."""
    await send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}, PLAIN)


async def table_answers(send: Send, name: str) -> dict[str, list[Obj]]:
    """The answers to a table."""
    return {case.label: await ask(send, case, NAMESPACE) for case in TABLES[name]}


async def story_answers(owner: Send, joe: Send) -> dict[str, list[Obj]]:
    """The answers to the steps of a user who may write roles but has few permissions."""
    for path, body in cases_escalation.SETUP:
        await owner("POST", path.replace("{ns}", NAMESPACE), placed(body, NAMESPACE), PLAIN)
    answers = {}
    for index, (method, path, body) in enumerate(cases_escalation.STEPS):
        code, answer = await joe(
            method,
            path.replace("{ns}", NAMESPACE),
            placed(body, NAMESPACE),
            MERGE if method == "PATCH" else PLAIN,
        )
        answers[f"{index} {method} {path}"] = [clean(code, answer, NAMESPACE)]
    return answers


def short(answers: dict[str, list[Obj]]) -> dict[str, list[Obj]]:
    """Answers as they are stored: of a large object only its digest."""
    return {label: [_short(answer) for answer in many] for label, many in answers.items()}


def _short(answer: Obj) -> Obj:
    text = json.dumps(answer.get("object"), sort_keys=True)
    if len(text) <= LONGEST:
        return answer
    return {"code": answer["code"], "digest": hashlib.sha256(text.encode()).hexdigest()}
