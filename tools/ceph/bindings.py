"""Debian's Ceph bindings in a virtual environment.

The three modules are not on PyPI; Debian builds them for its own Python. They load into any
interpreter of the same version and ABI, whoever built it, so they are linked one by one: an
environment that sees all of Debian's packages would see the wrong versions of many others.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

MODULES = ("rados", "rbd", "cephfs")
DEBIAN = Path("/usr/lib/python3/dist-packages")


def link(source: Path = DEBIAN, target: Path | None = None, suffix: str | None = None) -> int:
    """Link the modules; an exit code, and one sentence if it cannot be done."""
    target = target or Path(sysconfig.get_path("platlib"))
    suffix = suffix or str(sysconfig.get_config_var("EXT_SUFFIX"))
    for name in MODULES:
        origin = source / f"{name}{suffix}"
        if not origin.exists():
            others = sorted(path.name for path in source.glob(f"{name}.*.so"))
            print(_missing(name, suffix, others), file=sys.stderr)
            return 2
        link_path = target / origin.name
        if not link_path.is_symlink() or link_path.readlink() != origin:
            link_path.unlink(missing_ok=True)
            link_path.symlink_to(origin)
    return 0


def _missing(name: str, suffix: str, others: list[str]) -> str:
    if others:
        return (
            f"Debian's {name} is {', '.join(others)}, and this Python loads only {name}{suffix}; "
            "make the environment with Debian's own: make clean, then PYTHON=/usr/bin/python3."
        )
    return f"Debian's {name} is not installed; run `apt-get install python3-{name}` as root."
