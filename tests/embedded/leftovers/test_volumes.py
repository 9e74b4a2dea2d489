"""The next cluster removes the mounts and loop devices of a killed one, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.folders import filesystems, loops, mounts
from zonewise.embedded.leftovers import volumes
from zonewise.embedded.leftovers.volumes import VolumeRecord

KILLED = """
import os, sys
from pathlib import Path
from tests.embedded.leftovers.test_volumes import mount_volumes
from zonewise.embedded.leftovers import volumes
volumes.RECORDS = Path(sys.argv[1])
volumes.VolumeRecord.claim(Path(sys.argv[2]))
mount_volumes(Path(sys.argv[2]))
os.kill(os.getpid(), 9)
"""


def mount_volumes(folder: Path) -> None:
    """Mount what a cluster has: a file system, a bind mount, a folder, and an attached device."""
    pool, node = folder / "csi" / "pools" / "p", folder / "nodes" / "a-1"
    shared = pool / "vol-3"
    shared.mkdir(parents=True)
    for name in ("staged", "pod", "shared", "pod space"):
        (node / name).mkdir(parents=True)
    for name in ("vol-1.img", "vol-2.img"):
        with (pool / name).open("wb") as file:
            file.truncate(16 << 20)
    filesystems.make("ext4", pool / "vol-1.img")
    with loops.attach(pool / "vol-1.img") as device:
        mounts.mount(device, node / "staged", "ext4", ())
    mounts.bind(node / "staged", node / "pod", readonly=False)
    mounts.bind(shared, node / "shared", readonly=False)
    mounts.bind(shared, node / "pod space", readonly=True)
    (node / "pod" / "file").write_text("kept")
    with loops.attach(pool / "vol-2.img", keep=True):
        pass


def left_in(folder: Path) -> tuple[int, int]:
    """The number of mounts and devices."""
    there = [mount for mount in mounts.read_table() if mount.target.is_relative_to(folder)]
    return len(there), len(loops.find_below(folder))


def take_away(folder: Path) -> None:
    for mount in reversed(mounts.read_table()):
        if mount.target.is_relative_to(folder):
            mounts.unmount(mount.target)
    for device in loops.find_below(folder):
        loops.detach(device)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for records; everything is unmounted at the end."""
    monkeypatch.setattr(volumes, "RECORDS", tmp_path / "records")
    yield tmp_path / "records"
    take_away(tmp_path)


def kill_one(records: Path, folder: Path) -> None:
    """Run a cluster with volumes and kill it."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(records), str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -9, done.stderr
    assert left_in(folder) == (4, 2)


@pytest.mark.system
def test_the_next_cluster_cleans_up_after_a_killed_one(records: Path, tmp_path: Path) -> None:
    """In another folder or the same one, mounts and devices are removed, and the data stays."""
    killed = tmp_path / "killed"
    for following in (tmp_path / "another", killed):
        kill_one(records, killed)
        record = VolumeRecord.claim(following)
        assert left_in(killed) == (0, 0)
        record.close()
        assert list(records.iterdir()) == []
        image = killed / "csi" / "pools" / "p" / "vol-1.img"
        with loops.attach(image) as device:
            mounts.mount(device, killed / "nodes" / "a-1" / "pod", "ext4", ())
        assert (killed / "nodes" / "a-1" / "pod" / "file").read_text() == "kept"
        take_away(killed)
        killed.rename(tmp_path / f"was-before-{following.name}")


@pytest.mark.system
def test_a_running_cluster_and_the_mounts_of_others_are_left_alone(
    records: Path, tmp_path: Path
) -> None:
    """Mounts of another cluster, and other mounts in the folder, stay."""
    killed, living = tmp_path / "killed", tmp_path / "living"
    running = VolumeRecord.claim(living)
    mount_volumes(living)
    kill_one(records, killed)
    foreign = killed / "foreign"
    foreign.mkdir()
    mounts.mount(Path("none"), foreign, "tmpfs", ())
    VolumeRecord.claim(tmp_path / "third").close()
    assert left_in(living) == (4, 2)
    assert left_in(killed) == (1, 0)
    running.close()
    assert left_in(living) == (0, 0)


@pytest.mark.system
def test_what_is_busy_stays_for_the_next_start(records: Path, tmp_path: Path) -> None:
    """A busy volume is unmounted by a later start, and then its record is removed."""
    killed = tmp_path / "killed"
    kill_one(records, killed)
    busy = os.open(killed / "nodes" / "a-1" / "pod", os.O_RDONLY)
    VolumeRecord.claim(tmp_path / "second").close()
    assert left_in(killed) == (1, 1)
    assert len(list(records.iterdir())) == 1
    os.close(busy)
    VolumeRecord.claim(tmp_path / "third").close()
    assert left_in(killed) == (0, 0)
    assert list(records.iterdir()) == []


@pytest.mark.system
def test_a_folder_that_is_in_use_is_not_claimed_twice(records: Path, tmp_path: Path) -> None:
    """A second program in the same folder, which is about to be refused, unmounts nothing."""
    folder = tmp_path / "cluster"
    running = VolumeRecord.claim(folder)
    mount_volumes(folder)
    VolumeRecord.claim(folder).close()
    assert left_in(folder) == (4, 2)
    running.close()


def test_where_no_record_can_be_written_there_is_none(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster starts without a record."""

    def refused(*_: object, **__: object) -> None:
        raise ConfigError("read-only")

    monkeypatch.setattr(volumes, "lock_record", refused)
    VolumeRecord.claim(tmp_path / "cluster").close()
    assert not records.exists()
