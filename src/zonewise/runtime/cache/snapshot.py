"""A cluster at one moment: read from a live one, from stores, or from dumps; the same type.

Explaining, auditing and planning read a snapshot and do not depend on where it came from. Objects
are read by class; kinds without a class as ``unstructured``. From a dump, objects are decoded when
a class is first read.

A missing kind is never silently empty. A kind that was not read raises when it is accessed, and so
does one that the server forbade us to read; a kind that the cluster does not have is empty. A dump
tells "none" from "not dumped" only by an empty list of that kind, which ``kubectl get --raw``
prints and ``kubectl get`` does not; ``lacks`` says that it does not tell.

Lists of a live snapshot are each consistent, but not with each other: they are read concurrently,
``PARALLEL`` at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from zonewise.api.errors import ConfigError, Forbidden, NotFound
from zonewise.api.meta import Key, Object
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.runtime.cache import dump

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

T = TypeVar("T", bound=Object | Unstructured)

PARALLEL = 8


class Snapshot:
    """The objects of a cluster by class, key and namespace."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        """The cluster's name: a context, or the file it comes from."""
        self.files: tuple[str, ...] = ()
        """The files it was read from, as they were named."""
        self._typed: dict[type[Any], dict[Key, Any]] = {}
        self._entries: dict[dump.KindKey, list[dump.DumpEntry]] = {}
        self._listed: set[dump.KindKey] = set()
        self._refused: dict[type[Any], Forbidden] = {}
        self._complete = False

    @classmethod
    def of(cls, objects: Mapping[type[Any], Iterable[Any]], *, name: str = "") -> Snapshot:
        """A snapshot of objects that are in memory: lists, or stores."""
        snapshot = cls(name)
        for kind, items in objects.items():
            snapshot._typed[kind] = _by_key(items)
        return snapshot

    @classmethod
    async def live(
        cls,
        client: Client,
        kinds: Sequence[type[Any]],
        *,
        namespace: str | None = None,
        name: str = "",
    ) -> Snapshot:
        """Read kinds from a cluster; of those in namespaces all, or those of one namespace."""
        snapshot = cls(name)
        turn = asyncio.Semaphore(PARALLEL)

        async def read(kind: type[Any]) -> None:
            try:
                async with turn:
                    listing = await client.list(kind, namespace)
            except NotFound:
                snapshot._typed[kind] = {}
            except Forbidden as error:
                snapshot._refused[kind] = error
            else:
                snapshot._typed[kind] = _by_key(listing)

        try:
            async with asyncio.TaskGroup() as tasks:
                for kind in kinds:
                    tasks.create_task(read(kind))
        except ExceptionGroup as group:
            # One sentence for the user: the first failure.
            raise group.exceptions[0] from None
        return snapshot

    @classmethod
    def parse(cls, text: bytes, source: str = "<text>") -> Snapshot:
        """A snapshot of the text of a dump."""
        snapshot = cls()
        snapshot._add(dump.parse(text, source, snapshot._listed))
        return snapshot

    @classmethod
    def load(cls, paths: Sequence[str | Path]) -> tuple[Snapshot, ...]:
        """The clusters of ``-f`` arguments.

        Files, and ``-`` for the standard input, are parts of one cluster; a folder has one cluster
        in each of its files. Of a duplicate object the later one counts.
        """
        folders = [Path(path) for path in paths if str(path) != "-" and Path(path).is_dir()]
        if folders and len(folders) < len(paths):
            raise ConfigError(
                f"the folder {folders[0]} has a cluster in each file and cannot be merged with "
                "other files; give folders or files, not both"
            )
        if [str(path) for path in paths].count("-") > 1:
            raise ConfigError("the standard input can be read once; give - only once")
        if folders:
            files = [file for folder in folders for file in dump.files_of(folder)]
            return tuple(cls._of_files([file], name=file.stem) for file in files)
        first = str(paths[0]) if paths else ""
        name = "stdin" if first == "-" else Path(first).stem
        return (cls._of_files(paths, name=name),)

    @classmethod
    def _of_files(cls, paths: Iterable[str | Path], *, name: str) -> Snapshot:
        snapshot = cls(name)
        for path in paths:
            snapshot._add(dump.read_file(path, snapshot._listed))
            snapshot.files += (str(path),)
        return snapshot

    def all(self, cls: type[T], namespace: str | None = None) -> tuple[T, ...]:
        """The objects of a class, of one namespace or all, by namespace and name."""
        objects = self._objects(cls)
        if namespace is None:
            return tuple(objects.values())
        return tuple(item for (where, _), item in objects.items() if where == namespace)

    def get(self, cls: type[T], name: str, namespace: str = "") -> T | None:
        """One object, or None."""
        return self._objects(cls).get((namespace, name))

    def has(self, cls: type[Any]) -> bool:
        """Whether there is any object of a class."""
        return bool(self._objects(cls))

    def lacks(self, cls: type[Any]) -> bool:
        """Whether a dump says nothing of a kind: no object, and no list that could be empty."""
        key = (cls.resource.group, cls.resource.kind)
        return self._complete and not self._entries.get(key) and key not in self._listed

    def kinds(self) -> dict[str, int]:
        """How many objects there are of each kind, by its name and group."""
        counted = {
            f"{kind}.{group}" if group else kind: len(entries)
            for (group, kind), entries in self._entries.items()
        }
        for cls, items in self._typed.items():
            resource: Resource = cls.resource
            name = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
            counted.setdefault(name, len(items))
        return dict(sorted(counted.items()))

    def everything(self) -> Iterator[Unstructured]:
        """All objects of a dump, whatever they are, in the order of the dump."""
        for (group, kind), entries in self._entries.items():
            for entry in entries:
                version = entry.api_version.rpartition("/")[2]
                guess = unstructured(Resource(group, version, kind, f"{kind.lower()}s"))
                yield entry.typed(guess)

    def _objects(self, cls: type[T]) -> dict[Key, T]:
        if cls in self._refused:
            raise self._refused[cls]
        objects = self._typed.get(cls)
        if objects is None:
            if not self._complete:
                raise LookupError(f"{cls.resource.qualified} were not read into this snapshot")
            entries = self._entries.get((cls.resource.group, cls.resource.kind), [])
            objects = self._typed[cls] = _by_key(entry.typed(cls) for entry in entries)
        return cast("dict[Key, T]", objects)

    def _add(self, entries: Iterable[dump.DumpEntry]) -> None:
        for key, more in dump.by_kind(entries).items():
            self._entries.setdefault(key, []).extend(more)
        self._complete = True


def _by_key(items: Iterable[T]) -> dict[Key, T]:
    by_key = {item.key: item for item in items}
    return {key: by_key[key] for key in sorted(by_key)}
