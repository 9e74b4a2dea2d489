"""What ``zonewise fail`` and ``zonewise heal`` share: selecting nodes, and annotating them.

A node gets an annotation, which its simulated kubelet obeys; nothing else is changed. On a cluster
that is not ours no kubelet would obey it, so that is refused before anything is written. All names
are looked up first: a wrong one changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from zonewise.api.errors import Forbidden, NotFound, Status
from zonewise.cli.program import interrupts
from zonewise.cli.program.cluster_completion import completes
from zonewise.cli.program.options import Options

if TYPE_CHECKING:
    from zonewise.api.objects.core import Node
    from zonewise.runtime.client.client import Client

RACK_KEY = "topology.zonewise.io/rack"
EVERYTHING = "all"

_AT_ONCE = 32
_NAMED = 10

key_option = click.option(
    "--key", metavar="LABEL", help=f"The node label that names racks. Default: {RACK_KEY}."
)


def _names(ctx: click.Context, _incomplete: str) -> list[str]:
    """What can be failed or healed, of the kind that was chosen."""
    from zonewise.api import Node
    from zonewise.cli.program.cluster_completion import objects, places
    from zonewise.topology.nodes import ZONE_LABEL

    match ctx.params.get("kind"):
        case "zone":
            return places(ctx, ZONE_LABEL)
        case "rack":
            return places(ctx, ctx.params.get("key") or RACK_KEY)
        case "node":
            return objects(ctx, Node)
    return []


complete_names = completes(_names)


class OutageTarget(NamedTuple):
    """A place that was annotated, its nodes, and how many of them were so already."""

    name: str
    nodes: tuple[str, ...]
    already: int

    def __str__(self) -> str:
        count = f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}"
        return f"{self.name}: {count} ({some(self.nodes)})"


def change(
    options: Options, kind: str, names: Sequence[str], key: str | None, *, fail: bool
) -> list[OutageTarget]:
    """Have the nodes of places fail or heal."""
    if key and kind != "rack":
        raise click.UsageError("--key says which label names racks; leave it out")
    if kind != EVERYTHING and not names:
        raise click.UsageError(f"which {kind}? give its name")
    if kind == EVERYTHING and names:
        raise click.UsageError("all needs no names; leave them out")
    return interrupts.run(_change(options, kind, names, key or RACK_KEY, fail=fail))


async def _change(
    options: Options, kind: str, names: Sequence[str], key: str, *, fail: bool
) -> list[OutageTarget]:
    from zonewise.api.objects.core import Node
    from zonewise.cli.program.connection import EMBEDDED, connected

    async with connected(options) as client:
        version = (await client.server_version()).git_version
        if EMBEDDED not in version:
            raise _refusal(version)
        everyone = (await client.list(Node)).items
        if kind == EVERYTHING:
            found = {EVERYTHING: [node for node in everyone if _failed(node)]}
        else:
            found = {
                f"{kind} {name}": _nodes(everyone, kind, key, name) for name in dict.fromkeys(names)
            }
        places = []
        for name, nodes in found.items():
            told = [node for node in nodes if _failed(node) != fail]
            for start in range(0, len(told), _AT_ONCE):
                batch = told[start : start + _AT_ONCE]
                await asyncio.gather(
                    *(_tell(client, node, name if fail else None) for node in batch)
                )
            every = tuple(node.metadata.name for node in nodes)
            places.append(OutageTarget(name, every, len(nodes) - len(told)))
        return places


def _nodes(everyone: Sequence[Node], kind: str, key: str, name: str) -> list[Node]:
    """The nodes of a place; raises ``NotFound`` with the places there are."""
    from zonewise.topology.nodes import ZONE_LABEL

    if kind == "node":
        names = {node.metadata.name: node.metadata.name for node in everyone}
    else:
        label = ZONE_LABEL if kind == "zone" else key
        names = {node.metadata.name: node.metadata.labels.get(label, "") for node in everyone}
    found = [node for node in everyone if names[node.metadata.name] == name]
    if found and name:
        return found
    there = sorted(set(names.values()) - {""})
    if there:
        advice = f"there are {some(there)}" if len(there) > 1 else f"there is {there[0]}"
    elif kind == "rack" and everyone:
        advice = f"no node has the label {key}, say with --key which one names racks"
    else:
        advice = f"no node names a {kind}, add some" if everyone else "add nodes first"
    raise NotFound(Status(message=f'there is no {kind} "{name}"; {advice}', code=404))


def _refusal(version: str) -> Forbidden:
    sentence = (
        f"the server is {version}, not an embedded cluster, so its nodes cannot be controlled; "
        "choose the context of a cluster that 'zonewise up' runs"
    )
    return Forbidden(Status(message=sentence, code=403))


async def _tell(client: Client, node: Node, failed: str | None) -> None:
    from zonewise.api.objects.core import Node
    from zonewise.embedded.components.kubelet import FAILED_ANNOTATION

    body = {"metadata": {"annotations": {FAILED_ANNOTATION: failed}}}
    await client.patch(Node, node.metadata.name, None, body)


def _failed(node: Node) -> bool:
    from zonewise.embedded.components.kubelet import FAILED_ANNOTATION

    return FAILED_ANNOTATION in node.metadata.annotations


def some(names: Sequence[str]) -> str:
    """Names, the first few of them if they are many."""
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return ", ".join(names)
