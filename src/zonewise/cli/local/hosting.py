"""A cluster that this program runs: seeded, watched until it is complete, and shown.

Order: serve, run the components, create what a new cluster is to have, wait until nothing is
missing (at most ``PATIENCE`` seconds without progress), print the page. The kubeconfig exists after
the first of these, so clients need not wait for the last. A component that fails ends the program
with a sentence, whatever it is doing at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zonewise.api import DaemonSet, Deployment, Node, Pod, Service, StatefulSet
from zonewise.api.errors import ConfigError
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.cli.local.overview import next_steps, service_table, zone_table
from zonewise.cli.local.packets import Trial, trials
from zonewise.cli.program.screen import cell
from zonewise.embedded.seed import seed_marker
from zonewise.embedded.seed.dump_import import BUILT_IN, RECREATED, KindDifference
from zonewise.embedded.seed.seeder import SeedRefused
from zonewise.explain.status import Overview, summarize_cluster
from zonewise.traffic.topology_keys import topology_keys_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from zonewise.embedded.cluster import EmbeddedCluster

Obj = dict[str, Any]

PATIENCE = 6.0
LOOK = 0.1
LOOKS = 10
LOOK_COST = 20
"""Between two looks at a cluster passes at least this many times what a look takes."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a new cluster is to have, and how that is called.

    ``chosen`` is what the user wrote for it, "" if that was nothing in particular. ``notes`` are
    about objects that differ from their source.
    """

    origin: str
    objects: Sequence[Obj] = field(repr=False)
    chosen: str = ""
    notes: Sequence[KindDifference] = ()


class Host:
    """Runs one cluster for one terminal."""

    def __init__(self, cluster: EmbeddedCluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console
        cache = cluster.program.cache
        self._nodes = cache.store(Node)
        self._pods = cache.store(Pod)
        self._services = cache.store(Service)
        self._slices = cache.store(EndpointSlice)

    async def prepare(self, content: Content) -> None:
        """Write what the components of a new cluster are to find when they start."""
        if await seed_marker.read_origin(self._cluster.client) is None:
            await self._cluster.plant_classes(content.objects)

    async def plant(self, content: Content) -> list[KindDifference]:
        """Fill a new cluster; one that was filled before is left alone. What became different."""
        client = self._cluster.client
        made = await seed_marker.read_origin(client)
        if made is not None:
            if content.chosen and made != content.origin:
                raise ConfigError(
                    f"the data folder holds a cluster made from {made}, which {content.chosen} "
                    "cannot change; leave it out, or give another --data folder"
                )
            return []
        done = 0
        total = len(content.objects)
        with self._progress("making objects") as say:

            def written(_: Obj) -> None:
                nonlocal done
                done += 1
                say(f"made {done} of {total} objects")

            refused = await self._cluster.seeder.create(content.objects, on_created=written)
        await seed_marker.record_origin(client, content.origin)
        return [*content.notes, *_grouped(refused)]

    async def settled(self) -> list[str]:
        """Wait until all workloads have their pods Ready, or nothing progresses any more.

        Gives those that have not, as ``shop/orders 2/3``.
        """
        loop = asyncio.get_running_loop()
        await self._cluster.program.cache.synced()
        best = -1
        deadline = loop.time() + PATIENCE
        with self._progress("waiting for pods") as say:
            while True:
                began = loop.time()
                found = await _workloads(self._cluster)
                up, wanted = (sum(numbers) for numbers in zip(*found.values(), strict=True))
                say(f"{len(self._nodes)} nodes, {up} of {wanted} pods ready")
                if up > best:
                    best, deadline = up, loop.time() + PATIENCE
                if up >= wanted or loop.time() > deadline:
                    await self._steady()
                    return [
                        f"{name} {one}/{all_}" for name, (one, all_) in found.items() if one < all_
                    ]
                await asyncio.sleep(max(LOOK, LOOK_COST * (loop.time() - began)))

    async def _steady(self) -> None:
        """Wait until endpoints, which follow pods a moment later, are as many as a moment ago."""
        last = -1
        for _ in range(LOOKS):
            now = sum(route.endpoints for route in self.page().services)
            if now == last:
                return
            last = now
            await asyncio.sleep(3 * LOOK)

    def page(self) -> Overview:
        """The cluster as it is now."""
        return summarize_cluster(
            nodes=self._nodes,
            pods=self._pods,
            services=self._services,
            slices=self._slices,
            traffic=self._cluster.clients.service_traffic(),
        )

    def trials(self) -> list[Trial]:
        """Questions with real packets."""
        return trials(self._nodes, self._pods, self._services, self._slices)

    def dig(self, host: str, port: int) -> str:
        """A query to the cluster's name server as one of its pods would send it."""
        headless = [one for one in self._services if one.spec.cluster_ip == "None"]
        service = min(headless, key=lambda one: (not topology_keys_of(one), one.key), default=None)
        found = (
            pod.status.pod_ips[0].ip
            for pod in self._pods
            if is_pod_ready(pod) and pod.status.pod_ips
        )
        client = min(found, default="")
        if service is None or not client:
            return f"dig @{host} -p {port} kubernetes.default.svc.cluster.local"
        name = f"{service.metadata.name}.{service.metadata.namespace}.svc.cluster.local"
        prefix = 128 if ":" in client else 32
        return f"dig @{host} -p {port} {name} +subnet={client}/{prefix}"

    @contextmanager
    def _progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """A line that changes, on a terminal; nothing elsewhere."""
        if not self._console.is_terminal:
            yield lambda _: None
            return
        with self._console.status(text) as status:
            yield status.update


