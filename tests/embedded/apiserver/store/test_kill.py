"""Acknowledged writes survive kill -9, over HTTPS and with several writers.

The server is a process that is killed while four writers create and change objects. After each
restart on the same folder every acknowledged write must be there, versions must have gone up, and a
watch that resumes must see what it missed, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

pytestmark = pytest.mark.system

ROUNDS = int(os.environ.get("ZONEWISE_KILL_ROUNDS", "8"))
WRITERS = 4
READY_SECONDS = 30.0


class Served:
    """One run of the server."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        config = yaml.safe_load((folder / "kubeconfig").read_text())
        self.url: str = config["clusters"][0]["cluster"]["server"]
        self.token: str = config["users"][0]["user"]["token"]

    def session(self) -> aiohttp.ClientSession:
        """A client of it."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return aiohttp.ClientSession(
            self.url,
            headers={"Authorization": f"Bearer {self.token}"},
            connector=aiohttp.TCPConnector(ssl=context),
        )


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    """A server on ``folder``, killed at the end if it still lives."""
    (folder / "kubeconfig").unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "zonewise", "up", "--api-only", "--data", str(folder)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not (folder / "kubeconfig").exists():
                if process.returncode is not None:
                    assert process.stderr is not None
                    pytest.fail((await process.stderr.read()).decode())
                await asyncio.sleep(0.02)
        yield Served(process, folder)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Ledger:
    """The acknowledged objects, and the versions in the answers."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.newest = 0
        self._goal = 0
        self._reached = asyncio.Event()

    async def reach(self, goal: int) -> None:
        """Wait until so many objects are known to be stored."""
        self._goal = goal
        self._reached.clear()
        await self._reached.wait()

    def record(self, obj: dict[str, Any]) -> None:
        """A write was answered."""
        version = int(obj["metadata"]["resourceVersion"])
        self.newest = max(self.newest, version)
        self.values[obj["metadata"]["name"]] = int(obj["data"]["n"])
        if len(self.values) >= self._goal:
            self._reached.set()


async def write(session: aiohttp.ClientSession, ledger: Ledger, writer: int, number: int) -> None:
    """One writer: creates an object, then changes it, as long as the server runs."""
    path = "/api/v1/namespaces/default/configmaps"
    with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
        while True:
            number += 1
            name = f"w{writer}-{number}"
            body = {"metadata": {"name": name}, "data": {"n": "1"}}
            async with session.post(path, json=body) as answer:
                if answer.status == 201:
                    ledger.record(await answer.json())
            patch = msgspec.json.encode({"data": {"n": "2"}})
            headers = {"Content-Type": "application/merge-patch+json"}
            async with session.patch(f"{path}/{name}", data=patch, headers=headers) as answer:
                if answer.status == 200:
                    ledger.record(await answer.json())


@pytest.mark.timeout(900)
async def test_no_acknowledged_write_is_lost(tmp_path: Path) -> None:
    """Every answered write is there after kill -9; a resumed watch misses and repeats nothing."""
    ledger = Ledger()
    seen: list[int] = []
    path = "/api/v1/namespaces/default/configmaps"
    for round_ in range(ROUNDS):
        async with served(tmp_path) as server, server.session() as session:
            async with session.get(path) as answer:
                listing = await answer.json()
            stored = {
                item["metadata"]["name"]: int(item["data"]["n"])
                for item in listing["items"]
                if "n" in item["data"]
            }
            lost = {name: n for name, n in ledger.values.items() if stored.get(name, 0) < n}
            assert not lost
            assert int(listing["metadata"]["resourceVersion"]) >= ledger.newest
            resume = await resumed(session, path, seen)
            writers = [
                asyncio.create_task(write(session, ledger, writer, round_ * 100_000))
                for writer in range(WRITERS)
            ]
            async with asyncio.timeout(60):
                await ledger.reach(len(ledger.values) + 10 + 7 * (round_ % 8))
            server.process.send_signal(signal.SIGKILL)
            await asyncio.gather(*writers)
            resume.cancel()
            await asyncio.gather(resume, return_exceptions=True)
    assert len(ledger.values) > ROUNDS * 10
    assert seen == sorted(set(seen)), "a version was seen twice or out of order"


async def resumed(session: aiohttp.ClientSession, path: str, seen: list[int]) -> asyncio.Task[None]:
    """Resume a watch from the last version seen; done when it has caught up."""
    async with session.get(path) as answer:
        listing = await answer.json()
    newest = int(listing["metadata"]["resourceVersion"])
    known = [
        int(item["metadata"]["resourceVersion"])
        for item in listing["items"]
        if int(item["metadata"]["resourceVersion"]) > (seen[-1] if seen else newest)
    ]
    caught_up = asyncio.Event()
    if not known:
        caught_up.set()

    async def watch() -> None:
        since = seen[-1] if seen else newest
        query = {"watch": "1", "resourceVersion": str(since)}
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            async with session.get(path, params=query) as answer:
                assert answer.status == 200
                async for line in answer.content:
                    event = msgspec.json.decode(line)
                    assert event["type"] != "ERROR", event
                    seen.append(int(event["object"]["metadata"]["resourceVersion"]))
                    if known and seen[-1] >= max(known):
                        caught_up.set()

    task = asyncio.create_task(watch())
    async with asyncio.timeout(30):
        await caught_up.wait()
    assert set(known) <= set(seen), "the watch resumed with a gap"
    return task
