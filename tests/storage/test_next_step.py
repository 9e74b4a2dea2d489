"""What a request does next: every crash point converges to one volume and one entry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs
from tests.csi.journal_contract import uuid_of

from zonewise.storage import (
    CsiCode,
    EntryState,
    Holder,
    Image,
    JournalEntry,
    NextStep,
    Step,
    Stored,
    StoredRequest,
    compare,
    next_for_create,
    next_for_delete,
    proven,
)

ENTRY = JournalEntry(
    stored=Stored.VOLUME,
    uuid=uuid_of(1),
    name="pvc-1",
    pool="a",
    segments={"zone": "a"},
    pinned=True,
    bytes=100,
    access="ext4",
    parameters="d",
    holder="controller-1",
)
EVIDENT = structs.replace(ENTRY, evident=True)
CREATED, DELETING = ENTRY.created(), ENTRY.deleting("controller-1")
IMAGE = Image("a", ENTRY.uuid, 100)
ASKED = StoredRequest("pvc-1", required=100, access="ext4", parameters="d")


def after(
    entry: JournalEntry | None,
    image: Image | None = None,
    asked: StoredRequest = ASKED,
    holder: Holder = Holder.NOBODY,
    fits: bool = True,
) -> NextStep:
    """What a create does next."""
    return next_for_create(asked, entry, image, holder=holder, fits=fits)


@pytest.mark.parametrize("holder", [Holder.OURS, Holder.NOBODY])
@pytest.mark.parametrize(
    ("entry", "image", "fits", "step"),
    [
        (None, None, True, Step.RESERVE),
        (ENTRY, None, True, Step.MAKE),
        (ENTRY, None, False, Step.UNDO),
        (ENTRY, IMAGE, True, Step.FINISH),
        (ENTRY, IMAGE, False, Step.UNDO),
        (ENTRY, replace(IMAGE, complete=False), True, Step.REMAKE),
        (ENTRY, replace(IMAGE, bytes=99), True, Step.REMAKE),
        (ENTRY, replace(IMAGE, complete=False), False, Step.UNDO),
        (ENTRY, replace(IMAGE, ours=False), True, Step.RENAME),
        (ENTRY, replace(IMAGE, ours=False), False, Step.RENAME),
        (CREATED, IMAGE, True, Step.ANSWER),
        (DELETING, None, True, Step.UNDO),
        (DELETING, IMAGE, True, Step.UNDO),
    ],
)
def test_create(
    entry: JournalEntry | None, image: Image | None, fits: bool, step: Step, holder: Holder
) -> None:
    """The table of crash points, whether we were it who crashed or nobody lives who was."""
    assert after(entry, image, holder=holder, fits=fits) == NextStep(step)


@pytest.mark.parametrize("entry", [ENTRY, DELETING])
def test_somebody_works_on_it(entry: JournalEntry) -> None:
    """What a living controller works on is never stolen: the same again, later."""
    for got in (
        after(entry, IMAGE, holder=Holder.OTHER),
        next_for_delete(entry, holder=Holder.OTHER),
    ):
        assert got.refusal is not None
        assert (got.step, got.refusal.code) == (Step.REFUSE, CsiCode.ABORTED)
        assert "controller-1" in got.refusal.reason.message


@pytest.mark.parametrize(
    ("asked", "fits", "said"),
    [
        (replace(ASKED, required=101), True, "it has 100 bytes, at least 101 bytes are asked for"),
        (replace(ASKED, required=0, limit=99), True, "it has 100 bytes, at most 99 bytes"),
        (replace(ASKED, parameters="e"), True, "it was made with other parameters"),
        (replace(ASKED, source="snap-1"), True, "it was made empty, snap-1 is asked for"),
        (replace(ASKED, access="block"), True, "it is for ext4, block is asked for"),
        (ASKED, False, "it can be used from zone a only, which is not asked for"),
    ],
)
def test_the_name_is_taken(asked: StoredRequest, fits: bool, said: str) -> None:
    """A finished volume that is not what is asked for is refused with what differs."""
    got = after(CREATED, IMAGE, asked, fits=fits)
    assert got.refusal is not None
    assert got.refusal.code is CsiCode.ALREADY_EXISTS
    assert said in got.refusal.reason.message


def test_nobody_was_told_of_a_reservation() -> None:
    """What is only reserved and does not suit is undone: nobody else could ever delete it."""
    assert after(ENTRY, IMAGE, replace(ASKED, required=101)).step is Step.UNDO


@pytest.mark.parametrize("holder", Holder)
def test_a_complete_image_may_have_been_answered_for(holder: Holder) -> None:
    """Where images tell, a reserved volume with its image is kept, whoever holds it."""
    assert proven(EVIDENT, IMAGE)
    assert after(EVIDENT, IMAGE, holder=holder).step is Step.FINISH
    for asked, fits in ((replace(ASKED, required=101), True), (ASKED, False)):
        got = after(EVIDENT, IMAGE, asked, holder, fits)
        assert got.refusal is not None
        assert got.refusal.code is CsiCode.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("image", "fits", "step"),
    [
        (None, True, Step.MAKE),
        (None, False, Step.UNDO),
        (replace(IMAGE, complete=False), True, Step.REMAKE),
        (replace(IMAGE, complete=False), False, Step.UNDO),
        (replace(IMAGE, bytes=99), True, Step.REMAKE),
        (replace(IMAGE, ours=False), True, Step.RENAME),
    ],
)
def test_nobody_was_told_of_an_image_that_is_not_complete(
    image: Image | None, fits: bool, step: Step
) -> None:
    """Where images tell, what is half made is made again or undone, unless its holder lives."""
    assert not proven(EVIDENT, image)
    assert after(EVIDENT, image, fits=fits).step is step
    assert after(EVIDENT, image, fits=fits, holder=Holder.OTHER).step is Step.REFUSE


@pytest.mark.parametrize(
    "asked", [replace(ASKED, required=0), replace(ASKED, required=1, limit=100)]
)
def test_sizes_that_agree(asked: StoredRequest) -> None:
    """A volume within the range that is asked for is the one."""
    assert after(CREATED, IMAGE, asked).step is Step.ANSWER


@pytest.mark.parametrize("image", [None, replace(IMAGE, ours=False)])
def test_lost_data_is_told(image: Image | None) -> None:
    """A volume whose image is gone, or became another's, is not quietly replaced by a new one."""
    got = after(CREATED, image)
    assert got.refusal is not None
    assert (got.refusal.code, got.refusal.reason.code) == (CsiCode.INTERNAL, "ImageMissing")


