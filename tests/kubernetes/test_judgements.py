"""The recorded verdicts on custom resources are still those of the real server."""

from __future__ import annotations

import pytest
from tests.kubernetes.judgements import load, verdicts
from tests.kubernetes.real_server import RealServer
from tools.realkube import ControlPlane

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", ["schemas", "costs", "values", "expressions"])
async def test_recorded_verdicts_are_current(realapi: ControlPlane, name: str) -> None:
    """Asked again, the real server's verdict on every case is the recorded one."""
    server = RealServer(realapi)
    try:
        cases = load(name)
        current = await verdicts(server, cases, f"{name}.judged.example.com")
    finally:
        await server.close()
    for case, now in zip(cases, current, strict=True):
        assert {key: case[key] for key in ("definition", "object") if key in case} == now, case
