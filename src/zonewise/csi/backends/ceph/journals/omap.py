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

from zonewise.csi.backends.ceph.connection import told
from zonewise.csi.backends.ceph.journals.lease import JournalLease
from zonewise.csi.backends.ceph.journals.marks import Marks
from zonewise.csi.journal import bad_token, no_room
from zonewise.csi.status import Code, CsiError
from zonewise.storage.identifiers import Stored, is_uuid
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
LEASE = 15
HOLDER = "controller-"
TRIES = 100
BATCH = 1000

_FIXED = ("stored", "uuid", "name", "pool", "source")
_DECODER = msgspec.json.Decoder(JournalEntry)


class OmapJournal:
    """A journal in a pool; ``pool`` must be opened with ``NAMESPACE``."""

    def __init__(
        self, pool: rados.Ioctx, *, lease: int = LEASE, name: str = "", shards: int = SHARDS
    ) -> None:
        self._pool = pool
        self._seconds = lease
        self._shards = shards
        self._turns = {
            self._place(stored, shard): threading.Lock()
            for stored in Stored
            for shard in range(shards)
        }
        self._sums: dict[tuple[str, str], bytes] = {}
        self._lease = JournalLease(pool, name or new_name(), lease)
        self._lives: dict[str, int] = {}
        self._marks = Marks(self._mark)

    @property
    def name(self) -> str:
        """The writer's name; its lock is held before another controller can read it."""
        self._lease.begin()
        return self._lease.name

    def find(self, stored: Stored, name: str) -> JournalEntry | None:
        """The entry with a request's name; what was to be written about it later is written now."""
        entry = self._found(stored, name)
        if entry is None or not self._marks.take(entry):
            return entry
        try:
            return self.change(entry, entry.created())
        except JournalConflict:
            return self._found(stored, name)

    def _found(self, stored: Stored, name: str) -> JournalEntry | None:
        with told("reading the journal"):
            body = self._read(self._of_name(stored, name), [f"n.{name}"]).get(f"n.{name}")
        return None if body is None else _DECODER.decode(body)

    def get(self, stored: Stored, uuid: str) -> JournalEntry | None:
        """The entry of an id."""
        with told("reading the journal"):
            name = self._read(self._of_id(stored, uuid), [f"i.{uuid}"]).get(f"i.{uuid}")
        found = None if name is None else self.find(stored, name.decode())
        return found if found is not None and found.uuid == uuid else None

    def draw(self, stored: Stored, name: str) -> str:
        """A new uuid, in the shard of its name."""
        drawn = uuids.uuid4().hex
        first = _hash(name) % self._shards * (16 // self._shards) + int(drawn[0], 16) % (
            16 // self._shards
        )
        return f"{first:x}{drawn[1:]}"

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry if neither name nor uuid are taken and its pool has room."""
        life = self._lease.begin()
        made = msgspec.structs.replace(
            entry, state=EntryState.RESERVED, holder=self._lease.name, revision=1
        )
        place = self._of_name(made.stored, made.name)
        with told(f"reserving {entry.stored.value} {entry.name}"), self._room(made.pool, capacity):
            if capacity is not None:
                taken = self.find(made.stored, made.name)
                if taken is not None:
                    return Reservation(None, taken=taken)
                free = capacity - self.promised().get(made.pool, 0)
                if made.bytes > free:
                    return Reservation(None, free=max(0, free))
            apart = self._of_id(made.stored, made.uuid) != place
            if apart and not self._take_id(made):
                return self._taken_id(made)
            with self._turns[place]:
                found = self._enter(made, place, apart=apart)
        if made.evident and found.entry is not None:
            self._lives[made.uuid] = life
        return found

    def _enter(self, made: JournalEntry, place: str, *, apart: bool) -> Reservation:
        name, id, pool = f"n.{made.name}", f"i.{made.uuid}", f"p.{made.pool}"
        keys = _keys(made) if apart else {**_keys(made), id: made.name.encode()}
        for _ in range(TRIES):
            before = self._sum(place, pool)
            after = _sum(before, made.bytes)
            compared = {**dict.fromkeys(keys, b""), pool: before}
            if self._write(place, compared, {**keys, pool: after}):
                self._sums[place, pool] = after
                return Reservation(made)
            now = self._read(place, [name, id, pool])
            self._sums[place, pool] = now.get(pool, b"")
            if name in now:
                if apart:
                    self._drop_id(made)
                return Reservation(None, taken=_DECODER.decode(now[name]))
            if not apart and id in now:
                return self._taken_id(made)
        if apart:
            self._drop_id(made)
        raise _contended(made)

    def _taken_id(self, made: JournalEntry) -> Reservation:
        taken = self.get(made.stored, made.uuid)
        if taken is None:
            raise JournalConflict(f"uuid {made.uuid} is taken, and there is no entry of it")
        return Reservation(None, taken=taken)

    def _sum(self, place: str, pool: str) -> bytes:
        """What an object promises in a pool, as last seen; to be compared with its value."""
        known = self._sums.pop((place, pool), None)
        return self._read(place, [pool]).get(pool, b"") if known is None else known

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read."""
        assert all(getattr(entry, one) == getattr(changed, one) for one in _FIXED)
        made = msgspec.structs.replace(changed, revision=entry.revision + 1)
        more = made.bytes - entry.bytes
        limit = capacity if more > 0 else None
        with told(f"recording {entry.stored.value} {entry.name}"), self._room(made.pool, limit):
            if limit is not None:
                free = limit - self.promised().get(made.pool, 0)
                if more > free:
                    self._require(entry)
                    raise no_room(made, free + entry.bytes)
            self._replace(entry, _keys(made), more)
        return made

    def settle(self, entry: JournalEntry) -> JournalEntry:
        """The entry, created; written later if no controller can have taken it over from us."""
        life = self._lives.pop(entry.uuid, None)
        if life is None or not self._lease.held_since(life):
            return self.change(entry, entry.created())
        self._marks.later(entry)
        return entry.created()

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read; not found is fine."""
        self._lives.pop(entry.uuid, None)
        with told(f"forgetting {entry.stored.value} {entry.name}"):
            try:
                self._replace(entry, {}, -entry.bytes)
            except JournalConflict:
                if self.get(entry.stored, entry.uuid) is not None:
                    raise
                self._drop_id(entry)
            else:
                if self._apart(entry):
                    self._drop_id(entry)

    def holder(self, entry: JournalEntry) -> Holder:
        """Which controller works on an entry: its lock is free, or it is alive."""
        if not entry.holder.startswith(HOLDER):
            return Holder.NOBODY
        if entry.holder == self._lease.name:
            return Holder.OURS
        return Holder.OTHER if self._lease.alive(entry.holder) else Holder.NOBODY

    def promised(self) -> Mapping[str, int]:
        """Bytes promised, by pool: a sum over the shards, not over entries."""
        total: defaultdict[str, int] = defaultdict(int)
        with told("reading the journal"):
            for stored in Stored:
                for shard in range(self._shards):
                    place = self._place(stored, shard)
                    found = self._list(place, prefix="p.", most=BATCH)
                    for key, value in found:
                        total[key.removeprefix("p.")] += int(value)
        return {pool: promised for pool, promised in sorted(total.items()) if promised}

    def page(
        self,
        stored: Stored,
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
            self._marks.write()
        found: list[JournalEntry] = []
        with told("listing the journal"):
            for entry in self._entries(stored, token, min(limit + 1, BATCH) if limit else BATCH):
                if entry.state in states and source in ("", entry.source):
                    found.append(entry)
                    if limit and len(found) > limit:
                        return EntryPage(tuple(found[:limit]), found[limit - 1].uuid)
        return EntryPage(tuple(found))

    def close(self) -> None:
        """Nothing is worked on in this journal's name any more."""
        self._marks.close()
        self._lease.close()

    def _mark(self, entries: Sequence[JournalEntry]) -> None:
        """Write that entries are created, those that still are as we left them."""
        places: defaultdict[str, list[JournalEntry]] = defaultdict(list)
        for entry in entries:
            places[self._of_name(entry.stored, entry.name)].append(entry)
        with told("recording what was created"):
            for place, some in places.items():
                if not self._mark_all(place, some):
                    for entry in some:
                        self._mark_all(place, [entry])

    def _mark_all(self, place: str, entries: Sequence[JournalEntry]) -> bool:
        compared: dict[str, bytes] = {}
        keys: dict[str, bytes] = {}
        for entry in entries:
            compared[f"r.{entry.name}"] = _revision(entry)
            keys |= _keys(msgspec.structs.replace(entry.created(), revision=entry.revision + 1))
        return self._write(place, compared, keys)

    @contextmanager
    def _room(self, pool: str, capacity: int | None) -> Iterator[None]:
        """Exclusive access to a pool's sum; no lock where there is no limit."""
        if capacity is None:
            yield
            return
        key, cookie = f"room.{pool}", uuids.uuid4().hex
        for attempt in range(TRIES):
            try:
                self._pool.lock_exclusive(key, "room", cookie, "", self._seconds, 0)
                break
            except rados.ObjectBusy:
                time.sleep(min(0.05, 0.002 * (attempt + 1)))
        else:
            raise CsiError(Code.ABORTED, f"too many want room in pool {pool}; try again")
        try:
            yield
        finally:
            with suppress(rados.Error):
                self._pool.unlock(key, "room", cookie)

    def _entries(self, stored: Stored, token: str, batch: int) -> Iterator[JournalEntry]:
        """All after a token, in the order of ids, which is that of their shards.

        An entry is looked up by the name of its id, many at a time.
        """
        for shard in range(_digit(token) * self._shards // 16 if token else 0, self._shards):
            after = token
            while True:
                ids = self._list(
                    self._place(stored, shard),
                    after=f"i.{after}" if after else "",
                    prefix="i.",
                    most=batch,
                )
                names: defaultdict[str, list[str]] = defaultdict(list)
                for _, name in ids:
                    names[self._of_name(stored, name.decode())].append(f"n.{name.decode()}")
                bodies: dict[str, bytes] = {}
                for place, keys in names.items():
                    bodies |= self._read(place, keys)
                for id, name in ids:
                    body = bodies.get(f"n.{name.decode()}")
                    entry = None if body is None else _DECODER.decode(body)
                    if entry is not None and f"i.{entry.uuid}" == id:
                        yield entry
                if len(ids) < batch:
                    break
                after = ids[-1][0].removeprefix("i.")

    def _require(self, entry: JournalEntry) -> None:
        key = f"r.{entry.name}"
        now = self._read(self._of_name(entry.stored, entry.name), [key]).get(key)
        if now != _revision(entry):
            raise JournalConflict(f"{entry.stored.value} {entry.name} was changed meanwhile")

    def _replace(self, entry: JournalEntry, keys: Mapping[str, bytes], more: int) -> None:
        """Write keys, or remove the entry if there are none, if it still is as it was read."""
        place = self._of_name(entry.stored, entry.name)
        revision, pool = f"r.{entry.name}", f"p.{entry.pool}"
        gone: tuple[str, ...] = ()
        if not keys:
            gone = (f"n.{entry.name}", revision)
            if not self._apart(entry):
                gone = (*gone, f"i.{entry.uuid}")
        if not more:
            if self._write(place, {revision: _revision(entry)}, keys, gone):
                return
            raise JournalConflict(f"{entry.stored.value} {entry.name} was changed meanwhile")
        with self._turns[place]:
            for _ in range(TRIES):
                before = self._sum(place, pool)
                after = _sum(before, more)
                sums, empty = ({}, (pool,)) if after == b"0" else ({pool: after}, ())
                compared = {revision: _revision(entry), pool: before}
                if self._write(place, compared, {**keys, **sums}, (*gone, *empty)):
                    self._sums[place, pool] = b"" if after == b"0" else after
                    return
                now = self._read(place, [revision, pool])
                self._sums[place, pool] = now.get(pool, b"")
                if now.get(revision) != _revision(entry):
                    raise JournalConflict(
                        f"{entry.stored.value} {entry.name} was changed meanwhile"
                    )
        raise _contended(entry)

    def _apart(self, entry: JournalEntry) -> bool:
        """Whether an entry and its id are in two objects."""
        return self._of_id(entry.stored, entry.uuid) != self._of_name(entry.stored, entry.name)

    def _take_id(self, entry: JournalEntry) -> bool:
        id = f"i.{entry.uuid}"
        return self._write(
            self._of_id(entry.stored, entry.uuid), {id: b""}, {id: entry.name.encode()}
        )

    def _drop_id(self, entry: JournalEntry) -> None:
        id = f"i.{entry.uuid}"
        self._write(self._of_id(entry.stored, entry.uuid), {id: entry.name.encode()}, {}, (id,))

    def _of_name(self, stored: Stored, name: str) -> str:
        return self._place(stored, _hash(name) % self._shards)

    def _of_id(self, stored: Stored, uuid: str) -> str:
        return self._place(stored, _digit(uuid) * self._shards // 16)

    def _place(self, stored: Stored, shard: int) -> str:
        return f"entries.{stored.value}.{shard}"

    def _write(
        self,
        place: str,
        compared: Mapping[str, bytes],
        keys: Mapping[str, bytes],
        gone: Iterable[str] = (),
    ) -> bool:
        """One operation on one object; False, and nothing is written, if it is not as compared."""
        with rados.WriteOpCtx() as operation:
            operation.new(0)
            for key, value in compared.items():
                operation.omap_cmp(key, value.decode())
            if keys:
                self._pool.set_omap(operation, tuple(keys), tuple(keys.values()))
            if removed := tuple(gone):
                self._pool.remove_omap_keys(operation, removed)
            try:
                self._pool.operate_write_op(operation, place)
            except rados.Error as error:
                if error.errno == errno.ECANCELED:
                    return False
                if error.errno == errno.ENOENT:  # an object would have been made
                    raise CsiError(
                        Code.UNAVAILABLE, "the pool of the journal is not there any more"
                    ) from error
                raise
        return True

    def _read(self, place: str, keys: Iterable[str]) -> dict[str, bytes]:
        with rados.ReadOpCtx() as operation:
            found, _ = self._pool.get_omap_vals_by_keys(operation, tuple(keys))
            try:
                self._pool.operate_read_op(operation, place)
            except rados.ObjectNotFound:
                return {}
            return {key: value for key, value in found if value}

    def _list(
        self, place: str, *, after: str = "", prefix: str = "", most: int
    ) -> list[tuple[str, bytes]]:
        with rados.ReadOpCtx() as operation:
            found, _ = self._pool.get_omap_vals(operation, after, prefix, most)
            try:
                self._pool.operate_read_op(operation, place)
            except rados.ObjectNotFound:
                return []
            return list(found)


def new_name() -> str:
    """A name that no other controller has."""
    return f"{HOLDER}{uuids.uuid4().hex[:16]}"


def _hash(name: str) -> int:
    return hashlib.blake2b(name.encode(), digest_size=2).digest()[0]


def _digit(uuid: str) -> int:
    return int(uuid[0], 16)


def _revision(entry: JournalEntry) -> bytes:
    """With the uuid: a name that was used again begins with revision 1 again."""
    return f"{entry.uuid}:{entry.revision}".encode()


def _keys(entry: JournalEntry) -> dict[str, bytes]:
    return {f"n.{entry.name}": msgspec.json.encode(entry), f"r.{entry.name}": _revision(entry)}


def _sum(before: bytes, more: int) -> bytes:
    return str(int(before or b"0") + more).encode()


def _contended(entry: JournalEntry) -> CsiError:
    return CsiError(Code.ABORTED, f"the journal is too busy for {entry.name}; try again")
