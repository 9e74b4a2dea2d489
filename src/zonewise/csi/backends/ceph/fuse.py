"""Clients of Ceph in user space, one process per volume: started, found again, ended.

A client keeps running when the driver is restarted and is found again by its mount. It has ended
when its process has, not when the mount is removed: it flushes after ``umount``. One that died
leaves a mount that does not respond, which is removed before another client is started.

An RBD image is shown as a file by rbd-fuse, and a loop device makes a disk of it. There is one
rbd-fuse per staged volume, because it keeps every image it has opened until it ends. From the file
on, everything is as with image files: the same devices, mounts, publishing and growing.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from zonewise.csi.backends.ceph import client_conf
from zonewise.csi.backends.folders import loops, mounts
from zonewise.csi.errors import aborted, internal, unavailable
from zonewise.storage.configuration import CephCluster
from zonewise.storage.journal import JournalEntry

CLIENT_SECONDS = 10.0
DEAD = frozenset({errno.ENOTCONN, errno.ESHUTDOWN, errno.ENOENT})
PROGRAMS = (b"rbd-fuse", b"ceph-fuse")


def start_client(command: Sequence[str], folder: Path, is_ready: Callable[[], bool]) -> None:
    """Start a client that mounts itself at a folder, and wait until it answers there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + CLIENT_SECONDS
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=CLIENT_SECONDS,
        )
        messages = result.stderr.strip().splitlines() or ["it shows nothing"]
        while result.returncode == 0 and time.monotonic() < deadline:
            if mounts.at(folder) is not None and is_ready():
                return
            time.sleep(0.01)
    except subprocess.TimeoutExpired:
        messages = ["Ceph did not answer in time"]
    except FileNotFoundError:
        messages = ["it is not installed"]
    stop_client(folder)
    raise unavailable(f"{command[0]} cannot mount {folder.name}: {messages[-1][:300]}")


def read_client_address(socket_path: Path) -> str:
    """The address of a client, by its admin socket: unique among all clients there ever are."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(CLIENT_SECONDS)
            client.connect(str(socket_path))
            client.sendall(b'{"prefix": "status"}\0')
            with client.makefile("rb") as answer:
                (length,) = struct.unpack(">I", answer.read(4))
                status = json.loads(answer.read(length))
        # As the blocklist writes it: without the protocol.
        return str(status["addr_str"]).removeprefix("v1:").removeprefix("v2:")
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise unavailable(
            f"ceph-fuse does not tell its address at {socket_path}: {error}"
        ) from error


def stop_client(folder: Path) -> None:
    """Unmount a folder and wait for its client to exit."""
    deadline = time.monotonic() + CLIENT_SECONDS
    while True:
        try:
            mounts.unmount(folder)
            break
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                detach_dead(folder)
                break
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise internal(f"{folder} cannot be unmounted: {error.strerror}") from error
            time.sleep(0.01)
    while any(True for _ in find_processes(folder)):
        if time.monotonic() > deadline:
            raise aborted(f"the client of {folder.name} has not closed it yet; try again")
        time.sleep(0.01)
    with suppress(FileNotFoundError):
        folder.rmdir()


def is_dead(path: Path) -> bool:
    """Whether something is mounted at a path whose client died, or was fenced.

    A ceph-fuse that was fenced answers that nothing is there, which is never true of a mount.
    """
    try:
        path.stat()
    except OSError as error:
        return error.errno in DEAD and mounts.at(path) is not None
    return False


def detach_dead(path: Path) -> None:
    """Detach a dead mount, even if a process still has a file of it open."""
    try:
        while mounts.at(path) is not None:
            mounts.detach(path)
    except OSError as error:
        raise internal(f"{path} cannot be unmounted: {error.strerror}") from error


def find_processes(folder: Path) -> Iterator[int]:
    """A folder's running clients; zombies do not count."""
    folder_argument = str(folder).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            if folder_argument in arguments and program.rpartition(b"/")[2] in PROGRAMS:
                yield int(process.name)


