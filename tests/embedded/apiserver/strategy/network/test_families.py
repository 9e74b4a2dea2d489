"""Address families of Services, on servers of one family and of two."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.apiserver.strategy.case_runner import PLAIN
from tests.embedded.apiserver.strategy.case_tables import NAMESPACE, embedded, open_namespace

from zonewise.embedded.apiserver.server import DUAL_STACK, ApiServer, ServerSettings

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
REQUIRED = {"ipFamilyPolicy": "RequireDualStack"}


async def create(folder: Path, networks: tuple[str, ...], **spec: Any) -> tuple[int, Any]:
    """The answer of a new server with such networks to a Service."""
    server = ApiServer(
        folder,
        settings=ServerSettings(service_networks=networks),
        clock=lambda: 1.8e9,
        rng=random.Random(7),
        inline=True,
    )
    await server.boot()
    send = embedded(server)
    await open_namespace(send)
    body = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], **spec}}
    answer = await send("POST", SERVICES, body, PLAIN)
    await server.close()
    return answer


@pytest.mark.parametrize(
    ("families", "fields"),
    [
        (["IPv4", "IPv6"], ["spec.ipFamilyPolicy", "spec.ipFamilies[1]"]),
        (["IPv6"], ["spec.ipFamilyPolicy", "spec.ipFamilies[0]"]),
        (["IPv4"], ["spec.ipFamilyPolicy"]),
    ],
)
async def test_two_families_where_there_is_one(
    tmp_path: Path, families: list[str], fields: list[str]
) -> None:
    """The policy that cannot be met and each missing family are separate causes."""
    code, answer = await create(tmp_path, DUAL_STACK[:1], ipFamilies=families, **REQUIRED)
    assert code == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == fields


async def test_two_families_where_there_are_two(tmp_path: Path) -> None:
    """A Service that requires both gets an address of each."""
    code, answer = await create(tmp_path, DUAL_STACK, **REQUIRED)
    assert code == 201
    assert [":" in address for address in answer["spec"]["clusterIPs"]] == [False, True]
