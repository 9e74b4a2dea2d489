"""``zonewise dns``: the names of a cluster, answered by the client's place.

One process, one event loop; several replicas share the work without coordination. It is ready after
the first complete lists. On shutdown ``/readyz`` fails, it keeps answering for ``--lameduck`` until
no client is sent to it any more, and exits.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import TYPE_CHECKING

import click

from zonewise.api.errors import ConfigError, ParseError
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options, duration_option

if TYPE_CHECKING:
    from zonewise.dns import DnsServer, DnsSettings
    from zonewise.dns.outside.upstream import Upstream
    from zonewise.dns.subnet import IPNetwork
    from zonewise.runtime.client.client import Client
    from zonewise.runtime.process.process import Process

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
METRICS_LISTEN = "127.0.0.1:9466"


@click.command(
    "dns",
    cls=Command,
    examples=(
        "dns --listen 127.0.0.1:5353                     # beside another server, to try it",
        "dns --listen :53 --upstream 10.0.0.2:53         # in a pod; other names are asked there",
        "dns --listen :53 --ecs-from 10.96.0.10/32       # behind a resolver that names clients",
    ),
)
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:53",
    help="Where to answer, UDP and TCP.  [default: 127.0.0.1:53]",
)
@click.option(
    "--cluster-domain",
    "domains",
    metavar="DOMAIN",
    multiple=True,
    help="The domain of the cluster's names; may be repeated, PTR records lead to the first."
    "  [default: cluster.local]",
)
@click.option(
    "--upstream",
    "upstreams",
    metavar="ADDRESS:PORT",
    multiple=True,
    help="Upstream servers for other names; may be repeated."
    "  [default: the servers of /etc/resolv.conf]",
)
@click.option(
    "--stub-domain",
    "stubs",
    metavar="DOMAIN=ADDRESS:PORT",
    multiple=True,
    help="Servers for the names of one domain; may be repeated.",
)
@click.option(
    "--ecs-from",
    "trusted",
    metavar="CIDR",
    multiple=True,
    help="Trust EDNS Client Subnet from this network; may be repeated.  [default: none]",
)
@duration_option("--serve-stale", "0s", "How long expired upstream answers may be served.")
@duration_option("--lameduck", "0s", "How long to keep answering after a stop signal.")
@click.option(
    "--metrics-listen",
    metavar="ADDRESS:PORT",
    default=METRICS_LISTEN,
    help=f"Where to serve metrics and health.  [default: {METRICS_LISTEN}]",
)
@click.pass_obj
def command(
    options: Options,
    listen: str,
    domains: tuple[str, ...],
    upstreams: tuple[str, ...],
    stubs: tuple[str, ...],
    trusted: tuple[str, ...],
    serve_stale: float,
    lameduck: float,
    metrics_listen: str,
) -> int:
    """Answer DNS questions about the cluster's Services and pods.

    Answers for headless Services depend on where the client is: topology keys first, else the hints
    of their endpoints. Locations are read from PodLocators, or from pods and nodes if there are
    none. See docs/dns.md.
    """
    from zonewise.dns import DnsSettings
    from zonewise.dns.outside.upstream import Upstream
    from zonewise.runtime.process.logs import configure
    from zonewise.runtime.process.process import run
    from zonewise.runtime.serving.address import parse_listen

    options = options.serving()
    configure(verbosity=options.verbose, format=options.log_format)
    host, port = parse_listen(listen, "--listen", "127.0.0.1:53")
    parse_listen(metrics_listen, "--metrics-listen", METRICS_LISTEN)
    settings = DnsSettings(
        host=_address(host, listen),
        port=port,
        domains=tuple(_domain(text, "--cluster-domain") for text in domains or ("cluster.local",)),
        upstreams=tuple(Upstream.parse(text, "--upstream") for text in upstreams),
        stubs=_stub_domains(stubs),
        trusted=tuple(_network(text) for text in trusted),
        stale=serve_stale,
    )

    async def main(process: Process) -> None:
        await _serve(process, options, settings, lameduck, metrics_listen)

    return run(main)


def _address(host: str, listen: str) -> str:
    if not host:
        return ""
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError:
        raise ConfigError(
            f"--listen {listen} does not begin with an address; write it like 127.0.0.1:53"
        ) from None


def _domain(text: str, flag: str) -> bytes:
    from zonewise.dns.names import ROOT, parse_domain
    from zonewise.dns.zone import REVERSE

    try:
        found = parse_domain(text.lower())
    except ParseError as error:
        raise ConfigError(
            f"{flag} {text[:100]!r} is not a domain ({error}); write it like cluster.local"
        ) from None
    if found != ROOT and not all(
        _LABEL.fullmatch(label) for label in text.lower().strip().rstrip(".").split(".")
    ):
        raise ConfigError(
            f"{flag} {text[:100]!r} is not a domain: names have letters, digits and dashes;"
            " write it like cluster.local"
        )
    if found == ROOT or found in REVERSE:
        raise ConfigError(f"{flag} {text!r} is not the cluster's alone; give one below it")
    return found


def _network(text: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError:
        raise ConfigError(
            f"--ecs-from {text[:100]!r} is not a network; write it like 10.0.0.0/8"
        ) from None


def _stub_domains(texts: tuple[str, ...]) -> dict[bytes, tuple[Upstream, ...]]:
    from zonewise.dns.outside.upstream import Upstream

    found: dict[bytes, tuple[Upstream, ...]] = {}
    for text in texts:
        domain, equals, servers = text.partition("=")
        if not equals:
            raise ConfigError(
                f"--stub-domain {text[:100]!r} names no server; write it like corp=10.0.0.53:53"
            )
        name = _domain(domain, "--stub-domain")
        listed = tuple(Upstream.parse(one, "--stub-domain") for one in servers.split(","))
        found[name] = (*found.get(name, ()), *listed)
    return found


async def _serve(
    process: Process,
    options: Options,
    settings: DnsSettings,
    lameduck: float,
    metrics_listen: str,
) -> None:
    from zonewise.api.objects.locator import PodLocator
    from zonewise.cli.program.connection import connected
    from zonewise.dns import WATCHES, DnsServer
    from zonewise.runtime import Cache, Health, Metrics, Monitor
    from zonewise.topology.locators import LabelMaps
    from zonewise.topology.podlocators import sharing

    maps = LabelMaps()
    async with connected(options) as client, process.parts():
        cache = Cache(client, options=WATCHES, transforms={PodLocator: sharing(maps)})
        server = DnsServer(settings, cache, maps=maps)
        # No watch is a reason to restart: without an API server the known names stay valid, and a
        # new process would have none.
        metrics, health = Metrics(), Health()
        metrics.watches(lambda: cache.stats)
        health.add_ready("names", server.problem)
        health.add_ready("program", process.problem)
        counted = await server.start()
        metrics.registry.register(counted)
        try:
            async with Monitor(metrics, health, listen=metrics_listen):
                process.spawn(cache.run(), name="cache")
                process.spawn(_follow(server, client), name="names", endless=False)
                process.ready = True
                await process.stopping.wait()
                if lameduck:
                    await asyncio.sleep(lameduck)
        finally:
            await server.stop()


async def _follow(server: DnsServer, client: Client) -> None:
    from zonewise.dns import Sources
    from zonewise.runtime.process.logs import logger
    from zonewise.runtime.process.memory import settle

    sources = await Sources.find(client)
    logger("dns").info(
        "locations are read", from_locators=sources.locators, with_nodes=sources.nodes
    )
    await server.follow(sources)
    settle()
