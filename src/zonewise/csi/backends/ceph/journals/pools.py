"""All journals of a cluster as one: a class may name any pool for its journal.

Which pools have one is written in them: an object of a known name. A name is looked up in the
journals that are known here, among them its class's, so that a pool in a dead zone keeps nobody
else waiting. An id that is in none of them is looked for in all pools before it counts as unknown:
whoever deletes it would be told that it is gone.

Pools can be renamed. A journal is known by the number of its pool. An entry keeps the number of the
pool its image is in, and is given out with the name that this pool has now; it is written back with
the name that it was reserved with, which is also what promises are counted under. A number that no
pool has is a pool that was deleted: the entry keeps its name, and nothing is found there.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

import rados
from msgspec import structs

from zonewise.csi.backends.ceph.connection import Ceph, PoolMissing, told
from zonewise.csi.backends.ceph.journals.omap import LEASE, NAMESPACE, OmapJournal, new_name
from zonewise.csi.journal import bad_token
from zonewise.csi.status import Code, CsiError, exhausted, invalid
from zonewise.storage.identifiers import Stored, is_uuid
from zonewise.storage.journal import EntryPage, EntryState, Holder, JournalEntry, Reservation
from zonewise.storage.parameters import FOREIGN, ClassParameters

MARK = "journal"
POOL = "journal"
"""The attribute of an entry that says which pool its journal is in."""
POOL_NUMBER = "journalPool"
"""The number of that pool."""
NUMBER = "poolID"
"""The number of the pool that an entry's image is in."""
RESERVED_AS = "poolName"
"""The name that this pool had, of an entry whose pool was renamed; never written."""
CLAIM_KEYS = ("pvc/name", "pvc/namespace", "pv/name")


