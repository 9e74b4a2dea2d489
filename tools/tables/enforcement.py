"""Which of OpenAPI's `required` and `enum` a real server enforces.

OpenAPI says more than the server does: it calls fields required that may be left out, and enums
whose values are not checked. So each sample is sent again without one such field, or with a
word that is not in its enum. Only where every refusal (of up to `TRIES` places of the field) names
that very field with the reason `FieldValueRequired` or `FieldValueNotSupported`, a fact is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tools.tables.defaults import STORED, by_kind, collection, samples
from tools.tables.server import Refused, Server
from zonewise.embedded.machinery.schema.definitions import Definitions
from zonewise.embedded.machinery.schema.kinds import KindRow
from zonewise.embedded.machinery.schema.schema import Schema

TRIES = 3
BOGUS = "Bogus"
REASONS = {"required": "FieldValueRequired", "enums": "FieldValueNotSupported"}

Path = tuple[str | int, ...]


class Probe(NamedTuple):
    """One field of one sample that may be enforced."""

    what: str
    definition: str
    field: str
    path: Path


def enforced(
    server: Server, kinds: Iterable[KindRow], definitions: Definitions
) -> dict[str, dict[str, list[str]]]:
    """Fields by definition that must be there, and fields whose enum is checked."""
    rows = by_kind(kinds)
    seen: dict[tuple[str, str, str], list[bool]] = {}
    for where, sample in samples():
        row = rows[sample["apiVersion"], sample["kind"]]
        if where.startswith(STORED):
            continue
        for probe in probes(definitions.schema(row.type), sample, ()):
            tried = seen.setdefault(probe[:3], [])
            if probe.path[0] != "metadata" and len(tried) < TRIES:
                tried.append(_is_refused(server, collection(row), sample, probe))
    by_reason: dict[str, dict[str, list[str]]] = {what: {} for what in REASONS}
    for (what, definition, field), tried in sorted(seen.items()):
        if tried and all(tried):
            by_reason[what].setdefault(definition, []).append(field)
    return by_reason


def probes(schema: Schema, value: Any, path: Path) -> Iterator[Probe]:
    """What could be taken out of a sample or set to something else."""
    if schema.shape == "object" and isinstance(value, dict):
        for name in schema.required:
            if name in value:
                yield Probe("required", schema.name, name, (*path, name))
        for name, item in value.items():
            field = schema.fields[name]
            if field.enum and isinstance(item, str):
                yield Probe("enums", schema.name, name, (*path, name))
            yield from probes(field, item, (*path, name))
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from probes(schema.items, item, (*path, index))
    elif isinstance(value, dict) and schema.values is not None:
        for name, item in value.items():
            yield from probes(schema.values, item, (*path, name))


def _is_refused(server: Server, path: str, sample: dict[str, Any], probe: Probe) -> bool:
    changed = copy.deepcopy(sample)
    holder: Any = changed
    for step in probe.path[:-1]:
        holder = holder[step]
    if probe.what == "required":
        del holder[probe.path[-1]]
    else:
        holder[probe.path[-1]] = BOGUS
    try:
        server.send("POST", f"{path}?dryRun=All", changed)
    except Refused as refused:
        return (REASONS[probe.what], _format_path(probe.path)) in refused.causes
    return False


def _format_path(path: Path) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
