"""Tables: what kubectl prints.

Columns of built-in kinds are facts of the generated table; a printer makes the cells of one object,
and kinds without one show their name and age. Custom resources bring their columns as JSON paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.codec.output import mark_metadata, metadata_of
from zonewise.embedded.apiserver.codec.printers.base import Printer
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.machinery.schema.kinds import Column

Obj = dict[str, Any]
"""An object and the present time (RFC 3339) -> its cells."""

INCLUDE = ("Metadata", "None", "Object")


class Table:
    """Rows of one kind."""

    def __init__(
        self,
        served: Served,
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
        self._print = printer
        self._now = now
        self._columns = msgspec.json.encode([_definition(column) for column in columns])

    def one(self, entry: Entry) -> bytes:
        """A table of one row."""
        return self.many([entry], {"resourceVersion": str(entry.rv)})

    def many(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """A table."""
        return self._table(self._columns, meta, [self._row(entry) for entry in entries])

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """An event with a table of one row; each carries its columns, since frames are shared."""
        return b'{"type":"%b","object":%b}\n' % (type.encode(), self.one(entry))

    def mark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark: a table whose one row carries the version."""
        meta = mark_metadata(rv, ended)
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
        cells = msgspec.json.encode(self._print(obj, self._now()))
        if self._include == "None":
            return b'{"cells":%b}' % cells
        if self._include == "Object":
            return b'{"cells":%b,"object":%b}' % (cells, bodies.encode(obj))
        head = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{self._version}",'
        return b'{"cells":%b,"object":%b"metadata":%b}}' % (
            cells,
            head.encode(),
            metadata_of(bodies.view(self._served, entry).raw),
        )


def _definition(column: Column) -> Obj:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": "",
        "priority": column.priority,
    }
