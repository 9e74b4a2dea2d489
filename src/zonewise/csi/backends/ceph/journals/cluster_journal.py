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

from zonewise.csi.backends.ceph.connection import CephConnection, PoolMissing, translate_errors
from zonewise.csi.backends.ceph.journals.omap import (
    LEASE_SECONDS,
    NAMESPACE,
    OmapJournal,
    new_holder_name,
)
from zonewise.csi.errors import CsiError, exhausted, invalid, unavailable
from zonewise.csi.sqlite_journal import bad_token
from zonewise.storage.identifiers import StoredKind, is_uuid
from zonewise.storage.journal import (
    EntryPage,
    EntryState,
    Holder,
    JournalEntry,
    Reservation,
    merge_pages,
)
from zonewise.storage.parameters import FOREIGN_PREFIX, ClassParameters

JOURNAL_OBJECT = "journal"
JOURNAL_POOL = "journal"
"""The attribute of an entry that says which pool its journal is in."""
JOURNAL_POOL_NUMBER = "journalPool"
"""The number of that pool."""
IMAGE_POOL_NUMBER = "poolID"
"""The number of the pool that an entry's image is in."""
RESERVED_AS = "poolName"
"""The name that this pool had, of an entry whose pool was renamed; never written."""
CLUSTER = "cluster"
"""The id of the cluster that an entry was made in."""
POOLS_AT_ONCE = 32
"""How many pools are asked at once whether they have a journal."""
REDISCOVER_SECONDS = 30.0
"""How long sums do without the journals of pools that did not answer."""
CLAIM_KEYS = ("pvc/name", "pvc/namespace", "pv/name")


