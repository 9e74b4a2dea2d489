"""Answers while the cluster changes: how long they take, and for ten minutes, whether they hold.

*Changes*: p99 of both servers while every slice of the cluster is written anew, as fast as the API
server takes it, and while a hundred pods a second come and go; both servers follow all of it.

*Soak*: our server under half the load it can take, for ``SOAK`` seconds, while a hundred pods a
second come and go. Beside the load somebody asks for the Services that change, from three zones,
and compares each answer with the truth: it must be what held at some moment between ``LAG`` seconds
before the question and the answer. What is wrong or lost is counted; memory is read at the end of
the first minute and at the end.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import dns.message
from tools.coredns.recording import plant

from benchmarks.dns.contest import ROUNDS, dnsperf, number_in, slowest
from benchmarks.dns.scene import SERVICES, ZONES, Contestant, endpoint, scene
from benchmarks.embedded.servers import megabytes
from benchmarks.sheet import Line, Sheet
from benchmarks.table import Row, Table
from zonewise.api import EndpointSlice, Pod
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.runtime.client.client import Client

SOAK = 600
PODS_A_SECOND = 100
LANES = 4
"""How many pods come and go side by side: one write waits for the disk, several wait together."""
CHANGING = 30
"""How many of the headless Services with keys have pods that come and go."""
LAG = 3.0
_RATE = re.compile(r"Queries per second:\s+([\d.]+)")
_LOST = re.compile(r"Queries lost:\s+(\d+)")


def changes() -> Iterator[Sheet]:
    """How long the slowest percent waits while things change."""
    yield asyncio.run(_changes())


def soak() -> Iterator[Table]:
    """Ten minutes under load and change."""
    yield asyncio.run(_soak())


async def _changes() -> Sheet:
    lines = []
    async with scene() as (server, ours, theirs):
        for title, work in (("every slice written anew", _rewrite), ("100 pods/s", _churn)):
            latencies: dict[str, list[float]] = {ours.name: [], theirs.name: []}
            for number in range(ROUNDS + 1):
                for contestant in (ours, theirs):
                    busy = asyncio.create_task(work(server))
                    await asyncio.sleep(0.5)
                    slow = await slowest(contestant, "hl", "A")
                    busy.cancel()
                    await asyncio.gather(busy, return_exceptions=True)
                    if number:
                        latencies[contestant.name].append(slow)
            lines.append(
                Line(
                    name=title,
                    unit="ms",
                    ours=statistics.median(latencies[ours.name]),
                    real=statistics.median(latencies[theirs.name]),
                )
            )
    return Sheet(title="DNS: p99 while the cluster changes", lines=tuple(lines))


async def _rewrite(server: ApiServer) -> None:
    client = server.connect("benchmark")
    version = 0
    while True:
        version += 1
        for number in range(SERVICES):
            kind = ("cip", "hl", "near")[number % 3]
            note = {"metadata": {"annotations": {"example.com/version": str(version)}}}
            rows = [endpoint(number, at) for at in range(30 if kind == "near" else 10)]
            body = {**note, "endpoints": rows[version % 2 :]}
            await client.patch(EndpointSlice, f"{kind}-{number}", "load", body)


async def _churn(server: ApiServer) -> None:
    await Churn(server.connect("benchmark"), random.Random(7)).run()


@dataclass
class Churn:
    """Pods that come and go, and since when each answer about them is true."""

    client: Client
    rng: random.Random
    there: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    history: dict[int, deque[tuple[float, dict[str, str]]]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        for number in range(2, 2 + 3 * CHANGING, 3):
            first = {endpoint(number, at)["addresses"][0]: ZONES[at % 3] for at in range(30)}
            self.history[number] = deque([(0.0, first)])

    async def run(self) -> None:
        """Go on until cancelled."""
        begin = time.monotonic()
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._go_on(lane, begin))

    async def _go_on(self, lane: int, begin: float) -> None:
        """Change the Services of a lane, which no other lane changes."""
        mine = [2 + 3 * at for at in range(CHANGING) if at % LANES == lane]
        while True:
            self.count += 1
            step = self.count
            await asyncio.sleep(max(0.0, begin + step / PODS_A_SECOND - time.monotonic()))
            await self._step(step, self.rng.choice(mine))

    async def _step(self, step: int, number: int) -> None:
        pods = self.there[number]
        if len(pods) > 12 or (pods and self.rng.random() < 0.4):
            address = self.rng.choice(sorted(pods))
            del pods[address]
            await self.client.delete(Pod, _name(address), "load", grace_period=0)
        else:
            address = f"10.200.{step // 250 % 250}.{step % 250 + 1}"
            pods[address] = self.rng.choice(ZONES)
            await self.add(address, pods[address])
        rows = [
            {"addresses": [address], "conditions": {"ready": True}, "nodeName": f"n-{zone}"}
            for address, zone in sorted(pods.items())
        ]
        history = self.history[number]
        history.append((time.monotonic(), dict(pods)))
        await self.client.patch(EndpointSlice, f"near-{number}", "load", {"endpoints": rows})
        while len(history) > 2 and history[1][0] < time.monotonic() - 3 * LAG:
            history.popleft()

    async def add(self, address: str, zone: str) -> None:
        """A pod that runs."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _name(address), "namespace": "load"},
            "spec": {"nodeName": f"n-{zone}", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
        }
        await plant(self.client, [body])

    def true(self, number: int, zone: str, since: float, until: float) -> list[set[str]]:
        """The answers that are true for a client in a zone at some moment of a span of time."""
        history = list(self.history[number])
        answers = []
        for at, (begin, pods) in enumerate(history):
            end = history[at + 1][0] if at + 1 < len(history) else float("inf")
            if begin <= until and end >= since:
                near = {address for address, there in pods.items() if there == zone}
                answers.append(near or set(pods))
        return answers