def test_delete() -> None:
    """What is not there is deleted; anything else is removed, wherever it got stuck."""
    assert next_for_delete(None, holder=Holder.NOBODY).step is Step.ANSWER
    for entry in (ENTRY, CREATED, DELETING):
        assert next_for_delete(entry, holder=Holder.NOBODY).step is Step.REMOVE


def test_orphans() -> None:
    """Images without an entry, or not made by us, and entries without an image are found."""
    lost = structs.replace(CREATED, uuid=uuid_of(2))
    half = structs.replace(ENTRY, uuid=uuid_of(3))
    elsewhere, unknown = Image("b", ENTRY.uuid, 1), Image("a", uuid_of(9), 1)
    snap = Image("a", ENTRY.uuid, 1, Stored.SNAPSHOT)
    got = compare([half, lost, CREATED], [unknown, IMAGE, elsewhere, snap])
    assert got.orphans == (snap, unknown, elsewhere)
    assert got.missing == (lost,)
    assert got.unfinished == (half,)
    assert not got.agrees
    assert compare([CREATED], [IMAGE]).agrees


@dataclass
class World:
    """A journal and pools in memory, and a controller that may die before any write."""

    entries: dict[str, JournalEntry] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    drawn: int = 0
    evident: bool = False

    def create(self, asked: StoredRequest, pool: str, domains: set[str]) -> Iterator[str]:
        """Create as the steps say; yields before every write, and the uuid at last.

        Where images tell, the answer comes before the last write.
        """
        while True:
            entry = self.entries.get(asked.name)
            image = self.images.get(entry.uuid) if entry else None
            fits = entry is None or entry.pool in domains
            got = after(entry, image, asked, Holder.NOBODY, fits)
            if got.step is Step.RESERVE:
                self.drawn += 1
                made = structs.replace(ENTRY, uuid=uuid_of(self.drawn), name=asked.name, pool=pool)
                made = structs.replace(made, evident=self.evident)
                yield ""
                self.entries[asked.name] = made
            elif entry is None:
                raise AssertionError(got)
            elif got.step in (Step.MAKE, Step.REMAKE):
                yield ""
                self.images[entry.uuid] = Image(entry.pool, entry.uuid, 100, complete=False)
                yield ""
                self.images[entry.uuid] = Image(entry.pool, entry.uuid, 100)
                if self.evident:
                    yield entry.uuid
            elif got.step is Step.FINISH:
                yield ""
                self.entries[asked.name] = entry.created()
            elif got.step is Step.UNDO:
                yield from self._remove(entry)
            elif got.step is Step.RENAME:
                yield ""
                del self.entries[asked.name]
            else:
                assert got.step is Step.ANSWER, got
                yield entry.uuid
                return

    def delete(self, name: str) -> Iterator[str]:
        """Delete as the steps say."""
        entry = self.entries.get(name)
        if next_for_delete(entry, holder=Holder.NOBODY).step is Step.REMOVE:
            assert entry is not None
            yield from self._remove(entry)

    def _remove(self, entry: JournalEntry) -> Iterator[str]:
        yield ""
        self.entries[entry.name] = entry.deleting("x")
        yield ""
        if entry.uuid in self.images and self.images[entry.uuid].ours:
            del self.images[entry.uuid]
        yield ""
        del self.entries[entry.name]


