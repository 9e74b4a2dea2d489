"""Links to folders, which are what a volume is at a pod's path where nothing can be mounted."""

from __future__ import annotations

import os
from pathlib import Path

from zonewise.csi.status import precondition


def make(folder: Path, target: Path) -> None:
    """A link to a folder; one that leads there already is fine."""
    if target.is_symlink():
        if target.resolve() == folder.resolve():
            return
        raise precondition(f"{target} leads to something else")
    if target.is_dir():
        target.rmdir()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(folder.resolve(), target_is_directory=True)


def remove(target: Path, name: str, data: Path) -> None:
    """Remove a link into our data, or to the volume of that name where our data once was."""
    leads_to = target.readlink()
    inside = Path(os.path.normpath(leads_to)).is_relative_to(os.path.realpath(data))
    if not inside and leads_to.name != name:
        raise precondition(f"{target} is a link that is not ours; it was left alone")
    target.unlink()