class JournalPools:
    """The journals of a cluster; a backend keeps its own in a namespace of its own."""

    def __init__(self, ceph: Ceph, *, lease: int = LEASE, namespace: str = NAMESPACE) -> None:
        self._ceph = ceph
        self._namespace = namespace
        self._lease = lease
        self._name = new_name()
        self._lock = threading.Lock()
        self._journals: dict[int, OmapJournal] = {}
        self._looked = False

    def begin(self, pool: str) -> None:
        """See to it that a pool has a journal; INVALID_ARGUMENT if it cannot have one."""
        if self._ceph.number(pool) in self._journals:
            return
        place = self._ceph.pool(pool, self._namespace)
        with told(f"beginning a journal in pool {pool}"), rados.WriteOpCtx() as operation:
            operation.new(0)
            place.set_omap(operation, ("version",), (b"1",))
            try:
                place.operate_write_op(operation, MARK)
            except rados.Error as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                raise invalid(
                    f"pool {pool} cannot hold a journal: erasure-coded pools keep no keys; "
                    "name a replicated one"
                ) from None
        self._add(pool)

    def attributes(self, parameters: ClassParameters, request: Mapping[str, str]) -> dict[str, str]:
        """What every entry on Ceph keeps: its journal, the cluster, the claim's names."""
        if not parameters.pool:
            raise invalid("the parameter pool is missing: it names the pool of the journal")
        cluster = self._ceph.cluster.cluster_id
        if parameters.cluster_id not in ("", cluster):
            raise invalid(f"clusterID {parameters.cluster_id!r} is not in the configuration")
        self.begin(parameters.pool)
        found = {POOL: parameters.pool, "cluster": cluster}
        found[POOL_NUMBER] = str(self._ceph.number(parameters.pool))
        for key in CLAIM_KEYS:
            if value := request.get(FOREIGN + key):
                found[key] = value
        return found

    @property
    def name(self) -> str:
        """Who writes: the same in all of them."""
        return self._name

    def find(self, stored: Stored, name: str) -> JournalEntry | None:
        """The entry with a request's name."""
        found = (one.find(stored, name) for one in (self._journals or self._look()).values())
        return next((self._seen(entry) for entry in found if entry is not None), None)

    def get(self, stored: Stored, uuid: str) -> JournalEntry | None:
        """The entry of an id; journals that are new to us are looked for before it is unknown."""
        tried: set[int] = set()
        for known in (self._journals, None):
            for pool, journal in (self._look() if known is None else known).items():
                entry = None if pool in tried else journal.get(stored, uuid)
                tried.add(pool)
                if entry is not None:
                    return self._seen(entry)
        return None

    def draw(self, stored: Stored, name: str) -> str:
        """A new uuid; the shards are the same in all of them."""
        return next(iter((self._journals or self._look()).values())).draw(stored, name)

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry into the journal that it names."""
        attributes = {key: kept for key, kept in entry.attributes.items() if key != RESERVED_AS}
        try:
            attributes[NUMBER] = str(self._ceph.number(entry.pool))
        except PoolMissing as error:  # deleted since it was chosen: another may be
            raise exhausted(error.message) from error
        fresh = structs.replace(entry, attributes=attributes)
        return self._of(entry).reserve(fresh, capacity)

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read."""
        made = self._of(entry).change(_written(entry), _written(changed), capacity)
        return structs.replace(made, pool=changed.pool, attributes=changed.attributes)

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read."""
        self._of(entry).forget(_written(entry))

    def holder(self, entry: JournalEntry) -> Holder:
        """Who works on an entry."""
        return self._of(entry).holder(entry)

    def promised(self) -> Mapping[str, int]:
        """Bytes promised, by pool, in all journals."""
        total: Counter[str] = Counter()
        for journal in self._all().values():
            total.update(journal.promised())
        return dict(sorted(total.items()))

    def page(
        self,
        stored: Stored,
        *,
        token: str = "",
        limit: int = 0,
        source: str = "",
        states: frozenset[EntryState] = frozenset(EntryState),
    ) -> EntryPage:
        """Entries by uuid: a page of each journal, and the smallest of them all."""
        if token and not is_uuid(token):  # said also where there is no journal yet
            raise bad_token(token)
        pages = [
            one.page(stored, token=token, limit=limit, source=source, states=states)
            for one in self._all().values()
        ]
        entries = sorted(
            (entry for page in pages for entry in page.entries), key=lambda entry: entry.uuid
        )
        whole = not limit or (len(entries) <= limit and not any(page.token for page in pages))
        names: dict[str, str | None] = {}
        seen = tuple(self._seen(entry, names) for entry in (entries if whole else entries[:limit]))
        return EntryPage(seen, "" if whole else seen[-1].uuid)

    def close(self) -> None:
        """Nobody works on anything in this one's name any more."""
        for journal in self._journals.values():
            journal.close()

    def _of(self, entry: JournalEntry) -> OmapJournal:
        number = int(entry.attributes[POOL_NUMBER])
        found = self._journals.get(number) or self._look().get(number)
        if found is None:
            raise CsiError(
                Code.UNAVAILABLE, f"the journal of {entry.name} was in a pool that is gone"
            )
        return found

    def _seen(
        self, entry: JournalEntry, names: dict[str, str | None] | None = None
    ) -> JournalEntry:
        """An entry with its pool as that is called now; ``names`` remembers, for long lists."""
        number = entry.attributes.get(NUMBER)
        if number is None:
            return entry
        names = {} if names is None else names
        if number not in names:
            names[number] = self._ceph.name_of(int(number), entry.pool)
        name = names[number]
        if name is None or name == entry.pool:
            return entry
        return structs.replace(
            entry, pool=name, attributes={**entry.attributes, RESERVED_AS: entry.pool}
        )

    def _all(self) -> Mapping[int, OmapJournal]:
        return self._journals if self._looked else self._look()

    def _look(self) -> Mapping[int, OmapJournal]:
        for pool in self._ceph.pools():
            with suppress(PoolMissing):  # it was removed or renamed just now
                if self._ceph.number(pool) not in self._journals and self._has(pool):
                    self._add(pool)
        self._looked = True
        return self._journals

    def _has(self, pool: str) -> bool:
        with told(f"looking for a journal in pool {pool}"):
            try:
                self._ceph.pool(pool, self._namespace).stat(MARK)
            except (rados.ObjectNotFound, rados.PermissionError):
                return False  # nothing of ours is where we have no rights
            return True

    def _add(self, pool: str) -> None:
        place, number = self._ceph.pool(pool, self._namespace), self._ceph.number(pool)
        with self._lock:
            if number not in self._journals:
                journal = OmapJournal(place, lease=self._lease, name=self._name)
                self._journals = {**self._journals, number: journal}


def image_pool(ceph: Ceph, entry: JournalEntry) -> rados.Ioctx:
    """The pool that an entry's image is in, however it is called; PoolMissing if it is gone."""
    number = entry.attributes.get(NUMBER)
    return ceph.pool(entry.pool) if number is None else ceph.numbered(int(number), entry.pool)


def reserved_as(entry: JournalEntry) -> str:
    """The name of an entry's pool when it was reserved."""
    return entry.attributes.get(RESERVED_AS, entry.pool)


def _written(entry: JournalEntry) -> JournalEntry:
    """An entry as its journal has it."""
    if RESERVED_AS not in entry.attributes:
        return entry
    attributes = {key: kept for key, kept in entry.attributes.items() if key != RESERVED_AS}
    return structs.replace(entry, pool=reserved_as(entry), attributes=attributes)


def claim_names(entry: JournalEntry) -> dict[str, str]:
    """The claim's names as metadata, for people who look."""
    kept = entry.attributes
    return {FOREIGN + key: kept[key] for key in CLAIM_KEYS if key in kept}
