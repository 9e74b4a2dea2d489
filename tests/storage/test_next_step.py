"""The next step of a request: every crash point converges to one volume and one entry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs
from tests.csi.journal_contract import uuid_of

from zonewise.storage.errors import CsiCode
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState, Holder, Image, JournalEntry
from zonewise.storage.next_step import (
    CreateRequest,
    NextStep,
    Step,
    compare,
    is_proven,
    next_create_step,
    next_delete_step,
)

ENTRY = JournalEntry(
    kind=StoredKind.VOLUME,
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
CREATED, DELETING = ENTRY.as_created(), ENTRY.as_deleting("controller-1")
IMAGE = Image("a", ENTRY.uuid, 100)
REQUEST = CreateRequest("pvc-1", required_bytes=100, access="ext4", parameters="d")


def after(
    entry: JournalEntry | None,
    image: Image | None = None,
    request: CreateRequest = REQUEST,
    holder: Holder = Holder.NOBODY,
    fits: bool = True,
) -> NextStep:
    """The next step of a create."""
    return next_create_step(request, entry, image, holder=holder, fits=fits)


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
    """A create continues by the table of crash points, whether we or a controller that is gone
    crashed.
    """
    assert after(entry, image, holder=holder, fits=fits) == NextStep(step)


@pytest.mark.parametrize("entry", [ENTRY, DELETING])
def test_work_of_a_living_controller_is_not_stolen(entry: JournalEntry) -> None:
    """A request for something that a living controller works on is tried again later."""
    for got in (
        after(entry, IMAGE, holder=Holder.OTHER),
        next_delete_step(entry, holder=Holder.OTHER),
    ):
        assert got.refusal is not None
        assert (got.step, got.refusal.code) == (Step.REFUSE, CsiCode.ABORTED)
        assert "controller-1" in got.refusal.reason.message


@pytest.mark.parametrize(
    ("repeated", "fits", "message"),
    [
        (
            replace(REQUEST, required_bytes=101),
            True,
            "it has 100 bytes, at least 101 bytes are requested",
        ),
        (
            replace(REQUEST, required_bytes=0, limit_bytes=99),
            True,
            "it has 100 bytes, at most 99 bytes",
        ),
        (replace(REQUEST, parameters="e"), True, "it was made with other parameters"),
        (replace(REQUEST, source="snap-1"), True, "it was made empty, snap-1 is requested"),
        (replace(REQUEST, access="block"), True, "it is for ext4, block is requested"),
        (REQUEST, False, "it can be used from zone a only, which was not requested"),
    ],
)
def test_the_name_is_taken(repeated: CreateRequest, fits: bool, message: str) -> None:
    """A finished volume that differs from the request is refused with what differs."""
    got = after(CREATED, IMAGE, repeated, fits=fits)
    assert got.refusal is not None
    assert got.refusal.code is CsiCode.ALREADY_EXISTS
    assert message in got.refusal.reason.message


def test_an_unanswered_reservation_is_undone() -> None:
    """A reservation that does not fit is undone, because no caller can delete it."""
    assert after(ENTRY, IMAGE, replace(REQUEST, required_bytes=101)).step is Step.UNDO


@pytest.mark.parametrize("holder", Holder)
def test_a_complete_image_may_have_been_answered_for(holder: Holder) -> None:
    """If images count, a reserved volume with its image stays, whoever holds it."""
    assert is_proven(EVIDENT, IMAGE)
    assert after(EVIDENT, IMAGE, holder=holder).step is Step.FINISH
    for request, fits in ((replace(REQUEST, required_bytes=101), True), (REQUEST, False)):
        got = after(EVIDENT, IMAGE, request, holder, fits)
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
def test_an_incomplete_image_is_made_again_or_undone(
    image: Image | None, fits: bool, step: Step
) -> None:
    """If images count, an incomplete image was not answered for, unless its holder is alive."""
    assert not is_proven(EVIDENT, image)
    assert after(EVIDENT, image, fits=fits).step is step
    assert after(EVIDENT, image, fits=fits, holder=Holder.OTHER).step is Step.REFUSE


@pytest.mark.parametrize(
    "repeated",
    [replace(REQUEST, required_bytes=0), replace(REQUEST, required_bytes=1, limit_bytes=100)],
)
def test_sizes_that_agree(repeated: CreateRequest) -> None:
    """A volume within the requested range fits."""
    assert after(CREATED, IMAGE, repeated).step is Step.ANSWER


@pytest.mark.parametrize("image", [None, replace(IMAGE, ours=False)])
def test_lost_data_is_reported(image: Image | None) -> None:
    """A volume whose image is gone, or is another's, is not silently replaced."""
    got = after(CREATED, image)
    assert got.refusal is not None
    assert (got.refusal.code, got.refusal.reason.code) == (CsiCode.INTERNAL, "ImageMissing")


def test_delete() -> None:
    """A volume that does not exist counts as deleted; any other is removed, whatever its state."""
    assert next_delete_step(None, holder=Holder.NOBODY).step is Step.ANSWER
    for entry in (ENTRY, CREATED, DELETING):
        assert next_delete_step(entry, holder=Holder.NOBODY).step is Step.REMOVE


