"""Names that a shell completes from a cluster: namespaces, objects, zones.

They are read from the cluster that the flags so far name, or from the dumps of ``-f``. A person
waits for the result, so reading ends after ``SECONDS``; files that would take longer, pipes and
terminals are not read. After any error there are no names, and nothing is printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from zonewise.cli.program.options import Options

if TYPE_CHECKING:
    from zonewise.runtime.cache.snapshot import Snapshot

SECONDS = 2.0
DUMP_LIMIT = 4 << 20
"""The size of dumps, in bytes, that are parsed as YAML in that time."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]
Names = Callable[[click.Context, str], Iterable[str]]
"""Names that may be completed, given the context and the unfinished word."""


def complete_from(names: Names) -> Completer:
    """A completer of those names that begin with the unfinished word, sorted, each once."""

    def complete(
        ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        known = sorted(set(names(ctx, incomplete)))
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]

    return complete


def list_namespaces(ctx: click.Context, _incomplete: str = "") -> list[str]:
    """The namespaces; in a dump also those that objects are in."""
    from zonewise.api import Resource, unstructured

    kind = unstructured(Resource("", "v1", "Namespace", "namespaces", namespaced=False))
    snapshot = read_snapshot(ctx, kind)
    if snapshot is None:
        return []
    return [
        *(namespace.metadata.name for namespace in snapshot.all(kind)),
        *(item.metadata.namespace for item in snapshot.everything() if item.metadata.namespace),
    ]


def list_names(ctx: click.Context, *kinds: type[Any], everywhere: bool = False) -> list[str]:
    """The names of objects in the chosen namespace; ``NAMESPACE/NAME`` if everywhere."""
    chosen = _find_namespace(ctx)
    names = []
    for kind in kinds:
        scope = None if everywhere or not kind.resource.namespaced else chosen
        snapshot = read_snapshot(ctx, kind, namespace=scope)
        for item in snapshot.all(kind) if snapshot is not None else ():
            namespace = item.metadata.namespace or "default"
            if everywhere:
                names.append(f"{namespace}/{item.metadata.name}")
            elif not kind.resource.namespaced or namespace == chosen:
                names.append(item.metadata.name)
    return names


def list_label_values(ctx: click.Context, label: str) -> list[str]:
    """The values that a label has on nodes."""
    from zonewise.api import Node

    snapshot = read_snapshot(ctx, Node)
    values = (node.metadata.labels.get(label) for node in (snapshot.all(Node) if snapshot else ()))
    return [value for value in values if value]


def read_snapshot(
    ctx: click.Context, *kinds: type[Any], namespace: str | None = None
) -> Snapshot | None:
    """The objects of some kinds; None if they cannot be read, or not in time."""
    from zonewise.api.errors import ZonewiseError
    from zonewise.cli.program.connection import connect
    from zonewise.runtime.cache.snapshot import Snapshot

    async def live() -> Snapshot:
        async with asyncio.timeout(SECONDS), connect(_make_options(ctx)) as client:
            return await Snapshot.live(client, kinds, namespace=namespace)

    try:
        files = ctx.params.get("files")
        if files and not (files := _select_small(files)):
            return None
        snapshot = Snapshot.load(files)[0] if files else asyncio.run(live())
        for kind in kinds:
            snapshot.all(kind)
    except (ZonewiseError, OSError, TimeoutError):
        return None
    return snapshot


def _select_small(files: Sequence[str]) -> list[Path]:
    """The files of ``-f``, of a folder the first; none if they are too large to wait for."""
    from zonewise.runtime.cache.dump import files_of

    paths = [Path(file) for file in files]
    paths = [files_of(path)[0] if path.is_dir() else path for path in paths]
    if not all(path.is_file() for path in paths):
        return []
    return paths if sum(path.stat().st_size for path in paths) <= DUMP_LIMIT else []


def _make_options(ctx: click.Context) -> Options:
    known = {field.name for field in fields(Options)}
    given = {name: value for name, value in ctx.params.items() if name in known and value}
    return replace(Options(**given), request_timeout=SECONDS, verbose=0)


def _find_namespace(ctx: click.Context) -> str:
    from zonewise.api.errors import ZonewiseError
    from zonewise.cli.program.connection import load_cluster_config

    options = _make_options(ctx)
    if ctx.params.get("files") or options.namespace:
        return options.namespace or "default"
    try:
        return load_cluster_config(options).namespace
    except (ZonewiseError, OSError):
        return "default"
