"""Where a report is read from: a cluster, or dumps, each of which is a cluster of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import click

from zonewise.api.errors import ApiError, ConfigError, Forbidden, NotFound
from zonewise.api.values.printable import escape_unprintable
from zonewise.cli.program import interrupts
from zonewise.cli.program.command import CommandRefused
from zonewise.cli.program.dump_kinds import advise_dump
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import join_some
from zonewise.explain.cluster import DEFAULT_NAMESPACE
from zonewise.runtime.cache.snapshot import Snapshot

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9.:_-]+")


@dataclass(frozen=True, slots=True)
class Source(Generic[T]):
    """A cluster, and the file it was read from, if it was a dump."""

    cluster: T
    file: str = ""


def read_cluster(
    options: Options, kinds: Sequence[type[Any]], namespace: str | None = None
) -> Snapshot:
    """Objects of the cluster that the kubeconfig names, of one namespace or of all."""
    from zonewise.cli.program.connection import connect

    async def read() -> Snapshot:
        async with connect(options) as client:
            return await Snapshot.live(client, kinds, namespace=namespace)

    return interrupts.run(read())


def choose_namespace(options: Options, files: Sequence[str]) -> str:
    """The namespace of ``-n``, or the default: that of the context, or ``default`` in a dump."""
    if files:
        return options.namespace or DEFAULT_NAMESPACE
    from zonewise.cli.program.connection import load_cluster_config

    return load_cluster_config(options).namespace


def read_dumps(files: Sequence[str]) -> Iterator[tuple[Snapshot, str]]:
    """The clusters of dumps, each with its file; of a file in a folder the name without folder."""
    alone = len(files) == 1
    for snapshot in Snapshot.load(files):
        yield snapshot, ", ".join(Path(file).name if alone else file for file in snapshot.files)


def select_usable(clusters: Iterable[tuple[T, str]]) -> list[T]:
    """The clusters whose dump lacks nothing; each comes with a sentence on what it lacks, or "".

    The sentences of the others are printed as notes; if no cluster is left, the last is an error.
    """
    complete, sentences = [], []
    for cluster, sentence in clusters:
        if sentence:
            sentences.append(sentence)
        else:
            complete.append(cluster)
    for sentence in sentences if complete else sentences[:-1]:
        click.echo(f"note: {escape_unprintable(sentence)}", err=True)
    if sentences and not complete:
        raise CommandRefused(sentences[-1])
    return complete


def note_absences(absences: Iterable[tuple[str, str, str]]) -> None:
    """Print which kinds are missing in which files, with advice, each kind once for all files."""
    files: dict[tuple[str, str], list[str]] = {}
    for kind, file, how in absences:
        files.setdefault((kind, how), []).append(file)
    for (kind, how), names in files.items():
        text = f"note: there is no {kind} in {join_some(names, 1)}; {how}"
        click.echo(escape_unprintable(text), err=True)


def require_single(clusters: Sequence[T], many: str = "") -> T:
    """The only cluster; for a folder with several the error names what works on ``many``."""
    if len(clusters) == 1:
        return clusters[0]
    instead = f", or explain {many}" if many else ""
    raise ConfigError(
        f"the folder has {len(clusters)} clusters, one in each file; give one file{instead}"
    )


def list_readable(snapshot: Snapshot, kind: type[Any]) -> tuple[Any, ...] | None:
    """The objects of a kind; None without permission to read them."""
    try:
        return snapshot.all(kind)
    except Forbidden:
        return None


def find_namespaces(options: Options, kinds: Sequence[type[Any]], name: str) -> list[str]:
    """The namespaces of the cluster with an object of this name, as far as we may read them."""
    from zonewise.cli.program.connection import connect

    async def read() -> list[str]:
        namespaces: list[str] = []
        async with connect(options) as client:
            for kind in kinds:
                with suppress(ApiError):
                    listing = await client.list(kind, field_selector=f"metadata.name={name}")
                    namespaces += [item.metadata.namespace for item in listing]
        return namespaces

    # No object's name has other characters, and they could change what the selector selects.
    return interrupts.run(read()) if _NAME.fullmatch(name) else []


def require_namespace(options: Options, namespace: str) -> None:
    """Raise an error if the cluster has no such namespace, as far as we may see that."""
    from zonewise.api import Namespace
    from zonewise.cli.program.connection import connect

    async def exists() -> bool:
        async with connect(options) as client:
            try:
                await client.get(Namespace, namespace)
            except NotFound:
                return False
            except ApiError:
                return True
        return True

    if not interrupts.run(exists()):
        raise CommandRefused(
            f"there is no namespace {namespace}; give one that exists with -n, or all with -A"
        )


def explain_absence(
    kind: str, name: str, namespace: str, *, elsewhere: Iterable[str], listing: str
) -> CommandRefused:
    """The error that there is no such object; it names another namespace or a listing command."""
    other = min(elsewhere, default="")
    if other:
        advice = f"there is one in namespace {other}: add -n {other}"
    else:
        advice = f"list those that exist with '{listing}'"
    return CommandRefused(f"there is no {kind} {name} in namespace {namespace}; {advice}")


def require_dumped(snapshot: Snapshot, kind: type[Any], what: str) -> None:
    """Raise an error about the dump if it has no trace of the kind of ``what``."""
    if snapshot.lacks(kind):
        files = ", ".join(snapshot.files)
        sentence = f"there is no {what}; {files} has no {kind.resource.kind} at all"
        raise CommandRefused(f"{sentence}: {advise_dump([kind], snapshot)}")
