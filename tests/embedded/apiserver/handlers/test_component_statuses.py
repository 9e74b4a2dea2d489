"""ComponentStatuses: which components of a control plane work."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.embedded.whole_cluster import whole

from zonewise.embedded.apiserver.handlers.component_statuses import component_statuses


def component_states(*, failure: str | None, running: bool) -> dict[str, tuple[str, str]]:
    """Each component with its status and message."""
    components = [
        msgspec.json.decode(entry.raw)
        for entry in component_statuses(failure=failure, running=running)
    ]
    return {
        component["metadata"]["name"]: (
            component["conditions"][0]["status"],
            component["conditions"][0]["message"],
        )
        for component in components
    }


def test_each_component_has_its_own_state() -> None:
    """Without components the scheduler is unhealthy; a failing log has its reason."""
    assert component_states(failure=None, running=True) == {
        "scheduler": ("True", "ok"),
        "controller-manager": ("True", "ok"),
        "etcd-0": ("True", "ok"),
    }
    alone = component_states(failure="the disk is full", running=False)
    assert alone["etcd-0"] == ("False", "the disk is full")
    status, message = alone["scheduler"]
    assert status == "False"
    assert message.endswith("dial tcp 127.0.0.1:10259: connect: connection refused")


@pytest.mark.looptime
async def test_a_cluster_at_work_is_healthy() -> None:
    """In a whole cluster all components are healthy."""
    async with whole() as cluster:
        await asyncio.sleep(1)
        answer = await cluster.client.raw("GET", "/api/v1/componentstatuses")
        items = msgspec.json.decode(answer.body)["items"]
        assert [component["metadata"]["name"] for component in items] == [
            "scheduler",
            "controller-manager",
            "etcd-0",
        ]
        assert {component["conditions"][0]["status"] for component in items} == {"True"}
