"""``zonewise proxy``: the packet rules of a node for Services.

It serves until it is stopped, and leaves the rules it wrote: packets keep flowing, and the next
program continues from there. ``--cleanup`` removes them. ``--dry-run`` computes the routes from a
dump or a cluster and prints them; it needs no privileges on this machine and changes nothing.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.program import interrupts
from zonewise.cli.program.cluster_completion import complete_from, list_names
from zonewise.cli.program.command import Command, CommandRefused
from zonewise.cli.program.dump_kinds import describe_missing
from zonewise.cli.program.options import (
    Options,
    add_options,
    feature_gates_option,
    files_option,
    note_namespace_ignored,
    output_option,
)
from zonewise.cli.program.proxy_options import ServingOptions, serving_options
from zonewise.cli.program.screen import is_plain, join_some, make_row, print_rows, render

if TYPE_CHECKING:
    from zonewise.proxy.settings import ProxySettings
    from zonewise.runtime.cache.snapshot import Snapshot
    from zonewise.runtime.process.process import Process
    from zonewise.topology.locator_index import LocatedLabels
    from zonewise.traffic.routes.service import RouteSettings
    from zonewise.traffic.routes.table import NodeRoutes


_NODES = 5
"""How many nodes a sentence names."""

_ENDPOINTS = 3
"""How many endpoints a line of the table names."""


def _list_nodes(ctx: click.Context, _incomplete: str) -> list[str]:
    from zonewise.api import Node

    return list_names(ctx, Node)


@click.command(
    "proxy",
    cls=Command,
    examples=(
        "proxy --node-name n1 --cluster-cidr 10.244.0.0/16   # serve, as root, on node n1",
        "proxy --cleanup                              # remove every rule it wrote",
        "proxy --dry-run -f dump.yaml                 # the routes of every node of a dump",
        "proxy --dry-run -f dump.yaml --node-name n1  # the routes of one node",
        "proxy --dry-run -f dump.yaml --node-name n1 -o nft   # the packet rules of one node",
        "proxy --dry-run -f dumps -o jsonl            # every node of every file in a folder",
    ),
)
@click.option("--dry-run", is_flag=True, help="Print the routes, and change nothing.")
@click.option("--cleanup", is_flag=True, help="Remove every rule this program wrote, and end.")
@click.option(
    "--init-only", is_flag=True, help="Do only the part of the start that needs root, and end."
)
@serving_options
@click.option(
    "--node-name",
    metavar="NAME",
    shell_complete=complete_from(_list_nodes),
    help="The node whose packets are routed.",
)
@click.option(
    "--service-proxy-name",
    metavar="NAME",
    default="",
    help="Only Services whose label service.kubernetes.io/service-proxy-name has this value, beside"
    " another proxy; without it, Services that have no such label.",
)
@click.option(
    "--allow-node-external-ips",
    is_flag=True,
    help="Route externalIPs that are addresses of nodes; without it they are ignored, with a note.",
)
@add_options(
    feature_gates_option(), files_option(), output_option("table", "json", "yaml", "jsonl", "nft")
)
@click.pass_obj
def command(
    options: Options,
    dry_run: bool,
    cleanup: bool,
    init_only: bool,
    serving: ServingOptions,
    node_name: str | None,
    service_proxy_name: str,
    allow_node_external_ips: bool,
    feature_gates: str,
    files: tuple[str, ...],
    output: str | None,
) -> int | None:
    """Send packets for Services to nearby endpoints.

    With --dry-run the routes are printed instead: for each frontend of a Service, what happens to
    packets and why, on one node or on all. They are those of the cluster in your kubeconfig, or
    with -f of a dump; a folder has one cluster in each file. Routes are of all namespaces: -n has
    no effect.
    """
    from zonewise.api.gates import FeatureGates
    from zonewise.traffic.routes.service import RouteSettings

    chosen = {"--dry-run": dry_run, "--cleanup": cleanup, "--init-only": init_only}
    given = [flag for flag, is_given in chosen.items() if is_given]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other; give one of them")
    if cleanup:
        return _clean_up()
    settings = RouteSettings(
        service_proxy_name, FeatureGates.parse(feature_gates), allow_node_external_ips
    )
    if not dry_run:
        if files:
            raise click.UsageError("-f is for --dry-run; a proxy that serves follows a cluster")
        if options.kubeconfig is None:
            kubeconfig = serving.read_configuration().client_connection.kubeconfig
            options = replace(options, kubeconfig=kubeconfig or None)
        return _serve(options, serving.make_settings(node_name, settings), init_only=init_only)
    note_namespace_ignored(options, "routes are of all namespaces")
    sources = _read_dumped(files) if files else [_read_live(options, settings)]
    computed = _compute_routes(sources, node_name, settings)
    if output == "nft":
        _print_rules(computed, serving, settings)
        return None
    rows = (make_row(source.file, routes.to_dict()) for source, routes in computed)
    if not is_plain(output):
        click.echo(_format_pages(list(rows)))
    elif node_name is not None and len(sources) == 1 and output != "jsonl":
        click.echo(render(next(rows), output))
    else:
        print_rows(rows, output)
    return None


def _clean_up() -> int:
    from zonewise.proxy.tables.kernel import clean_up

    removed = clean_up()
    click.echo(f"removed {', '.join(removed)}" if removed else "there was nothing to remove")
    return 0


@contextmanager
def _skip_certificates() -> Iterator[None]:
    """Keep aiohttp from reading the system's certificates when it is imported.

    It makes TLS contexts of its own then, which we never use; reading a bundle for each of them is
    a tenth of what this program does until the first packet is routed.
    """
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(options: Options, settings: ProxySettings, *, init_only: bool) -> int:
    # Imports make a million objects that stay; a program that serves turns the collector on again.
    gc.disable()
    try:
        return _run(options, settings, init_only=init_only)
    finally:
        gc.enable()


def _run(options: Options, settings: ProxySettings, *, init_only: bool) -> int:
    with _skip_certificates():
        from zonewise.cli.program.connection import connect
    from zonewise.proxy.program import initialise, serve
    from zonewise.runtime.process.logs import configure
    from zonewise.runtime.process.process import run

    options = options.for_serving()
    configure(verbosity=options.verbose, format=options.log_format)

    async def main(process: Process) -> None:
        if init_only:
            await initialise(settings)
            return
        async with connect(options) as client:
            await serve(process, client, settings)

    return run(main)


@dataclass(frozen=True, slots=True)
class _Source:
    """A cluster; ``file`` is its file in a folder, ``where`` its name for messages."""

    snapshot: Snapshot
    where: str
    file: str = ""
    located_labels: Mapping[str, LocatedLabels] = field(default_factory=dict)
    """Labels by node, as PodLocators state them."""


def _read_dumped(files: Sequence[str]) -> list[_Source]:
    from zonewise.api.objects.locator import PodLocator
    from zonewise.runtime.cache.snapshot import Snapshot
    from zonewise.topology.locator_index import labels_by_node

    folder = any(file != "-" and Path(file).is_dir() for file in files)
    return [
        _Source(
            part,
            ", ".join(part.files),
            Path(part.files[0]).name if folder else "",
            labels_by_node(part.all(PodLocator)),
        )
        for part in Snapshot.load(files)
    ]


def _read_live(options: Options, settings: RouteSettings) -> _Source:
    from zonewise.api import LeanEndpointSlice, Node, Service
    from zonewise.api.objects.locator import PodLocator
    from zonewise.cli.program.connection import connect
    from zonewise.proxy.objects import ServiceCIDR
    from zonewise.runtime.cache.snapshot import Snapshot
    from zonewise.runtime.client.readable import is_readable
    from zonewise.topology.locator_index import labels_by_node

    async def read() -> _Source:
        async with connect(options) as client:
            kinds = [Node, Service, LeanEndpointSlice, ServiceCIDR]
            snapshot = await Snapshot.live(client, kinds)
            located = {}
            if _leaves_out_labels(snapshot, settings) and await is_readable(client, PodLocator):
                located = labels_by_node(await client.list(PodLocator))
            return _Source(snapshot, "the cluster", located_labels=located)

    return interrupts.run(read())


def _leaves_out_labels(snapshot: Snapshot, settings: RouteSettings) -> bool:
    """Whether slices of a Service leave out labels that its topology keys need."""
    from zonewise.api import LeanEndpointSlice, Service
    from zonewise.traffic.slices.identity import service_keys_of
    from zonewise.traffic.slices.topology import unstated_labels_of
    from zonewise.traffic.topology_keys import topology_keys_of

    keys_by_service = {
        service.key: topology_keys_of(service, settings.gates) for service in snapshot.all(Service)
    }
    return any(
        unstated_labels_of([piece], keys_by_service.get(service, ()))
        for piece in snapshot.all(LeanEndpointSlice)
        for service in service_keys_of(piece)
    )


def _compute_routes(
    sources: Iterable[_Source], node_name: str | None, settings: RouteSettings
) -> Iterator[tuple[_Source, NodeRoutes]]:
    """The routes of the requested nodes, with their cluster.

    A cluster without nodes has no routes, and those of a dump without slices would be wrong. If
    that is so for some clusters it is noted beside the routes of the others, if for all it is an
    error.
    """
    from zonewise.api import LeanEndpointSlice, Node, Service
    from zonewise.traffic.routes.choice import ClientLocation, node_addresses
    from zonewise.traffic.routes.service import compute_node_routes

    any_routes, without = False, []
    for source in sources:
        snapshot = source.snapshot
        nodes = {node.metadata.name: node for node in snapshot.all(Node)}
        if node_name is not None and node_name not in nodes:
            sentence = f"there is no Node {node_name} in {source.where}"
            raise CommandRefused(f"{sentence}; {_describe_nodes(source, nodes)}")
        services, slices = snapshot.all(Service), snapshot.all(LeanEndpointSlice)
        if not nodes:
            without.append(f"there is no Node in {source.where}; {_describe_nodes(source, nodes)}")
            continue
        if services and (missing := describe_missing(snapshot, [LeanEndpointSlice], source.where)):
            without.append(missing)
            continue
        any_routes = True
        if missing := describe_missing(snapshot, [Service], source.where):
            click.echo(f"note: {missing}", err=True)
        labels = {name: node.metadata.labels for name, node in nodes.items()}
        addresses = node_addresses(nodes.values())
        for name in sorted(nodes) if node_name is None else [node_name]:
            client = ClientLocation.of(nodes[name])
            yield (
                source,
                compute_node_routes(
                    services, slices, client, labels, settings, addresses, source.located_labels
                ),
            )
    for sentence in without if any_routes else without[:-1]:
        click.echo(f"note: {sentence}", err=True)
    if without and not any_routes:
        raise CommandRefused(without[-1])


def _describe_nodes(source: _Source, nodes: Iterable[str]) -> str:
    """Which nodes exist; of many the first and how many more."""
    names = sorted(nodes)
    if not names:
        return "dump nodes as well" if source.snapshot.files else "check the context"
    return f"there {'is' if len(names) == 1 else 'are'} {join_some(names, _NODES)}"


def _print_rules(
    computed: Iterable[tuple[_Source, NodeRoutes]], serving: ServingOptions, routing: RouteSettings
) -> None:
    """Print the packet rules of each node; each is a whole file for ``nft -f``."""
    from zonewise.api import Node
    from zonewise.proxy.objects import ServiceCIDR
    from zonewise.proxy.tables.preview import preview

    for source, routes in computed:
        node = source.snapshot.get(Node, routes.node)
        assert node is not None
        where = f"{source.file}: " if source.file else ""
        settings = serving.make_settings(routes.node, routing)
        head = f"# {where}Node {routes.node}"
        # A line break in a name would end the comment and begin a command.
        click.echo(head if head.isprintable() else ascii(head).strip("'\""))
        click.echo(preview(routes, node, source.snapshot.all(ServiceCIDR), settings), nl=False)


def _format_pages(rows: Sequence[dict[str, Any]]) -> str:
    """The routes of nodes for people, and each note once, with its nodes if not all have it."""
    about: dict[tuple[str, str], list[str]] = {}
    nodes = Counter(row.get("file", "") for row in rows)
    for row in rows:
        for note in row["notes"]:
            text = f"{note['object']}: {note['message']} ({note['code']})"
            about.setdefault((row.get("file", ""), text), []).append(row["node"])
    notes = []
    for (file, text), names in about.items():
        where = f"on {join_some(names, _NODES)}: " if len(names) < nodes[file] else ""
        notes.append(f"{file}: {where}{text}" if file else f"{where}{text}")
    return "\n\n".join(filter(None, (*map(_format_page, rows), "\n".join(notes))))


def _format_page(row: dict[str, Any]) -> str:
    """The routes of a node for people."""
    from zonewise.explain.columns import format_table

    where = f"{row['file']}: " if "file" in row else ""
    head = f"{where}Node {row['node']}, {'zone ' + row['zone'] if row['zone'] else 'no zone'}"
    heads = ["NAMESPACE", "SERVICE", "PORT", "FRONTEND", "FROM", "ACTION", "ENDPOINTS", "WHY"]
    lines = [head]
    if row["routes"]:
        lines += format_table(heads, [_make_line(route) for route in row["routes"]])
    lines += [
        f"Health check of {check['namespace']}/{check['service']} on port {check['port']}"
        f" ({check['family']}): {check['localEndpoints']} here"
        for check in row["healthChecks"]
    ]
    return "\n".join(lines)


def _make_line(route: dict[str, Any]) -> list[str]:
    endpoints = route["endpoints"]
    total = sum(endpoint["weight"] for endpoint in endpoints)
    weighted = len({endpoint["weight"] for endpoint in endpoints}) > 1
    texts = [
        _join_port(endpoint["address"], endpoint["port"])
        + (f" ({100 * endpoint['weight'] / total:.1f} %)" if weighted else "")
        for endpoint in endpoints
    ]
    frontend = _join_port(route["address"] or "*", route["number"])
    return [
        route["namespace"],
        route["service"],
        route["port"] or "-",
        f"{route['path']} {frontend}/{route['protocol']}",
        route["from"],
        route["action"],
        join_some(texts, _ENDPOINTS) or "-",
        " ".join(filter(None, (route["why"], route["key"]))),
    ]


def _join_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
