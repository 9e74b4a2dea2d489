"""Where a report is read from: a cluster, or dumps, each a cluster of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zonewise.api.errors import ApiError, ConfigError, Forbidden, NotFound, Status
from zonewise.api.values.printable import escape_unprintable
from zonewise.cli.program import interrupts
from zonewise.cli.program.dump_kinds import advice

if TYPE_CHECKING:
    from zonewise.cli.program.options import Options
    from zonewise.runtime.cache.snapshot import Snapshot

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9.:_-]+")


def live(options: Options, kinds: Sequence[type[Any]], namespace: str | None = None) -> Snapshot:
    """Objects of the cluster that the kubeconfig names, of one namespace or of all."""
    from zonewise.cli.program.connection import connected
    from zonewise.runtime.cache.snapshot import Snapshot

    async def read() -> Snapshot:
        async with connected(options) as client:
            return await Snapshot.live(client, kinds, namespace=namespace)

    return interrupts.run(read())


def dumped(files: Sequence[str]) -> Iterator[tuple[Snapshot, str]]:
    """The clusters of dumps, each with the name of its file; of a folder's files the last part."""
    from zonewise.runtime.cache.snapshot import Snapshot

    alone = len(files) == 1
    for snapshot in Snapshot.load(files):
        yield snapshot, ", ".join(Path(file).name if alone else file for file in snapshot.files)


def usable(clusters: Iterable[tuple[T, str]]) -> list[T]:
    """The clusters to report on, out of those that come with a sentence on what their dump lacks.

    One of several that lacks something is noted and left out; if all do, that is an error.
    """
    kept, refused = [], []
    for cluster, sentence in clusters:
        if sentence:
            refused.append(sentence)
        else:
            kept.append(cluster)
    for sentence in refused if kept else refused[:-1]:
        click.echo(f"note: {escape_unprintable(sentence)}", err=True)
    if refused and not kept:
        raise NotFound(Status(message=refused[-1], code=404))
    return kept


def note_absences(absences: Iterable[tuple[str, str, str]]) -> None:
    """Say which kinds are in which files not, each with its advice, and once for all files."""
    files: dict[tuple[str, str], list[str]] = {}
    for kind, file, how in absences:
        files.setdefault((kind, how), []).append(file)
    for (kind, how), named in files.items():
        more = f" and {len(named) - 1} more" if len(named) > 1 else ""
        text = f"note: there is no {kind} in {named[0]}{more}; {how}"
        click.echo(escape_unprintable(text), err=True)


def only(clusters: Sequence[T], many: str = "") -> T:
    """The one cluster; of a folder with several only ``many`` can be requested, if that."""
    if len(clusters) == 1:
        return clusters[0]
    instead = f", or ask for {many}" if many else ""
    raise ConfigError(
        f"the folder has {len(clusters)} clusters, one in each file; give one file{instead}"
    )


def readable(snapshot: Snapshot, kind: type[Any]) -> tuple[Any, ...] | None:
    """The objects of a kind; None if we may not see them."""
    try:
        return snapshot.all(kind)
    except Forbidden:
        return None


def namespaces_with(options: Options, kinds: Sequence[type[Any]], name: str) -> list[str]:
    """The namespaces of the cluster that have an object of this name; none that we may not see."""
    from zonewise.cli.program.connection import connected

    async def read() -> list[str]:
        found: list[str] = []
        async with connected(options) as client:
            for kind in kinds:
                with suppress(ApiError):
                    listing = await client.list(kind, field_selector=f"metadata.name={name}")
                    found += [one.metadata.namespace for one in listing]
        return found

    # No name of an object has other characters; they would be a selector of something else.
    return interrupts.run(read()) if _NAME.fullmatch(name) else []


def absent(
    kind: str, name: str, namespace: str, *, elsewhere: Iterable[str], listing: str
) -> NotFound:
    """That there is no such object, and where one of this name is, or what lists them all."""
    other = min(elsewhere, default="")
    what_to_do = (
        f"there is one in namespace {other}: add -n {other}"
        if other
        else f"{listing} shows which there are"
    )
    sentence = f"there is no {kind} {name} in namespace {namespace}; {what_to_do}"
    return NotFound(Status(message=sentence, code=404))


def not_dumped(snapshot: Snapshot, kind: type[Any], what: str) -> None:
    """Refuse to say that ``what`` is not there if the dump says nothing of its kind."""
    if snapshot.lacks(kind):
        files = ", ".join(snapshot.files)
        sentence = f"there is no {what}; {files} has no {kind.resource.kind} at all: "
        raise NotFound(Status(message=sentence + advice([kind], snapshot), code=404))
