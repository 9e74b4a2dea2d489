"""The page of a cluster on a terminal.

``zonewise up`` makes it from its own stores and ``zonewise status`` from a cluster it reads;
``zonewise.explain.status`` decides what is on it.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from zonewise.api.values.printable import escape_unprintable
from zonewise.cli.program.screen import clean_cell
from zonewise.explain.status import Overview

if TYPE_CHECKING:
    from rich.table import Table

GOOD, POOR = 0.8, 0.5
NO_NUMBER = "–"


def make_zone_table(page: Overview) -> Table:
    """The zones, one line each."""
    table = _make_table("ZONE", "NODES", "CPU", "PODS", "READY")
    for zone in page.zones:
        nodes = f"{zone.nodes_ready}/{zone.nodes}"
        table.add_row(
            clean_cell(zone.name or "(no zone)"),
            nodes if zone.nodes_ready == zone.nodes else f"[red]{nodes}[/red]",
            f"{zone.cpu_milli / 1000:g}",
            str(zone.pods),
            _format_ratio(zone.pods_ready, zone.pods),
        )
    lost = page.pods - page.pods_pending - sum(zone.pods for zone in page.zones)
    if lost:
        up = page.pods_ready - sum(zone.pods_ready for zone in page.zones)
        table.add_row("(node gone)", "", "", str(lost), _format_ratio(up, lost))
    if page.pods_pending:
        table.add_row(
            "(pending)", "", "", str(page.pods_pending), _format_ratio(0, page.pods_pending)
        )
    return table


def sort_worst_first(page: Overview) -> Overview:
    """The same page with the Services that need attention first: unanswered, then out of zone."""
    ordered = sorted(
        page.services,
        key=lambda route: (-(route.failed or 0), 2 if route.in_zone is None else route.in_zone),
    )
    return msgspec.structs.replace(page, services=tuple(ordered))


def make_service_table(page: Overview, *, most: int | None = 20) -> Table:
    """The Services, one line each, in the order of the page; all of them if ``most`` is None."""
    table = _make_table("SERVICE", "MODE", "ENDPOINTS", "IN-ZONE", "UNANSWERED")
    most = len(page.services) if most is None else most
    for route in page.services[:most]:
        table.add_row(
            clean_cell(f"{route.namespace}/{route.name}"),
            clean_cell(route.mode_text),
            str(route.endpoints),
            _format_percent(route.in_zone, good=True),
            _format_percent(route.failed, good=False),
        )
    if len(page.services) > most:
        table.add_row(f"and {len(page.services) - most} more")
    return table


def format_next_steps(page: Overview, kubeconfig: str) -> str:
    """How to reach an embedded cluster, and three commands to try with it."""
    from rich.markup import escape

    program = escape(_program_name())
    commands = [
        ("kubectl get pods -A -o wide", "what runs where"),
        (f"{program} status -w", "this page, live"),
        _suggest_failure(page, program),
    ]
    width = max(len(command) for command, _ in commands)
    lines = [f"  {command:<{width}}   [dim]# {meaning}[/dim]" for command, meaning in commands]
    return "\n".join(
        [f"  [bold]export KUBECONFIG={escape(shlex.quote(kubeconfig))}[/bold]", "", *lines]
    )


def _suggest_failure(page: Overview, program: str) -> tuple[str, str]:
    """Fail the first zone, or heal it if one has failed."""
    from rich.markup import escape

    zones = [zone for zone in page.zones if zone.name]
    if not zones:
        return "kubectl apply -f nodes.yaml", "Nodes become Ready: docs/embedded.md"
    failed = [zone for zone in zones if not zone.nodes_ready]
    name = escape(escape_unprintable((failed or zones)[0].name))
    if failed:
        return f"{program} heal zone {name}", f"bring zone {name} back"
    return f"{program} fail zone {name}", f"make zone {name} fail and watch"


def _program_name() -> str:
    """A command for this program that works in any folder."""
    path = Path(sys.argv[0])
    if path.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m zonewise"
    installed = shutil.which("zonewise")
    if installed and path.exists() and Path(installed).samefile(path):
        return "zonewise"
    return shlex.quote(str(path.absolute()))


def _make_table(first: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for column in columns:
        if column == "MODE":
            table.add_column(column, no_wrap=True)
        else:
            least = min(len(column), len("100%"))
            table.add_column(column, justify="right", no_wrap=True, min_width=least)
    return table


def _format_ratio(ready: int, total: int) -> str:
    text = str(ready)
    return text if ready == total else f"[yellow]{text}[/yellow]"


def _format_percent(part: float | None, *, good: bool) -> str:
    if part is None:
        return NO_NUMBER
    text = f"{part:.0%}"
    if not good:
        return f"[red]{text}[/red]" if part else text
    color = "green" if part >= GOOD else "yellow" if part >= POOR else "red"
    return f"[{color}]{text}[/{color}]"
