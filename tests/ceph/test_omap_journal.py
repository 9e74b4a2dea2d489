"""The journal in RADOS: the contract that every journal keeps, on a real Ceph."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from msgspec import structs
from tests.csi.journal_contract import JournalContract, OpenJournal, reserved, uuid_of, volume
from tools.ceph.cluster import JOURNAL, CephCluster

from zonewise.csi.backends.ceph.connection import CephConnection
from zonewise.csi.backends.ceph.journals.cluster_journal import ClusterJournal
from zonewise.csi.backends.ceph.journals.lease import reliable_seconds
from zonewise.csi.backends.ceph.journals.omap import OmapJournal
from zonewise.storage.configuration import CephCluster as Configured
from zonewise.storage.errors import StorageError
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState, Holder, JournalConflict, JournalEntry

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture
def connection(ceph: CephCluster) -> Iterator[CephConnection]:
    """The driver's own connection."""
    (cluster,) = ceph.clusters()
    connection = CephConnection(
        Configured(
            cluster["clusterID"], tuple(cluster["monitors"]), cluster["user"], cluster["keyFile"]
        )
    )
    yield connection
    connection.close()


@pytest.fixture
def open_journal(connection: CephConnection) -> Iterator[OpenJournal]:
    """Opens journals in a namespace of their own."""
    namespace = f"test-{uuid.uuid4().hex}"
    opened: list[OmapJournal] = []

    def another() -> OmapJournal:
        opened.append(OmapJournal(connection.open_pool(JOURNAL, namespace), lease=3))
        return opened[-1]

    yield another
    for journal in opened:
        journal.close()


class TestOmapJournal(JournalContract):
    """The contract."""


def test_an_invalid_token(connection: CephConnection) -> None:
    """An invalid page token is refused even before there is a journal."""
    journals = ClusterJournal(connection, namespace=f"test-{uuid.uuid4().hex}")
    assert journals.list_page(StoredKind.VOLUME).entries == ()
    with pytest.raises(StorageError, match="no page begins"):
        journals.list_page(StoredKind.VOLUME, token="nonsense")


def test_a_name_used_again_is_another_entry(open_journal: OpenJournal) -> None:
    """Changes to the old entry of a name do not affect the new one."""
    journal = open_journal()
    old = reserved(journal, volume(1, "data"))
    journal.forget(old)
    new = reserved(journal, volume(2, "data"))
    assert old.revision == new.revision
    with pytest.raises(JournalConflict):
        journal.change(old, old.as_created())
    journal.forget(old)
    assert journal.find(StoredKind.VOLUME, "data") == new
    assert journal.get(StoredKind.VOLUME, uuid_of(1)) is None


def test_a_journal_that_dies_is_free_after_its_lease(connection: CephConnection) -> None:
    """Entries of a controller that does not renew its lease are free when it has run out."""
    pool = connection.open_pool(JOURNAL, f"test-{uuid.uuid4().hex}")
    dead, other = OmapJournal(pool, lease=1), OmapJournal(pool, lease=1)
    entry = reserved(dead, volume(1))
    assert other.holder_of(entry) is Holder.OTHER
    dead._lease.stop()
    try:
        while other.holder_of(entry) is Holder.OTHER:
            pass
        assert other.change(entry, entry.with_holder(other.name)).holder == other.name
    finally:
        dead.close()
        other.close()


def evident(number: int) -> JournalEntry:
    """A volume whose image shows when it is finished."""
    return structs.replace(volume(number), evident=True)


def test_many_are_recorded_together(open_journal: OpenJournal) -> None:
    """Deferred records are written when the journal closes, unless the entry was changed."""
    journal, other = open_journal(), open_journal()
    entries = [reserved(journal, evident(number)) for number in range(40)]
    for entry in entries:
        journal.mark_created(entry)
    deleting = other.change(entries[3], entries[3].as_deleting(other.name))
    other.forget(entries[4])
    journal.close()
    stored = {entry.uuid: entry for entry in other.list_page(StoredKind.VOLUME).entries}
    assert stored.pop(entries[3].uuid) == deleting
    assert len(stored) == 38
    assert {entry.state for entry in stored.values()} == {EntryState.CREATED}


def test_a_lock_may_end_a_second_early() -> None:
    """The reliable part of a lease ends more than a second before the lease does."""
    assert [reliable_seconds(seconds) for seconds in (1, 2, 4, 15)] == [-0.5, 0.5, 2.5, 11.25]


@pytest.mark.parametrize("back", [False, True])
def test_an_expired_holder_records_nothing(connection: CephConnection, back: bool) -> None:
    """A controller whose lease expired gets a conflict, also when it has renewed it since."""
    pool = connection.open_pool(JOURNAL, f"test-{uuid.uuid4().hex}")
    slow, other = OmapJournal(pool, lease=3), OmapJournal(pool, lease=3)
    entry = reserved(slow, evident(1))
    slow._lease.stop()
    try:
        while other.holder_of(entry) is Holder.OTHER:
            pass
        other.forget(other.change(entry, entry.as_deleting(other.name)))
        if back:
            slow._lease._renew()
        with pytest.raises(JournalConflict):
            slow.mark_created(entry)
    finally:
        slow.close()
        other.close()
