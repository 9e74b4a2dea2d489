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
    (one,) = ceph.clusters()
    made = CephConnection(
        Configured(one["clusterID"], tuple(one["monitors"]), one["user"], one["keyFile"])
    )
    yield made
    made.close()


@pytest.fixture
def open_journal(connection: CephConnection) -> Iterator[OpenJournal]:
    """Opens one more journal in the same, new place."""
    place = f"test-{uuid.uuid4().hex}"
    opened: list[OmapJournal] = []

    def another() -> OmapJournal:
        opened.append(OmapJournal(connection.open_pool(JOURNAL, place), lease=3))
        return opened[-1]

    yield another
    for journal in opened:
        journal.close()


class TestOmapJournal(JournalContract):
    """The contract."""


def test_a_token_that_is_none(connection: CephConnection) -> None:
    """It is refused also before the first journal was begun."""
    journals = ClusterJournal(connection, namespace=f"test-{uuid.uuid4().hex}")
    assert journals.list_page(StoredKind.VOLUME).entries == ()
    with pytest.raises(StorageError, match="no page begins"):
        journals.list_page(StoredKind.VOLUME, token="nonsense")


def test_a_name_used_again_is_another_entry(open_journal: OpenJournal) -> None:
    """Who still has the old entry of a name in hand changes nothing of the new one."""
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
    """A controller that renews nothing holds nothing, once its lease has run out."""
    place = connection.open_pool(JOURNAL, f"test-{uuid.uuid4().hex}")
    dead, other = OmapJournal(place, lease=1), OmapJournal(place, lease=1)
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
    """A volume whose image tells when it is finished."""
    return structs.replace(volume(number), evident=True)


def test_many_are_recorded_together(open_journal: OpenJournal) -> None:
    """What is settled is written when the journal ends, but for what somebody changed meanwhile."""
    journal, other = open_journal(), open_journal()
    entries = [reserved(journal, evident(number)) for number in range(40)]
    for entry in entries:
        journal.mark_created(entry)
    deleting = other.change(entries[3], entries[3].as_deleting(other.name))
    other.forget(entries[4])
    journal.close()
    found = {entry.uuid: entry for entry in other.list_page(StoredKind.VOLUME).entries}
    assert found.pop(entries[3].uuid) == deleting
    assert len(found) == 38
    assert {entry.state for entry in found.values()} == {EntryState.CREATED}


def test_a_lock_may_end_a_second_early() -> None:
    """What is relied upon of a lease leaves more than a second, however short the lease."""
    assert [reliable_seconds(seconds) for seconds in (1, 2, 4, 15)] == [-0.5, 0.5, 2.5, 11.25]


@pytest.mark.parametrize("back", [False, True])
def test_who_was_taken_for_dead_settles_nothing(connection: CephConnection, back: bool) -> None:
    """A controller that was too slow is told so, also when it has shown itself again since."""
    place = connection.open_pool(JOURNAL, f"test-{uuid.uuid4().hex}")
    slow, other = OmapJournal(place, lease=3), OmapJournal(place, lease=3)
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