class ClusterJournal:
    """The journals of a cluster; a backend keeps its own in a namespace of its own."""

    def __init__(
        self, ceph: CephConnection, *, lease: int = LEASE_SECONDS, namespace: str = NAMESPACE
    ) -> None:
        self._ceph = ceph
        self._namespace = namespace
        self._lease = lease
        self._name = new_holder_name()
        self._lock = threading.Lock()
        self._journals: dict[int, OmapJournal] = {}
        self._discovered_all = False
        self._discovered_at = float("-inf")

    def ensure_journal(self, pool: str) -> None:
        """See to it that a pool has a journal; INVALID_ARGUMENT if it cannot have one."""
        if self._ceph.pool_number(pool) in self._journals:
            return
        pool_handle = self._ceph.open_pool(pool, self._namespace)
        with (
            translate_errors(f"beginning a journal in pool {pool}"),
            rados.WriteOpCtx() as operation,
        ):
            operation.new(0)
            pool_handle.set_omap(operation, ("version",), (b"1",))
            try:
                pool_handle.operate_write_op(operation, JOURNAL_OBJECT)
            except rados.Error as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                raise invalid(
                    f"pool {pool} cannot hold a journal: erasure-coded pools keep no keys; "
                    "name a replicated one"
                ) from None
        self._add_journal(pool)

    def prepare_attributes(
        self, parameters: ClassParameters, request: Mapping[str, str]
    ) -> dict[str, str]:
        """What every entry on Ceph keeps: its journal, the cluster, the claim's names."""
        if not parameters.pool:
            raise invalid("the parameter pool is missing: it names the pool of the journal")
        self.ensure_journal(parameters.pool)
        attributes = {JOURNAL_POOL: parameters.pool, CLUSTER: self._ceph.cluster.cluster_id}
        attributes[JOURNAL_POOL_NUMBER] = str(self._ceph.pool_number(parameters.pool))
        for key in CLAIM_KEYS:
            if value := request.get(FOREIGN_PREFIX + key):
                attributes[key] = value
        return attributes

    @property
    def name(self) -> str:
        """The writer's name: the same in all of them."""
        return self._name

    def find(self, kind: StoredKind, name: str) -> JournalEntry | None:
        """The entry with a request's name."""
        entries = (journal.find(kind, name) for journal in self._known_journals().values())
        return next((self._with_current_pool(entry) for entry in entries if entry), None)

    def get(self, kind: StoredKind, uuid: str) -> JournalEntry | None:
        """The entry of an id; journals that are new to us are looked for before it is unknown."""
        searched: set[int] = set()
        error: CsiError | None = None
        for discover_first in (False, True):
            if discover_first:
                error = self._discover()
            for pool, journal in self._journals.items():
                entry = None if pool in searched else journal.get(kind, uuid)
                searched.add(pool)
                if entry is not None:
                    return self._with_current_pool(entry)
        if error is not None:
            raise error
        return None

    def new_uuid(self, kind: StoredKind, name: str) -> str:
        """A new uuid; the shards are the same in all of them."""
        return next(iter(self._known_journals().values())).new_uuid(kind, name)

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry into the journal that it names."""
        attributes = {key: value for key, value in entry.attributes.items() if key != RESERVED_AS}
        try:
            attributes[IMAGE_POOL_NUMBER] = str(self._ceph.pool_number(entry.pool))
        except PoolMissing as error:
            taken = self.find(entry.kind, entry.name)
            if taken is not None:
                return Reservation(None, existing=taken)
            # Deleted since it was chosen: another may be.
            raise exhausted(error.message) from error
        own = self._journal_of(entry)
        for other in self._journals.values():
            taken = other.find(entry.kind, entry.name) if other is not own else None
            if taken is not None:
                return Reservation(None, existing=self._with_current_pool(taken))
        return own.reserve(structs.replace(entry, attributes=attributes), capacity)

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read."""
        own = self._journal_of(entry)
        written = own.change(_as_written(entry), _as_written(changed), capacity)
        return structs.replace(written, pool=changed.pool, attributes=changed.attributes)

    def mark_created(self, entry: JournalEntry) -> JournalEntry:
        """The entry, created."""
        created = self._journal_of(entry).mark_created(_as_written(entry))
        return structs.replace(created, pool=entry.pool, attributes=entry.attributes)

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read."""
        self._journal_of(entry).forget(_as_written(entry))

    def holder_of(self, entry: JournalEntry) -> Holder:
        """Which controller works on an entry."""
        return self._journal_of(entry).holder_of(entry)

    def promised_bytes(self) -> Mapping[str, int]:
        """Bytes promised, by pool, in all journals whose pools answer."""
        if not self._discovered_all and time.monotonic() - self._discovered_at > REDISCOVER_SECONDS:
            self._discover()
        total: Counter[str] = Counter()
        for journal in self._journals.values():
            total.update(journal.promised_bytes())
        return dict(sorted(total.items()))

    def list_page(
        self,
        kind: StoredKind,
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
            journal.list_page(kind, token=token, limit=limit, source=source, states=states)
            for journal in self._all_journals().values()
        ]
        page = merge_pages(pages, limit)
        names: dict[str, str | None] = {}
        entries = tuple(self._with_current_pool(entry, names) for entry in page.entries)
        return EntryPage(entries, page.token)

    def open_pool_of(self, entry: JournalEntry) -> rados.Ioctx:
        """The pool that has an entry's journal, in our namespace."""
        number = int(entry.attributes[JOURNAL_POOL_NUMBER])
        name = entry.attributes[JOURNAL_POOL]
        return self._ceph.open_pool_number(number, name, self._namespace)

    def open_pools(self) -> tuple[list[rados.Ioctx], list[str]]:
        """All pools that are known to have a journal, and why others may have one."""
        try:
            error = None if self._discovered_all else self._discover()
            pools = [
                self._ceph.open_pool_number(number, f"number {number}", self._namespace)
                for number in self._journals
            ]
        except CsiError as unreachable:
            return [], [str(unreachable)]
        return pools, [str(error)] if error is not None else []

    def close(self) -> None:
        """Nothing is worked on in this journal's name any more."""
        for journal in self._journals.values():
            journal.close()

    def _journal_of(self, entry: JournalEntry) -> OmapJournal:
        number = int(entry.attributes[JOURNAL_POOL_NUMBER])
        journal = self._journals.get(number)
        if journal is None:
            silent = self._discover()
            journal = self._journals.get(number)
            if journal is None and silent is not None:
                raise silent
        if journal is None:
            raise unavailable(f"the journal of {entry.name} was in a pool that is gone")
        return journal

    def _with_current_pool(
        self, entry: JournalEntry, names: dict[str, str | None] | None = None
    ) -> JournalEntry:
        """An entry with its pool as that is called now; ``names`` remembers, for long lists."""
        number = entry.attributes.get(IMAGE_POOL_NUMBER)
        if number is None:
            return entry
        names = {} if names is None else names
        if number not in names:
            names[number] = self._ceph.find_pool_name(int(number), entry.pool)
        name = names[number]
        if name is None or name == entry.pool:
            return entry
        attributes = {**entry.attributes, RESERVED_AS: entry.pool}
        return structs.replace(entry, pool=name, attributes=attributes)

    def _all_journals(self) -> Mapping[int, OmapJournal]:
        """All of them; raises if a pool does not say whether it has one."""
        error = None if self._discovered_all else self._discover()
        if error is not None:
            raise error
        return self._journals

    def _known_journals(self) -> Mapping[int, OmapJournal]:
        """Those that are known; all if none is."""
        return self._journals or self._all_journals()

    def _discover(self) -> CsiError | None:
        """Look for journals in all pools; the error of one that does not answer."""
        pools = self._ceph.list_pools()
        with ThreadPoolExecutor(min(POOLS_AT_ONCE, len(pools) or 1)) as executor:
            failed = [error for error in executor.map(self._discover_in, pools) if error]
        self._discovered_all = self._discovered_all or not failed
        self._discovered_at = time.monotonic()
        return next(iter(failed), None)

    def _discover_in(self, pool: str) -> CsiError | None:
        try:
            with suppress(PoolMissing):  # it was removed or renamed just now
                if self._ceph.pool_number(pool) not in self._journals and self._has_journal(pool):
                    self._add_journal(pool)
        except CsiError as error:
            return error
        return None

    def _has_journal(self, pool: str) -> bool:
        with translate_errors(f"looking for a journal in pool {pool}"):
            try:
                self._ceph.open_pool(pool, self._namespace).stat(JOURNAL_OBJECT)
            except (rados.ObjectNotFound, rados.PermissionError):
                return False  # nothing of ours is where we have no rights
            return True

    def _add_journal(self, pool: str) -> None:
        pool_handle = self._ceph.open_pool(pool, self._namespace)
        number = self._ceph.pool_number(pool)
        with self._lock:
            if number not in self._journals:
                journal = OmapJournal(pool_handle, lease=self._lease, name=self._name)
                self._journals = {**self._journals, number: journal}


