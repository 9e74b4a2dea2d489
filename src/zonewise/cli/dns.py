"""``zonewise dns``: the names of a cluster, with answers that depend on where the client is.

One process, one event loop; several replicas share the work without coordination. It is ready after
the first complete lists. On shutdown ``/readyz`` fails, and it keeps answering for ``--lameduck``,
until no client uses it any more, and exits.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

import click

from zonewise.api.errors import ConfigError, ParseError
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import (
    Options,
    add_options,
    duration_option,
    feature_gates_option,
    metrics_option,
)

if TYPE_CHECKING:
    from zonewise.dns.outside.upstream import Upstream
    from zonewise.dns.subnet import IPNetwork
    from zonewise.runtime.program.program import Program

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
METRICS_LISTEN = "127.0.0.1:9466"


@click.command(
    "dns",
    cls=Command,
    examples=(
        "dns --listen 127.0.0.1:5353                     # beside another server, to try it",
        "dns --listen :53 --upstream 10.0.0.2:53         # in a pod; it forwards other names",
        "dns --listen :53 --ecs-from 10.96.0.10/32       # behind a resolver that sends subnets",
    ),
)
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:53",
    help="Where to answer, over UDP and TCP.  [default: 127.0.0.1:53]",
)
@click.option(
    "--cluster-domain",
    "domains",
    metavar="DOMAIN",
    multiple=True,
    help="The domain of the cluster's names; may be repeated, PTR records name the first."
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
@add_options(
    duration_option(
        "--serve-stale", default="0s", help="How long expired upstream answers may be served."
    ),
    duration_option(
        "--lameduck", default="0s", help="How long to keep answering after a stop signal."
    ),
    metrics_option(METRICS_LISTEN),
    feature_gates_option(),
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
    feature_gates: str,
) -> int:
    """Answer DNS questions about the cluster's Services and pods.

    Answers for headless Services depend on where the client is: topology keys first, else the hints
    of their endpoints. Locations are read from PodLocators, or from pods and nodes if there are
    none. See docs/dns.md.
    """
    from zonewise.api.gates import FeatureGates
    from zonewise.api.objects.locator import PodLocator
    from zonewise.cli.program.connection import run_program
    from zonewise.dns.outside.upstream import Upstream
    from zonewise.dns.server import DnsSettings, NameServer
    from zonewise.dns.sources import WATCHES
    from zonewise.runtime.client.client import FIELD_MANAGER
    from zonewise.runtime.program.serving import ProgramSettings
    from zonewise.runtime.serving.address import parse_listen
    from zonewise.topology.locator_index import LabelInterner
    from zonewise.topology.pod_locators import label_interning

    host, port = parse_listen(listen, "--listen", "127.0.0.1:53")
    parse_listen(metrics_listen, "--metrics-listen", METRICS_LISTEN)
    settings = DnsSettings(
        host=_parse_address(host, listen),
        port=port,
        domains=tuple(
            _parse_zone(text, "--cluster-domain") for text in domains or ("cluster.local",)
        ),
        upstreams=tuple(Upstream.parse(text, "--upstream") for text in upstreams),
        stubs=_parse_stubs(stubs),
        trusted=tuple(_parse_network(text) for text in trusted),
        stale=serve_stale,
        gates=FeatureGates.parse(feature_gates),
    )

    maps = LabelInterner()

    def assemble(program: Program) -> None:
        program.add("names", NameServer, settings, maps=maps, lameduck=lameduck)

    program_settings = ProgramSettings(
        name="zonewise-dns",
        field_manager=FIELD_MANAGER,
        metrics_listen=metrics_listen,
        watch_options=WATCHES,
        transforms={PodLocator: label_interning(maps)},
        # Without an API server the known names stay valid, and a new process would have none.
        watches_are_vital=False,
    )
    return run_program(options, program_settings, assemble)


def _parse_address(host: str, listen: str) -> str:
    if not host:
        return ""
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError:
        raise ConfigError(
            f"--listen {listen} does not begin with an address; write it like 127.0.0.1:53"
        ) from None


def _parse_zone(text: str, flag: str) -> bytes:
    from zonewise.dns.names import ROOT, parse_domain
    from zonewise.dns.zone import REVERSE

    try:
        domain = parse_domain(text.lower())
    except ParseError as error:
        raise ConfigError(
            f"{flag} {text[:100]!r} is not a domain ({error}); write it like cluster.local"
        ) from None
    if domain != ROOT and not all(
        _LABEL.fullmatch(label) for label in text.lower().strip().rstrip(".").split(".")
    ):
        raise ConfigError(
            f"{flag} {text[:100]!r} is not a domain: names have letters, digits and dashes;"
            " write it like cluster.local"
        )
    if domain == ROOT or domain in REVERSE:
        raise ConfigError(f"{flag} {text!r} is not the cluster's own domain; give one below it")
    return domain


def _parse_network(text: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError:
        raise ConfigError(
            f"--ecs-from {text[:100]!r} is not a network; write it like 10.0.0.0/8"
        ) from None


def _parse_stubs(texts: tuple[str, ...]) -> dict[bytes, tuple[Upstream, ...]]:
    from zonewise.dns.outside.upstream import Upstream

    stubs: dict[bytes, tuple[Upstream, ...]] = {}
    for text in texts:
        domain, equals, servers = text.partition("=")
        if not equals:
            raise ConfigError(
                f"--stub-domain {text[:100]!r} names no server; write it like corp=10.0.0.53:53"
            )
        name = _parse_zone(domain, "--stub-domain")
        upstreams = tuple(Upstream.parse(server, "--stub-domain") for server in servers.split(","))
        stubs[name] = (*stubs.get(name, ()), *upstreams)
    return stubs
