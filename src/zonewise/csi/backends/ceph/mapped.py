"""RBD images as block devices of the kernel: by krbd, or by nbd with rbd-nbd behind it.

Ceph's own program does it (``rbd device map``), and lists each time which image is which device
(``rbd device list``): nothing is recorded here, so a driver that was killed anywhere finds what it
had mapped. A device is used as it is, without a loop device on top, and stays mapped until its
volume is unstaged. It grows with its image; we wait until it has.

Unmapping is refused while the device is mounted anywhere. One that another node took the volume
from is unmapped by force: whatever it still had to write was refused by Ceph already. rbd-nbd has
no force option and needs none, it disconnects all users of the device.

Not tested with the kernel's own devices: the build machine has neither krbd nor nbd. The tests
replace ``rbd`` with a program of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zonewise.csi.backends.ceph import client_conf
from zonewise.csi.backends.folders import filesystems, mounts
from zonewise.csi.status import Code, CsiError, aborted, invalid
from zonewise.storage.configuration import CephCluster
from zonewise.storage.journal import JournalEntry

MOUNTER = "mounter"
RBD_FUSE = "rbd-fuse"
KRBD = "krbd"
RBD_NBD = "rbd-nbd"
MOUNTERS = (RBD_FUSE, KRBD, RBD_NBD)
SECONDS = 30.0
FOLLOW_SECONDS = 5.0
_DEVICE_TYPES = {KRBD: "krbd", RBD_NBD: "nbd"}
_MODULES = {KRBD: ("rbd", "/sys/bus/rbd"), RBD_NBD: ("nbd", "/sys/module/nbd")}
_BLOCKS = Path("/sys/block")


@dataclass(frozen=True, slots=True)
class MappedDevice:
    """An image that is a device of this machine."""

    pool: str
    image: str
    device: Path


def check_mounter(text: str) -> str:
    """The mounter of a class; INVALID_ARGUMENT if it is not known."""
    if text not in ("", *MOUNTERS):
        raise invalid(f"mounter: {text!r} is not known; known are {', '.join(MOUNTERS)}")
    return text or RBD_FUSE


def parse_devices(text: str) -> list[MappedDevice]:
    """What ``rbd device list`` prints; krbd calls an image ``name``, nbd calls it ``image``.

    Mapped snapshots are left out: a volume is never one.
    """
    listed = json.loads(text or "[]")
    return [
        MappedDevice(one["pool"], one.get("name") or one["image"], Path(one["device"]))
        for one in (listed.values() if isinstance(listed, dict) else listed)
        if one.get("snap", "-") in ("", "-")
    ]


class MappedImages:
    """Images that one kind of device shows; ``prefix`` begins the names of ours."""

    def __init__(self, mounter: str, cluster: CephCluster, folder: Path, prefix: str) -> None:
        self._mounter = mounter
        self._cluster = cluster
        self._folder = folder
        self._prefix = prefix

    def show(self, entry: JournalEntry, *, readonly: bool, near: Mapping[str, str]) -> None:
        """Map an image, unless it is."""
        if self.devices(entry.uuid):
            return
        client_conf.write(self._folder, self._cluster, near)
        image = f"{self._prefix}{entry.uuid}"
        done = self._run(*self.map_arguments(entry.pool, image, readonly=readonly, near=near))
        if done.returncode != 0:
            raise self._failed(f"map {image}", done)

    def source(self, uuid: str) -> Path | None:
        """The device of a volume, if it is mapped."""
        return next(iter(self.devices(uuid)), None)

    def devices(self, uuid: str) -> list[Path]:
        """The same; by accident there may be several."""
        return [one.device for one in self._listed() if one.image == f"{self._prefix}{uuid}"]

    @contextmanager
    def attached(self, source: Path, *, readonly: bool, keep: bool) -> Iterator[Path]:
        """It is a device already, and stays one."""
        yield source

    def follow(self, device: Path, size: int) -> None:
        """Wait until a device is as large as its image; ABORTED if that takes long."""
        end = time.monotonic() + FOLLOW_SECONDS
        while filesystems.size(device) < size:
            if time.monotonic() > end:
                raise aborted(f"{device} has not followed its image yet; try again")
            time.sleep(0.05)

    def hide(self, uuid: str) -> None:
        """Unmap a volume's devices that are mounted nowhere."""
        for device in self.devices(uuid):
            if not mounts.of_device(device):
                self._unmap(device, force=False)

    def let_go(self, uuid: str) -> None:
        """The same: nothing else is attached."""
        self.hide(uuid)

    def cut_off(self, uuid: str) -> None:
        """Nothing to do: a fenced client answers with errors and blocks nothing."""

    def abandon(self, uuid: str) -> None:
        """Unmap a volume that another node has now, even if its device is still open."""
        for device in self.devices(uuid):
            self._unmap(device, force=True)

    def shown_at(self, path: Path, uuid: str) -> bool:
        """Whether a volume is mounted at a path; one whose rbd-nbd died cannot be told apart."""
        device = mounts.device_at(path)
        if device is None:
            return False
        nbd = self._mounter == RBD_NBD and device.name.startswith("nbd")
        if nbd and not (_BLOCKS / device.name / "pid").exists():
            return True
        return device in self.devices(uuid)

    def map_arguments(
        self, pool: str, image: str, *, readonly: bool, near: Mapping[str, str]
    ) -> list[str]:
        """How an image is mapped. librbd reads from ``ceph.conf`` what krbd gets as options."""
        options = client_conf.kernel_options(self._cluster, near) if self._mounter == KRBD else []
        return [
            *self._arguments("map"),
            *(["--options", ",".join(options)] if options else []),
            *(["--read-only"] if readonly else []),
            f"{pool}/{image}",
        ]

    def unmap_arguments(self, device: Path, *, force: bool) -> list[str]:
        """How a device is unmapped."""
        options = ["noudev", *(["force"] if force else [])] if self._mounter == KRBD else []
        return [
            *self._arguments("unmap"),
            *(["--options", ",".join(options)] if options else []),
            str(device),
        ]

    def _arguments(self, verb: str) -> list[str]:
        conf = str(client_conf.path(self._folder, self._cluster))
        kind = _DEVICE_TYPES[self._mounter]
        return ["-c", conf, "--id", self._cluster.user, "device", verb, "--device-type", kind]

    def _listed(self) -> list[MappedDevice]:
        """All mapped images; where the program is missing nothing was ever mapped."""
        if shutil.which("rbd") is None:
            return []
        if not client_conf.path(self._folder, self._cluster).exists():
            client_conf.write(self._folder, self._cluster)
        done = self._run(*self._arguments("list"), "--format", "json")
        if done.returncode != 0:
            if self._mounter == RBD_NBD and shutil.which(RBD_NBD) is None:
                return []
            raise self._failed("list devices", done)
        try:
            return parse_devices(done.stdout)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._unavailable("list devices", f"it printed {done.stdout[:200]!r}") from None

    def _unmap(self, device: Path, *, force: bool) -> None:
        done = self._run(*self.unmap_arguments(device, force=force))
        if done.returncode != 0:
            raise self._failed(f"unmap {device}", done)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        doing = f"{arguments[5]} {arguments[-1]}"
        try:
            return subprocess.run(
                ["rbd", *arguments],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS,
            )
        except FileNotFoundError:
            raise self._unavailable(doing, "rbd is not installed; install ceph-common") from None
        except subprocess.TimeoutExpired:
            raise self._unavailable(doing, "Ceph did not answer in time") from None

    def _failed(self, doing: str, done: subprocess.CompletedProcess[str]) -> CsiError:
        module, place = _MODULES[self._mounter]
        if self._mounter == RBD_NBD and shutil.which(RBD_NBD) is None:
            return self._unavailable(doing, "rbd-nbd is not installed; install it")
        if not Path(place).exists():
            return self._unavailable(
                doing, f"the kernel has no module {module}; load it, or use mounter: {RBD_FUSE}"
            )
        return self._unavailable(doing, _words(done.stderr.splitlines()))

    def _unavailable(self, doing: str, why: str) -> CsiError:
        return CsiError(Code.UNAVAILABLE, f"{self._mounter} cannot {doing} on this node: {why}")


def _words(lines: Sequence[str]) -> str:
    """What went wrong, without Ceph's advice to look elsewhere."""
    told = [one.strip() for one in lines if one.strip() and "dmesg" not in one]
    return "; ".join(told)[:300] or "rbd said nothing"
