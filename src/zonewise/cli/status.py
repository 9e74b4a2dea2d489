"""``zonewise status``: a cluster on one page, once or live.

It reads Nodes, Pods, Services and EndpointSlices of any cluster, and the in-zone numbers of
simulated clients where there are some. With ``-w`` it follows the cluster by watches and shows the
page again when it has changed, at most every second.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.program import interrupts
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options, add_options, note_namespace_ignored, output_option
from zonewise.cli.program.screen import is_plain, make_console, render

if TYPE_CHECKING:
    from rich.console import Group

    from zonewise.explain.status import Overview
    from zonewise.runtime.client.client import Client

_PAUSE = 1.0
_SERVICES = 20
"""How many Services a terminal shows."""


@click.command(
    "status",
    cls=Command,
    examples=(
        "status          # zones, pods, and traffic that stays in its zone",
        "status -w       # the same, live",
        "status -o json  # for programs",
    ),
)
@click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes.")
@add_options(output_option("table", "json", "yaml"))
@click.pass_obj
def command(options: Options, watch: bool, output: str | None) -> None:
    """Show a cluster on one page: its zones, and how much traffic stays in its zone.

    The page is of all namespaces: -n has no effect. The in-zone numbers are those of the simulated
    clients of 'zonewise up', over the last minute. Services that need attention are first; a
    terminal shows 20, a file or a pipe gets all.
    """
    note_namespace_ignored(options, "the page is of all namespaces")
    interrupts.run(_follow(options, output) if watch else _print_once(options, output))


async def _print_once(options: Options, output: str | None) -> None:
    from zonewise.cli.program.connection import EMBEDDED, connect

    async with connect(options) as client:
        page = await _read_page(client)
        version = (await client.server_version()).git_version
    _print(page, output)
    if not is_plain(output) and EMBEDDED in version:
        from zonewise.cli.local.overview import format_next_steps

        kubeconfig = options.kubeconfig or os.environ.get("KUBECONFIG")
        if kubeconfig:
            make_console().print(format_next_steps(page, kubeconfig), soft_wrap=True)


async def _read_page(client: Client) -> Overview:
    from zonewise.api import Node, Pod, Service
    from zonewise.api.errors import Forbidden, NotFound
    from zonewise.api.objects.discovery import EndpointSlice
    from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap
    from zonewise.embedded.simulated_traffic import CONFIG_MAP_NAME, read_traffic
    from zonewise.explain.status import summarize_cluster
    from zonewise.runtime.cache.snapshot import Snapshot

    snapshot = await Snapshot.live(client, [Node, Pod, Service, EndpointSlice])
    try:
        numbers = (await client.get(ConfigMap, CONFIG_MAP_NAME, NAMESPACE)).get("data", default={})
    except (Forbidden, NotFound):
        numbers = {}
    return summarize_cluster(
        nodes=snapshot.all(Node),
        pods=snapshot.all(Pod),
        services=snapshot.all(Service),
        slices=snapshot.all(EndpointSlice),
        traffic=read_traffic(numbers),
    )


async def _follow(options: Options, output: str | None) -> None:
    from rich.live import Live

    from zonewise.cli.program.connection import connect

    async with connect(options) as client:
        console = make_console()
        if is_plain(output) or not console.is_terminal:
            async with aclosing(_follow_pages(client)) as pages:
                async for page in pages:
                    _print(page, output, whole=False)
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            async with aclosing(_follow_pages(client)) as pages:
                async for page in pages:
                    live.update(_make_tables(page), refresh=True)


async def _follow_pages(client: Client) -> AsyncGenerator[Overview, None]:
    """The page, and again when it has changed."""
    from zonewise.api import Node, Pod, Service
    from zonewise.api.objects.discovery import EndpointSlice
    from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap
    from zonewise.embedded.simulated_traffic import CONFIG_MAP_NAME, read_traffic
    from zonewise.explain.status import summarize_cluster
    from zonewise.runtime.cache.cache import Cache

    cache = Cache(client)
    nodes, pods = cache.store(Node), cache.store(Pod)
    services, slices = cache.store(Service), cache.store(EndpointSlice)
    numbers = cache.store(ConfigMap, namespace=NAMESPACE)
    following = asyncio.create_task(cache.run())
    synced = asyncio.create_task(cache.synced())
    try:
        await asyncio.wait([following, synced], return_when=asyncio.FIRST_COMPLETED)
        last = None
        while not following.done():
            traffic = numbers.get((NAMESPACE, CONFIG_MAP_NAME))
            page = summarize_cluster(
                nodes=nodes,
                pods=pods,
                services=services,
                slices=slices,
                traffic=read_traffic(traffic.get("data", default={}) if traffic else {}),
            )
            if page != last:
                yield page
                last = page
            await asyncio.wait([following], timeout=_PAUSE)
        following.result()
    finally:
        # Ended before the client is closed: a request after that would open a new connection.
        following.cancel()
        synced.cancel()
        await asyncio.gather(following, synced, return_exceptions=True)


def _print(page: Overview, output: str | None, *, whole: bool = True) -> None:
    if is_plain(output):
        click.echo(render(page, output, following=not whole))
    else:
        console = make_console()
        console.print(_make_tables(page, cut=console.is_terminal))


def _make_tables(page: Overview, *, cut: bool = True) -> Group:
    """The page; a terminal shows as many Services as fit, and which ones need attention."""
    from rich.console import Group

    from zonewise.cli.local.overview import make_service_table, make_zone_table, sort_worst_first

    parts: list[Any] = [make_zone_table(page), ""]
    if page.services:
        most = _SERVICES if cut else None
        parts += [make_service_table(sort_worst_first(page), most=most), ""]
    return Group(*parts)
