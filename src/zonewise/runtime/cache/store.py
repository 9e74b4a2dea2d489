"""The objects of one kind as they are now, in memory, with indexes.

One writer (a reflector) and any number of readers share one event loop, so every method is
synchronous and atomic between two awaits. Objects are frozen; readers may keep them.

*Order.* A change is applied once, and never after a newer one. Kubernetes defines the versions of
one resource as numbers that grow, so a watch that resumes, a proxy that repeats or a slow stream
that is overtaken by a list cannot revert an object: what is not newer than the object held is
dropped. Deleted objects leave no trace; therefore the newest version seen of any object is kept as
well, and an older change cannot bring one back.

*Lists.* A list is a statement about all objects at one version, and is true even where it is older
than the store (a cluster restored from a backup). ``relist`` takes its objects one by one as they
are read, so that a long list is never held twice; each is compared with the object held, and in the
end what the list did not have is removed. Every difference is one change to listeners, deletions
included: they see what they would have seen had no connection been lost, less the states in
between. A list that breaks off keeps what it has read; the next one completes it. An object that
was deleted and recreated meanwhile (another uid) is reported as both.

*Listeners* are called after the store has changed, once for each change, in order, with the old and
the new object (None for "did not exist" and "is deleted"). They run inside the writer: they should
enqueue a key and return. What they raise is raised to the writer.

*Indexes* are functions from an object to the values it is found under. They are kept up to date
change by change and must be pure: the values of an old object are computed again to remove it. An
index leads to keys, so changes that leave its values alone cost it nothing. Most values of most
indexes lead to one key, which is then stored without a container.

*Compact* stores keep each object packed as MessagePack, a third of the memory, and unpack it
whenever it is read. That is for kinds that are many and large and read seldom, such as
EndpointSlices, of which each change needs a few; readers get an equal object each time, not the
same one. A typed EndpointSlice of a hundred endpoints is about fifteen hundred Python objects and
100 KB; the same slice packed is one object of 28 KB. Packing takes a quarter of the time of
decoding its JSON, unpacking three quarters. What is needed at each change to decide about order,
the metadata's version and uid, stays unpacked.

A *transform* is applied to each object before it is stored: it may leave out or share parts, and
must keep the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec

from zonewise.api.meta import Key, Object
from zonewise.api.unstructured import Unstructured
from zonewise.runtime.client.versions import number, older

T = TypeVar("T", bound=Object | Unstructured)

IndexFunction = Callable[[T], Iterable[Hashable]]
ChangeListener = Callable[[T | None, T | None], None]


class _Bucket(dict[Key, None]):
    """Several keys under one value of an index, in the order they were added."""


_Entries = dict[Hashable, Key | _Bucket]


@dataclass(frozen=True, slots=True)
class ListDifference:
    """How many objects a list changed."""

    added: int = 0
    updated: int = 0
    removed: int = 0


class Store(Generic[T]):
    """Objects by key and by index; see the module for order and listeners."""

    def __init__(
        self,
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        *,
        compact: bool = False,
        transform: Callable[[T], T] | None = None,
    ) -> None:
        self.compact = compact
        self._transform = transform
        self.synced = False
        """Whether a complete list has been applied at least once."""
        self.resource_version = ""
        """The newest version known: of a list, a change or a bookmark."""
        self._newest = -1
        self._objects: dict[Key, T | Packed[T]] = {}
        self._functions: dict[str, IndexFunction[T]] = {}
        self._indexes: dict[str, _Entries] = {}
        self._listeners: tuple[ChangeListener[T], ...] = ()
        for name, function in (indexes or {}).items():
            self.add_index(name, function)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        for stored in tuple(self._objects.values()):
            yield _unpack_stored(stored)

    def get(self, key: Key) -> T | None:
        """The object, or None."""
        stored = self._objects.get(key)
        return unpack(stored) if isinstance(stored, Packed) else stored

    def keys(self) -> tuple[Key, ...]:
        """All keys."""
        return tuple(self._objects)

    def values(self) -> tuple[T, ...]:
        """All objects."""
        return tuple(_unpack_stored(stored) for stored in self._objects.values())

    def items(self) -> tuple[tuple[Key, T], ...]:
        """All keys and objects."""
        return tuple((key, _unpack_stored(stored)) for key, stored in self._objects.items())

    def by(self, index: str, value: Hashable) -> tuple[T, ...]:
        """The objects under a value of an index."""
        return tuple(_unpack_stored(self._objects[key]) for key in self.keys_by(index, value))

    def keys_by(self, index: str, value: Hashable) -> tuple[Key, ...]:
        """The keys under a value of an index."""
        entries = self._indexes[index]
        if value not in entries:
            return ()
        keys = entries[value]
        return tuple(keys) if isinstance(keys, _Bucket) else (keys,)

    def index_values(self, index: str) -> tuple[Hashable, ...]:
        """All values of an index that lead to an object."""
        return tuple(self._indexes[index])

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """Add an index; objects that are here already are found through it at once."""
        if name in self._functions:
            if self._functions[name] is not function:
                raise ValueError(f"index {name!r} exists already with another function")
            return
        entries: _Entries = {}
        for key, stored in self._objects.items():
            _insert(entries, function(_unpack_stored(stored)), key)
        self._functions[name] = function
        self._indexes[name] = entries

    def on_change(self, listener: ChangeListener[T]) -> Callable[[], None]:
        """Call the listener after each change; gives a function that ends it.

        It is first called for every object held, as if each had just been added, so it does not
        matter whether it subscribes before or after the first list.
        """
        self._listeners = (*self._listeners, listener)
        for item in self:
            listener(None, item)

        def end() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return end

    def apply(self, item: T) -> bool:
        """Take in a new or changed object; False if it is not newer than what is known."""
        metadata = item.metadata
        key = (metadata.namespace, metadata.name)
        version = metadata.resource_version
        revision = int(version) if version.isdecimal() else -1
        stored = self._objects.get(key)
        if stored is not None:
            known = stored.metadata.resource_version
            if (0 <= revision <= number(known)) or version == known:
                return False
        elif 0 <= revision < self._newest:
            return False
        if revision > self._newest:
            self._newest = revision
            self.resource_version = version
        elif revision < 0:
            self._note(version, revision)
        self._put(key, stored, item)
        return True

    def remove(self, item: T) -> bool:
        """Take out an object; ``item`` carries the version of its deletion. False if not newer."""
        metadata = item.metadata
        version = metadata.resource_version
        self._note(version, number(version))
        key = (metadata.namespace, metadata.name)
        stored = self._objects.get(key)
        if stored is None or older(version, stored.metadata.resource_version):
            return False
        self._drop(key, stored)
        return True

    def bookmark(self, version: str) -> None:
        """Note that everything up to this version has been seen."""
        self._note(version, number(version))

    def relist(self) -> Relist[T]:
        """Begin to take in a complete list, read consistently."""
        return Relist(self)

    def replace(self, items: Iterable[T], version: str) -> ListDifference:
        """Make the store equal to a complete list of that version, read consistently."""
        relist = self.relist()
        for item in items:
            relist.put(item)
        return relist.finish(version)

    def _note(self, version: str, revision: int) -> None:
        if revision > self._newest or (revision < 0 and version):
            self._newest = revision
            self.resource_version = version

    def _put(self, key: Key, stored: T | Packed[T] | None, item: T) -> None:
        if stored is not None and stored.metadata.uid != item.metadata.uid:
            self._drop(key, stored)
            stored = None
        if self._transform is not None:
            item = self._transform(item)
        self._objects[key] = pack(item) if self.compact else item
        if not self._functions and not self._listeners:
            return
        old = None if stored is None else _unpack_stored(stored)
        for name, function in self._functions.items():
            after = tuple(function(item))
            before = () if old is None else tuple(function(old))
            if before != after:
                _discard(self._indexes[name], before, key)
                _insert(self._indexes[name], after, key)
        for listener in self._listeners:
            listener(old, item)

    def _drop(self, key: Key, stored: T | Packed[T]) -> None:
        del self._objects[key]
        if not self._functions and not self._listeners:
            return
        old = _unpack_stored(stored)
        for name, function in self._functions.items():
            _discard(self._indexes[name], function(old), key)
        for listener in self._listeners:
            listener(old, None)


class Relist(Generic[T]):
    """A list that is being taken in by a store."""

    def __init__(self, store: Store[T]) -> None:
        self._store = store
        self._present: set[Key] = set()
        self._added = 0
        self._updated = 0

    def put(self, item: T) -> None:
        """The list has this object."""
        metadata = item.metadata
        key = (metadata.namespace, metadata.name)
        self._present.add(key)
        stored = self._store._objects.get(key)
        if stored is None:
            self._added += 1
        elif stored.metadata.resource_version != metadata.resource_version or (
            stored.metadata.uid != metadata.uid
        ):
            self._updated += 1
        else:
            return
        self._store._put(key, stored, item)

    def drop(self, key: Key) -> None:
        """The list had this object, and it was deleted since."""
        self._present.discard(key)

    def finish(self, version: str) -> ListDifference:
        """The list is complete, and shows the state at this version."""
        store = self._store
        gone = [key for key in store._objects if key not in self._present]
        for key in gone:
            store._drop(key, store._objects[key])
        store.resource_version = version
        store._newest = number(version)
        store.synced = True
        return ListDifference(self._added, self._updated, len(gone))


def _unpack_stored(stored: T | Packed[T]) -> T:
    return unpack(stored) if isinstance(stored, Packed) else stored


def _insert(entries: _Entries, values: Iterable[Hashable], key: Key) -> None:
    get = entries.get
    for value in values:
        keys = get(value)
        if isinstance(keys, _Bucket):
            keys[key] = None
        elif keys is None:
            entries[value] = key
        elif keys != key:
            entries[value] = _Bucket({keys: None, key: None})


def _discard(entries: _Entries, values: Iterable[Hashable], key: Key) -> None:
    for value in values:
        keys = entries.get(value)
        if isinstance(keys, _Bucket):
            keys.pop(key, None)
            if len(keys) == 1:
                entries[value] = next(iter(keys))
        elif keys == key:
            del entries[value]


_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}


class Label(msgspec.Struct, gc=False, frozen=True):
    """What stays in the open of an object's metadata."""

    resource_version: str
    uid: str


class Packed(msgspec.Struct, Generic[T], gc=False, frozen=True):
    """A packed object."""

    cls: type[T]
    metadata: Label
    data: bytes


def pack(item: T) -> Packed[T]:
    """The object, packed."""
    metadata = item.metadata
    label = Label(metadata.resource_version, metadata.uid)
    content: Any = item.raw if isinstance(item, Unstructured) else item
    return Packed(type(item), label, _encode(content))


def unpack(packed: Packed[T]) -> T:
    """An object equal to the one that was packed."""
    cls: Any = packed.cls
    if issubclass(cls, Unstructured):
        return cast("T", cls(msgspec.msgpack.decode(packed.data)))
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.msgpack.Decoder(cls)
    return cast("T", decoder.decode(packed.data))
