"""Damage: a bad byte, a torn tail or a lost file is refused with an error or harmless.

A start never returns fewer or other objects than were acknowledged. The images are what a killed
process leaves: one with commits in the write-ahead log, one with them in the database.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.embedded.apiserver.objects import put
from tests.embedded.apiserver.store.folders import SMALL, Stored, copy, fill, read_state, reopened

from zonewise.embedded.apiserver.store import wal
from zonewise.embedded.apiserver.store.folder import FolderDamaged
from zonewise.embedded.apiserver.store.layout import PAGE_SIZE, LayoutTooNew
from zonewise.embedded.apiserver.store.log import Log
from zonewise.embedded.apiserver.store.state import State

FRAME = 24 + PAGE_SIZE
DATABASE, WRITE_AHEAD, RECORD = "state.db", "state.db-wal", "acknowledged"


@dataclass(frozen=True)
class Image:
    """A folder after a crash, and the acknowledged content."""

    path: Path
    contents: Stored
    scratch: Path

    def opened(self, change: Callable[[Path], None]) -> Stored | FolderDamaged | LayoutTooNew:
        """The result of a restart on a changed copy; a refusal must leave every file unchanged."""
        path = copy(self.path, self.scratch)
        change(path)
        before = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "lock"}
        try:
            return asyncio.run(reopened(path))
        except (FolderDamaged, LayoutTooNew) as refusal:
            after = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "lock"}
            assert after == before, "a refusal changes nothing"
            assert isinstance(refusal, LayoutTooNew) or "Restore the whole folder" in str(refusal)
            return refusal


@pytest.fixture(scope="module")
def in_log(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Commits that are only in the write-ahead log."""
    path = tmp_path_factory.mktemp("log")

    async def run() -> Stored:
        state = State.open(path / "live", clock=time.monotonic, inline=True)
        await fill(state, 12)
        copy(path / "live", path / "image")
        contents = read_state(state)
        await state.close()
        return contents

    return Image(path / "image", asyncio.run(run()), path / "scratch")


