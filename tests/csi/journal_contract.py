"""What every journal does, wherever it is stored.

To test a journal, derive a class ``Test…`` from ``JournalContract`` and define the fixture
``open_journal``, which opens one more journal on the same store, as another controller would.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import UUID

import pytest
from msgspec import structs

from zonewise.storage.errors import CsiCode, StorageError
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState, Holder, Journal, JournalConflict, JournalEntry

OpenJournal = Callable[[], Journal]
ROOM = 1000


def uuid_of(number: int) -> str:
    """A uuid that is easy to read."""
    return UUID(int=number).hex


def volume(number: int, name: str = "", size: int = 10, pool: str = "a") -> JournalEntry:
    """A volume that is to be reserved."""
    return JournalEntry(
        kind=StoredKind.VOLUME,
        uuid=uuid_of(number),
        name=name or f"pvc-{number}",
        pool=pool,
        bytes=size,
        segments={"zone": pool},
        pinned=True,
        access="ext4",
        parameters="d1",
        created_at=7,
        attributes={"fsName": "x"},
    )


def snapshot(number: int, source: str, size: int = 0) -> JournalEntry:
    """A snapshot that is to be reserved."""
    return JournalEntry(
        kind=StoredKind.SNAPSHOT,
        uuid=uuid_of(number),
        name=f"snap-{number}",
        pool="a",
        bytes=size,
        source=source,
    )


def reserved(journal: Journal, entry: JournalEntry, room: int | None = ROOM) -> JournalEntry:
    """Reserve an entry; returns it as stored."""
    stored = journal.reserve(entry, room).entry
    assert stored is not None
    return stored


class JournalContract:
    """The tests."""

    def test_the_states_of_an_entry(self, open_journal: OpenJournal) -> None:
        """An entry is reserved, created, deleted and gone, and found by name and uuid meanwhile."""
        journal = open_journal()
        entry = reserved(journal, volume(1))
        assert entry.state is EntryState.RESERVED
        assert entry.holder == journal.name
        assert (
            journal.find(StoredKind.VOLUME, "pvc-1")
            == entry
            == journal.get(StoredKind.VOLUME, entry.uuid)
        )
        created = journal.change(entry, entry.as_created())
        assert journal.find(StoredKind.VOLUME, "pvc-1") == created
        assert (created.state, created.holder) == (EntryState.CREATED, "")
        assert created.attributes == {"fsName": "x"}
        assert created.pinned_to == {"zone": "a"}
        deleting = journal.change(created, created.as_deleting(journal.name))
        assert journal.promised_bytes() == {"a": 10}
        journal.forget(deleting)
        assert journal.find(StoredKind.VOLUME, "pvc-1") is None
        assert journal.get(StoredKind.VOLUME, entry.uuid) is None
        assert journal.promised_bytes() == {}

    def test_mark_created(self, open_journal: OpenJournal) -> None:
        """A marked entry reads as created here, and from then on for other journals, too.

        Whether its image shows that it is finished makes no difference.
        """
        journal, other = open_journal(), open_journal()
        for number, evident in ((1, False), (2, True), (3, True)):
            entry = reserved(journal, structs.replace(volume(number), evident=evident))
            assert journal.mark_created(entry).state is EntryState.CREATED
        stored = journal.get(StoredKind.VOLUME, uuid_of(2))
        assert stored is not None
        assert stored.state is EntryState.CREATED
        assert other.find(StoredKind.VOLUME, "pvc-2") == stored
        assert (
            journal.list_page(StoredKind.VOLUME, states=frozenset({EntryState.RESERVED})).entries
            == ()
        )
        listed = other.list_page(StoredKind.VOLUME).entries
        assert [entry.state for entry in listed] == [EntryState.CREATED] * 3

    def test_marking_needs_the_newest(self, open_journal: OpenJournal) -> None:
        """An entry that another controller removed is not restored."""
        journal, other = open_journal(), open_journal()
        for evident in (False, True):
            entry = reserved(journal, structs.replace(volume(1), evident=evident))
            other.forget(entry)
            with suppress(JournalConflict):
                journal.mark_created(entry)
            assert journal.find(StoredKind.VOLUME, "pvc-1") is None
            assert journal.list_page(StoredKind.VOLUME).entries == ()

    def test_a_name_is_taken_once(self, open_journal: OpenJournal) -> None:
        """Reserving a taken name returns its entry and promises no bytes."""
        journal, other = open_journal(), open_journal()
        first = reserved(journal, volume(1, "data"))
        answer = other.reserve(volume(2, "data", pool="b"), ROOM)
        assert (answer.entry, answer.existing) == (None, first)
        assert other.promised_bytes() == {"a": 10}

    def test_a_uuid_is_taken_once(self, open_journal: OpenJournal) -> None:
        """A uuid that was drawn before is refused, so that no image is overwritten."""
        journal = open_journal()
        first = reserved(journal, volume(1, "x"))
        assert journal.reserve(volume(1, "y"), ROOM).existing == first

    def test_volumes_and_snapshots_have_names_of_their_own(self, open_journal: OpenJournal) -> None:
        """A snapshot may be called as a volume is."""
        journal = open_journal()
        reserved(journal, volume(1, "same"))
        taken = JournalEntry(
            kind=StoredKind.SNAPSHOT, uuid=uuid_of(1), name="same", pool="a", bytes=0, source="v"
        )
        reserved(journal, taken)
        entry = journal.find(StoredKind.SNAPSHOT, "same")
        assert entry is not None
        assert entry.kind is StoredKind.SNAPSHOT

    def test_another_journal_reads_what_was_written(self, open_journal: OpenJournal) -> None:
        """A change that was acknowledged is seen by another journal at once."""
        journal, other = open_journal(), open_journal()
        entry = reserved(journal, volume(1))
        assert other.find(StoredKind.VOLUME, "pvc-1") == entry
        changed = other.change(entry, entry.as_created())
        assert journal.get(StoredKind.VOLUME, entry.uuid) == changed

    def test_a_change_needs_the_newest(self, open_journal: OpenJournal) -> None:
        """The second of two changes to a revision is a conflict and changes nothing."""
        journal, other = open_journal(), open_journal()
        entry = reserved(journal, volume(1))
        won = journal.change(entry, entry.as_created())
        with pytest.raises(JournalConflict):
            other.change(entry, entry.as_deleting(other.name))
        with pytest.raises(JournalConflict):
            other.forget(entry)
        assert other.get(StoredKind.VOLUME, entry.uuid) == won
        assert other.promised_bytes() == {"a": 10}

    def test_forgetting_twice(self, open_journal: OpenJournal) -> None:
        """Forgetting an entry twice is no error and gives the bytes back once; changing it is a
        conflict.
        """
        journal = open_journal()
        keep, entry = reserved(journal, volume(1)), reserved(journal, volume(2))
        journal.forget(entry)
        journal.forget(entry)
        assert journal.promised_bytes() == {"a": keep.bytes}
        with pytest.raises(JournalConflict):
            journal.change(entry, entry.as_created())

    def test_a_name_is_free_again(self, open_journal: OpenJournal) -> None:
        """After its entry is forgotten a name can be reserved, with another uuid and pool."""
        journal = open_journal()
        journal.forget(reserved(journal, volume(1, "data")))
        assert reserved(journal, volume(2, "data", pool="b")).pool == "b"

    def test_a_pool_is_never_overcommitted(self, open_journal: OpenJournal) -> None:
        """What does not fit is refused with the free bytes, and leaves nothing behind."""
        journal = open_journal()
        reserved(journal, volume(1, size=600))
        answer = journal.reserve(volume(2, size=401), ROOM)
        assert (answer.entry, answer.existing, answer.free_bytes) == (None, None, 400)
        assert journal.find(StoredKind.VOLUME, "pvc-2") is None
        assert journal.promised_bytes() == {"a": 600}
        reserved(journal, volume(3, size=400))
        assert journal.promised_bytes() == {"a": ROOM}
        reserved(journal, volume(4, size=600, pool="b"))

    def test_snapshots_take_room_too(self, open_journal: OpenJournal) -> None:
        """Bytes are promised for whatever is reserved."""
        journal = open_journal()
        reserved(journal, snapshot(1, "v", size=900))
        assert journal.reserve(volume(2, size=101), ROOM).free_bytes == 100

    def test_growing_takes_room(self, open_journal: OpenJournal) -> None:
        """A larger entry is accounted in the same step, or refused and stays as it was."""
        journal = open_journal()
        reserved(journal, volume(1, size=500))
        entry = journal.change(small := reserved(journal, volume(2, size=100)), small.as_created())
        grown = journal.change(entry, entry.with_bytes(500), ROOM)
        assert journal.promised_bytes() == {"a": ROOM}
        with pytest.raises(StorageError) as refused:
            journal.change(grown, grown.with_bytes(501), ROOM)
        assert refused.value.code is CsiCode.RESOURCE_EXHAUSTED
        assert refused.value.reason.numbers["free"] == 500
        assert journal.get(StoredKind.VOLUME, entry.uuid) == grown
        assert journal.promised_bytes() == {"a": ROOM}

    def test_the_holder(self, open_journal: OpenJournal) -> None:
        """An entry is ours, another's while that controller lives, and free afterwards."""
        journal, other = open_journal(), open_journal()
        entry = reserved(journal, volume(1))
        assert journal.holder_of(entry) is Holder.OURS
        assert other.holder_of(entry) is Holder.OTHER
        assert other.holder_of(entry.as_created()) is Holder.NOBODY
        journal.close()
        assert other.holder_of(entry) is Holder.NOBODY
        taken = other.change(entry, entry.with_holder(other.name))
        assert other.holder_of(taken) is Holder.OURS

    def test_one_of_many_wins(self, open_journal: OpenJournal) -> None:
        """Twenty concurrent reservations of a name from two controllers make one entry."""
        journals = [open_journal(), open_journal()]
        with ThreadPoolExecutor(20) as threads:
            answers = list(
                threads.map(
                    lambda number: journals[number % 2].reserve(volume(number, "one"), None),
                    range(1, 21),
                )
            )
        (won,) = [answer.entry for answer in answers if answer.entry is not None]
        existing = {answer.existing.uuid for answer in answers if answer.existing is not None}
        assert existing == {won.uuid}
        assert journals[0].promised_bytes() == {"a": 10}

    def test_racing_for_room(self, open_journal: OpenJournal) -> None:
        """Of many concurrent reservations exactly as many succeed as fit."""
        journals = [open_journal(), open_journal()]
        with ThreadPoolExecutor(20) as threads:
            answers = list(
                threads.map(
                    lambda number: journals[number % 2].reserve(volume(number, size=150), ROOM),
                    range(1, 21),
                )
            )
        assert sum(answer.entry is not None for answer in answers) == 6
        assert {answer.free_bytes for answer in answers if answer.entry is None} <= {100}
        assert journals[0].promised_bytes() == {"a": 900}

    def test_pages(self, open_journal: OpenJournal) -> None:
        """Pages are in the order of uuids, and the last one has no token."""
        journal = open_journal()
        for number in (5, 3, 1, 4, 2):
            reserved(journal, volume(number))
        first = journal.list_page(StoredKind.VOLUME, limit=2)
        assert [entry.name for entry in first.entries] == ["pvc-1", "pvc-2"]
        second = journal.list_page(StoredKind.VOLUME, token=first.token, limit=2)
        third = journal.list_page(StoredKind.VOLUME, token=second.token, limit=2)
        assert [entry.name for entry in third.entries] == ["pvc-5"]
        assert not third.token
        assert len(journal.list_page(StoredKind.VOLUME).entries) == 5
        whole = journal.list_page(StoredKind.VOLUME, limit=5)
        assert (len(whole.entries), whole.token) == (5, "")
        assert journal.list_page(StoredKind.SNAPSHOT).entries == ()

    def test_pages_are_stable(self, open_journal: OpenJournal) -> None:
        """An entry that exists all the time is listed once, whatever changes between pages."""
        journal = open_journal()
        entries = {number: reserved(journal, volume(number)) for number in range(10, 30)}
        seen: list[str] = []
        token, step = "", 0
        while True:
            page = journal.list_page(StoredKind.VOLUME, token=token, limit=3)
            seen += [entry.name for entry in page.entries]
            if not (token := page.token):
                break
            if (last := int(token, 16)) in entries:
                journal.forget(entries[last])  # the next page begins behind what is gone
            step += 1
            reserved(journal, volume(step))
            reserved(journal, volume(100 + step))
        assert [name for name in seen if 10 <= int(name[4:]) < 30] == [
            f"pvc-{number}" for number in range(10, 30)
        ]
        assert len(seen) == len(set(seen))

    def test_pages_by_source_and_state(self, open_journal: OpenJournal) -> None:
        """Pages can be limited to snapshots of a volume, and to created entries."""
        journal = open_journal()
        for number in range(1, 7):
            entry = reserved(journal, snapshot(number, f"vol-{number % 2}"))
            if number > 2:
                journal.change(entry, entry.as_created())
        odd = journal.list_page(StoredKind.SNAPSHOT, source="vol-1")
        assert [entry.name for entry in odd.entries] == ["snap-1", "snap-3", "snap-5"]
        done = frozenset({EntryState.CREATED})
        first = journal.list_page(StoredKind.SNAPSHOT, source="vol-1", states=done, limit=1)
        assert [entry.name for entry in first.entries] == ["snap-3"]
        rest = journal.list_page(
            StoredKind.SNAPSHOT, source="vol-1", states=done, token=first.token
        )
        assert [entry.name for entry in rest.entries] == ["snap-5"]
        assert journal.list_page(StoredKind.SNAPSHOT, source="unknown").entries == ()

    @pytest.mark.parametrize("token", ["invalid-token", "0", "F" * 32, "g" * 32, "0" * 33])
    def test_an_invalid_token(self, open_journal: OpenJournal, token: str) -> None:
        """A page with an invalid token is refused with ABORTED."""
        with pytest.raises(StorageError) as refused:
            open_journal().list_page(StoredKind.VOLUME, token=token)
        assert refused.value.code is CsiCode.ABORTED

    def test_strange_names(self, open_journal: OpenJournal) -> None:
        """Names are stored unchanged, with any characters."""
        journal = open_journal()
        names = ["x" * 128, "ä/ö", "a%b", "a_b", "' OR 1=1", "\n"]
        for number, name in enumerate(names, 1):
            reserved(journal, volume(number, name))
        for number, name in enumerate(names, 1):
            entry = journal.find(StoredKind.VOLUME, name)
            assert entry is not None
            assert (entry.uuid, entry.name) == (uuid_of(number), name)
