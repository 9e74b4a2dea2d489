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
from zonewise.cli.program.options import Options, output_option, without_namespace
from zonewise.cli.program.screen import console, is_plain, rendered

if TYPE_CHECKING:
    from rich.console import Group

    from zonewise.explain.status import Overview
    from zonewise.runtime.client.client import Client

_PAUSE = 1.0
_SHOWN = 20
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
@output_option("table", "json", "yaml")
@click.pass_obj
def command(options: Options, watch: bool, output: str | None) -> None:
    """Show a cluster on one page: its zones, and how much traffic stays in its zone.

    It is of all namespaces: -n has no effect. The in-zone numbers are those of the simulated
    clients of 'zonewise up', over the last minute. Services that need attention are first; a
    terminal shows 20, a file or a pipe gets all.
    """
    without_namespace(options, "the page is of all namespaces")
    interrupts.run(_watch(options, output) if watch else _once(options, output))


async def _once(options: Options, output: str | None) -> None:
    from zonewise.cli.program.connection import EMBEDDED, connected

    async with connected(options) as client:
        page = await _page(client)
        version = (await client.server_version()).git_version
    _print(page, output)
    if not is_plain(output) and EMBEDDED in version:
        from zonewise.cli.local.overview import next_steps

        kubeconfig = options.kubeconfig or os.environ.get("KUBECONFIG")
        if kubeconfig:
            console().print(next_steps(page, kubeconfig), soft_wrap=True)


async def _page(client: Client) -> Overview:
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


async def _watch(options: Options, output: str | None) -> None:
    from rich.live import Live

    from zonewise.cli.program.connection import connected

    async with connected(options) as client:
        place = console()
        if is_plain(output) or not place.is_terminal:
            async with aclosing(_pages(client)) as pages:
                async for page in pages:
                    _print(page, output, whole=False)
            return
        with Live(console=place, screen=True, auto_refresh=False) as live:
            async with aclosing(_pages(client)) as pages:
                async for page in pages:
                    live.update(_tables(page), refresh=True)


async def _pages(client: Client) -> AsyncGenerator[Overview, None]:
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
            found = numbers.get((NAMESPACE, CONFIG_MAP_NAME))
            page = summarize_cluster(
                nodes=nodes,
                pods=pods,
                services=services,
                slices=slices,
                traffic=read_traffic(found.get("data", default={}) if found else {}),
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
        click.echo(rendered(page, output, following=not whole))
    else:
        screen = console()
        screen.print(_tables(page, cut=screen.is_terminal))


def _tables(page: Overview, *, cut: bool = True) -> Group:
    """The page; a terminal shows as many Services as fit, and which ones need attention."""
    from rich.console import Group

    from zonewise.cli.local.overview import service_table, worst_first, zone_table

    parts: list[Any] = [zone_table(page), ""]
    if page.services:
        most = _SHOWN if cut else None
        parts += [service_table(worst_first(page), most=most), ""]
    return Group(*parts)
