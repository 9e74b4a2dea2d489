"""Names that a shell completes from a cluster: namespaces, objects, zones.

They are read from the cluster that the flags so far mean, or from the dumps of ``-f``. A person
waits for the key they pressed, so it ends after ``SECONDS``, and files that would take longer are
not read, nor are pipes and terminals; whatever goes wrong, there are no names, and nothing is
printed.
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
"""Bytes of dumps that are read in that time, as YAML."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]
Names = Callable[[click.Context, str], Iterable[str]]
"""What may be written, given what was written so far."""


def completes(names: Names) -> Completer:
    """A completer of names; those that go on as it was begun, in order, each once."""

    def complete(
        ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        known = sorted(set(names(ctx, incomplete)))
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]

    return complete


def namespaces(ctx: click.Context, _incomplete: str = "") -> list[str]:
    """The namespaces; in a dump also those that objects are in."""
    from zonewise.api import Resource, unstructured

    kind = unstructured(Resource("", "v1", "Namespace", "namespaces", namespaced=False))
    snapshot = read(ctx, kind)
    if snapshot is None:
        return []
    return [
        *(one.metadata.name for one in snapshot.all(kind)),
        *(one.metadata.namespace for one in snapshot.everything() if one.metadata.namespace),
    ]


def objects(ctx: click.Context, *kinds: type[Any], everywhere: bool = False) -> list[str]:
    """The names of objects in the namespace that is meant; ``NAMESPACE/NAME`` if everywhere."""
    namespace = _namespace(ctx)
    found = []
    for kind in kinds:
        scope = None if everywhere or not kind.resource.namespaced else namespace
        snapshot = read(ctx, kind, namespace=scope)
        for item in snapshot.all(kind) if snapshot is not None else ():
            place = item.metadata.namespace or "default"
            if everywhere:
                found.append(f"{place}/{item.metadata.name}")
            elif not kind.resource.namespaced or place == namespace:
                found.append(item.metadata.name)
    return found


def places(ctx: click.Context, label: str) -> list[str]:
    """The values of a label of nodes."""
    from zonewise.api import Node

    snapshot = read(ctx, Node)
    found = (node.metadata.labels.get(label) for node in (snapshot.all(Node) if snapshot else ()))
    return [value for value in found if value]


def read(ctx: click.Context, *kinds: type[Any], namespace: str | None = None) -> Snapshot | None:
    """What the names are taken from; None if it cannot be read, or not in time."""
    from zonewise.api.errors import ZonewiseError
    from zonewise.cli.program.connection import connected
    from zonewise.runtime.cache.snapshot import Snapshot

    async def live() -> Snapshot:
        async with asyncio.timeout(SECONDS), connected(_options(ctx)) as client:
            return await Snapshot.live(client, kinds, namespace=namespace)

    try:
        files = ctx.params.get("files")
        if files and not (files := _quickly_read(files)):
            return None
        found = Snapshot.load(files)[0] if files else asyncio.run(live())
        for kind in kinds:
            found.all(kind)
    except (ZonewiseError, OSError, TimeoutError):
        return None
    return found


def _quickly_read(files: Sequence[str]) -> list[Path]:
    """The files of ``-f``, of a folder the first; none if a person would wait for them."""
    from zonewise.runtime.cache.dump import files_of

    paths = [Path(file) for file in files]
    paths = [files_of(path)[0] if path.is_dir() else path for path in paths]
    if not all(path.is_file() for path in paths):
        return []
    return paths if sum(path.stat().st_size for path in paths) <= DUMP_LIMIT else []


def _options(ctx: click.Context) -> Options:
    known = {one.name for one in fields(Options)}
    given = {name: value for name, value in ctx.params.items() if name in known and value}
    return replace(Options(**given), request_timeout=SECONDS, verbose=0)


def _namespace(ctx: click.Context) -> str:
    from zonewise.api.errors import ZonewiseError
    from zonewise.cli.program.connection import cluster_config

    options = _options(ctx)
    if ctx.params.get("files") or options.namespace:
        return options.namespace or "default"
    try:
        return cluster_config(options).namespace
    except (ZonewiseError, OSError):
        return "default"
