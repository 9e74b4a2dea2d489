"""A tenant cannot change the mark of its volume, and a delete succeeds only with the data gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.csi.hostile_tenant import volume_folder
from tests.csi.scene import Caller, Mode, calling, config, mount_capability, pool

from zonewise.csi.backends.folders.marks import TRUSTED_MARK, USER_MARK
from zonewise.csi.errors import Code, CsiError

pytestmark = pytest.mark.system

SHARED = mount_capability(Mode.MULTI_NODE_MULTI_WRITER)
ONE_POOL = config(pool("pool-a", "a"))

STRANGER = """
import os, sys
os.chdir(sys.argv[1])
os.setuid(4711)
os.setxattr(".", "user.zonewise.name", b"x")
try:
    os.setxattr(".", "trusted.zonewise.name", b"x")
except PermissionError:
    pass
else:
    raise SystemExit("trusted. can be written")
open("data", "w").write("x")
"""


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with calling(tmp_path, ONE_POOL) as scene:
        yield scene


def forge(folder: Path) -> None:
    """Do what a tenant can do to the mark of its volume."""
    subprocess.run([sys.executable, "-c", STRANGER, str(folder)], check=True)


async def shared(caller: Caller) -> tuple[str, Path]:
    """A shared volume and its folder."""
    id = (await caller.create("v", capability=SHARED)).volume_id
    return id, volume_folder(caller, id)


def as_before(folder: Path) -> None:
    """Mark a folder as earlier versions did."""
    os.removexattr(folder, TRUSTED_MARK)
    os.setxattr(folder, USER_MARK, b"v")


async def test_a_volume_is_deleted_whatever_its_tenant_marks_it_as(caller: Caller) -> None:
    """Whatever a tenant writes as the mark of its volume, a repeated create finds the volume, and a
    delete removes its folder.
    """
    id, folder = await shared(caller)
    forge(folder)
    assert (await caller.create("v", capability=SHARED)).volume_id == id
    await caller.delete(id)
    assert list(folder.parent.iterdir()) == []


async def test_a_volume_of_an_earlier_version_is_protected_from_the_next_start_on(
    tmp_path: Path,
) -> None:
    """At the next start the mark of an earlier version's volume moves to an attribute that the
    tenant cannot change.
    """
    with calling(tmp_path, ONE_POOL) as caller:
        id, folder = await shared(caller)
        as_before(folder)
    with calling(tmp_path, ONE_POOL) as caller:
        assert os.getxattr(folder, TRUSTED_MARK) == b"v"
        assert USER_MARK not in os.listxattr(folder)
        forge(folder)
        await caller.delete(id)
        assert list(folder.parent.iterdir()) == []


async def test_a_start_ignores_the_mark_of_a_tenant(tmp_path: Path) -> None:
    """If a volume has a mark of root at a start, that of its tenant is ignored."""
    with calling(tmp_path, ONE_POOL) as caller:
        id, folder = await shared(caller)
        forge(folder)
    with calling(tmp_path, ONE_POOL) as caller:
        assert os.getxattr(folder, TRUSTED_MARK) == b"v"
        await caller.delete(id)
        assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize("attribute", [TRUSTED_MARK, USER_MARK])
async def test_a_folder_of_another_name_is_not_deleted_and_the_refusal_names_it(
    caller: Caller, attribute: str
) -> None:
    """A folder that is marked with another name is not deleted, and the refusal names it; the
    delete succeeds once the mark is right.
    """
    id, folder = await shared(caller)
    (folder / "data").write_text("x")
    os.removexattr(folder, TRUSTED_MARK)
    os.setxattr(folder, attribute, b"another")
    for _ in range(2):
        with pytest.raises(CsiError, match=str(folder)) as refusal:
            await caller.delete(id)
        assert refusal.value.code is Code.FAILED_PRECONDITION
        assert (folder / "data").read_text() == "x"
    os.setxattr(folder, TRUSTED_MARK, b"v")
    await caller.delete(id)
    assert list(folder.parent.iterdir()) == []


async def test_a_copy_of_a_forged_volume_has_its_own_mark(caller: Caller) -> None:
    """Attributes that a tenant wrote are copied, and are ignored in the copy, too."""
    id, folder = await shared(caller)
    forge(folder)
    snapshot = (await caller.snapshot("s", id)).snapshot_id
    assert os.getxattr(volume_folder(caller, snapshot), TRUSTED_MARK) == b"s"
    await caller.delete_snapshot(snapshot)
    await caller.delete(id)
    assert list(folder.parent.iterdir()) == []


def test_without_the_right_marks_are_attributes_of_the_user(tmp_path: Path) -> None:
    """A driver without root writes and reads its marks as before."""
    program = """
import os, sys
from pathlib import Path
from zonewise.csi.backends.folders import marks
os.chdir(sys.argv[1])
os.setuid(4711)
folder = Path("volume")
folder.mkdir()
marks.write_mark(folder, "v")
marks.upgrade_mark(folder)
assert os.listxattr(folder) == [marks.USER_MARK], os.listxattr(folder)
assert marks.read_mark(folder) == "v"
"""
    tmp_path.chmod(0o777)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
