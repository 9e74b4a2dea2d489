"""All journals of a cluster as one: a class may name any pool for its journal.

Which pools have one is written in them: an object of a known name. A name is looked up in the
journals that are known here, among them its class's, so that a pool in a dead zone blocks no other
request. An id that is in none of them is looked for in all pools before it counts as unknown: a
delete of it would succeed. All pools are asked at once, and one that does not answer matters only
to what is found in no other: a zone may be dead while a driver starts.

Pools can be renamed. A journal is known by the number of its pool. An entry keeps the number of the
pool its image is in, and is given out with the name that this pool has now; it is written back with
the name that it was reserved with, which is also what promises are counted under. A number that no
pool has is a pool that was deleted: the entry keeps its name, and nothing is found there.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import rados
from msgspec import structs

from zonewise.csi.backends.ceph.connection import Ceph, PoolMissing, told
from zonewise.csi.backends.ceph.journals.omap import LEASE, NAMESPACE, OmapJournal, new_name
from zonewise.csi.journal import bad_token
from zonewise.csi.status import Code, CsiError, exhausted, invalid
from zonewise.storage.identifiers import Stored, is_uuid
from zonewise.storage.journal import (
    EntryPage,
    EntryState,
    Holder,
    JournalEntry,
    Reservation,
    merged,
)
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
CLUSTER = "cluster"
"""The id of the cluster that an entry was made in."""
AT_ONCE = 32
"""How many pools are asked at once whether they have a journal."""
AGAIN_SECONDS = 30.0
"""How long sums do without the journals of pools that did not answer."""
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
        self._tried = float("-inf")

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
        self.begin(parameters.pool)
        found = {POOL: parameters.pool, CLUSTER: self._ceph.cluster.cluster_id}
        found[POOL_NUMBER] = str(self._ceph.number(parameters.pool))
        for key in CLAIM_KEYS:
            if value := request.get(FOREIGN + key):
                found[key] = value
        return found

    @property
    def name(self) -> str:
        """The writer's name: the same in all of them."""
        return self._name

    def find(self, stored: Stored, name: str) -> JournalEntry | None:
        """The entry with a request's name."""
        found = (one.find(stored, name) for one in self._some().values())
        return next((self._seen(entry) for entry in found if entry is not None), None)

    def get(self, stored: Stored, uuid: str) -> JournalEntry | None:
        """The entry of an id; journals that are new to us are looked for before it is unknown."""
        tried: set[int] = set()
        silent: CsiError | None = None
        for again in (False, True):
            if again:
                silent = self._look()
            for pool, journal in self._journals.items():
                entry = None if pool in tried else journal.get(stored, uuid)
                tried.add(pool)
                if entry is not None:
                    return self._seen(entry)
        if silent is not None:
            raise silent
        return None

    def draw(self, stored: Stored, name: str) -> str:
        """A new uuid; the shards are the same in all of them."""
        return next(iter(self._some().values())).draw(stored, name)

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry into the journal that it names."""
        attributes = {key: kept for key, kept in entry.attributes.items() if key != RESERVED_AS}
        try:
            attributes[NUMBER] = str(self._ceph.number(entry.pool))
        except PoolMissing as error:
            taken = self.find(entry.stored, entry.name)
            if taken is not None:
                return Reservation(None, taken=taken)
            # Deleted since it was chosen: another may be.
            raise exhausted(error.message) from error
        own = self._of(entry)
        for other in self._journals.values():
            taken = other.find(entry.stored, entry.name) if other is not own else None
            if taken is not None:
                return Reservation(None, taken=self._seen(taken))
        return own.reserve(structs.replace(entry, attributes=attributes), capacity)

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read."""
        made = self._of(entry).change(_written(entry), _written(changed), capacity)
        return structs.replace(made, pool=changed.pool, attributes=changed.attributes)

    def settle(self, entry: JournalEntry) -> JournalEntry:
        """The entry, created."""
        made = self._of(entry).settle(_written(entry))
        return structs.replace(made, pool=entry.pool, attributes=entry.attributes)

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read."""
        self._of(entry).forget(_written(entry))

    def holder(self, entry: JournalEntry) -> Holder:
        """Which controller works on an entry."""
        return self._of(entry).holder(entry)

    def promised(self) -> Mapping[str, int]:
        """Bytes promised, by pool, in all journals whose pools answer."""
        if not self._looked and time.monotonic() - self._tried > AGAIN_SECONDS:
            self._look()
        total: Counter[str] = Counter()
        for journal in self._journals.values():
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
        if token and not is_uuid(token):  # an error also where there is no journal yet
            raise bad_token(token)
        pages = [
            one.page(stored, token=token, limit=limit, source=source, states=states)
            for one in self._all().values()
        ]
        found = merged(pages, limit)
        names: dict[str, str | None] = {}
        return EntryPage(tuple(self._seen(entry, names) for entry in found.entries), found.token)

    def close(self) -> None:
        """Nothing is worked on in this journal's name any more."""
        for journal in self._journals.values():
            journal.close()

    def _of(self, entry: JournalEntry) -> OmapJournal:
        number = int(entry.attributes[POOL_NUMBER])
        found = self._journals.get(number)
        if found is None:
            silent = self._look()
            found = self._journals.get(number)
            if found is None and silent is not None:
                raise silent
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
        """All of them; raises if a pool does not say whether it has one."""
        silent = None if self._looked else self._look()
        if silent is not None:
            raise silent
        return self._journals

    def _some(self) -> Mapping[int, OmapJournal]:
        """Those that are known; all if none is."""
        return self._journals or self._all()

    def _look(self) -> CsiError | None:
        """Look for journals in all pools; the error of one that does not answer."""
        pools = self._ceph.pools()
        with ThreadPoolExecutor(min(AT_ONCE, len(pools) or 1)) as asking:
            failed = [error for error in asking.map(self._looked_into, pools) if error is not None]
        self._looked = self._looked or not failed
        self._tried = time.monotonic()
        return next(iter(failed), None)

    def _looked_into(self, pool: str) -> CsiError | None:
        try:
            with suppress(PoolMissing):  # it was removed or renamed just now
                if self._ceph.number(pool) not in self._journals and self._has(pool):
                    self._add(pool)
        except CsiError as error:
            return error
        return None

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
    """The pool that an entry's image is in, whatever its name; PoolMissing if it is deleted."""
    number = entry.attributes.get(NUMBER)
    return ceph.pool(entry.pool) if number is None else ceph.numbered(int(number), entry.pool)


def pool_gone(ceph: Ceph, entry: JournalEntry) -> bool:
    """Whether the pool of an entry was deleted; one without a number may only have been renamed."""
    number = entry.attributes.get(NUMBER)
    return number is not None and ceph.name_of(int(number), entry.pool) is None


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
    """The claim's names as metadata, for administrators."""
    kept = entry.attributes
    return {FOREIGN + key: kept[key] for key in CLAIM_KEYS if key in kept}
