"""Folders of the driver that no other user of the machine may enter.

Volumes are open to every user id, as pods have any: what keeps local users out is the folder above
them. Pods reach their volumes at their own paths, through mounts, which that folder does not
affect. Without root a volume is a link at the pod's path, and the folder must be passable.
"""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

PRIVATE = 0o700
PASSABLE = 0o711


def make_private_folder(folder: Path) -> None:
    """Make a folder of our own; as root let only root enter it, also one that exists."""
    folder.mkdir(mode=PASSABLE, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        folder.chmod(PRIVATE)


def make_data_folder(folder: Path, own_names: Container[str]) -> None:
    """The same for a folder that a user names: one with files of others keeps its mode."""
    folder.mkdir(mode=PASSABLE, parents=True, exist_ok=True)
    if all(path.name in own_names for path in folder.iterdir()):
        make_private_folder(folder)
