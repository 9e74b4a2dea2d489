"""The log: one owner, the version of its layout, compaction, a full disk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.embedded.apiserver.objects import KIND, contents, put
from tests.embedded.apiserver.store.folders import SMALL, copy, fill, read_state, reopened

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.folders import mounts
from zonewise.embedded.apiserver.store.compaction import CompactionPass, Record
from zonewise.embedded.apiserver.store.folder import FolderDamaged, FolderInUse
from zonewise.embedded.apiserver.store.layout import MIGRATIONS, LayoutTooNew
from zonewise.embedded.apiserver.store.log import CHECKPOINT_BYTES, Log
from zonewise.embedded.apiserver.store.state import State


def record(rv: int, key: str = "default/a", type: int = 0, raw: bytes = b"{}") -> Record:
    """A small record."""
    return Record(rv, KIND, key, type, raw)


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    """A second owner is refused with the first one's process id, until the first has closed it."""
    log, _ = Log.open(tmp_path)
    with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}: stop it"):
        Log.open(tmp_path)
    log.close(1)
    Log.open(tmp_path)[0].close(1)


@pytest.mark.system
def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    """The kernel drops the lock of a process that ends without closing."""
    program = (
        "import os, sys; from pathlib import Path;"
        "from zonewise.embedded.apiserver.store.log import Log;"
        "Log.open(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    Log.open(tmp_path)[0].close(1)


def test_only_its_user_may_read_the_folder(tmp_path: Path) -> None:
    """The folder holds Secrets: no other user can read it, whatever the umask."""
    old = os.umask(0)
    try:
        log, _ = Log.open(tmp_path / "data")
        log.append([record(2)])
    finally:
        os.umask(old)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "data").iterdir()} == {0o600}
    log.close(2)


@pytest.mark.parametrize("path", ["file/data", "file"])
def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, path: str) -> None:
    """A path that is not a folder is refused in one sentence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="it is not a folder; give another data folder"):
        Log.open(tmp_path / path)


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    """A file of a later release is not changed; the error says what to do."""
    later = (*MIGRATIONS, ("ALTER TABLE log ADD COLUMN author TEXT",))
    log, _ = Log.open(tmp_path, migrations=later)
    log.close(1)
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(LayoutTooNew, match=r"newer release \(layout 2, this one supports 1\): run"):
        Log.open(tmp_path)
    assert (tmp_path / "state.db").read_bytes() == before


def test_an_older_layout_is_migrated(tmp_path: Path) -> None:
    """A file of an earlier release is brought up to date, once, and keeps everything."""

    async def run() -> None:
        state = State.open(tmp_path, clock=time.monotonic, inline=True)
        await fill(state, 5)
        await state.close()

    asyncio.run(run())
    later = (*MIGRATIONS, ("CREATE TABLE extra (id INTEGER PRIMARY KEY)",))
    log, recovered = Log.open(tmp_path, migrations=later)
    assert len(recovered.records) == 15
    log.close(recovered.rv)
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM extra").fetchone() == (0,)
    log, again = Log.open(tmp_path, migrations=later)
    assert again == recovered
    log.close(recovered.rv)


def test_a_migration_that_is_cut_short_changed_nothing(tmp_path: Path) -> None:
    """All steps of a migration happen or none does."""
    log, _ = Log.open(tmp_path)
    log.append([record(2)])
    log.close(2)
    broken = (*MIGRATIONS, ("CREATE TABLE extra (id INTEGER)", "CREATE TABLE nonsense ("))
    with pytest.raises(ConfigError):
        Log.open(tmp_path, migrations=broken)
    log, recovered = Log.open(tmp_path)
    assert recovered.records == [record(2)]
    log.close(2)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """A database that is not ours is left alone."""
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.commit()
    with pytest.raises(FolderDamaged, match="not start like a Zonewise database"):
        Log.open(tmp_path)
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.execute("PRAGMA page_size=8192")
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode=WAL")
    with pytest.raises(FolderDamaged, match="not a Zonewise database"):
        Log.open(tmp_path)


def test_a_creation_that_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    """Half a database under its working name is ignored."""
    (tmp_path / "state.db.new").write_bytes(b"half")
    (tmp_path / "state.db.new-wal").write_bytes(b"half")
    log, recovered = Log.open(tmp_path)
    assert (recovered.rv, recovered.records) == (1, [])
    log.close(1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["acknowledged", "lock", "state.db"]


async def test_compaction_bounds_the_file_under_load(tmp_path: Path) -> None:
    """However long it is written to, the folder has the objects and a bounded history."""
    state = State.open(tmp_path, clock=time.monotonic, limits=SMALL)

    async def writer(name: str) -> None:
        await put(state, name)
        for n in range(300):
            await put(state, name, "MODIFIED", value=str(n).ljust(2000, "."))

    await asyncio.gather(*(writer(f"n{n}") for n in range(8)))
    expected = contents(state)
    crashed = copy(tmp_path, tmp_path.parent / "crashed")
    size = sum(file.stat().st_size for file in crashed.iterdir())
    assert size < CHECKPOINT_BYTES + 2_000_000  # of 4.8 MB that were written
    log, recovered = Log.open(crashed)
    assert log.weight < 2 * (8 + 2 * 30) * 2400 + 2000 + 8 * 2400
    assert 1 < recovered.floor <= state.floor
    log.close(recovered.rv)
    await state.close()
    assert (await reopened(tmp_path)).objects == expected


async def test_restarts_between_compactions_agree(tmp_path: Path) -> None:
    """Whenever it is cut off, a log that is being compacted gives the whole state back."""
    state = State.open(tmp_path, clock=time.monotonic, limits=SMALL, inline=True)
    for number in range(60):
        await fill(state, 1, seed=number)
        if number % 7 == 0:
            recovered = await reopened(copy(tmp_path, tmp_path.parent / "crashed"))
            assert (recovered.objects, recovered.rv) == (contents(state), state.visible_rv)
            assert recovered.stream.endswith(read_state(state).stream)
    assert state.floor > 1
    await state.close()


def test_compaction_removes_only_what_was_forgotten(tmp_path: Path) -> None:
    """Commits that are in the history stay; removed commits leave their objects."""
    log, _ = Log.open(tmp_path)
    log.append([record(2, "a", raw=b"1"), record(3, "b", raw=b"2")])
    log.append([record(4, "a", 1, b"3"), record(5, "b", 2, b"2")])
    log.append([record(6, "c")])
    first = CompactionPass(4, {KIND: {"a": 4, "b": 3}}, log.row)
    assert log.compact(first, 1 << 20)
    assert not log.compact(first, 1 << 20)
    log.close(6)
    log, recovered = Log.open(tmp_path)
    assert [(item.key, item.rv) for item in recovered.objects] == [("a", 4), ("b", 3)]
    assert [item.rv for item in recovered.records] == [5, 6]
    assert recovered.floor == 4
    second = CompactionPass(6, {KIND: {"a": 4, "b": 0, "c": 6}}, log.row)
    while log.compact(second, 1):
        pass
    log.close(6)
    log, recovered = Log.open(tmp_path)
    assert [(item.key, item.rv) for item in recovered.objects] == [("a", 4), ("c", 6)]
    assert (recovered.records, recovered.floor, recovered.rv) == ([], 6, 6)
    log.append([record(7, "a", 2, b"3"), record(8, "c", 2)])
    for _ in range(2):
        third = CompactionPass(8, {KIND: {}}, log.row)
        while log.compact(third, 1):
            pass
    log.close(8)
    log, recovered = Log.open(tmp_path)
    assert (recovered.objects, recovered.records, recovered.rv) == ([], [], 8)
    assert log.weight == 0, "nothing is left of what is gone"
    log.append([record(9, "d")])
    log.close(9)


FULL_DISK = """
import asyncio, sys, time
from pathlib import Path
from tests.embedded.apiserver.objects import contents, put
from zonewise.api.errors import ConfigError
from zonewise.embedded.apiserver.store.log import WriteFailed
from zonewise.embedded.apiserver.store.state import State

