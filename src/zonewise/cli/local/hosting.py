"""A cluster that this program runs: filled, watched until its pods are ready, and printed.

Order: serve, run the components, create the objects of a new cluster, wait until all pods are ready
(at most ``PATIENCE`` seconds without progress), print the page. The kubeconfig exists after the
first step, so clients need not wait for the last. A component that fails ends the program with an
error at any time.
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
from zonewise.cli.local.overview import format_next_steps, make_service_table, make_zone_table
from zonewise.cli.local.packets import Trial, list_trials
from zonewise.cli.program.screen import clean_cell, join_some
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
PAUSE = 0.1
LOOKS = 10
LOOK_COST = 20
"""The pause between two looks at a cluster is at least this many times what a look takes."""


@dataclass(frozen=True, slots=True)
class Content:
    """The objects of a new cluster, and where they come from.

    ``chosen`` is the flag that chose them, "" if it was none. ``notes`` are about objects that
    differ from their source.
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
        """Write the objects that the components of a new cluster need when they start."""
        if await seed_marker.read_origin(self._cluster.client) is None:
            await self._cluster.plant_classes(content.objects)

    async def plant(self, content: Content) -> list[KindDifference]:
        """Fill a cluster that was not filled before; gives what differs from the source."""
        client = self._cluster.client
        origin = await seed_marker.read_origin(client)
        if origin is not None:
            if content.chosen and origin != content.origin:
                raise ConfigError(
                    f"the data folder has a cluster made from {origin}, which {content.chosen} "
                    "cannot change; leave it out, or give another --data folder"
                )
            return []
        done = 0
        total = len(content.objects)
        with self._progress("creating objects") as report:

            def count(_: Obj) -> None:
                nonlocal done
                done += 1
                report(f"created {done} of {total} objects")

            refused = await self._cluster.seeder.create(content.objects, on_created=count)
        await seed_marker.record_origin(client, content.origin)
        return [*content.notes, *_group(refused)]

    async def wait_ready(self) -> list[str]:
        """Wait until all workloads have their pods Ready, or nothing progresses any more.

        Gives those that have not, as ``shop/orders 2/3``.
        """
        loop = asyncio.get_running_loop()
        await self._cluster.program.cache.synced()
        best = -1
        deadline = loop.time() + PATIENCE
        with self._progress("waiting for pods") as report:
            while True:
                began = loop.time()
                workloads = await _count_ready(self._cluster)
                ready, desired = (sum(counts) for counts in zip(*workloads.values(), strict=True))
                report(f"{len(self._nodes)} nodes, {ready} of {desired} pods ready")
                if ready > best:
                    best, deadline = ready, loop.time() + PATIENCE
                if ready >= desired or loop.time() > deadline:
                    await self._wait_endpoints()
                    return [f"{name} {up}/{of}" for name, (up, of) in workloads.items() if up < of]
                await asyncio.sleep(max(PAUSE, LOOK_COST * (loop.time() - began)))

    async def _wait_endpoints(self) -> None:
        """Wait until the number of endpoints, which follow pods, does not change any more."""
        last = -1
        for _ in range(LOOKS):
            now = sum(route.endpoints for route in self.make_page().services)
            if now == last:
                return
            last = now
            await asyncio.sleep(3 * PAUSE)

    def make_page(self) -> Overview:
        """The cluster as it is now."""
        return summarize_cluster(
            nodes=self._nodes,
            pods=self._pods,
            services=self._services,
            slices=self._slices,
            traffic=self._cluster.simulated_traffic.service_traffic(),
        )

    def list_trials(self) -> list[Trial]:
        """Requests that can be sent as real packets."""
        return list_trials(self._nodes, self._pods, self._services, self._slices)

    def dig_command(self, host: str, port: int) -> str:
        """A query to the cluster's name server as one of its pods would send it."""
        headless = [service for service in self._services if service.spec.cluster_ip == "None"]
        service = min(
            headless, key=lambda item: (not topology_keys_of(item), item.key), default=None
        )
        addresses = (
            pod.status.pod_ips[0].ip
            for pod in self._pods
            if is_pod_ready(pod) and pod.status.pod_ips
        )
        client = min(addresses, default="")
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


async def _count_ready(cluster: EmbeddedCluster) -> dict[str, tuple[int, int]]:
    """How many pods of each workload are ready, and how many are desired."""
    counts = {"": (0, 0)}
    client = cluster.client
    for workload in (*await client.list(Deployment), *await client.list(StatefulSet)):
        desired = workload.spec.replicas
        observed = workload.status.observed_generation >= workload.metadata.generation
        ready = min(desired, workload.status.ready_replicas) if observed else 0
        counts["/".join(workload.key)] = (ready, desired)
    for daemon_set in await client.list(DaemonSet):
        status = daemon_set.status
        observed = status.observed_generation >= daemon_set.metadata.generation
        ready, desired = status.number_ready, status.desired_number_scheduled
        counts["/".join(daemon_set.key)] = (ready, desired) if observed else (0, 1)
    return counts


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
        console.print(make_zone_table(page))
        console.print()
    if page.services:
        console.print(make_service_table(page))
        console.print()
    if missing:
        console.print(clean_cell(f"Not all pods are ready yet: {join_some(missing, 5)}"))
        console.print()
    recreated = [
        f"{difference.kind} {len(difference.names)}"
        for difference in differences
        if difference.reason == RECREATED
    ]
    if recreated:
        console.print(clean_cell(f"Recreated from the dump: {', '.join(recreated)}"), style="dim")
        console.print()
    if table := make_difference_table(differences):
        console.print(table)
        console.print()
    console.print(format_next_steps(page, str(kubeconfig)), soft_wrap=True)
    meaning = "the answer that this pod gets" if "+subnet" in dig else "a name of the cluster"
    console.print(f"\n  {dig}\n    [dim]# {meaning}: docs/dns.md[/dim]\n", soft_wrap=True)
    for line in packets:
        console.print(clean_cell(line), soft_wrap=True, style="dim" if "#" in line else None)
    console.print()


def _group(refused: list[SeedRefused]) -> list[KindDifference]:
    groups: dict[tuple[str, str], list[str]] = {}
    for refusal in refused:
        groups.setdefault((refusal.kind, refusal.reason), []).append(refusal.name)
    return [KindDifference(kind, why, tuple(names)) for (kind, why), names in groups.items()]


def make_difference_table(differences: Sequence[KindDifference], most: int = 30) -> Table | None:
    """What differs from the source, without what controllers recreate; None if nothing."""
    from rich.table import Table

    rows = [row for row in differences if row.reason not in (RECREATED, BUILT_IN)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("DIFFERENT HERE", no_wrap=True)
    table.add_column("HOW MANY", justify="right", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    for row in rows[:most]:
        name = f" ({row.names[0]})" if len(row.names) == 1 else ""
        table.add_row(clean_cell(row.kind), str(len(row.names)), clean_cell(row.reason + name))
    if len(rows) > most:
        table.add_row(f"and {len(rows) - most} more")
    return table if rows else None
