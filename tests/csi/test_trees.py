"""Walks inside a volume while its tenant swaps folders with links: nothing outside is reached."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.csi.hostile_tenant import attacker, contents, volume_folder
from tests.csi.scene import (
    Caller,
    Mode,
    calling,
    config,
    mount_capability,
    of_snapshot,
    of_volume,
    pool,
    refused,
)

from zonewise.csi.backends.folders import mounts, safe_open, trees
from zonewise.csi.errors import Code

SHARED = mount_capability(Mode.MULTI_NODE_MULTI_WRITER)
SECRET = "only root may read this"
MINE = "the tenant's own"
EXCHANGE = 2
HERE = -100

WAYS = ["openat2", "step-by-step"]

HOLDER = """
import ctypes, fcntl, os, signal, sys
folder, link = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
file = os.open(f"{folder}/held", os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
signal.sigwait([signal.SIGIO])
libc = ctypes.CDLL(None, use_errno=True)
assert libc.renameat2(-100, folder.encode(), -100, link.encode(), 2) == 0
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
print("swapped", flush=True)
"""
"""A tenant that delays the reader of a file by a lease, and swaps its folder meanwhile."""

SWAPPER = """
import ctypes, sys
folder, link = (text.encode() for text in sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
print("ready", flush=True)
while True:
    libc.renameat2(-100, folder, -100, link, 2)
"""


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with calling(tmp_path, config(pool("pool-a", "a", "8Gi"))) as caller:
        yield caller


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How folders are opened: with openat2, or step by step as on kernels without it."""
    if request.param == "step-by-step":

        def lacking(_root: int, _path: bytes) -> int:
            raise OSError(errno.ENOSYS, "not here")

        monkeypatch.setattr(safe_open, "_openat2", lacking)
    return str(request.param)


def swap(first: Path, second: Path) -> None:
    """Exchange two names in one step, as a tenant can in its folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(HERE, os.fsencode(first), HERE, os.fsencode(second), EXCHANGE)
    assert done == 0, os.strerror(ctypes.get_errno())


def secret_folder(tmp_path: Path) -> Path:
    """A folder that is root's alone, outside of every volume."""
    folder = tmp_path / "root-only"
    folder.mkdir(mode=0o700)
    for name in ("held", "secret"):
        (folder / name).write_text(SECRET)
        (folder / name).chmod(0o600)
    (folder / "inner").mkdir()
    (folder / "inner" / "secret").write_text(SECRET)
    return folder


def bait(volume: Path, secrets: Path) -> tuple[Path, Path]:
    """A folder and a link of the tenant, with the same names behind both."""
    folder, link = volume / "work", volume / "link"
    folder.mkdir()
    for name in ("held", "secret"):
        (folder / name).write_text(MINE)
    (folder / "inner").mkdir()
    (folder / "inner" / "secret").write_text(MINE)
    link.symlink_to(secrets)
    return folder, link


async def shared(caller: Caller, name: str = "v") -> tuple[str, Path]:
    """A shared volume and its folder."""
    created = await caller.create(name, capability=SHARED)
    return created.volume_id, volume_folder(caller, created.volume_id)


@pytest.mark.system
async def test_a_copy_that_is_delayed_and_redirected_has_no_file_of_root(
    caller: Caller, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a folder is swapped with a link while its file is opened, the folder itself is copied."""
    monkeypatch.setattr(safe_open, "LEASE_PAUSE_LIMIT", 10_000)
    id, volume = await shared(caller)
    folder, link = bait(volume, secret_folder(tmp_path))
    (volume / "work" / "secret").unlink()
    for number in range(64):
        (volume / "work" / f"secret-{number}").write_text(MINE)
        (tmp_path / "root-only" / f"secret-{number}").write_text(SECRET)
    with attacker(HOLDER, folder, link) as process:
        copy = await caller.create("c", capability=SHARED, source=of_volume(id))
        assert process.stdout is not None
        assert process.stdout.readline() == "swapped\n"
    texts = contents(volume_folder(caller, copy.volume_id))
    assert SECRET not in texts
    assert texts.count(MINE) >= 65


@pytest.mark.parametrize("kind", ["clone", "snapshot", "restore"])
async def test_a_folder_that_becomes_a_link_before_it_is_entered_is_not_followed(
    caller: Caller, tmp_path: Path, way: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever depth the swap happens, a copy has nothing from behind the link."""
    secrets = secret_folder(tmp_path)
    original = safe_open.open_folder
    for depth in ([], ["a"], ["a", "b"]):
        id, volume = await shared(caller, f"v{len(depth)}")
        if kind == "restore":
            within = volume.joinpath(*depth)
            within.mkdir(parents=True, exist_ok=True)
            bait(within, secrets)
            taken = await caller.snapshot(f"s{len(depth)}", id)
            volume, source = (
                volume_folder(caller, taken.snapshot_id),
                of_snapshot(taken.snapshot_id),
            )
        else:
            source = of_volume(id)
            within = volume.joinpath(*depth)
            within.mkdir(parents=True, exist_ok=True)
            bait(within, secrets)
        folder, link = volume.joinpath(*depth, "work"), volume.joinpath(*depth, "link")
        swapped: list[Sequence[str]] = []

        @contextmanager
        def swapping(
            root: int,
            names: Sequence[str],
            at: Sequence[str] = (*depth, "work"),
            pair: tuple[Path, Path] = (folder, link),
            swapped: list[Sequence[str]] = swapped,
        ) -> Iterator[int]:
            if tuple(names) == tuple(at) and not swapped:
                swapped.append(names)
                swap(*pair)
            with original(root, names) as descriptor:
                yield descriptor

        monkeypatch.setattr(trees, "open_folder", swapping)
        if kind == "snapshot":
            copy_id = (await caller.snapshot(f"c{len(depth)}", id)).snapshot_id
        else:
            copy_id = (
                await caller.create(f"c{len(depth)}", capability=SHARED, source=source)
            ).volume_id
        monkeypatch.setattr(trees, "open_folder", original)
        assert swapped
        assert SECRET not in contents(volume_folder(caller, copy_id))


@pytest.mark.system
async def test_clones_taken_while_a_tenant_swaps_without_end_have_nothing_of_root(
    caller: Caller, tmp_path: Path, way: str
) -> None:
    """Thirty clones and as many snapshots under attack: none has a file from behind the link."""
    secrets = secret_folder(tmp_path)
    id, volume = await shared(caller)
    with attacker(SWAPPER, *bait(volume, secrets)):
        for number in range(30):
            clone = await caller.create(f"c{number}", capability=SHARED, source=of_volume(id))
            taken = await caller.snapshot(f"s{number}", id)
            assert SECRET not in contents(volume_folder(caller, clone.volume_id))
            assert SECRET not in contents(volume_folder(caller, taken.snapshot_id))


@pytest.mark.system
def test_measuring_and_removing_stay_in_the_volume_while_it_is_swapped(
    tmp_path: Path, way: str
) -> None:
    """Files behind a link that a folder was swapped with are neither counted nor deleted."""
    secrets = secret_folder(tmp_path)
    (secrets / "large").write_bytes(b"x" * (8 << 20))
    volume = tmp_path / "volume"
    volume.mkdir()
    folder, link = bait(volume, secrets)
    with attacker(SWAPPER, folder, link):
        for _ in range(200):
            assert trees.disk_usage(volume) < 1 << 20
    while volume.exists():
        # One call is enough if nothing is added meanwhile.
        trees.remove_tree(volume)
    assert len(contents(secrets)) == 4


def test_a_removal_that_meets_a_link_removes_the_link(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a folder becomes a link when it is about to be emptied, no file behind it is deleted."""
    secrets = secret_folder(tmp_path)
    volume = tmp_path / "volume"
    volume.mkdir()
    _, link = bait(volume, secrets)
    link.unlink()
    outside = tmp_path / "link"
    outside.symlink_to(secrets)
    original = safe_open.open_folder

    @contextmanager
    def swapping(root: int, names: Sequence[str]) -> Iterator[int]:
        if outside.is_symlink():
            swap(volume / names[0], outside)
        with original(root, names) as descriptor:
            yield descriptor

    monkeypatch.setattr(trees, "open_folder", swapping)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        trees.remove_tree(volume)
    trees.remove_tree(volume)
    assert sorted(contents(secrets)) == [SECRET] * 3


@pytest.mark.system
def test_a_copy_has_all_that_its_source_has(tmp_path: Path, way: str) -> None:
    """A copy has the owners, modes, attributes, ACLs, times, holes, hard links, links and special
    files of its source.
    """
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder" / "deep").mkdir(parents=True)
    plain = source / "plain"
    plain.write_bytes(b"data" * 1000)
    os.chown(plain, 1234, 4321)
    plain.chmod(0o6755)
    os.setxattr(plain, "user.colour", b"blue")
    os.setxattr(plain, "system.posix_acl_access", acl(0o755))
    os.setxattr(plain, "security.capability", bytes.fromhex("0100000200040000") + bytes(12))
    os.link(plain, source / "folder" / "deep" / "same")
    (source / "folder" / "link").symlink_to("../plain")
    (source / "dangling").symlink_to("/nowhere/at/all")
    os.chown(source / "dangling", 77, 78, follow_symlinks=False)
    os.link(source / "dangling", source / "folder" / "dangling", follow_symlinks=False)
    os.mkfifo(source / "pipe", 0o640)
    os.mknod(source / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(source / "socket"))
    with (source / "sparse").open("wb") as file:
        file.seek(64 << 20)
        file.write(b"end")
        file.truncate(128 << 20)
    os.setxattr(source / "folder", "system.posix_acl_default", acl(0o750))
    (source / "folder").chmod(0o3771)
    (source / "empty").mkdir(mode=0o000)
    for number, path in enumerate([*sorted(source.rglob("*")), source]):
        os.utime(path, ns=(10**18 + number, 10**18 + 1000 + number), follow_symlinks=False)
    expected = described(source)
    trees.copy_tree(source, target)
    assert described(target) == expected
    assert (target / "sparse").stat().st_blocks * 512 < 1 << 20
    assert (target / "sparse").read_bytes()[64 << 20 :][:3] == b"end"
    assert (target / "plain").stat().st_ino == (target / "folder/deep/same").stat().st_ino
    trees.remove_tree(target)
    assert not target.exists()
    assert described(source).keys() == expected.keys()


def acl(mode: int) -> bytes:
    """An access control list with an entry for user 99, in the kernel's form."""
    entries = [
        (1, mode >> 6 & 7, 0xFFFFFFFF),
        (2, 5, 99),
        (4, mode >> 3 & 7, 0xFFFFFFFF),
        (16, mode >> 3 & 7, 0xFFFFFFFF),
        (32, mode & 7, 0xFFFFFFFF),
    ]
    return (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + id.to_bytes(4, "little")
        for tag, perm, id in entries
    )


def described(folder: Path) -> dict[str, Any]:
    """The metadata of every file of a tree, except access times, which reading changes."""
    facts: dict[str, Any] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        facts[str(path.relative_to(folder))] = (
            stat.filemode(status.st_mode),
            (status.st_uid, status.st_gid, status.st_mtime_ns, status.st_rdev),
            0 if path.is_dir() else (status.st_nlink, status.st_size),
            {
                name: os.getxattr(path, name, follow_symlinks=False)
                for name in os.listxattr(path, follow_symlinks=False)
            },
            str(path.readlink()) if path.is_symlink() else "",
        )
    return facts


def test_files_are_copied_where_the_kernel_copies_no_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two kinds of file systems data is read and written, and holes stay holes."""

    def lacking(*_: Any, **__: Any) -> int:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", lacking)
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    with (source / "file").open("wb") as file:
        file.write(os.urandom(3 << 20))
        file.seek(64 << 20)
        file.write(b"end")
    trees.copy_tree(source, target)
    assert (target / "file").read_bytes() == (source / "file").read_bytes()
    assert (target / "file").stat().st_blocks * 512 < 8 << 20


def test_what_vanishes_during_a_copy_is_left_out(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and a folder that are deleted between being listed and being opened are not there."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder").mkdir(parents=True)
    (source / "file").write_text("x")
    (source / "stays").write_text("y")
    entry, folder = safe_open.open_entry, safe_open.open_folder

    @contextmanager
    def without_file(at: int, name: str) -> Iterator[int]:
        if name == "file":
            (source / "file").unlink(missing_ok=True)
        with entry(at, name) as descriptor:
            yield descriptor

    @contextmanager
    def without_folder(root: int, names: Sequence[str]) -> Iterator[int]:
        if list(names) == ["folder"]:
            (source / "folder").rmdir()
        with folder(root, names) as descriptor:
            yield descriptor

    monkeypatch.setattr(trees, "open_entry", without_file)
    monkeypatch.setattr(trees, "open_folder", without_folder)
    trees.copy_tree(source, target)
    assert [path.name for path in target.iterdir()] == ["stays"]


def nest(folder: Path, name: str, depth: int) -> None:
    """Make nested folders, deeper than the longest path."""
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


def test_a_tree_of_any_depth_is_removed(tmp_path: Path, way: str) -> None:
    """Removing 1500 nested folders needs no more open files than removing one."""
    source = tmp_path / "source"
    nest(source, "d", 1500)
    before = list(Path("/proc/self/fd").iterdir())
    trees.remove_tree(source)
    assert not source.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


def test_a_tree_with_paths_that_are_too_long_is_not_copied(tmp_path: Path, way: str) -> None:
    """A tree with paths that are too long is not copied, as the error says; it can be measured."""
    source, target = tmp_path / "source", tmp_path / "target"
    nest(source, "d" * 255, 17)
    with pytest.raises(OSError, match="4096 bytes"):
        trees.copy_tree(source, target)
    assert trees.disk_usage(source) == 0
    trees.remove_tree(target)
    trees.remove_tree(source)


@pytest.mark.system
async def test_what_is_mounted_in_a_volume_is_not_deleted_with_it(
    caller: Caller, tmp_path: Path
) -> None:
    """DeleteVolume is UNAVAILABLE until the mount is gone, and its files stay."""
    id, volume = await shared(caller)
    inner = volume / "folder" / "mounted"
    inner.mkdir(parents=True)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("x")
    mounts.bind(foreign, inner, readonly=False)
    try:
        assert await refused(caller.delete(id)) is Code.UNAVAILABLE
        assert (foreign / "precious").read_text() == "x"
    finally:
        for mount in mounts.read_table():
            if mount.target.is_relative_to(tmp_path):
                mounts.unmount(mount.target)
    await caller.delete(id)
    assert (foreign / "precious").read_text() == "x"


@pytest.mark.system
def test_without_root_folders_that_cannot_be_written_are_removed() -> None:
    """A tenant's read-only folders are deleted, and set-id bits are dropped in copies."""
    program = """
import os, stat, sys
from pathlib import Path
from zonewise.csi.backends.folders import trees
source, target = Path(sys.argv[1], "source"), Path(sys.argv[1], "target")
os.setuid(4711)
trees.copy_tree(source, target)
assert stat.S_IMODE((target / "program").stat().st_mode) == 0o755
assert (target / "program").stat().st_uid == 4711
(target / "a" / "b").mkdir(parents=True)
(target / "a" / "b" / "file").touch()
(target / "a" / "b").chmod(0o500)
(target / "a").chmod(0o500)
trees.remove_tree(target)
assert not target.exists()
"""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "source")
        source.mkdir(mode=0o755)
        (source / "program").touch()
        (source / "program").chmod(0o6755)
        Path(name).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", program, name], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
