"""What ``zonewise fail`` and ``zonewise heal`` share: selecting nodes, and annotating them.

A node gets an annotation, which its simulated kubelet obeys; nothing else is changed. On other
clusters no kubelet would obey it, so they are refused before anything is written. All names are
looked up first: a wrong one changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from zonewise.cli.program import interrupts
from zonewise.cli.program.cluster_completion import complete_from
from zonewise.cli.program.command import CommandRefused
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import join_some

if TYPE_CHECKING:
    from zonewise.api.objects.core import Node
    from zonewise.runtime.client.client import Client

RACK_KEY = "topology.zonewise.io/rack"
EVERYTHING = "all"

_AT_ONCE = 32
_NAMES = 10
"""How many names a sentence has."""

key_option = click.option(
    "--key", metavar="LABEL", help=f"The node label that names racks.  [default: {RACK_KEY}]"
)


def _list_targets(ctx: click.Context, _incomplete: str) -> list[str]:
    """The names of zones, racks or nodes, as chosen."""
    from zonewise.api import Node
    from zonewise.cli.program.cluster_completion import list_label_values, list_names
    from zonewise.topology.nodes import ZONE_LABEL

    match ctx.params.get("kind"):
        case "zone":
            return list_label_values(ctx, ZONE_LABEL)
        case "rack":
            return list_label_values(ctx, ctx.params.get("key") or RACK_KEY)
        case "node":
            return list_names(ctx, Node)
    return []


complete_names = complete_from(_list_targets)


class OutageTarget(NamedTuple):
    """A zone, rack or node, its nodes, and how many of them had failed or were well already."""

    name: str
    nodes: tuple[str, ...]
    unchanged: int

    def __str__(self) -> str:
        count = f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}"
        return f"{self.name}: {count} ({join_some(self.nodes, _NAMES)})"


def change_nodes(
    options: Options, kind: str, names: Sequence[str], key: str | None, *, fail: bool
) -> list[OutageTarget]:
    """Make nodes fail, or heal them."""
    if key and kind != "rack":
        raise click.UsageError("--key is for racks; leave it out")
    if kind != EVERYTHING and not names:
        raise click.UsageError(f"the name of a {kind} is missing; write {kind} NAME")
    if kind == EVERYTHING and names:
        raise click.UsageError("all takes no names; leave them out")
    return interrupts.run(_change(options, kind, names, key or RACK_KEY, fail=fail))


async def _change(
    options: Options, kind: str, names: Sequence[str], key: str, *, fail: bool
) -> list[OutageTarget]:
    from zonewise.api.objects.core import Node
    from zonewise.cli.program.connection import EMBEDDED, connect

    async with connect(options) as client:
        version = (await client.server_version()).git_version
        if EMBEDDED not in version:
            raise CommandRefused(
                f"the server is {version}, not an embedded cluster, so its nodes cannot be"
                " controlled; choose the context of a cluster that 'zonewise up' runs"
            )
        nodes = (await client.list(Node)).items
        if kind == EVERYTHING:
            selected = {EVERYTHING: [node for node in nodes if _has_failed(node)]}
        else:
            selected = {
                f"{kind} {name}": _select(nodes, kind, key, name) for name in dict.fromkeys(names)
            }
        targets = []
        for name, members in selected.items():
            changing = [node for node in members if _has_failed(node) != fail]
            for start in range(0, len(changing), _AT_ONCE):
                batch = changing[start : start + _AT_ONCE]
                await asyncio.gather(
                    *(_annotate(client, node, name if fail else None) for node in batch)
                )
            node_names = tuple(node.metadata.name for node in members)
            targets.append(OutageTarget(name, node_names, len(members) - len(changing)))
        return targets


def _select(nodes: Sequence[Node], kind: str, key: str, name: str) -> list[Node]:
    """The nodes of a zone, rack or name; the error names those that exist."""
    from zonewise.topology.nodes import ZONE_LABEL

    if kind == "node":
        by_node = {node.metadata.name: node.metadata.name for node in nodes}
    else:
        label = ZONE_LABEL if kind == "zone" else key
        by_node = {node.metadata.name: node.metadata.labels.get(label, "") for node in nodes}
    members = [node for node in nodes if by_node[node.metadata.name] == name]
    if members and name:
        return members
    existing = sorted(set(by_node.values()) - {""})
    if existing:
        verb = "are" if len(existing) > 1 else "is"
        advice = f"there {verb} {join_some(existing, _NAMES)}"
    elif kind == "rack" and nodes:
        advice = f"no node has the label {key}; give the label of racks with --key"
    else:
        advice = f"no node has a {kind} label, add some" if nodes else "add nodes first"
    raise CommandRefused(f'there is no {kind} "{name}"; {advice}')


async def _annotate(client: Client, node: Node, failed: str | None) -> None:
    from zonewise.api.objects.core import Node
    from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION

    body = {"metadata": {"annotations": {FAILED_ANNOTATION: failed}}}
    await client.patch(Node, node.metadata.name, None, body)


def _has_failed(node: Node) -> bool:
    from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION

    return FAILED_ANNOTATION in node.metadata.annotations
