"""The objects of one kind as they are now, in memory, with indexes.

One writer (a reflector) and any number of readers share one event loop, so every method is plain
and atomic between two awaits. Objects are frozen; readers may keep them.

*Order.* A change is applied once, and never after a newer one. Kubernetes defines the versions of
one resource as numbers that grow, so a watch that resumes, a proxy that repeats or a slow stream
that is overtaken by a list cannot take an object back in time: what is not newer than the object
held is dropped. Deleted objects leave no trace; therefore the newest version seen of any object is
kept as well, and an older change cannot bring one back.
A list is a statement about all objects at one version. ``replace`` compares it with what is here
and reports each difference as one change, deletions included: listeners see what they would have
seen had no connection been lost, less the states in between. An object that was deleted and made
anew meanwhile (another uid) is reported as both.

*Listeners* are called after the store has changed, once for each change, in order, with the old and
the new object (None for "was not there" and "is gone"). They run inside the writer: they should
hand over a key and return. What they raise goes to the writer.

*Indexes* are functions from an object to the values it is found under. They are kept up to date
change by change and must be pure: the values of an old object are computed anew to remove it.
Most values of most indexes lead to one object, which is then stored without a container.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from zonewise.api.meta import Key, Object
from zonewise.api.unstructured import Unstructured

T = TypeVar("T", bound=Object | Unstructured)

IndexFunction = Callable[[T], Iterable[Hashable]]
Listener = Callable[[T | None, T | None], None]


class _Bucket(dict[Key, T]):
    """Several objects under one value of an index."""


_Entries = dict[Hashable, T | _Bucket[T]]


@dataclass(frozen=True, slots=True)
class Difference:
    """How many objects a list changed."""

    added: int = 0
    updated: int = 0
    removed: int = 0


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is later than another of the same resource.

    Versions are decimal numbers. A server that uses something else gets the benefit of the doubt
    as long as the two differ. No version is newer than nothing.
    """
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version not in ("", than)


