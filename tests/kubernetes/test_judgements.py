"""The recorded verdicts on custom resources are still what the real server says."""

from __future__ import annotations

import pytest
from tests.kubernetes.judgements import load, verdicts
from tests.kubernetes.real_server import RealServer
from tools.realkube import ControlPlane

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", ["schemas", "costs", "values", "expressions"])
async def test_recorded_verdicts_are_current(realapi: ControlPlane, name: str) -> None:
    """Asked again, the real server says of every case what is written down."""
    server = RealServer(realapi)
    try:
        cases = load(name)
        found = await verdicts(server, cases, f"{name}.judged.example.com")
    finally:
        await server.close()
    for case, now in zip(cases, found, strict=True):
        assert {key: case[key] for key in ("definition", "object") if key in case} == now, case
