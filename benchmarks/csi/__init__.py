"""What a volume costs through the driver, against the same work on the disk without it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.table import Table


def _create() -> Iterator[Table]:
    yield from import_module("benchmarks.csi.volumes").create()


def _stage() -> Iterator[Table]:
    yield from import_module("benchmarks.csi.volumes").stage()


def _rbd() -> Iterator[Table]:
    yield from import_module("benchmarks.csi.ceph").images()


def _cephfs() -> Iterator[Table]:
    yield from import_module("benchmarks.csi.ceph").subvolumes()


def _omap() -> Iterator[Table]:
    yield from import_module("benchmarks.csi.ceph").reservations()


BENCHMARKS = {"create": _create, "stage": _stage, "rbd": _rbd, "cephfs": _cephfs, "omap": _omap}