def older(version: str, than: str) -> bool:
    """Whether a resourceVersion is certainly earlier than another of the same resource."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


class Store(Generic[T]):
    """Objects by key and by index; see the module for what is ordered and who is called when."""

    def __init__(self, indexes: Mapping[str, IndexFunction[T]] | None = None) -> None:
        self._objects: dict[Key, T] = {}
        self._functions: dict[str, IndexFunction[T]] = {}
        self._indexes: dict[str, _Entries[T]] = {}
        self._listeners: tuple[Listener[T], ...] = ()
        self.synced = False
        """Whether a complete list has been applied at least once."""
        self.resource_version = ""
        """The newest version known: of a list, a change or a bookmark."""
        for name, function in (indexes or {}).items():
            self.add_index(name, function)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._objects.values()))

    def get(self, key: Key) -> T | None:
        """The object, or None."""
        return self._objects.get(key)

    def keys(self) -> tuple[Key, ...]:
        """All keys."""
        return tuple(self._objects)

    def values(self) -> tuple[T, ...]:
        """All objects."""
        return tuple(self._objects.values())

    def items(self) -> tuple[tuple[Key, T], ...]:
        """All keys and objects."""
        return tuple(self._objects.items())

    def by(self, index: str, value: Hashable) -> tuple[T, ...]:
        """The objects under a value of an index."""
        found = self._indexes[index].get(value)
        if found is None:
            return ()
        return tuple(found.values()) if isinstance(found, _Bucket) else (found,)

    def index_values(self, index: str) -> tuple[Hashable, ...]:
        """All values of an index that lead to an object."""
        return tuple(self._indexes[index])

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """Add an index; objects that are here already are found through it at once."""
        if name in self._functions:
            if self._functions[name] is not function:
                raise ValueError(f"index {name!r} exists already with another function")
            return
        entries: _Entries[T] = {}
        for key, item in self._objects.items():
            _insert(entries, function(item), key, item)
        self._functions[name] = function
        self._indexes[name] = entries

    def on_change(self, listener: Listener[T]) -> Callable[[], None]:
        """Call the listener after each change; gives a function that ends it.

        It is first told of every object that is here, as if each had just come, so it does not
        matter whether it subscribes before or after the first list.
        """
        self._listeners = (*self._listeners, listener)
        for item in tuple(self._objects.values()):
            listener(None, item)

        def end() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return end

    def apply(self, item: T) -> bool:
        """Take in a new or changed object; False if it is not newer than what is known."""
        key = item.key
        version = item.metadata.resource_version
        old = self._objects.get(key)
        if old is not None:
            if not newer(version, old.metadata.resource_version):
                return False
        elif older(version, self.resource_version):
            return False
        self.bookmark(version)
        self._put(key, old, item)
        return True

    def remove(self, item: T) -> bool:
        """Take out an object; ``item`` carries the version of its deletion. False if not newer."""
        key = item.key
        version = item.metadata.resource_version
        self.bookmark(version)
        old = self._objects.get(key)
        if old is None or older(version, old.metadata.resource_version):
            return False
        self._drop(key, old)
        return True

    def bookmark(self, version: str) -> None:
        """Note that everything up to this version has been seen."""
        if newer(version, self.resource_version):
            self.resource_version = version

    def replace(self, items: Iterable[T], version: str) -> Difference:
        """Make the store equal to a complete list of that version.

        The list must be a consistent read: it is the truth even where it is older than the store,
        which happens when a cluster was restored from a backup.
        """
        added = updated = 0
        present: set[Key] = set()
        self.resource_version = version
        for item in items:
            key = item.key
            present.add(key)
            old = self._objects.get(key)
            if old is None:
                added += 1
            elif (
                old.metadata.resource_version == item.metadata.resource_version
                and old.metadata.uid == item.metadata.uid
            ):
                continue
            else:
                updated += 1
            self._put(key, old, item)
        gone = [key for key in self._objects if key not in present]
        for key in gone:
            self._drop(key, self._objects[key])
        self.synced = True
        return Difference(added, updated, len(gone))

    def _put(self, key: Key, old: T | None, item: T) -> None:
        if old is not None and old.metadata.uid != item.metadata.uid:
            self._drop(key, old)
            old = None
        for name, function in self._functions.items():
            entries = self._indexes[name]
            if old is None:
                _insert(entries, function(item), key, item)
            else:
                _move(entries, function, key, old=old, item=item)
        self._objects[key] = item
        for listener in self._listeners:
            listener(old, item)

    def _drop(self, key: Key, old: T) -> None:
        for name, function in self._functions.items():
            _discard(self._indexes[name], function(old), key, old)
        del self._objects[key]
        for listener in self._listeners:
            listener(old, None)


def _insert(entries: _Entries[T], values: Iterable[Hashable], key: Key, item: T) -> None:
    for value in values:
        found = entries.get(value)
        if found is None or found is item:
            entries[value] = item
        elif isinstance(found, _Bucket):
            found[key] = item
        else:
            entries[value] = _Bucket({found.key: found, key: item})


def _discard(entries: _Entries[T], values: Iterable[Hashable], key: Key, item: T) -> None:
    for value in values:
        found = entries.get(value)
        if isinstance(found, _Bucket):
            found.pop(key, None)
            if len(found) == 1:
                entries[value] = next(iter(found.values()))
        elif found is item:
            del entries[value]


def _move(entries: _Entries[T], function: IndexFunction[T], key: Key, *, old: T, item: T) -> None:
    before = tuple(function(old))
    after = tuple(function(item))
    if before != after:
        _discard(entries, before, key, old)
        _insert(entries, after, key, item)
        return
    for value in after:
        found = entries[value]
        if isinstance(found, _Bucket):
            found[key] = item
        else:
            entries[value] = item
