"""A program that relies on the API server's clock is not ready while its own is off."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from tests.cli.dns_cluster import api, free_port
from tests.cli.run_program import LIMIT, environment

pytestmark = pytest.mark.system

PROGRAMS = {
    "webhook": ("--listen=127.0.0.1:0", "--budgets=enforce", "-n", "default"),
    "controller": ("--lease-namespace=default", "--budgets=enforce"),
}
SHIFTED = """
import sys, time
now, shift = time.time, float(sys.argv.pop())
time.time = lambda: now() + shift
from zonewise.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The program on a machine whose clock is off by its last argument, in seconds."""


def started(
    home: Path, kubeconfig: Path, name: str, port: int, shift: float
) -> subprocess.Popen[bytes]:
    """A program whose clock is off, with its health on this port."""
    return subprocess.Popen(
        [
            *(sys.executable, "-c", SHIFTED, name, *PROGRAMS[name]),
            *(f"--metrics-listen=127.0.0.1:{port}", f"--kubeconfig={kubeconfig}", str(shift)),
        ],
        env=environment(home),
        stderr=subprocess.DEVNULL,
    )


async def page(port: int, path: str) -> tuple[int, str]:
    """A page of the small server; 0 while there is none."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status, await answer.text()
    except aiohttp.ClientError:
        return 0, ""


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("shift", "side"), [(200.0, "ahead of"), (-200.0, "behind")])
async def test_readyz_reports_a_clock_that_is_off(
    name: str, shift: float, side: str, tmp_path: Path
) -> None:
    """More than 60 s from the API server's clock /readyz fails, with a sentence that says how far
    and what to do; the program keeps running.
    """
    port = free_port()
    async with api(tmp_path / "cluster") as server, asyncio.timeout(LIMIT):
        program = started(tmp_path, server.identity.kubeconfig, name, port, shift)
        try:
            text = ""
            while "clock: " not in text:
                assert program.poll() is None
                await asyncio.sleep(0.05)
                status, text = await page(port, "/readyz")
            alive, _ = await page(port, "/livez")
        finally:
            program.kill()
            program.wait()
    sentence = (
        rf"^\[-\] clock: the clock of this machine is (\d+) s {side} the API server's; set it"
    )
    match = re.search(sentence, text, re.M)
    assert match is not None, text
    assert abs(int(match[1]) - 200) <= 2
    assert (status, alive) == (503, 200)
