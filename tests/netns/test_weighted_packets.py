"""Packets of a weighted Service follow its weights: 20,000 real connections, by chi-square.

The kernel's random numbers cannot be seeded. So a test fails by chance once in a million runs; a
weight that is wrong by half fails every run.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from math import exp

import pytest
import pytest_asyncio
from tests.netns.lab import SILENT, SLICE, Lab, converse, endpoint, laboratory
from tests.netns.spaces import nft
from tests.system_guard import starts_programs

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

CONNECTIONS = 20_000
AT_ONCE = 100
CHANCE = 1e-6
FIVE = ("pod-1y", "pod-2y", "pod-3x", "pod-4x", "pod-5x")
ROWS = {"a": {"a": 3200, "b": 1000, "c": 350}, "b": {"b": 7, "c": 2}}
TEXT = json.dumps(ROWS, separators=(",", ":"))
HINTED = [
    endpoint("pod-1y", zones=["a"]),
    endpoint("pod-2y", zones=["a", "b"]),
    endpoint("pod-3x", zones=["b"]),
    endpoint("pod-4x", zones=["b", "c"]),
    endpoint("pod-5x", zones=["c"]),
]
WEIGHTS = {"pod-1y": 3200, "pod-2y": 3200, "pod-3x": 1000, "pod-4x": 1000, "pod-5x": 350}
NODES = ("node-1", "node-2", "node-4")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
@starts_programs
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path_factory.mktemp("lab"), proxies=NODES) as lab:
        yield lab


async def count_answers(lab: Lab, address: str, count: int, *, udp: bool = False) -> Counter[str]:
    """How often each pod answered clients of zone a, on both of its nodes."""
    counts: Counter[str] = Counter()
    for at in range(0, count, AT_ONCE):
        asker = ("pod-1x", "pod-2x")[at // AT_ONCE % 2]
        counts.update(await _ask_many(lab, asker, address, AT_ONCE, udp=udp))
    return counts


async def _ask_many(
    lab: Lab, asker: str, address: str, count: int, *, udp: bool, again: int = 3
) -> list[str]:
    """The pods that answered; packets of many at once may get lost, those questions are retried."""
    questions = [lab.ask(asker, address, udp=udp) for _ in range(count)]
    answers = [answer.pod or answer.fault for answer in await asyncio.gather(*questions)]
    lost = answers.count(SILENT.fault)
    if not lost or not again:
        return answers
    heard = [answer for answer in answers if answer != SILENT.fault]
    return heard + await _ask_many(lab, asker, address, lost, udp=udp, again=again - 1)


def chance(counts: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """The p-value of counts under weights: chi-square with four degrees, for five endpoints."""
    assert set(counts) == set(weights)
    assert len(weights) == 5
    whole, total = sum(counts.values()), sum(weights.values())
    expected = {name: whole * weight / total for name, weight in weights.items()}
    distance = sum((counts[name] - some) ** 2 / some for name, some in expected.items())
    return exp(-distance / 2) * (1 + distance / 2)


def leads(lab: Lab, node: str, address: str) -> str:
    """The chain that packets to an address jump to."""
    listing = nft(lab.space(node), "list", "ruleset")
    _, separator, rest = listing.partition(f"{address} . tcp . 80 : goto ")
    return rest.split()[0].strip('",') if separator else ""


async def until_weighted(lab: Lab, node: str, address: str) -> None:
    """Wait until a node applies weights for an address."""
    await lab.until(
        lambda: (
            leads(lab, node, address).startswith('"weighted-')
            or leads(lab, node, address).startswith("weighted-")
        ),
        lambda: f"{node} leads {address} to {leads(lab, node, address)!r}",
    )


async def test_twenty_thousand_connections(lab: Lab) -> None:
    """Endpoints are used in proportion to their weights, and not equally."""
    address = await lab.cluster_ip("weighted")
    await lab.endpoints("weighted", *HINTED, weights=TEXT)
    for node in ("node-1", "node-2"):
        await until_weighted(lab, node, address)
    counts = await count_answers(lab, address, CONNECTIONS)
    assert sum(counts.values()) == CONNECTIONS
    assert chance(counts, WEIGHTS) > CHANCE, counts
    wrong = WEIGHTS | {"pod-3x": 1500}
    assert chance(counts, wrong) < CHANCE, counts
    assert chance(counts, dict.fromkeys(WEIGHTS, 1)) < CHANCE, counts


async def test_a_half_written_text_falls_back_to_hints(lab: Lab) -> None:
    """Two slices with different weights are routed by hints until they agree."""
    address = await lab.cluster_ip("halves")
    await lab.endpoints("halves", *HINTED[:3], weights=TEXT)
    await lab.endpoints("halves", *HINTED[3:], weights=TEXT, part="-b")
    await until_weighted(lab, "node-1", address)
    await lab.endpoints("halves", *HINTED[3:], weights=TEXT.replace("3200", "32"), part="-b")
    await lab.reaches("pod-1x", address, "pod-1y", "pod-2y")
    await lab.endpoints("halves", *HINTED[:3], weights=TEXT.replace("3200", "32"))
    await until_weighted(lab, "node-1", address)
    await lab.reaches("pod-4y", address, "pod-3x", "pod-4x", "pod-5x")
    await lab.endpoints("halves", *HINTED[:3], weights="{")
    await lab.endpoints("halves", *HINTED[3:], weights="{", part="-b")
    await lab.reaches("pod-1x", address, "pod-1y", "pod-2y")


async def test_a_zone_without_a_row_stays_at_home(lab: Lab) -> None:
    """Clients of a zone that the weights do not name use the zone's own endpoints."""
    address = await lab.cluster_ip("homely")
    everywhere = [endpoint(pod, zones=["a", "b", "c"]) for pod in FIVE]
    await lab.endpoints("homely", *everywhere, weights='{"b":{"a":1}}')
    await lab.reaches("pod-1x", address, "pod-1y", "pod-2y")
    await lab.reaches("pod-4y", address, "pod-1y", "pod-2y")
    await lab.endpoints("homely", *everywhere[2:], weights='{"b":{"a":1}}')
    await lab.reaches("pod-1x", address, *FIVE[2:])


