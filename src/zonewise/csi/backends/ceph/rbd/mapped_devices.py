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
from zonewise.csi.errors import CsiError, aborted, invalid, unavailable
from zonewise.storage.configuration import CephCluster
from zonewise.storage.journal import JournalEntry

MOUNTER = "mounter"
RBD_FUSE = "rbd-fuse"
KRBD = "krbd"
RBD_NBD = "rbd-nbd"
MOUNTERS = (RBD_FUSE, KRBD, RBD_NBD)
COMMAND_SECONDS = 30.0
GROW_SECONDS = 5.0
_DEVICE_TYPES = {KRBD: "krbd", RBD_NBD: "nbd"}
_KERNEL_MODULES = {KRBD: ("rbd", "/sys/bus/rbd"), RBD_NBD: ("nbd", "/sys/module/nbd")}
_SYS_BLOCK = Path("/sys/block")


@dataclass(frozen=True, slots=True)
class MappedDevice:
    """An image that is a device of this machine."""

    pool: str
    image: str
    device: Path


def parse_mounter(text: str) -> str:
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
        MappedDevice(device["pool"], device.get("name") or device["image"], Path(device["device"]))
        for device in (listed.values() if isinstance(listed, dict) else listed)
        if device.get("snap", "-") in ("", "-")
    ]


class MappedImages:
    """Images that one kind of device shows; ``prefix`` begins the names of ours."""

    def __init__(self, mounter: str, cluster: CephCluster, folder: Path, prefix: str) -> None:
        self._mounter = mounter
        self._cluster = cluster
        self._folder = folder
        self._prefix = prefix

    def map(self, entry: JournalEntry, *, readonly: bool, read_domain: Mapping[str, str]) -> None:
        """Map an image, unless it is."""
        if self.find_devices(entry.uuid):
            return
        client_conf.write_conf(self._folder, self._cluster, read_domain)
        image = f"{self._prefix}{entry.uuid}"
        result = self._run(
            *self.map_arguments(entry.pool, image, readonly=readonly, read_domain=read_domain)
        )
        if result.returncode != 0:
            raise self._command_failed(f"map {image}", result)

    def find_source(self, uuid: str) -> Path | None:
        """The device of a volume, if it is mapped."""
        return next(iter(self.find_devices(uuid)), None)

    def find_devices(self, uuid: str) -> list[Path]:
        """The same; by accident there may be several."""
        image = f"{self._prefix}{uuid}"
        return [item.device for item in self._list_devices() if item.image == image]

    @contextmanager
    def attach(self, source: Path, *, readonly: bool, keep: bool) -> Iterator[Path]:
        """It is a device already, and stays one."""
        yield source

    def update_size(self, device: Path, size: int) -> None:
        """Wait until a device is as large as its image; ABORTED if that takes long."""
        deadline = time.monotonic() + GROW_SECONDS
        while filesystems.size_of(device) < size:
            if time.monotonic() > deadline:
                raise aborted(f"{device} does not have the size of its image yet; try again")
            time.sleep(0.05)

    def unmap(self, uuid: str) -> None:
        """Unmap a volume's devices that are mounted nowhere."""
        for device in self.find_devices(uuid):
            if not mounts.of_device(device):
                self._unmap(device, force=False)

    def release(self, uuid: str) -> None:
        """The same: nothing else is attached."""
        self.unmap(uuid)

    def kill_client(self, uuid: str) -> None:
        """Nothing to do: a fenced client answers with errors and blocks nothing."""

    def force_unmap(self, uuid: str) -> None:
        """Unmap a volume that another node has now, even if its device is still open."""
        for device in self.find_devices(uuid):
            self._unmap(device, force=True)

    def is_mounted_at(self, path: Path, uuid: str) -> bool:
        """Whether a volume is mounted at a path; one whose rbd-nbd died cannot be told apart."""
        device = mounts.device_at(path)
        if device is None:
            return False
        nbd = self._mounter == RBD_NBD and device.name.startswith("nbd")
        if nbd and not (_SYS_BLOCK / device.name / "pid").exists():
            return True
        return device in self.find_devices(uuid)

    def map_arguments(
        self, pool: str, image: str, *, readonly: bool, read_domain: Mapping[str, str]
    ) -> list[str]:
        """How an image is mapped. librbd reads from ``ceph.conf`` what krbd gets as options."""
        options = (
            client_conf.kernel_options(self._cluster, read_domain) if self._mounter == KRBD else []
        )
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
        conf_file = str(client_conf.conf_path(self._folder, self._cluster))
        device_type = _DEVICE_TYPES[self._mounter]
        client = ["-c", conf_file, "--id", self._cluster.user]
        return [*client, "device", verb, "--device-type", device_type]

    def _list_devices(self) -> list[MappedDevice]:
        """All mapped images; where the program is missing nothing was ever mapped."""
        if shutil.which("rbd") is None:
            return []
        if not client_conf.conf_path(self._folder, self._cluster).exists():
            client_conf.write_conf(self._folder, self._cluster)
        result = self._run(*self._arguments("list"), "--format", "json")
        if result.returncode != 0:
            if self._mounter == RBD_NBD and shutil.which(RBD_NBD) is None:
                return []
            raise self._command_failed("list devices", result)
        try:
            return parse_devices(result.stdout)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._unavailable("list devices", f"it printed {result.stdout[:200]!r}") from None

    def _unmap(self, device: Path, *, force: bool) -> None:
        result = self._run(*self.unmap_arguments(device, force=force))
        if result.returncode != 0:
            raise self._command_failed(f"unmap {device}", result)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        action = f"{arguments[5]} {arguments[-1]}"
        try:
            return subprocess.run(
                ["rbd", *arguments],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=COMMAND_SECONDS,
            )
        except FileNotFoundError:
            raise self._unavailable(action, "rbd is not installed; install ceph-common") from None
        except subprocess.TimeoutExpired:
            raise self._unavailable(action, "Ceph did not answer in time") from None

    def _command_failed(self, action: str, result: subprocess.CompletedProcess[str]) -> CsiError:
        module, module_path = _KERNEL_MODULES[self._mounter]
        if self._mounter == RBD_NBD and shutil.which(RBD_NBD) is None:
            return self._unavailable(action, "rbd-nbd is not installed; install it")
        if not Path(module_path).exists():
            return self._unavailable(
                action, f"the kernel has no module {module}; load it, or use mounter: {RBD_FUSE}"
            )
        return self._unavailable(action, _join_messages(result.stderr.splitlines()))

    def _unavailable(self, action: str, why: str) -> CsiError:
        return unavailable(f"{self._mounter} cannot {action} on this node: {why}")


def _join_messages(lines: Sequence[str]) -> str:
    """What went wrong, without Ceph's advice to look elsewhere."""
    messages = [line.strip() for line in lines if line.strip() and "dmesg" not in line]
    return "; ".join(messages)[:300] or "rbd said nothing"
