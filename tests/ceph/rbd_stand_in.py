"""A replacement for Ceph's ``rbd``: ``device map``, ``unmap`` and ``list`` without krbd and nbd.

The kernels that build this have neither krbd nor nbd. Here an image is shown by rbd-fuse and a loop
device, and the loop device counts as the mapped one: a real block device over a real image, with a
real client that watches and locks it. Mapped devices are recorded beside the configuration that
``-c`` names, so that every driver has its own.

As in the kernel an image may be mapped twice, a krbd device in use is unmapped only by force, nbd
disconnects its users, and a device is as large as its image (updated at each list).

The folder ``stand-in`` has all command lines in the file ``calls``. If a file ``kill-map`` or
``kill-unmap`` is there, it is removed and the caller is killed after that verb.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 10.0


def installed(folder: Path) -> Path:
    """Install this program as ``rbd`` in a folder."""
    folder.mkdir()
    program = folder / "rbd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "$@"\n')
    program.chmod(0o755)
    return program


def fail_requests(data: Path) -> None:
    """Let all requests to a driver's clients fail, as krbd does when it is blocklisted.

    rbd-fuse would retry forever, and a process waiting for a size could not even be killed.
    """
    for note in (data / "rbd" / "stand-in").glob("*/*.json"):
        for process in _clients(note.with_suffix("")):
            os.kill(process, signal.SIGKILL)


def main() -> int:
    """Do what ``rbd`` would do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", dest="conf", type=Path, required=True)
    parser.add_argument("--id", dest="user", required=True)
    parser.add_argument("noun", choices=["device"])
    parser.add_argument("verb", choices=["map", "unmap", "list"])
    parser.add_argument("--device-type", dest="kind", choices=["krbd", "nbd"], required=True)
    parser.add_argument("--options", default="")
    parser.add_argument("--read-only", dest="readonly", action="store_true")
    parser.add_argument("--format")
    parser.add_argument("spec", nargs="?", default="")
    given = parser.parse_intermixed_args()
    machine = Machine(given.conf.parent / "stand-in", given.kind)
    with (machine.folder / "calls").open("a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\n")
    if given.verb == "list":
        sys.stdout.write(json.dumps(machine.listed()))
        return 0
    if given.verb == "map":
        device = machine.map(given.conf, given.user, given.spec, readonly=given.readonly)
        sys.stdout.write(f"{device}\n")
    elif code := machine.unmap(given.spec, force="force" in given.options.split(",")):
        sys.stderr.write(f"rbd: sysfs write failed\nrbd: unmap failed: ({code})\n")
        return code
    kill = machine.folder / f"kill-{given.verb}"
    if kill.exists():
        kill.unlink()
        os.kill(os.getppid(), signal.SIGKILL)
    return 0


class Machine:
    """The devices of one kind that one driver has mapped."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        (folder / kind).mkdir(parents=True, exist_ok=True)

    def listed(self) -> list[dict[str, Any]]:
        """All mapped devices, resized to their images."""
        entries = []
        for note in sorted((self.folder / self.kind).glob("*.json")):
            entry = json.loads(note.read_text())
            with suppress(OSError):
                (note.with_suffix("") / (entry.get("name") or entry["image"])).stat()
                subprocess.run(["losetup", "-c", entry["device"]], check=False)
            entries.append(entry)
        return entries

    def map(self, conf: Path, user: str, spec: str, *, readonly: bool) -> str:
        """Map an image; returns the device."""
        pool, image = spec.split("/")
        number = os.getpid()
        mountpoint = self.folder / self.kind / str(number)
        mountpoint.mkdir()
        subprocess.run(
            [
                *(
                    "rbd-fuse",
                    "-c",
                    str(conf),
                    "--id",
                    user,
                    "-p",
                    pool,
                    "-r",
                    image,
                    str(mountpoint),
                ),
                *("-o", "attr_timeout=0"),
            ],
            check=True,
        )
        file = mountpoint / image
        _until(lambda: file.exists() and file.stat().st_size > 0)
        flags = ["-r"] if readonly else []
        done = subprocess.run(
            ["losetup", *flags, "--find", "--show", str(file)],
            check=True,
            capture_output=True,
            text=True,
        )
        device = done.stdout.strip()
        subprocess.run(["blockdev", "--setro" if readonly else "--setrw", device], check=True)
        called = {"name": image} if self.kind == "krbd" else {"image": image}
        note: dict[str, Any] = {"id": number, "pool": pool, "namespace": "", **called}
        fresh = mountpoint.with_suffix(".fresh")
        fresh.write_text(json.dumps({**note, "snap": "-", "device": device}))
        fresh.rename(mountpoint.with_suffix(".json"))
        return device

    def unmap(self, device: str, *, force: bool) -> int:
        """Unmap a device; returns the error number that the kernel would give, or 0."""
        (entry,) = [entry for entry in self.listed() if entry["device"] == device]
        if self.kind == "krbd" and not force:
            try:
                os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return errno.EBUSY
                raise
        mountpoint = self.folder / self.kind / str(entry["id"])
        if force:
            for process in _clients(mountpoint):
                os.kill(process, signal.SIGKILL)
        subprocess.run(["losetup", "-d", device], check=True)
        if force:
            subprocess.run(["umount", "-l", str(mountpoint)], check=True)
        else:
            umount = ["umount", "-q", str(mountpoint)]
            _until(lambda: subprocess.run(umount, check=False).returncode == 0)
        _until(lambda: not _clients(mountpoint))
        mountpoint.with_suffix(".json").unlink()
        mountpoint.rmdir()
        return 0


def _clients(mountpoint: Path) -> list[int]:
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"rbd-fuse") and os.fsencode(mountpoint) in words:
            pids.append(int(process.name))
    return pids


def _until(reached: Any) -> None:
    end = time.monotonic() + SECONDS
    while not reached():
        if time.monotonic() > end:
            sys.exit("rbd: the stand-in timed out")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
