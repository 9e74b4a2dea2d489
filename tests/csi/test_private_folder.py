"""The driver's data is closed to other users of the machine; pods reach their volumes."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.csi.scene import Mode, calling, mount_capability

from zonewise.csi.driver import open_data_folder

SHARED = mount_capability(Mode.MULTI_NODE_MULTI_WRITER)
STRANGER = 4711


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def reads(path: Path) -> bool:
    """Whether another user can read a file."""
    done = subprocess.run(
        ["/bin/cat", str(path)],
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that every user may enter, with all above it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.system
async def test_a_shared_volume_is_read_at_the_pods_path_and_nowhere_else(passable: Path) -> None:
    """Another user can read the mount in the pod, but not the data folder."""
    with calling(passable) as caller:
        id = (await caller.create("v", capability=SHARED)).volume_id
        await caller.stage(id, SHARED)
        target = await caller.publish(id, SHARED)
        try:
            (target / "file").write_text("x")
            (stored,) = list((passable / "data" / "pools").glob("*/*/file"))
            assert reads(target / "file")
            assert not reads(stored)
            assert not reads(passable / "data" / "journal.db")
            assert mode(passable / "data") == mode(passable / "data" / "pools") == 0o700
            for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
                assert mode(passable / "data" / name) == 0o600
        finally:
            await caller.unpublish(id)
            await caller.unstage(id)


@pytest.mark.system
async def test_open_modes_of_an_earlier_version_are_closed_at_the_start(passable: Path) -> None:
    """Modes of existing folders and journals, also of one in use, are corrected."""
    with calling(passable) as caller:
        await caller.create("v", capability=SHARED)
        data = passable / "data"
        folders = [data, data / "pools", *(data / "pools").iterdir()]
        files = [data / name for name in ("journal.db", "journal.db-wal", "journal.db-shm")]
        for folder in folders:
            folder.chmod(0o711)
        for file in files:
            file.chmod(0o644)
        with calling(passable) as another:
            assert [mode(folder) for folder in folders] == [0o700] * len(folders)
            assert [mode(file) for file in files] == [0o600] * 3
            assert len(await another.volumes()) == 1
        await caller.create("w", capability=SHARED)


@pytest.mark.system
def test_a_folder_with_files_of_others_keeps_its_mode(tmp_path: Path) -> None:
    """A data folder with other files keeps its mode; what we create there is closed."""
    (tmp_path / "others").write_text("x")
    tmp_path.chmod(0o1777)
    open_data_folder(tmp_path).close()
    assert mode(tmp_path) == 0o1777
    assert mode(tmp_path / "pools") == 0o700
    assert mode(tmp_path / "journal.db") == 0o600


def test_without_root_volumes_can_be_reached_through_their_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no mount then, so the folders above a volume can be passed but not listed."""
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    open_data_folder(tmp_path / "data", privileged=False).close()
    assert mode(tmp_path / "data") == mode(tmp_path / "data" / "pools") == 0o711
    assert mode(tmp_path / "data" / "journal.db") == 0o600
