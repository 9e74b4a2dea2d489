"""Real peers of the name server: dig, glibc's resolver, CoreDNS before it and CoreDNS beside it."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest
from tests.cli.dns_cluster import client_pod, objects
from tests.embedded.virtual_cluster import until
from tools.coredns.recording import plant, record
from tools.coredns.running import running

from zonewise.dns.server import DnsServer, DnsSettings
from zonewise.dns.sources import Sources
from zonewise.embedded.apiserver.server import DUAL_STACK, ApiServer, ServerSettings
from zonewise.runtime.cache.cache import Cache

pytestmark = [pytest.mark.asyncio, pytest.mark.real]

DB = "db.shop.svc.cluster.local"


@asynccontextmanager
async def named(folder: Path, port: int = 0) -> AsyncIterator[tuple[ApiServer, DnsServer]]:
    """An API server with a small cluster, and our name server over it."""
    server = ApiServer(
        folder,
        settings=ServerSettings(service_networks=DUAL_STACK),
        clock=time.time,
        rng=random.SystemRandom(),
    )
    await server.start(0)
    client = server.connect("dns")
    cache = Cache(client)
    trusted = (ip_network("127.0.0.0/8"),)
    names = DnsServer(DnsSettings(port=port, trusted=trusted), cache)
    work = asyncio.create_task(cache.run())
    try:
        await plant(client, objects())
        state = server.state
        await until(lambda: state.latest("/serviceaccounts", "shop", "default") is not None)
        for zone in "ab":
            await plant(client, [client_pod(zone, f"n-{zone}", f"127.0.0.{ord(zone)}")])
        await names.start()
        await names.follow(Sources(locators=False, nodes=True))
        yield server, names
    finally:
        await names.close()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await server.close()


async def dig(*arguments: str) -> list[str]:
    """The lines that dig prints, sorted."""
    process = await asyncio.create_subprocess_exec(
        "dig", "+tries=1", "+time=5", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return sorted(filter(None, out.decode().splitlines()))


async def test_dig(tmp_path: Path) -> None:
    """dig complains of nothing in answers about cookies, EDNS, TCP, subnets and sources."""
    async with named(tmp_path) as (_, names):
        port = ("@127.0.0.1", "-p", str(names.port))
        assert await dig(*port, DB, "+short") == ["10.0.0.1", "10.0.0.2"]
        assert await dig(*port, DB, "+short", "+tcp") == ["10.0.0.1", "10.0.0.2"]
        assert await dig(*port, DB, "+short", "+subnet=127.0.0.97/32") == ["10.0.0.1"]
        assert await dig(*port, DB, "+short", "-b", "127.0.0.98") == ["10.0.0.2"]
        output = await dig(*port, DB, "+subnet=127.0.0.97/32")
        assert any("CLIENT-SUBNET: 127.0.0.97/32/32" in line for line in output)
        assert not [line for line in output if "WARNING: recursion" in line or "malformed" in line]


async def test_coredns_as_a_front_passes_its_clients(tmp_path: Path) -> None:
    """CoreDNS in front of our server: each client still gets the answer for its own zone."""
    async with named(tmp_path) as (server, names):
        front = (
            f"    rewrite edns0 subnet set 32 128\n    forward {DB} 127.0.0.1:{names.port} {{\n"
            "        prefer_udp\n    }"
        )
        config = server.identity.kubeconfig.resolve()
        async with running(config, domain="other.local", more=front) as (port, _):
            for source, address in (("127.0.0.97", "10.0.0.1"), ("127.0.0.98", "10.0.0.2")):
                query = ("@127.0.0.1", "-p", str(port), "-b", source, DB, "+short")
                for _ in range(2):
                    assert await dig(*query) == [address]


async def test_coredns_answers_what_was_recorded() -> None:
    """The recorded answers that ours are compared with are those CoreDNS gives now."""
    path = Path(__file__).parents[1] / "vectors/dns/coredns.json.gz"
    stored = json.loads(gzip.decompress(path.read_bytes()))
    assert await record() == stored


RESOLVER = """
import asyncio, subprocess, sys, tempfile
from pathlib import Path
from tests.kubernetes.test_dns_peers import named

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with named(Path(folder), 53):
            for name in sys.argv[1:]:
                process = await asyncio.create_subprocess_exec(
                    "getent", "hosts", name, stdout=asyncio.subprocess.PIPE
                )
                out, _ = await process.communicate()
                lines = out.decode().splitlines()
                print(name, process.returncode, *sorted(line.split()[0] for line in lines))

asyncio.run(main())
"""


async def test_glibc_with_the_search_list_of_a_pod(tmp_path: Path) -> None:
    """With ndots:5 and three search domains, as kubelets write them, short names are resolved."""
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(
        "nameserver 127.0.0.1\n"
        "search shop.svc.cluster.local svc.cluster.local cluster.local\n"
        "options ndots:5 timeout:5 attempts:1\n"
    )
    inside = textwrap.dedent(f"""\
        set -e
        ip link set lo up
        mount --bind {resolv} /etc/resolv.conf
        exec "$@"
    """)
    command = ["unshare", "--mount", "--net", "sh", "-c", inside, "sh", sys.executable, "-c"]
    names = ["db", "db.shop", "db.shop.svc", f"{DB}.", "nobody", "10-0-0-2.db"]
    process = await asyncio.create_subprocess_exec(
        *command,
        RESOLVER,
        *names,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 100)
    both = "10.0.0.1 10.0.0.2"
    assert out.decode().splitlines() == [
        f"db 0 {both}",
        f"db.shop 0 {both}",
        f"db.shop.svc 0 {both}",
        f"{DB}. 0 {both}",
        "nobody 2",
        "10-0-0-2.db 0 10.0.0.2",
    ], errors.decode()
