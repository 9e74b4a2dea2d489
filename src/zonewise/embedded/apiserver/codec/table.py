"""Tables: what kubectl prints.

Columns of built-in kinds are in the generated table, a printer (``printers``) makes the cells of
one object in that order; kinds without a printer have the cells their columns name: name, age,
creation time. The columns of custom resources are JSON paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.codec.output import bookmark_metadata, metadata_of
from zonewise.embedded.apiserver.codec.printers import cluster, network, pods, storage, workloads
from zonewise.embedded.apiserver.codec.printers.base import NONE, PRINTERS, Printer, age_of, name_of
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.machinery.schema.kinds import Column, Kind

Obj = dict[str, Any]

PRINTER_MODULES = (cluster, network, pods, storage, workloads)
"""Importing them registers their printers."""
INCLUDE = ("Metadata", "None", "Object")


class Table:
    """The objects of one kind as a Table."""

    def __init__(
        self,
        served: ServedKind,
        include: str,
        version: str,
        columns: Sequence[Column],
        printer: Printer,
        now: Callable[[], str],
    ) -> None:
        if include not in INCLUDE:
            raise status_errors.bad_request(
                f"unrecognized includeObject value: {include!r}, use one of {', '.join(INCLUDE)}"
            )
        self._served = served
        self._include = include
        self._version = version
        self._printer = printer
        self._now = now
        self._columns = msgspec.json.encode([_definition(column) for column in columns])

    def encode(self, entry: Entry) -> bytes:
        """A table of one row."""
        return self.encode_list([entry], {"resourceVersion": str(entry.rv)})

    def encode_list(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """A table."""
        return self._table(self._columns, meta, [self._row(entry) for entry in entries])

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """An event with a table of one row; each has its columns, since frames are shared."""
        return b'{"type":"%b","object":%b}\n' % (type.encode(), self.encode(entry))

    def encode_bookmark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark: a table with one row that has the version."""
        meta = bookmark_metadata(rv, ended)
        row = msgspec.json.encode(
            {
                "cells": None,
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": f"meta.k8s.io/{self._version}",
                    "metadata": meta,
                },
            }
        )
        table = self._table(b"null", {"resourceVersion": str(rv)}, [row])
        return b'{"type":"BOOKMARK","object":%b}\n' % table

    def _table(self, columns: bytes, meta: Obj, rows: list[bytes]) -> bytes:
        return b'{"kind":"Table","apiVersion":"meta.k8s.io/%b","metadata":%b,%b%b,"rows":[%b]}' % (
            self._version.encode(),
            msgspec.json.encode(meta),
            b'"columnDefinitions":',
            columns,
            b",".join(rows),
        )

    def _row(self, entry: Entry) -> bytes:
        obj = bodies.read_stored(self._served, entry)
        cells = msgspec.json.encode(self._printer(obj, self._now()))
        if self._include == "None":
            return b'{"cells":%b}' % cells
        if self._include == "Object":
            return b'{"cells":%b,"object":%b}' % (cells, bodies.encode(obj))
        head = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{self._version}",'
        return b'{"cells":%b,"object":%b"metadata":%b}}' % (
            cells,
            head.encode(),
            metadata_of(bodies.converted_view(self._served, entry).raw),
        )


def printer_of(kind: Kind) -> Printer:
    """The printer of a built-in kind."""
    printer = PRINTERS.get(kind.storage)
    if printer is not None:
        return printer
    names = [column.name for column in kind.columns]

    def print_row(obj: Obj, now: str) -> list[Any]:
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

    return print_row


def _definition(column: Column) -> Obj:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": "",
        "priority": column.priority,
    }