def open_image_pool(ceph: CephConnection, entry: JournalEntry) -> rados.Ioctx:
    """The pool that an entry's image is in, whatever its name; PoolMissing if it is deleted."""
    number = entry.attributes.get(IMAGE_POOL_NUMBER)
    return (
        ceph.open_pool(entry.pool)
        if number is None
        else ceph.open_pool_number(int(number), entry.pool)
    )


def is_pool_deleted(ceph: CephConnection, entry: JournalEntry) -> bool:
    """Whether the pool of an entry was deleted; one without a number may only have been renamed."""
    number = entry.attributes.get(IMAGE_POOL_NUMBER)
    return number is not None and ceph.find_pool_name(int(number), entry.pool) is None


def reserved_pool_name(entry: JournalEntry) -> str:
    """The name of an entry's pool when it was reserved."""
    return entry.attributes.get(RESERVED_AS, entry.pool)


def _as_written(entry: JournalEntry) -> JournalEntry:
    """An entry as its journal has it."""
    if RESERVED_AS not in entry.attributes:
        return entry
    attributes = {key: value for key, value in entry.attributes.items() if key != RESERVED_AS}
    return structs.replace(entry, pool=reserved_pool_name(entry), attributes=attributes)


def claim_metadata(entry: JournalEntry) -> dict[str, str]:
    """The claim's names as metadata, for administrators."""
    attributes = entry.attributes
    return {FOREIGN_PREFIX + key: attributes[key] for key in CLAIM_KEYS if key in attributes}
