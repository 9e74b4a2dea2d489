"""The journal in RADOS: keys of objects (omap) in one pool, changed by compare-and-set.

::

    entries.volume.<shard>                n.<name> -> entry    r.<name> -> uuid:revision
                                          p.<pool> -> bytes promised by this object's entries
                                          i.<uuid> -> name
    entries.snapshot.<shard>              the same for snapshots
    holder.<name of a controller>         locked as long as it is alive
    room.<pool>                           locked while room in a limited pool is checked

The entry is the source of truth. It is written with what it promises in one operation on one
object, which Ceph does as a whole or not at all, and only if its revision and the sum are still as
they were read: the loser reads again. There are many objects because operations on one wait for
each other. A sum is not read first but remembered from our last write: a single writer is right,
and a wrong sum costs nothing but the time to read.

A name's shard is its hash, an id's its first digit; ``draw`` gives a name an id of its own shard,
so that both are one operation. An id of another shard is written before its entry and removed after
it, so every entry can be found by id. An id without an entry is what a crash in between leaves: it
means nothing and is ignored.

Where a pool has a limit, its sum is over all shards, so requests for room there take turns.

A controller is alive as long as it renews a lock (``lease``). What a killed one held is free after
that time; one that was only too slow fails at its next compare-and-set.

CREATED of an entry whose image proves it as well is written later (``marks``), together with
others.
"""

from __future__ import annotations

import errno
import hashlib
import threading
import time
import uuid as uuids
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import rados

from zonewise.csi.backends.ceph.connection import translate_errors
from zonewise.csi.backends.ceph.journals.deferred import DeferredCreated
from zonewise.csi.backends.ceph.journals.lease import JournalLease
from zonewise.csi.errors import CsiError, aborted, unavailable
from zonewise.csi.sqlite_journal import bad_token, no_room
from zonewise.storage.identifiers import StoredKind, is_uuid
from zonewise.storage.journal import (
    EntryPage,
    EntryState,
    Holder,
    JournalConflict,
    JournalEntry,
    Reservation,
)

NAMESPACE = "zonewise"
SHARDS = 16
"""As many as a digit of an id has values."""
LEASE_SECONDS = 15
HOLDER_PREFIX = "controller-"
TRY_LIMIT = 100
BATCH = 1000

_FIXED_FIELDS = ("kind", "uuid", "name", "pool", "source")
_DECODER = msgspec.json.Decoder(JournalEntry)


