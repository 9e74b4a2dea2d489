"""The journal in RADOS: the contract that every journal keeps, on a real Ceph."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from msgspec import structs
from tests.csi.journal_contract import JournalContract, OpenJournal, reserved, uuid_of, volume
from tools.ceph.cluster import JOURNAL, CephCluster

from zonewise.csi.backends.ceph.connection import Ceph
from zonewise.csi.backends.ceph.journals.lease import relied_upon
from zonewise.csi.backends.ceph.journals.omap import OmapJournal
from zonewise.csi.backends.ceph.journals.pools import JournalPools
from zonewise.storage import CephCluster as Configured
from zonewise.storage import EntryState, Holder, JournalConflict, JournalEntry, Stored
from zonewise.storage.errors import StorageError

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture
def connection(ceph: CephCluster) -> Iterator[Ceph]:
    """The driver's own connection."""
    (one,) = ceph.clusters()
    made = Ceph(Configured(one["clusterID"], tuple(one["monitors"]), one["user"], one["keyFile"]))
    yield made
    made.close()


@pytest.fixture
def open_journal(connection: Ceph) -> Iterator[OpenJournal]:
    """Opens one more journal in the same, new place."""
    place = f"test-{uuid.uuid4().hex}"
    opened: list[OmapJournal] = []

    def another() -> OmapJournal:
        opened.append(OmapJournal(connection.pool(JOURNAL, place), lease=3))
        return opened[-1]

    yield another
    for journal in opened:
        journal.close()


class TestOmapJournal(JournalContract):
    """The contract."""


def test_a_token_that_is_none(connection: Ceph) -> None:
    """It is refused also before the first journal was begun."""
    journals = JournalPools(connection, namespace=f"test-{uuid.uuid4().hex}")
    assert journals.page(Stored.VOLUME).entries == ()
    with pytest.raises(StorageError, match="no page begins"):
        journals.page(Stored.VOLUME, token="nonsense")


def test_a_name_used_again_is_another_entry(open_journal: OpenJournal) -> None:
    """Who still has the old entry of a name in hand changes nothing of the new one."""
    journal = open_journal()
    old = reserved(journal, volume(1, "data"))
    journal.forget(old)
    new = reserved(journal, volume(2, "data"))
    assert old.revision == new.revision
    with pytest.raises(JournalConflict):
        journal.change(old, old.created())
    journal.forget(old)
    assert journal.find(Stored.VOLUME, "data") == new
    assert journal.get(Stored.VOLUME, uuid_of(1)) is None


def test_a_journal_that_dies_is_free_after_its_lease(connection: Ceph) -> None:
    """A controller that renews nothing holds nothing, once its lease has run out."""
    place = connection.pool(JOURNAL, f"test-{uuid.uuid4().hex}")
    dead, other = OmapJournal(place, lease=1), OmapJournal(place, lease=1)
    entry = reserved(dead, volume(1))
    assert other.holder(entry) is Holder.OTHER
    dead._lease.stop()
    try:
        while other.holder(entry) is Holder.OTHER:
            pass
        assert other.change(entry, entry.held_by(other.name)).holder == other.name
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
        journal.settle(entry)
    deleting = other.change(entries[3], entries[3].deleting(other.name))
    other.forget(entries[4])
    journal.close()
    found = {entry.uuid: entry for entry in other.page(Stored.VOLUME).entries}
    assert found.pop(entries[3].uuid) == deleting
    assert len(found) == 38
    assert {entry.state for entry in found.values()} == {EntryState.CREATED}


def test_a_lock_may_end_a_second_early() -> None:
    """What is relied upon of a lease leaves more than a second, however short the lease."""
    assert [relied_upon(seconds) for seconds in (1, 2, 4, 15)] == [-0.5, 0.5, 2.5, 11.25]


@pytest.mark.parametrize("back", [False, True])
def test_who_was_taken_for_dead_settles_nothing(connection: Ceph, back: bool) -> None:
    """A controller that was too slow is told so, also when it has shown itself again since."""
    place = connection.pool(JOURNAL, f"test-{uuid.uuid4().hex}")
    slow, other = OmapJournal(place, lease=3), OmapJournal(place, lease=3)
    entry = reserved(slow, evident(1))
    slow._lease.stop()
    try:
        while other.holder(entry) is Holder.OTHER:
            pass
        other.forget(other.change(entry, entry.deleting(other.name)))
        if back:
            slow._lease._renew()
        with pytest.raises(JournalConflict):
            slow.settle(entry)
    finally:
        slow.close()
        other.close()