async def test_udp_is_weighted_too(lab: Lab) -> None:
    """Datagrams are drawn as connections are."""
    address = await lab.cluster_ip("datagrams", protocol="UDP")
    await lab.endpoints("datagrams", *HINTED, weights=TEXT, protocol="UDP")
    await lab.until(
        lambda: (
            f"{address} . udp . 80 : goto" in nft(lab.space("node-1"), "list", "ruleset")
            and "default/datagrams" in nft(lab.space("node-2"), "list", "ruleset")
        ),
        lambda: "a chain for datagrams",
    )
    counts = await count_answers(lab, address, 4000, udp=True)
    assert chance(counts, WEIGHTS) > CHANCE, counts


async def test_affinity_keeps_a_client_whatever_weights_become(lab: Lab) -> None:
    """A client keeps its endpoint when the weights change."""
    address = await lab.cluster_ip("faithful", sessionAffinity="ClientIP")
    await lab.endpoints("faithful", *HINTED, weights=TEXT)
    await lab.until(
        lambda: leads(lab, "node-1", address).startswith("affinity-"),
        lambda: leads(lab, "node-1", address),
    )
    first = (await lab.ask("pod-1x", address)).pod
    before = leads(lab, "node-1", address)
    await lab.endpoints("faithful", *HINTED, weights=TEXT.replace("3200", "9"))
    await lab.until(lambda: leads(lab, "node-1", address) != before, lambda: "other weights")
    assert await lab.spread("pod-1x", address) == {first}


async def test_kill_while_weights_change(lab: Lab) -> None:
    """Killed at any moment, a proxy leaves a Service that answers; the next one continues."""
    address = await lab.cluster_ip("killed")
    await lab.endpoints("killed", *HINTED, weights=TEXT)
    await until_weighted(lab, "node-1", address)
    with lab.socket("pod-1x", socket.SOCK_STREAM, address) as link:
        first = (await converse(link, (address, 80))).pod
        for turn in range(4):
            for number in range(20):
                text = TEXT.replace("350", str(300 + 20 * turn + number))
                patch = {"metadata": {"annotations": {"zonewise.io/zone-weights": text}}}
                await lab.client.patch(SLICE, "killed-ipv4", "default", patch)
            assert lab.stop_proxy("node-1", kill=True) == -9
            assert await lab.spread("pod-1x", address) <= set(FIVE)
            assert leads(lab, "node-1", address).startswith("weighted-")
            lab.start_proxy("node-1")
        await lab.until(
            lambda: _mods(lab) == [2 * 3200 + 2 * 1000 + 379],
            lambda: f"the last weights, not {_mods(lab)}",
        )
        assert (await converse(link, (address, 80), connect=False)).pod == first


def _mods(lab: Lab) -> list[int]:
    """The moduli in the chains of the Service "killed"; in the end there is one chain."""
    listing = nft(lab.space("node-1"), "list", "table", "ip", "zonewise")
    mods = []
    for part in listing.split("chain ")[1:]:
        if "weighted-" in part.split()[0] and "default/killed" in part.split()[0]:
            mods.append(int(part.partition("mod ")[2].split()[0]))
    return mods