async def _workloads(cluster: EmbeddedCluster) -> dict[str, tuple[int, int]]:
    """How many pods of each workload are ready, and how many there are to be."""
    found = {"": (0, 0)}
    client = cluster.client
    for one in (*await client.list(Deployment), *await client.list(StatefulSet)):
        desired = one.spec.replicas
        seen = one.status.observed_generation >= one.metadata.generation
        ready = min(desired, one.status.ready_replicas) if seen else 0
        found["/".join(one.key)] = (ready, desired)
    for each in await client.list(DaemonSet):
        status = each.status
        seen = status.observed_generation >= each.metadata.generation
        wanted = status.desired_number_scheduled
        found["/".join(each.key)] = (status.number_ready, wanted) if seen else (0, 1)
    return found


def introduce(
    console: Console,
    page: Overview,
    *,
    address: str,
    kubeconfig: Path,
    differences: Sequence[KindDifference],
    missing: Sequence[str],
    dig: str,
    packets: Sequence[str],
) -> None:
    """Print what runs here, and what to try with it."""
    from zonewise.embedded.apiserver.discovery.nonresource import VERSION

    console.print(
        f"[bold]A cluster runs here[/bold]: Kubernetes API {VERSION} at {address}\n", soft_wrap=True
    )
    if page.zones:
        console.print(zone_table(page))
        console.print()
    if page.services:
        console.print(service_table(page))
        console.print()
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        console.print(cell(f"Not all pods are ready yet: {', '.join(missing[:5])}{more}"))
        console.print()
    anew = [f"{one.kind} {len(one.names)}" for one in differences if one.reason == RECREATED]
    if anew:
        console.print(cell(f"Recreated from the dump: {', '.join(anew)}"), style="dim")
        console.print()
    if table := difference_table(differences):
        console.print(table)
        console.print()
    console.print(next_steps(page, str(kubeconfig)), soft_wrap=True)
    whose = "the answer that this pod gets" if "+subnet" in dig else "a name of the cluster"
    console.print(f"\n  {dig}\n    [dim]# {whose}: docs/dns.md[/dim]\n", soft_wrap=True)
    for line in packets:
        console.print(cell(line), soft_wrap=True, style="dim" if "#" in line else None)
    console.print()


def _grouped(refused: list[SeedRefused]) -> list[KindDifference]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in refused:
        groups.setdefault((one.kind, one.reason), []).append(one.name)
    return [KindDifference(kind, why, tuple(names)) for (kind, why), names in groups.items()]


def difference_table(found: Sequence[KindDifference], most: int = 30) -> Table | None:
    """What the user should know; what controllers recreate is left out."""
    from rich.table import Table

    news = [one for one in found if one.reason not in (RECREATED, BUILT_IN)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("DIFFERENT HERE", no_wrap=True)
    table.add_column("HOW MANY", justify="right", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    for one in news[:most]:
        name = f" ({one.names[0]})" if len(one.names) == 1 else ""
        table.add_row(cell(one.kind), str(len(one.names)), cell(one.reason + name))
    if len(news) > most:
        table.add_row(f"and {len(news) - most} more")
    return table if news else None