@pytest.mark.parametrize("seed", range(200))
def test_killed_anywhere(seed: int) -> None:
    """Controllers that die before any write, with preferences that rotate, leave one volume."""
    rng = random.Random(seed)
    world = World()
    # Somebody else's images have uuids that will be drawn.
    for number in rng.sample(range(1, 6), 2):
        world.images[uuid_of(number)] = Image("a", uuid_of(number), 5, ours=False)
    names = ["pvc-1", "pvc-2"]
    for _ in range(30):
        name = rng.choice(names)
        asked = StoredRequest(name, required=100, access="ext4", parameters="d")
        if rng.random() < 0.3 and name in world.entries:
            work = world.delete(name)
        elif name in world.entries and world.entries[name].state is EntryState.CREATED:
            continue
        else:
            pool = rng.choice("abc")
            work = world.create(asked, pool, {pool, *rng.sample("abc", 1)})
        for _, _ in zip(range(rng.randint(1, 6)), work, strict=False):
            pass
    for name in names:
        asked = StoredRequest(name, required=100, access="ext4", parameters="d")
        pool = world.entries[name].pool if name in world.entries else "a"
        (*_, uuid) = world.create(asked, pool, {"a", "b", "c"})
        assert world.entries[name].uuid == uuid
    ours = [image for image in world.images.values() if image.ours]
    assert {image.uuid for image in ours} == {entry.uuid for entry in world.entries.values()}
    assert len(world.images) == 4
    for name in names:
        for _ in world.delete(name):
            pass
    assert world.entries == {}
    assert not any(image.ours for image in world.images.values())


@pytest.mark.parametrize("seed", range(200))
def test_what_was_answered_stays(seed: int) -> None:
    """Where images tell, killed before any write: a name keeps the id that a caller was told."""
    rng = random.Random(seed)
    world = World(evident=True)
    told: dict[str, str] = {}
    for _ in range(40):
        name = rng.choice(["pvc-1", "pvc-2"])
        asked = StoredRequest(name, required=100, access="ext4", parameters="d")
        pool = rng.choice("abc")
        domains = {pool, *rng.sample("abc", 1)}
        if name in told and world.entries[name].pool not in domains:
            entry = world.entries[name]
            got = after(entry, world.images[entry.uuid], asked, fits=False)
            assert got.refusal is not None
            assert got.refusal.code is CsiCode.ALREADY_EXISTS
            continue
        if name in told and rng.random() < 0.2:
            for _ in world.delete(name):
                pass
            del told[name]
            continue
        for _, answer in zip(
            range(rng.randint(1, 8)), world.create(asked, pool, domains), strict=False
        ):
            if answer:
                assert told.setdefault(name, answer) == answer
    for name, uuid in told.items():
        assert world.entries[name].uuid == uuid
        assert world.images[uuid].complete