def test_orphans() -> None:
    """Images without an entry, or not made by us, and entries without an image are listed."""
    lost = structs.replace(CREATED, uuid=uuid_of(2))
    half = structs.replace(ENTRY, uuid=uuid_of(3))
    elsewhere, unknown = Image("b", ENTRY.uuid, 1), Image("a", uuid_of(9), 1)
    snap = Image("a", ENTRY.uuid, 1, StoredKind.SNAPSHOT)
    got = compare([half, lost, CREATED], [unknown, IMAGE, elsewhere, snap])
    assert got.orphans == (snap, unknown, elsewhere)
    assert got.missing == (lost,)
    assert got.unfinished == (half,)
    assert not got.agrees
    assert compare([CREATED], [IMAGE]).agrees


@dataclass
class World:
    """A journal and pools in memory, and a controller that may crash before any write."""

    entries: dict[str, JournalEntry] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    drawn: int = 0
    evident: bool = False

    def create(self, request: CreateRequest, pool: str, domains: set[str]) -> Iterator[str]:
        """Create by the steps; yields before every write, and the uuid at the end.

        If images count, the answer comes before the last write.
        """
        while True:
            entry = self.entries.get(request.name)
            image = self.images.get(entry.uuid) if entry else None
            fits = entry is None or entry.pool in domains
            got = after(entry, image, request, Holder.NOBODY, fits)
            if got.step is Step.RESERVE:
                self.drawn += 1
                created = structs.replace(
                    ENTRY, uuid=uuid_of(self.drawn), name=request.name, pool=pool
                )
                created = structs.replace(created, evident=self.evident)
                yield ""
                self.entries[request.name] = created
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
                self.entries[request.name] = entry.as_created()
            elif got.step is Step.UNDO:
                yield from self._remove(entry)
            elif got.step is Step.RENAME:
                yield ""
                del self.entries[request.name]
            else:
                assert got.step is Step.ANSWER, got
                yield entry.uuid
                return

    def delete(self, name: str) -> Iterator[str]:
        """Delete by the steps."""
        entry = self.entries.get(name)
        if next_delete_step(entry, holder=Holder.NOBODY).step is Step.REMOVE:
            assert entry is not None
            yield from self._remove(entry)

    def _remove(self, entry: JournalEntry) -> Iterator[str]:
        yield ""
        self.entries[entry.name] = entry.as_deleting("x")
        yield ""
        if entry.uuid in self.images and self.images[entry.uuid].ours:
            del self.images[entry.uuid]
        yield ""
        del self.entries[entry.name]


@pytest.mark.parametrize("seed", range(200))
def test_killed_anywhere(seed: int) -> None:
    """Controllers that crash before any write, with rotating preferences, leave one volume."""
    rng = random.Random(seed)
    world = World()
    # Images of another owner have uuids that will be drawn.
    for number in rng.sample(range(1, 6), 2):
        world.images[uuid_of(number)] = Image("a", uuid_of(number), 5, ours=False)
    names = ["pvc-1", "pvc-2"]
    for _ in range(30):
        name = rng.choice(names)
        request = CreateRequest(name, required_bytes=100, access="ext4", parameters="d")
        if rng.random() < 0.3 and name in world.entries:
            work = world.delete(name)
        elif name in world.entries and world.entries[name].state is EntryState.CREATED:
            continue
        else:
            pool = rng.choice("abc")
            work = world.create(request, pool, {pool, *rng.sample("abc", 1)})
        for _, _ in zip(range(rng.randint(1, 6)), work, strict=False):
            pass
    for name in names:
        request = CreateRequest(name, required_bytes=100, access="ext4", parameters="d")
        pool = world.entries[name].pool if name in world.entries else "a"
        (*_, uuid) = world.create(request, pool, {"a", "b", "c"})
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
def test_answered_ids_stay(seed: int) -> None:
    """If images count, after a crash before any write a name keeps the id that was answered."""
    rng = random.Random(seed)
    world = World(evident=True)
    answered: dict[str, str] = {}
    for _ in range(40):
        name = rng.choice(["pvc-1", "pvc-2"])
        request = CreateRequest(name, required_bytes=100, access="ext4", parameters="d")
        pool = rng.choice("abc")
        domains = {pool, *rng.sample("abc", 1)}
        if name in answered and world.entries[name].pool not in domains:
            entry = world.entries[name]
            got = after(entry, world.images[entry.uuid], request, fits=False)
            assert got.refusal is not None
            assert got.refusal.code is CsiCode.ALREADY_EXISTS
            continue
        if name in answered and rng.random() < 0.2:
            for _ in world.delete(name):
                pass
            del answered[name]
            continue
        for _, answer in zip(
            range(rng.randint(1, 8)), world.create(request, pool, domains), strict=False
        ):
            if answer:
                assert answered.setdefault(name, answer) == answer
    for name, uuid in answered.items():
        assert world.entries[name].uuid == uuid
        assert world.images[uuid].complete