def _name(address: str) -> str:
    return f"p-{address.replace('.', '-')}"


async def _soak() -> Table:
    async with scene() as (server, ours, _):
        limit = number_in(_RATE, await dnsperf(ours.port, "hl", "A", "-q", "200"))
        churn = Churn(server.connect("benchmark"), random.Random(11))
        for at, zone in enumerate(ZONES):
            await churn.add(f"127.0.0.{at + 2}", zone)
        busy = asyncio.create_task(churn.run())
        await asyncio.sleep(2 * LAG)
        seconds = ("-l", str(SOAK), "-Q", str(int(limit / 2)), "-q", "200")
        load = asyncio.create_task(dnsperf(ours.port, "hl", "A", *seconds, lossless=False))
        judge = asyncio.create_task(_judge(ours, churn, load))
        await asyncio.sleep(min(60, SOAK / 4))
        early = megabytes([ours.pid])
        text = await load
        compared, wrong, lost = await judge
        late = megabytes([ours.pid])
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        rows = {
            "answers a second": number_in(_RATE, text),
            "lost of the load": number_in(_LOST, text),
            "answers compared": float(compared),
            "wrong": float(wrong),
            "lost of those compared": float(lost),
            "pods that came or went": float(churn.count),
            "MB after a minute": early,
            "MB at the end": late,
        }
        return Table(
            title=f"DNS: {SOAK} s at half of {limit:,.0f} answers a second",
            unit="",
            higher_is_better=True,
            rows=tuple(Row(name=name, value=value, ours=True) for name, value in rows.items()),
        )


async def _judge(ours: Contestant, churn: Churn, load: asyncio.Task[str]) -> tuple[int, int, int]:
    """Ask for what changes until the load ends; how many were asked, wrong, lost."""
    loop = asyncio.get_running_loop()
    rng = random.Random(5)
    compared = wrong = lost = 0
    links = {}
    for at, zone in enumerate(ZONES):
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        link.setblocking(False)
        link.bind((f"127.0.0.{at + 2}", 0))
        links[zone] = link
    try:
        while not load.done():
            number, zone = 2 + 3 * rng.randrange(CHANGING), rng.choice(ZONES)
            query = dns.message.make_query(f"near-{number}.load.svc.cluster.local", "A", use_edns=0)
            begin = time.monotonic()
            compared += 1
            await loop.sock_sendto(links[zone], query.to_wire(), ("127.0.0.1", ours.port))
            try:
                async with asyncio.timeout(5):
                    answer = dns.message.from_wire(await loop.sock_recv(links[zone], 65535))
                    while answer.id != query.id:
                        answer = dns.message.from_wire(await loop.sock_recv(links[zone], 65535))
            except TimeoutError:
                lost += 1
                continue
            addresses = {item.address for rrset in answer.answer for item in rrset}
            wrong += addresses not in churn.true(number, zone, begin - LAG, time.monotonic())
            await asyncio.sleep(0.01)
    finally:
        for link in links.values():
            link.close()
    return compared, wrong, lost
