"""What the tests need from Debian: looked for first, installed only if it is missing.

Runs before there is anything but the system's Python, so it uses the standard library alone. A
program that is on the path counts, however it was installed; apt installs only what is missing.
Without root or apt it fails at once and names everything that is missing in one sentence, so that
a test run does not fail ten minutes later because of a missing program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """A program the tests run, and the Debian package that has it."""

    program: str
    package: str


# Every program beyond Debian's essential packages that a test runs.
NEEDED: tuple[Need, ...] = (
    Need("strace", "strace"),
    Need("ip", "iproute2"),
    Need("nft", "nftables"),
    Need("dig", "bind9-dnsutils"),
    Need("curl", "curl"),
    Need("mkfs.ext4", "e2fsprogs"),
    Need("mkfs.xfs", "xfsprogs"),
)

# What `make e2e` runs besides: a real Ceph. ceph-common brings the Python bindings along.
CEPH: tuple[Need, ...] = (
    Need("ceph-mon", "ceph-mon"),
    Need("ceph-osd", "ceph-osd"),
    Need("ceph-mgr", "ceph-mgr"),
    Need("ceph-mds", "ceph-mds"),
    Need("ceph", "ceph-common"),
    Need("ceph-fuse", "ceph-fuse"),
    Need("rbd-fuse", "rbd-fuse"),
)

# What `make bench` runs besides: the load for name servers.
BENCH: tuple[Need, ...] = (Need("dnsperf", "dnsperf"),)

GROUPS = {"ceph": CEPH, "bench": BENCH}


def missing(needed: Sequence[Need]) -> list[Need]:
    """The needs whose program is missing; folders of administrators are searched as well."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return [need for need in needed if shutil.which(need.program, path=path) is None]


def apt(*arguments: str) -> int:
    """Run apt-get without questions; its exit code."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(["apt-get", "-qq", *arguments], env=environment, check=False).returncode


def refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


def main(needed: Sequence[Need] = NEEDED) -> int:
    lacking = missing(needed)
    if not lacking:
        names = ", ".join(need.program for need in needed) or "no program beyond the base system"
        print(f"nothing to install; the tests need {names}")
        return 0
    programs = ", ".join(need.program for need in lacking)
    packages = sorted({need.package for need in lacking})
    command = f"apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        return refuse(
            f"The tests need {programs}, which this machine does not have, and it has no apt-get "
            f"to install the Debian packages {', '.join(packages)}; install them some other way."
        )
    if os.geteuid() != 0:
        return refuse(
            f"The tests need {programs}, which this machine does not have, and only root may "
            f"install packages; run `{command}` as root, then `make test` again."
        )
    print(f"installing {', '.join(packages)}", flush=True)
    if apt("update") != 0 or apt("install", "--yes", "--no-install-recommends", *packages) != 0:
        return refuse(f"`{command}` failed; its output is above.")
    still = missing(lacking)
    if still:
        return refuse(
            f"{', '.join(need.program for need in still)} is still missing after `{command}`."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main((*NEEDED, *(need for name in sys.argv[1:] for need in GROUPS[name]))))
