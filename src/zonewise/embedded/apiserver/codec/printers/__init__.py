"""The cells of a row: what kubectl shows of an object of each kind.

The columns are facts of the generated table, in its order; a printer here makes the cells of one
object in that order. Kinds without a printer show the cells their columns name: name, age, creation
time.
"""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.codec.printers import (
    cluster,
    devices,
    network,
    pods,
    storage,
    workloads,
)
from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    PRINTERS,
    Obj,
    Printer,
    age_of,
    duration,
    name_of,
)
from zonewise.embedded.machinery.schema.kinds import Kind

__all__ = ["duration", "printer_of"]

MODULES = (cluster, devices, network, pods, storage, workloads)
"""Importing them is what registers their printers."""


def printer_of(kind: Kind) -> Printer:
    """The printer of a kind."""
    known = PRINTERS.get(kind.storage)
    if known is not None:
        return known
    names = [column.name for column in kind.columns]

    def plain(obj: Obj, now: str) -> list[Any]:
        cells: list[Any] = []
        for name in names:
            match name:
                case "Name":
                    cells.append(name_of(obj))
                case "Age":
                    cells.append(age_of(obj, now))
                case "Created At":
                    cells.append(obj["metadata"].get("creationTimestamp"))
                case _:
                    cells.append(NONE)
        return cells

    return plain