folder = Path(sys.argv[1])
stone = folder / "stone"
now = 0.0


async def main():
    global now
    state = State.open(folder / "data", clock=lambda: now)
    stone.write_bytes(bytes(2_300_000))
    written = {}
    try:
        for n in range(2000):
            entry = await put(state, f"n{n}", value="x" * 1000)
            written[entry.key] = entry.raw
    except WriteFailed as failure:
        assert "disk is full; free some space" in str(failure), failure
        assert not failure.permanent
    else:
        raise AssertionError("the disk never filled up")
    assert "disk is full" in state.failure
    assert contents(state) == written, "reading goes on with what was acknowledged"
    try:
        await put(state, "more")
    except WriteFailed:
        pass
    stone.unlink()
    now += 2
    entry = await put(state, "more")
    written[entry.key] = entry.raw
    assert state.failure is None
    stone.write_bytes(b"x" * 100)
    copy = folder / "copy"
    copy.mkdir()
    for file in (folder / "data").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    crashed = State.open(copy, clock=time.monotonic)
    assert contents(crashed) == written, "a crash now loses nothing"
    assert crashed.visible_rv == state.visible_rv
    await crashed.close()
    await state.close()
    again = State.open(folder / "data", clock=time.monotonic)
    assert contents(again) == written
    await again.close()
    try:
        stone.write_bytes(bytes(3_000_000))
    except OSError:
        pass
    for place in (folder / "data", folder / "new"):
        try:
            State.open(place, clock=time.monotonic)
        except ConfigError as failure:
            assert "the disk is full; free some space" in str(failure), failure
        else:
            raise AssertionError("a full disk is no place to start")
    stone.unlink()
    again = State.open(folder / "data", clock=time.monotonic)
    assert contents(again) == written, "a start that was refused lost nothing"
    await again.close()
    print(len(written), "kept")


asyncio.run(main())
"""


@pytest.mark.system
def test_a_full_disk_fails_writes_and_loses_nothing(tmp_path: Path) -> None:
    """On a full disk writes fail with an error; acknowledged ones stay."""
    mounts.mount(Path("none"), tmp_path, "tmpfs", ["size=3m"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", FULL_DISK, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        mounts.unmount(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("kept\n")