def kill_client(folder: Path) -> None:
    """Kill a client that was fenced: after SIGTERM it would wait for Ceph forever.

    Then pending writes fail at once, and the path can be unmounted.
    """
    for process in find_processes(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class RbdFuse:
    """RBD images as files, each in a folder of its own, and loop devices on those.

    ``prefix`` begins the names of our images, ``cluster`` says where an entry's is.
    """

    privileged = True

    def __init__(
        self, cluster: Callable[[JournalEntry], CephCluster], data: Path, prefix: str
    ) -> None:
        self.data_folder = data.resolve()
        self.folder = self.data_folder / "rbd"
        self._cluster = cluster
        self._prefix = prefix

    def path(self, entry: JournalEntry) -> Path:
        """The file of an entry's image, if it is shown."""
        return self.image_file(entry.uuid)

    def image_file(self, uuid: str) -> Path:
        """The same for a volume's uuid."""
        return self.folder / uuid / f"{self._prefix}{uuid}"

    def map(self, entry: JournalEntry, *, readonly: bool, read_domain: Mapping[str, str]) -> None:
        """Start an image's rbd-fuse, unless there is one; the device says what may be written."""
        file = self.path(entry)
        folder = file.parent
        if mounts.at(folder) is not None:
            if _size_of(file):
                return
            self.unmap(entry.uuid)  # its rbd-fuse died and left a dead mount
        cluster = self._cluster(entry)
        conf = str(client_conf.write_conf(self.folder, cluster, read_domain))
        start_client(
            [
                *("rbd-fuse", "-c", conf, "--id", cluster.user),
                *("-p", entry.pool, "-r", file.name, str(folder)),
            ],
            folder,
            lambda: _size_of(file) > 0,
        )

    def is_mapped(self, uuid: str) -> bool:
        """Whether an image has an rbd-fuse, though it may have died."""
        return mounts.at(self.folder / uuid) is not None

    def find_source(self, uuid: str) -> Path | None:
        """The file of a volume, if it is shown."""
        file = self.image_file(uuid)
        return file if _size_of(file) else None

    def find_devices(self, uuid: str) -> list[Path]:
        """Those of this node's own rbd-fuse: others on this machine may show the same image.

        The file itself is not accessed: it may not respond.
        """
        file = self.image_file(uuid)
        return [device for device in loops.find(file) if loops.backing_file(device) == file]

    def attach(self, source: Path, *, readonly: bool, keep: bool) -> AbstractContextManager[Path]:
        """The file as a device."""
        return loops.attach(source, readonly=readonly, keep=keep)

    def update_size(self, device: Path, size: int) -> None:
        """Let a device take the size of its file, which the kernel caches for a second."""
        file = loops.backing_file(device)
        deadline = time.monotonic() + CLIENT_SECONDS
        while file is not None and _size_of(file) < size:
            if time.monotonic() > deadline:
                raise aborted(f"{file.name} does not have its new size yet; try again")
            time.sleep(0.05)
        loops.update_size(device)

    def unmap(self, uuid: str) -> None:
        """End an image's rbd-fuse; others may use its device, then it stays."""
        if not self.find_devices(uuid):
            stop_client(self.folder / uuid)

    def release(self, uuid: str) -> None:
        """Detach the unused devices, then end the rbd-fuse; the image is closed then."""
        loops.release(lambda: self.find_devices(uuid))
        self.unmap(uuid)

    def kill_client(self, uuid: str) -> None:
        """Kill an rbd-fuse that was fenced."""
        kill_client(self.folder / uuid)

    def force_unmap(self, uuid: str) -> None:
        """Remove what is left of a volume that another node has now."""
        for device in self.find_devices(uuid):
            loops.detach(device)
        folder = self.folder / uuid
        with suppress(OSError):
            mounts.detach(folder)
            folder.rmdir()

    def is_mounted_at(self, path: Path, uuid: str) -> bool:
        """Whether a volume's image is mounted at a path, through its loop device.

        When an rbd-fuse has ended, its folder is no longer in the name of the file.
        """
        device = mounts.device_at(path)
        file = loops.backing_file(device) if device is not None else None
        image = self.image_file(uuid)
        return file is not None and file in (image, Path("/", image.name))


def _size_of(file: Path) -> int:
    """How large a file is; 0 if it does not exist, or its mount is dead."""
    try:
        return file.stat().st_size
    except OSError:
        return 0