@pytest.fixture(scope="module")
def in_database(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Commits and compacted objects that are in the database."""
    path = tmp_path_factory.mktemp("database")

    async def run() -> Stored:
        state = State.open(path / "live", clock=time.monotonic, limits=SMALL, inline=True)
        await fill(state, 25, size=3000)
        await state.close()
        again = State.open(path / "live", clock=time.monotonic, inline=True)
        copy(path / "live", path / "image")
        contents = read_state(again)
        await again.close()
        return contents

    image = Image(path / "image", asyncio.run(run()), path / "scratch")
    assert (image.path / WRITE_AHEAD).stat().st_size == 0
    return image


def flip(name: str, position: int, mask: int) -> Callable[[Path], None]:
    """Changes one byte of a file."""

    def change(path: Path) -> None:
        with (path / name).open("r+b") as file:
            file.seek(position)
            old = file.read(1)[0]
            file.seek(position)
            file.write(bytes([old ^ mask]))

    return change


def with_log(data: bytes) -> Callable[[Path], None]:
    """Puts another write-ahead log in place."""

    def change(path: Path) -> None:
        (path / WRITE_AHEAD).write_bytes(data)

    return change


def positions(size: int, number: int, special: list[int]) -> list[tuple[int, int]]:
    """Positions all over a file, some special ones, and what to do to the byte there."""
    rng = random.Random(size)
    places = special + [rng.randrange(size) for _ in range(number)]
    return [(position, 1 << rng.randrange(8)) for position in places]


def outcomes(image: Image, name: str, places: list[tuple[int, int]]) -> Counter[str]:
    """The results for an image with each of these bytes changed."""
    tally: Counter[str] = Counter()
    for position, mask in places:
        outcome = image.opened(flip(name, position, mask))
        if isinstance(outcome, Stored):
            assert outcome == image.contents, (
                f"other contents with bit {mask} of {position} changed"
            )
            tally["harmless"] += 1
        else:
            tally["refused"] += 1
    return tally


def test_images_are_whole(in_log: Image, in_database: Image) -> None:
    """Without damage both images start with everything that was acknowledged."""
    assert in_log.opened(lambda _: None) == in_log.contents
    assert in_database.opened(lambda _: None) == in_database.contents
    assert len(in_database.contents.objects) > 5


def test_a_bad_byte_anywhere_in_the_write_ahead_log_is_refused(in_log: Image) -> None:
    """Every byte of the log belongs to an acknowledged commit: none may change unnoticed."""
    size = (in_log.path / WRITE_AHEAD).stat().st_size
    headers = [32 + FRAME * number + byte for number in range(4) for byte in range(0, 24, 5)]
    last = [size - 1, size - PAGE_SIZE, size - FRAME + 5, size - FRAME + 10, size - FRAME + 17]
    tally = outcomes(in_log, WRITE_AHEAD, positions(size, 80, [*range(32), *headers, *last]))
    assert tally["harmless"] == 0
    assert tally["refused"] == 80 + 32 + 20 + 5


@pytest.mark.slow
def test_a_bad_byte_in_the_database_under_its_log_is_refused_or_harmless(in_log: Image) -> None:
    """Pages that the log is about to replace may be bad; anything else is noticed."""
    size = (in_log.path / DATABASE).stat().st_size
    outcomes(in_log, DATABASE, positions(size, 60, [*range(0, 100, 3)]))


@pytest.mark.slow
def test_a_bad_byte_anywhere_in_the_database_is_refused_or_harmless(in_database: Image) -> None:
    """Unused space may hold anything; every used byte is checked."""
    size = (in_database.path / DATABASE).stat().st_size
    tally = outcomes(in_database, DATABASE, positions(size, 200, [*range(100)]))
    assert tally["refused"] > 60


def test_a_bad_byte_in_the_record_of_acknowledgements_is_refused(in_log: Image) -> None:
    """The record of acknowledgements is checked, too: any bad byte in it is refused."""
    size = (in_log.path / RECORD).stat().st_size
    assert outcomes(in_log, RECORD, positions(size, 0, [*range(size)]))["harmless"] == 0


def test_a_zeroed_page_is_refused(in_database: Image) -> None:
    """A page that comes back empty, as after a lost write, is noticed wherever it is used."""
    pages = (in_database.path / DATABASE).stat().st_size // PAGE_SIZE
    refused = 0
    for page in range(pages):

        def change(path: Path, page: int = page) -> None:
            with (path / DATABASE).open("r+b") as file:
                file.seek(page * PAGE_SIZE)
                file.write(bytes(PAGE_SIZE))

        outcome = in_database.opened(change)
        if isinstance(outcome, Stored):
            assert outcome == in_database.contents
        else:
            refused += 1
    assert refused > pages // 2


@pytest.mark.parametrize("name", [DATABASE, WRITE_AHEAD])
def test_a_file_that_is_gone_or_empty_is_noticed(in_log: Image, name: str) -> None:
    """Neither a missing nor an emptied file reads as an empty cluster."""

    def empty(path: Path) -> None:
        (path / name).write_bytes(b"")

    assert isinstance(in_log.opened(lambda path: (path / name).unlink()), FolderDamaged)
    assert isinstance(in_log.opened(empty), FolderDamaged)


def test_a_log_without_its_database_is_refused(in_log: Image) -> None:
    """A write-ahead log is never replayed into a new database."""

    def change(path: Path) -> None:
        (path / DATABASE).unlink()
        (path / RECORD).unlink()

    assert "its write-ahead log is there" in str(in_log.opened(change))


def test_a_cut_log_is_noticed(in_log: Image) -> None:
    """A log that lost acknowledged commits at its end is refused, however neatly it was cut."""
    size = (in_log.path / WRITE_AHEAD).stat().st_size
    for length in [*range(32, size, FRAME), 5, 31, 33, size - 1, size - PAGE_SIZE]:

        def change(path: Path, length: int = length) -> None:
            with (path / WRITE_AHEAD).open("r+b") as file:
                file.truncate(length)

        outcome = in_log.opened(change)
        assert isinstance(outcome, FolderDamaged), length
        assert "was acknowledged" in str(outcome)


def test_an_older_copy_of_the_database_is_noticed(tmp_path: Path) -> None:
    """An older database beside the other current files is refused."""

    async def run() -> None:
        state = State.open(tmp_path / "data", clock=time.monotonic)
        await fill(state, 3)
        await state.close()
        shutil.copy(tmp_path / "data" / DATABASE, tmp_path / "yesterday")
        state = State.open(tmp_path / "data", clock=time.monotonic)
        await fill(state, 3, seed=1)
        await state.close()

    asyncio.run(run())
    shutil.copy(tmp_path / "yesterday", tmp_path / "data" / DATABASE)
    with pytest.raises(FolderDamaged, match="ends at version 10, and 19 was acknowledged"):
        Log.open(tmp_path / "data")


def test_a_folder_without_its_record_is_refused_until_its_owner_accepts_it(in_log: Image) -> None:
    """Without its record a folder may have lost its last writes; it is refused until its owner
    accepts it.
    """

    def gone(path: Path) -> None:
        (path / RECORD).unlink()

    refusal = in_log.opened(gone)
    assert isinstance(refusal, FolderDamaged)
    assert f"echo accept > {in_log.scratch}" in str(refusal)

    def accepted(path: Path) -> None:
        (path / RECORD).write_text("accept\n")

    assert in_log.opened(accepted) == in_log.contents


def test_an_empty_cluster_needs_no_record(tmp_path: Path) -> None:
    """A process killed before the first write has lost nothing."""
    asyncio.run(State.open(tmp_path, clock=time.monotonic).close())
    (tmp_path / RECORD).unlink()
    state = State.open(tmp_path, clock=time.monotonic)
    assert list(state.kinds()) == []
    asyncio.run(state.close())


def test_without_the_record_the_log_itself_tells_damage_from_a_tear(in_log: Image) -> None:
    """A bad frame with commits after it is damage, also without the record."""
    frames = ((in_log.path / WRITE_AHEAD).stat().st_size - 32) // FRAME

    def broken(frame: int) -> Callable[[Path], None]:
        def change(path: Path) -> None:
            (path / RECORD).write_text("accept\n")
            flip(WRITE_AHEAD, 32 + frame * FRAME + 100, 4)(path)

        return change

    refusals = [isinstance(in_log.opened(broken(frame)), FolderDamaged) for frame in range(frames)]
    assert all(refusals[:-2])
    assert not refusals[-1], "this could be a commit that was being written when power failed"


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Image, bytes, Stored]:
    """An image before a large commit, and the log and the contents after it."""
    path = tmp_path_factory.mktemp("torn")

    async def run() -> tuple[Stored, bytes, Stored]:
        state = State.open(path / "live", clock=time.monotonic)
        await fill(state, 6)
        copy(path / "live", path / "image")
        before = read_state(state)
        await asyncio.gather(*(put(state, f"big{n}", value="x" * 9000) for n in range(8)))
        after = read_state(state)
        log = (path / "live" / WRITE_AHEAD).read_bytes()
        await state.close()
        return before, log, after

    before, log, after = asyncio.run(run())
    return Image(path / "image", before, path / "scratch"), log, after


def test_a_torn_tail_starts_with_every_acknowledged_write(
    torn: tuple[Image, bytes, Stored],
) -> None:
    """A truncated commit is there completely or not at all; nothing before it is lost."""
    image, log, after = torn
    start = (image.path / WRITE_AHEAD).stat().st_size
    rng = random.Random(1)
    lengths = [*range(start, len(log), FRAME), start + 1, start + 24, len(log) - 1, len(log)]
    lengths += [rng.randrange(start, len(log)) for _ in range(30)]
    for length in lengths:
        outcome = image.opened(with_log(log[:length]))
        assert outcome == (after if length == len(log) else image.contents), length


def test_a_tail_written_out_of_order_starts_with_every_acknowledged_write(
    torn: tuple[Image, bytes, Stored],
) -> None:
    """When power fails, any of a commit's sectors may be missing; the commit is then not there."""
    image, log, after = torn
    start = (image.path / WRITE_AHEAD).stat().st_size
    rng = random.Random(2)
    for _ in range(40):
        mixed = bytearray(log)
        lost = rng.sample(range(start // 512 + 1, len(log) // 512), rng.randrange(1, 20))
        for sector in lost:
            mixed[sector * 512 : sector * 512 + 512] = bytes(512)
        outcome = image.opened(with_log(bytes(mixed)))
        assert outcome in (image.contents, after), lost


def test_left_over_frames_of_an_earlier_round_are_ignored(tmp_path: Path) -> None:
    """After a checkpoint the log starts over, on old frames that are neither read nor missed."""

    async def run() -> None:
        state = State.open(tmp_path / "live", clock=time.monotonic, inline=True)
        log = state._committer._log
        assert log is not None
        await fill(state, 40, size=5000)
        log._bytes_since_checkpoint = 1 << 40
        log.checkpoint_if_due()
        await fill(state, 3, seed=1)
        image = copy(tmp_path / "live", tmp_path / "image")
        frames = ((image / WRITE_AHEAD).stat().st_size - 32) // FRAME
        assert 0 < wal.inspect(image / WRITE_AHEAD) < frames / 4
        assert await reopened(image) == read_state(state)
        await state.close()

    asyncio.run(run())


@pytest.mark.parametrize("data", [b"", b"short", bytes(32), bytes(10_000)])
def test_a_log_with_nothing_in_it_is_no_damage(tmp_path: Path, data: bytes) -> None:
    """A log that was just created when power failed has no commits."""
    (tmp_path / "log").write_bytes(data)
    assert wal.inspect(tmp_path / "log") == 0
    assert wal.inspect(tmp_path / "missing") == 0
