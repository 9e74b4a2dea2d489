"""A proxy killed at any moment leaves complete rules, and the next one continues from them."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.netns.lab import SLICE, Lab, converse, endpoint, laboratory
from tests.netns.spaces import nft
from tests.system_guard import starts_programs

from zonewise.api.errors import ZonewiseError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

SERVICES = 20
CHANGES = 500
KILLS = 6
NODE = "node-1"
_SLOT = re.compile(r"(\d+) \. (10\.\d+\.\d+\.\d+) \. tcp \. 80 : (\S+) \. 8080")
_LEAD = re.compile(r"(10\.\d+\.\d+\.\d+) \. tcp \. 80 : goto slots-(\d+)")
FOREIGN = "table inet foreign {\n  set s { type ipv4_addr; elements = { 192.0.2.1 } }\n}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
@starts_programs
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path_factory.mktemp("lab"), proxies=[NODE]) as lab:
        yield lab


def version(service: int, number: int) -> list[str]:
    """The endpoints of a version of a Service: two to five, none of them in any other version."""
    return [f"10.{150 + service}.{number}.{at}" for at in range(2 + number % 4)]


async def write(lab: Lab, service: int, number: int) -> None:
    ends: list[dict[str, Any]] = [
        {"addresses": [address], "conditions": {"ready": True}}
        for address in version(service, number)
    ]
    await lab.client.patch(SLICE, f"s{service}-ipv4", "default", {"endpoints": ends})


def read_slots(lab: Lab) -> dict[str, list[str]]:
    """The endpoints of each address in slot order; every slot that a choice may draw is there."""
    text = nft(lab.space(NODE), "list", "table", "ip", "zonewise")
    slots: dict[str, dict[int, str]] = {}
    for slot, address, target in _SLOT.findall(text):
        slots.setdefault(address, {})[int(slot)] = target
    leads = {address: int(count) for address, count in _LEAD.findall(text)}
    for address, count in leads.items():
        assert sorted(slots.get(address, {})) == list(range(count)), (address, count, slots)
    return {address: [by_slot[i] for i in sorted(by_slot)] for address, by_slot in slots.items()}


async def test_kill_while_changes_stream_in(lab: Lab) -> None:
    """After each kill every Service has all endpoints of some version; in the end, of its last."""
    draw = random.Random(11)
    nft(lab.space(NODE), "-f", "-", script=FOREIGN)
    foreign = nft(lab.space(NODE), "list", "table", "inet", "foreign")
    anchor = await lab.cluster_ip("anchor")
    await lab.endpoints("anchor", "pod-3x")
    addresses = {}
    last = dict.fromkeys(range(SERVICES), 0)
    for service in last:
        addresses[await lab.cluster_ip(f"s{service}")] = service
        await lab.endpoints(f"s{service}", endpoint("pod-3x"))
        await write(lab, service, 0)
    await lab.reaches("pod-1x", anchor, "pod-3x")

    def whole(*, final: bool = False) -> bool:
        now = read_slots(lab)
        for address, service in addresses.items():
            versions = [last[service]] if final else range(last[service] + 2)
            if now.get(address) not in [version(service, number) for number in versions]:
                assert not final or address in now
                return False
        return True

    await lab.until(whole, lambda: "the first state")
    with lab.socket("pod-1x", socket.SOCK_STREAM, anchor) as link:
        assert (await converse(link, (anchor, 80))).pod == "pod-3x"
        done = asyncio.Event()

        async def stream() -> None:
            for turn in range(CHANGES):
                service = draw.randrange(SERVICES)
                await write(lab, service, last[service] + 1)
                last[service] += 1
                if turn % 10 == 0:
                    await asyncio.sleep(0)
            done.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(stream())
            for _ in range(KILLS):
                await asyncio.sleep(draw.random() * 0.5)
                assert lab.stop_proxy(NODE, kill=True) == -9
                assert whole()
                assert (await lab.ask("pod-1x", anchor)).pod == "pod-3x"
                lab.start_proxy(NODE)
                if draw.random() < 0.5:
                    await lab.until(
                        lambda: (lab.log(NODE).stat().st_size >= 0) and whole(),
                        lambda: "whole after the start",
                    )
            await done.wait()
        await lab.until(lambda: whole(final=True), lambda: f"the last versions, {last}")
        assert (await converse(link, (anchor, 80), connect=False)).pod == "pod-3x"
    assert nft(lab.space(NODE), "list", "table", "inet", "foreign") == foreign


async def test_the_api_server_goes_and_comes_back(lab: Lab) -> None:
    """Packets are routed while the API server is away; later changes are followed again."""
    address = await lab.cluster_ip("outage")
    await lab.endpoints("outage", "pod-3x")
    await lab.reaches("pod-1x", address, "pod-3x")
    for _ in range(2):
        lab.kill_api()
        assert await lab.spread("pod-1x", address) == {"pod-3x"}
        lab.start_api()
        await lab.until(lambda: _answers(lab), lambda: "the API server is back")
        await lab.endpoints("outage", "pod-5x")
        await lab.reaches("pod-1x", address, "pod-5x")
        await lab.endpoints("outage", "pod-3x")
        await lab.reaches("pod-1x", address, "pod-3x")


async def _answers(lab: Lab) -> bool:
    try:
        await lab.client.server_version()
    except ZonewiseError:
        return False
    return True


async def test_clean_up_removes_our_tables_only(lab: Lab) -> None:
    """--cleanup removes our tables and leaves those of others."""
    lab.stop_proxy(NODE)
    code, output = await lab.command(NODE, "proxy", "--cleanup")
    assert (code, output) == (0, "removed ip zonewise, ip6 zonewise\n")
    assert nft(lab.space(NODE), "list", "tables") == "table inet foreign\n"
    code, output = await lab.command(NODE, "proxy", "--cleanup")
    assert (code, output) == (0, "there was nothing to remove\n")


async def test_init_only_makes_tables_and_ends(lab: Lab) -> None:
    """--init-only prepares the node without a cluster, and nothing is routed yet."""
    code, output = await lab.command(NODE, "proxy", "--init-only", "--node-name", NODE)
    assert (code, output) == (0, "")
    listing = nft(lab.space(NODE), "list", "tables")
    assert "table ip zonewise" in listing
    assert "table ip6 zonewise" in listing


async def test_an_unknown_node_is_one_sentence(lab: Lab) -> None:
    """With an unknown node name the program ends with one sentence and writes no rule."""
    before = nft(lab.space(NODE), "list", "ruleset")
    code, output = await lab.command(
        NODE, "proxy", "--node-name", "nobody", "--kubeconfig", str(lab.kubeconfig)
    )
    assert code == 2
    assert output.strip().splitlines()[-1].startswith("error: the cluster has no Node 'nobody'; ")
    assert nft(lab.space(NODE), "list", "ruleset") == before


async def test_no_permission_is_one_sentence(lab: Lab) -> None:
    """Without CAP_NET_ADMIN the program says so, and nothing else happens."""
    code, output = await lab.command(
        NODE,
        *("proxy", "--node-name", NODE, "--kubeconfig", str(lab.kubeconfig)),
        before=("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"),
    )
    assert code == 2
    assert output.strip().removeprefix("error: ") == (
        "no permission to change packet rules; run as root or with CAP_NET_ADMIN"
    )


async def test_no_nft_is_one_sentence(lab: Lab) -> None:
    """Without nft the program says what to install."""
    nft(lab.space(NODE), "flush", "ruleset")
    code, output = await lab.command(
        NODE,
        *("proxy", "--node-name", NODE, "--kubeconfig", str(lab.kubeconfig)),
        before=("env", "PATH=/nowhere"),
    )
    assert code == 2
    assert "cannot run nft" in output
    assert "install the package nftables" in output
