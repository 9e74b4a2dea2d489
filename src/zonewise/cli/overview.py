"""A cluster on one page: its zones, and how much of each Service's traffic stays in its zone.

``overview`` is pure; ``zonewise up`` makes the page from its own stores and ``zonewise status``
from a cluster it asks. In-zone numbers are those of the simulated clients of an embedded cluster,
and are left out where there are none.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from zonewise.api import Node, Pod, Service
from zonewise.api.discovery import EndpointSlice
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.podstate import finished, ready
from zonewise.embedded.clients import Seen
from zonewise.topology import cpu_milli, is_ready, zone_of
from zonewise.traffic import as_obeyed, wish_of
from zonewise.traffic.slices import services_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GOOD, POOR = 0.8, 0.5
NO_NUMBER = "–"
WIDTH = 100


class Zone(msgspec.Struct, frozen=True, rename="camel"):
    """One zone; "" is that of nodes without one."""

    name: str
    nodes: int
    nodes_ready: int
    cpu_milli: int
    pods: int
    pods_ready: int


class Route(msgspec.Struct, frozen=True, rename="camel"):
    """One Service; ``in_zone`` and ``failed`` are parts of simulated requests, if there are any."""

    namespace: str
    name: str
    mode: str
    endpoints: int
    in_zone: float | None
    failed: float | None


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """The page."""

    zones: tuple[Zone, ...]
    pods: int
    pods_ready: int
    pods_pending: int
    services: tuple[Route, ...]

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(zone.nodes for zone in self.zones)


def overview(
    *,
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
    seen: Mapping[Key, Seen],
) -> Overview:
    """The page of a cluster."""
    living = [pod for pod in pods if not finished(pod)]
    on, ready_on = Counter[str](), Counter[str]()
    for pod in living:
        on[pod.spec.node_name] += 1
        ready_on[pod.spec.node_name] += ready(pod)
    by_zone: dict[str, list[Node]] = {}
    for node in nodes:
        by_zone.setdefault(zone_of(node), []).append(node)
    return Overview(
        zones=tuple(
            Zone(
                name=zone,
                nodes=len(members),
                nodes_ready=sum(map(is_ready, members)),
                cpu_milli=sum(map(cpu_milli, members)),
                pods=sum(on[node.metadata.name] for node in members),
                pods_ready=sum(ready_on[node.metadata.name] for node in members),
            )
            for zone, members in sorted(by_zone.items())
        ),
        pods=len(living),
        pods_ready=ready_on.total(),
        pods_pending=on[""],
        services=tuple(_routes(services, slices, seen)),
    )


def _routes(
    services: Iterable[Service], slices: Iterable[EndpointSlice], seen: Mapping[Key, Seen]
) -> Iterable[Route]:
    gates = FeatureGates()
    answering: dict[Key, set[str]] = {}
    for piece in slices:
        names = (one.name for one in map(as_obeyed, piece.endpoints or ()) if one.ready)
        for key in services_of(piece):
            answering.setdefault(key, set()).update(names)
    for service in sorted(services, key=lambda service: service.key):
        if not service.spec.selector:
            continue
        found = seen.get(service.key)
        headless = service.spec.cluster_ip == "None"
        yield Route(
            namespace=service.metadata.namespace,
            name=service.metadata.name,
            mode="headless" if headless else wish_of(service, gates).mode.value,
            endpoints=len(answering.get(service.key, ())),
            in_zone=found.in_zone if found else None,
            failed=found.failed if found else None,
        )


def console() -> Console:
    """Where pages are printed; a file or a pipe gets lines wide enough for them."""
    from rich.console import Console

    class Printed(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the program with a code of its own

    found = Printed(highlight=False)
    return found if found.is_terminal else Printed(highlight=False, width=WIDTH)


def zone_table(page: Overview) -> Table:
    """The zones, one line each."""
    table = _table("ZONE", "NODES", "CPU", "PODS", "READY")
    for zone in page.zones:
        nodes = f"{zone.nodes_ready}/{zone.nodes}"
        table.add_row(
            zone.name or "(no zone)",
            nodes if zone.nodes_ready == zone.nodes else f"[red]{nodes}[/red]",
            f"{zone.cpu_milli / 1000:g}",
            str(zone.pods),
            _ratio(zone.pods_ready, zone.pods),
        )
    lost = page.pods - page.pods_pending - sum(zone.pods for zone in page.zones)
    if lost:
        up = page.pods_ready - sum(zone.pods_ready for zone in page.zones)
        table.add_row("(node gone)", "", "", str(lost), _ratio(up, lost))
    if page.pods_pending:
        table.add_row("(pending)", "", "", str(page.pods_pending), _ratio(0, page.pods_pending))
    return table


def service_table(page: Overview, *, most: int = 20) -> Table:
    """The Services, one line each, in the order of their names."""
    table = _table("SERVICE", "MODE", "ENDPOINTS", "IN-ZONE", "UNANSWERED")
    for route in page.services[:most]:
        table.add_row(
            f"{route.namespace}/{route.name}",
            route.mode,
            str(route.endpoints),
            _percent(route.in_zone, good=True),
            _percent(route.failed, good=False),
        )
    if len(page.services) > most:
        table.add_row(f"and {len(page.services) - most} more")
    return table


def next_steps(page: Overview, kubeconfig: str) -> str:
    """How to reach an embedded cluster, and three commands to try with it."""
    from rich.markup import escape

    program = _called()
    zone = next((zone.name for zone in page.zones if zone.name), "")
    commands = [
        ("kubectl get pods -A -o wide", "what runs where"),
        (f"{program} status -w", "this page, live"),
        (f"{program} fail zone {zone}", f"take zone {zone} away and watch")
        if zone
        else ("kubectl apply -f nodes.yaml", "Nodes come to life: docs/embedded.md"),
    ]
    width = max(len(command) for command, _ in commands)
    lines = [f"  {command:<{width}}   [dim]# {meaning}[/dim]" for command, meaning in commands]
    return "\n".join([f"  [bold]export KUBECONFIG={escape(kubeconfig)}[/bold]", "", *lines])


def _called() -> str:
    """How to call this program again."""
    if shutil.which("zonewise"):
        return "zonewise"
    path = Path(sys.argv[0])
    return f"{sys.executable} -m zonewise" if path.name == "__main__.py" else str(path)


def _table(first: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for column in columns:
        words = column == "MODE"
        table.add_column(column, justify="left" if words else "right", no_wrap=True)
    return table


def _ratio(ready: int, all_: int) -> str:
    text = str(ready)
    return text if ready == all_ else f"[yellow]{text}[/yellow]"


def _percent(part: float | None, *, good: bool) -> str:
    if part is None:
        return NO_NUMBER
    text = f"{part:.0%}"
    if not good:
        return f"[red]{text}[/red]" if part else text
    color = "green" if part >= GOOD else "yellow" if part >= POOR else "red"
    return f"[{color}]{text}[/{color}]"