class OmapJournal:
    """A journal in a pool; ``pool`` must be opened with ``NAMESPACE``."""

    def __init__(
        self, pool: rados.Ioctx, *, lease: int = LEASE_SECONDS, name: str = "", shards: int = SHARDS
    ) -> None:
        self._pool = pool
        self._lease_seconds = lease
        self._shards = shards
        self._locks_by_object = {
            self._object_name(kind, shard): threading.Lock()
            for kind in StoredKind
            for shard in range(shards)
        }
        self._sums: dict[tuple[str, str], bytes] = {}
        self._lease = JournalLease(pool, name or new_holder_name(), lease)
        self._terms_by_uuid: dict[str, int] = {}
        self._deferred = DeferredCreated(self._write_created)

    @property
    def name(self) -> str:
        """The writer's name; its lock is held before another controller can read it."""
        self._lease.begin()
        return self._lease.name

    def find(self, kind: StoredKind, name: str) -> JournalEntry | None:
        """The entry with a request's name; what was to be written about it later is written now."""
        entry = self._read_entry(kind, name)
        if entry is None or not self._deferred.take(entry):
            return entry
        try:
            return self.change(entry, entry.as_created())
        except JournalConflict:
            return self._read_entry(kind, name)

    def _read_entry(self, kind: StoredKind, name: str) -> JournalEntry | None:
        with translate_errors("reading the journal"):
            key = f"n.{name}"
            body = self._read_values(self._object_of_name(kind, name), [key]).get(key)
        return None if body is None else _DECODER.decode(body)

    def get(self, kind: StoredKind, uuid: str) -> JournalEntry | None:
        """The entry of an id."""
        with translate_errors("reading the journal"):
            name = self._read_values(self._object_of_id(kind, uuid), [f"i.{uuid}"]).get(f"i.{uuid}")
        entry = None if name is None else self.find(kind, name.decode())
        return entry if entry is not None and entry.uuid == uuid else None

    def new_uuid(self, kind: StoredKind, name: str) -> str:
        """A new uuid, in the shard of its name."""
        drawn = uuids.uuid4().hex
        first = _hash_of(name) % self._shards * (16 // self._shards) + int(drawn[0], 16) % (
            16 // self._shards
        )
        return f"{first:x}{drawn[1:]}"

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry if neither name nor uuid are taken and its pool has room."""
        term = self._lease.begin()
        reserved = msgspec.structs.replace(
            entry, state=EntryState.RESERVED, holder=self._lease.name, revision=1
        )
        object_name = self._object_of_name(reserved.kind, reserved.name)
        with (
            translate_errors(f"reserving {entry.kind.value} {entry.name}"),
            self._lock_room(reserved.pool, capacity),
        ):
            if capacity is not None:
                taken = self.find(reserved.kind, reserved.name)
                if taken is not None:
                    return Reservation(None, existing=taken)
                free = capacity - self.promised_bytes().get(reserved.pool, 0)
                if reserved.bytes > free:
                    return Reservation(None, free_bytes=max(0, free))
            id_apart = self._object_of_id(reserved.kind, reserved.uuid) != object_name
            if id_apart and not self._take_id(reserved):
                return self._id_taken(reserved)
            with self._locks_by_object[object_name]:
                reservation = self._write_reserved(reserved, object_name, id_apart=id_apart)
        if reserved.evident and reservation.entry is not None:
            self._terms_by_uuid[reserved.uuid] = term
        return reservation

    def _write_reserved(
        self, reserved: JournalEntry, object_name: str, *, id_apart: bool
    ) -> Reservation:
        name, id, pool = f"n.{reserved.name}", f"i.{reserved.uuid}", f"p.{reserved.pool}"
        keys = _keys_of(reserved)
        if not id_apart:
            keys[id] = reserved.name.encode()
        for _ in range(TRY_LIMIT):
            before = self._last_sum(object_name, pool)
            after = _add_bytes(before, reserved.bytes)
            compared = {**dict.fromkeys(keys, b""), pool: before}
            if self._write(object_name, compared, {**keys, pool: after}):
                self._sums[object_name, pool] = after
                return Reservation(reserved)
            now = self._read_values(object_name, [name, id, pool])
            self._sums[object_name, pool] = now.get(pool, b"")
            if name in now:
                if id_apart:
                    self._drop_id(reserved)
                return Reservation(None, existing=_DECODER.decode(now[name]))
            if not id_apart and id in now:
                return self._id_taken(reserved)
        if id_apart:
            self._drop_id(reserved)
        raise _too_busy(reserved)

    def _id_taken(self, reserved: JournalEntry) -> Reservation:
        taken = self.get(reserved.kind, reserved.uuid)
        if taken is None:
            raise JournalConflict(f"uuid {reserved.uuid} is taken, and there is no entry of it")
        return Reservation(None, existing=taken)

    def _last_sum(self, object_name: str, pool: str) -> bytes:
        """What an object promises in a pool, as last seen; to be compared with its value."""
        remembered = self._sums.pop((object_name, pool), None)
        if remembered is not None:
            return remembered
        return self._read_values(object_name, [pool]).get(pool, b"")

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read."""
        assert all(getattr(entry, field) == getattr(changed, field) for field in _FIXED_FIELDS)
        replacement = msgspec.structs.replace(changed, revision=entry.revision + 1)
        more = replacement.bytes - entry.bytes
        limit = capacity if more > 0 else None
        with (
            translate_errors(f"recording {entry.kind.value} {entry.name}"),
            self._lock_room(replacement.pool, limit),
        ):
            if limit is not None:
                free = limit - self.promised_bytes().get(replacement.pool, 0)
                if more > free:
                    self._require_unchanged(entry)
                    raise no_room(replacement, free + entry.bytes)
            self._replace(entry, _keys_of(replacement), more)
        return replacement

    def mark_created(self, entry: JournalEntry) -> JournalEntry:
        """The entry, created; written later if no controller can have taken it over from us."""
        term = self._terms_by_uuid.pop(entry.uuid, None)
        if term is None or not self._lease.is_held_since(term):
            return self.change(entry, entry.as_created())
        self._deferred.add(entry)
        return entry.as_created()

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read; not found is fine."""
        self._terms_by_uuid.pop(entry.uuid, None)
        with translate_errors(f"forgetting {entry.kind.value} {entry.name}"):
            try:
                self._replace(entry, {}, -entry.bytes)
            except JournalConflict:
                if self.get(entry.kind, entry.uuid) is not None:
                    raise
                self._drop_id(entry)
            else:
                if self._is_id_apart(entry):
                    self._drop_id(entry)

    def holder_of(self, entry: JournalEntry) -> Holder:
        """Which controller works on an entry: its lock is free, or it is alive."""
        if not entry.holder.startswith(HOLDER_PREFIX):
            return Holder.NOBODY
        if entry.holder == self._lease.name:
            return Holder.OURS
        return Holder.OTHER if self._lease.is_alive(entry.holder) else Holder.NOBODY

    def promised_bytes(self) -> Mapping[str, int]:
        """Bytes promised, by pool: a sum over the shards, not over entries."""
        total: defaultdict[str, int] = defaultdict(int)
        with translate_errors("reading the journal"):
            for kind in StoredKind:
                for shard in range(self._shards):
                    object_name = self._object_name(kind, shard)
                    promises = self._list_values(object_name, prefix="p.", limit=BATCH)
                    for key, value in promises:
                        total[key.removeprefix("p.")] += int(value)
        return {pool: promised for pool, promised in sorted(total.items()) if promised}

    def list_page(
        self,
        kind: StoredKind,
        *,
        token: str = "",
        limit: int = 0,
        source: str = "",
        states: frozenset[EntryState] = frozenset(EntryState),
    ) -> EntryPage:
        """Entries by uuid, after a token; 0 is no limit."""
        if token and not is_uuid(token):
            raise bad_token(token)
        with suppress(CsiError):
            self._deferred.write_all()
        entries: list[JournalEntry] = []
        with translate_errors("listing the journal"):
            for entry in self._entries(kind, token, min(limit + 1, BATCH) if limit else BATCH):
                if entry.state in states and source in ("", entry.source):
                    entries.append(entry)
                    if limit and len(entries) > limit:
                        return EntryPage(tuple(entries[:limit]), entries[limit - 1].uuid)
        return EntryPage(tuple(entries))

    def close(self) -> None:
        """Nothing is worked on in this journal's name any more."""
        self._deferred.close()
        self._lease.close()

    def _write_created(self, entries: Sequence[JournalEntry]) -> None:
        """Write that entries are created, those that still are as we left them."""
        entries_by_object: defaultdict[str, list[JournalEntry]] = defaultdict(list)
        for entry in entries:
            entries_by_object[self._object_of_name(entry.kind, entry.name)].append(entry)
        with translate_errors("recording what was created"):
            for object_name, entries_of_object in entries_by_object.items():
                if not self._try_write_created(object_name, entries_of_object):
                    for entry in entries_of_object:
                        self._try_write_created(object_name, [entry])

    def _try_write_created(self, object_name: str, entries: Sequence[JournalEntry]) -> bool:
        compared: dict[str, bytes] = {}
        keys: dict[str, bytes] = {}
        for entry in entries:
            compared[f"r.{entry.name}"] = _revision_of(entry)
            created = msgspec.structs.replace(entry.as_created(), revision=entry.revision + 1)
            keys |= _keys_of(created)
        return self._write(object_name, compared, keys)

    @contextmanager
    def _lock_room(self, pool: str, capacity: int | None) -> Iterator[None]:
        """Exclusive access to a pool's sum; no lock where there is no limit."""
        if capacity is None:
            yield
            return
        key, cookie = f"room.{pool}", uuids.uuid4().hex
        for attempt in range(TRY_LIMIT):
            try:
                self._pool.lock_exclusive(key, "room", cookie, "", self._lease_seconds, 0)
                break
            except rados.ObjectBusy:
                time.sleep(min(0.05, 0.002 * (attempt + 1)))
        else:
            raise aborted(f"too many calls reserve space in pool {pool}; try again")
        try:
            yield
        finally:
            with suppress(rados.Error):
                self._pool.unlock(key, "room", cookie)

    def _entries(self, kind: StoredKind, token: str, batch: int) -> Iterator[JournalEntry]:
        """All after a token, in the order of ids, which is that of their shards.

        An entry is looked up by the name of its id, many at a time.
        """
        for shard in range(_first_digit(token) * self._shards // 16 if token else 0, self._shards):
            after = token
            while True:
                ids = self._list_values(
                    self._object_name(kind, shard),
                    after=f"i.{after}" if after else "",
                    prefix="i.",
                    limit=batch,
                )
                names: defaultdict[str, list[str]] = defaultdict(list)
                for _, name in ids:
                    names[self._object_of_name(kind, name.decode())].append(f"n.{name.decode()}")
                bodies: dict[str, bytes] = {}
                for object_name, keys in names.items():
                    bodies |= self._read_values(object_name, keys)
                for id, name in ids:
                    body = bodies.get(f"n.{name.decode()}")
                    entry = None if body is None else _DECODER.decode(body)
                    if entry is not None and f"i.{entry.uuid}" == id:
                        yield entry
                if len(ids) < batch:
                    break
                after = ids[-1][0].removeprefix("i.")

    def _require_unchanged(self, entry: JournalEntry) -> None:
        key = f"r.{entry.name}"
        now = self._read_values(self._object_of_name(entry.kind, entry.name), [key]).get(key)
        if now != _revision_of(entry):
            raise JournalConflict(f"{entry.kind.value} {entry.name} was changed meanwhile")

    def _replace(self, entry: JournalEntry, keys: Mapping[str, bytes], more: int) -> None:
        """Write keys, or remove the entry if there are none, if it still is as it was read."""
        object_name = self._object_of_name(entry.kind, entry.name)
        revision, pool = f"r.{entry.name}", f"p.{entry.pool}"
        removed_keys: tuple[str, ...] = ()
        if not keys:
            removed_keys = (f"n.{entry.name}", revision)
            if not self._is_id_apart(entry):
                removed_keys = (*removed_keys, f"i.{entry.uuid}")
        if not more:
            if self._write(object_name, {revision: _revision_of(entry)}, keys, removed_keys):
                return
            raise JournalConflict(f"{entry.kind.value} {entry.name} was changed meanwhile")
        with self._locks_by_object[object_name]:
            for _ in range(TRY_LIMIT):
                before = self._last_sum(object_name, pool)
                after = _add_bytes(before, more)
                sums, empty = ({}, (pool,)) if after == b"0" else ({pool: after}, ())
                compared = {revision: _revision_of(entry), pool: before}
                if self._write(object_name, compared, {**keys, **sums}, (*removed_keys, *empty)):
                    self._sums[object_name, pool] = b"" if after == b"0" else after
                    return
                now = self._read_values(object_name, [revision, pool])
                self._sums[object_name, pool] = now.get(pool, b"")
                if now.get(revision) != _revision_of(entry):
                    raise JournalConflict(f"{entry.kind.value} {entry.name} was changed meanwhile")
        raise _too_busy(entry)

    def _is_id_apart(self, entry: JournalEntry) -> bool:
        """Whether an entry and its id are in two objects."""
        kind = entry.kind
        return self._object_of_id(kind, entry.uuid) != self._object_of_name(kind, entry.name)

    def _take_id(self, entry: JournalEntry) -> bool:
        id = f"i.{entry.uuid}"
        object_name = self._object_of_id(entry.kind, entry.uuid)
        return self._write(object_name, {id: b""}, {id: entry.name.encode()})

    def _drop_id(self, entry: JournalEntry) -> None:
        id = f"i.{entry.uuid}"
        object_name = self._object_of_id(entry.kind, entry.uuid)
        self._write(object_name, {id: entry.name.encode()}, {}, (id,))

    def _object_of_name(self, kind: StoredKind, name: str) -> str:
        return self._object_name(kind, _hash_of(name) % self._shards)

    def _object_of_id(self, kind: StoredKind, uuid: str) -> str:
        return self._object_name(kind, _first_digit(uuid) * self._shards // 16)

    def _object_name(self, kind: StoredKind, shard: int) -> str:
        return f"entries.{kind.value}.{shard}"

    def _write(
        self,
        object_name: str,
        compared: Mapping[str, bytes],
        keys: Mapping[str, bytes],
        removed_keys: Iterable[str] = (),
    ) -> bool:
        """One operation on one object; False, and nothing is written, if it is not as compared."""
        with rados.WriteOpCtx() as operation:
            operation.new(0)
            for key, value in compared.items():
                operation.omap_cmp(key, value.decode())
            if keys:
                self._pool.set_omap(operation, tuple(keys), tuple(keys.values()))
            if keys_to_remove := tuple(removed_keys):
                self._pool.remove_omap_keys(operation, keys_to_remove)
            try:
                self._pool.operate_write_op(operation, object_name)
            except rados.Error as error:
                if error.errno == errno.ECANCELED:
                    return False
                if error.errno == errno.ENOENT:  # an object would have been made
                    raise unavailable("the pool of the journal is not there any more") from error
                raise
        return True

    def _read_values(self, object_name: str, keys: Iterable[str]) -> dict[str, bytes]:
        with rados.ReadOpCtx() as operation:
            values, _ = self._pool.get_omap_vals_by_keys(operation, tuple(keys))
            try:
                self._pool.operate_read_op(operation, object_name)
            except rados.ObjectNotFound:
                return {}
            return {key: value for key, value in values if value}

    def _list_values(
        self, object_name: str, *, after: str = "", prefix: str = "", limit: int
    ) -> list[tuple[str, bytes]]:
        with rados.ReadOpCtx() as operation:
            values, _ = self._pool.get_omap_vals(operation, after, prefix, limit)
            try:
                self._pool.operate_read_op(operation, object_name)
            except rados.ObjectNotFound:
                return []
            return list(values)


def new_holder_name() -> str:
    """A name that no other controller has."""
    return f"{HOLDER_PREFIX}{uuids.uuid4().hex[:16]}"


def _hash_of(name: str) -> int:
    return hashlib.blake2b(name.encode(), digest_size=2).digest()[0]


def _first_digit(uuid: str) -> int:
    return int(uuid[0], 16)


def _revision_of(entry: JournalEntry) -> bytes:
    """With the uuid: a name that was used again begins with revision 1 again."""
    return f"{entry.uuid}:{entry.revision}".encode()


def _keys_of(entry: JournalEntry) -> dict[str, bytes]:
    return {f"n.{entry.name}": msgspec.json.encode(entry), f"r.{entry.name}": _revision_of(entry)}


def _add_bytes(before: bytes, more: int) -> bytes:
    return str(int(before or b"0") + more).encode()


def _too_busy(entry: JournalEntry) -> CsiError:
    return aborted(f"the journal is too busy for {entry.name}; try again")
