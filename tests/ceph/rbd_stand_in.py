"""In the place of Ceph's ``rbd``: ``device map``, ``unmap`` and ``list`` without krbd and nbd.

The kernels that build this have neither krbd nor nbd. Here an image is shown by rbd-fuse and a loop
device, and the loop device counts as the mapped one: a real block device over a real image, with a
real client that watches and locks it. What is mapped is remembered beside the configuration that
``-c`` names, so that every driver has a machine of its own.

As the kernel does: an image may be mapped twice, a krbd device that is in use is unmapped by force
alone, nbd disconnects whoever uses it, and a device is as large as its image (seen at each list).

Files in the folder ``stand-in`` change what happens: ``calls`` has all command lines, and after
``kill-map`` or ``kill-unmap``, which are used up, the caller is killed when that is done.
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
    """It under the name ``rbd`` in a folder."""
    folder.mkdir()
    program = folder / "rbd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "$@"\n')
    program.chmod(0o755)
    return program


def fail_requests(data: Path) -> None:
    """Let all clients of a driver fail what they are asked, as krbd does when it was shut out.

    rbd-fuse would try for ever, and whoever asked it for a size could not even be killed.
    """
    for note in (data / "rbd" / "stand-in").glob("*/*.json"):
        for process in _clients(note.with_suffix("")):
            os.kill(process, signal.SIGKILL)


def main() -> int:
    """What ``rbd`` would do."""
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
        """All of them, as large as their images are now."""
        found = []
        for note in sorted((self.folder / self.kind).glob("*.json")):
            one = json.loads(note.read_text())
            with suppress(OSError):
                (note.with_suffix("") / (one.get("name") or one["image"])).stat()
                subprocess.run(["losetup", "-c", one["device"]], check=False)
            found.append(one)
        return found

    def map(self, conf: Path, user: str, spec: str, *, readonly: bool) -> str:
        """Map an image; the device."""
        pool, image = spec.split("/")
        number = os.getpid()
        place = self.folder / self.kind / str(number)
        place.mkdir()
        subprocess.run(
            [
                *("rbd-fuse", "-c", str(conf), "--id", user, "-p", pool, "-r", image, str(place)),
                *("-o", "attr_timeout=0"),
            ],
            check=True,
        )
        file = place / image
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
        fresh = place.with_suffix(".fresh")
        fresh.write_text(json.dumps({**note, "snap": "-", "device": device}))
        fresh.rename(place.with_suffix(".json"))
        return device

    def unmap(self, device: str, *, force: bool) -> int:
        """Unmap a device; what the kernel would refuse it with."""
        (one,) = [one for one in self.listed() if one["device"] == device]
        if self.kind == "krbd" and not force:
            try:
                os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return errno.EBUSY
                raise
        place = self.folder / self.kind / str(one["id"])
        if force:
            for process in _clients(place):
                os.kill(process, signal.SIGKILL)
        subprocess.run(["losetup", "-d", device], check=True)
        if force:
            subprocess.run(["umount", "-l", str(place)], check=True)
        else:
            umount = ["umount", "-q", str(place)]
            _until(lambda: subprocess.run(umount, check=False).returncode == 0)
        _until(lambda: not _clients(place))
        place.with_suffix(".json").unlink()
        place.rmdir()
        return 0


def _clients(place: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"rbd-fuse") and os.fsencode(place) in words:
            found.append(int(process.name))
    return found


def _until(reached: Any) -> None:
    end = time.monotonic() + SECONDS
    while not reached():
        if time.monotonic() > end:
            sys.exit("rbd: the stand-in waited in vain")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
