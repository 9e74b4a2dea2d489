"""The types of the built-in kinds, from the generated table.

`tables/types.json` states for each definition of a real API server's OpenAPI what cannot be
derived: field types, list types, merge keys, enums, and how Go prints a field (a pointer keeps an
explicit zero, a plain value drops it, a field without omitempty is printed even when it is not
set). `tables/defaults.json` adds the defaults that were observed.

The whole table is decoded at once (a few milliseconds), but `Type`s are made on demand, a
definition with everything it refers to: a process that only uses Leases never builds the types of
pods. A `Definitions` owns its graph, so that fields of our own (`extensions`) exist in one server
and not in another of the same process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from zonewise.embedded.machinery.schema.types import UNSET, ListType, Shape, Type

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
LIST_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
JSON_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"


class Row(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One field. `of` is a scalar, a definition's name, `[]` or `{}` before either for a list or
    a map.

    `merge` is a key, or `*` where items are matched by themselves. `pointer`, `always` (no
    omitempty) and `zero` (omitzero) are Go's; `go` is given where it does not follow from `of`.
    """

    of: str
    list: ListType = "atomic"
    keys: tuple[str, ...] = ()
    merge: str = ""
    retain: bool = False
    replace: bool = False
    atomic: bool | None = None
    enum: tuple[str, ...] = ()
    pointer: bool = False
    always: bool = False
    zero: bool = False
    go: str = ""
    inline: str = ""


class Definition(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One definition: an object with fields, or a scalar that has a name of its own."""

    fields: dict[str, Row] = {}
    required: tuple[str, ...] = ()
    shape: Shape = "object"
    format: str = ""
    atomic: bool = False
    gvk: tuple[tuple[str, str, str], ...] = ()


class GeneratedTable(msgspec.Struct, frozen=True, gc=False):
    """The generated file."""

    generated: str
    version: str
    types: dict[str, Definition]


class DefaultsTable(msgspec.Struct, frozen=True, gc=False):
    """What was observed of fields, by definition.

    Defaults are only those that depend on nothing else. `dropped` fields are known and thrown away:
    their feature gate is off. An object is refused without its `required` fields (OpenAPI claims
    more of them), and with a word that is none of the enum of those in `enums`.
    """

    generated: str
    version: str
    defaults: dict[str, dict[str, Any]]
    dropped: dict[str, tuple[str, ...]]
    required: dict[str, tuple[str, ...]]
    enums: dict[str, tuple[str, ...]]


NOTHING_SEEN = DefaultsTable("", "", {}, {}, {}, {})


class Extension(msgspec.Struct, frozen=True):
    """A field of our own on a built-in definition."""

    definition: str
    field: str
    row: Row


SCALARS: dict[str, tuple[Shape, str, str]] = {
    "string": ("string", "", "string"),
    "byte": ("string", "byte", "[]uint8"),
    "boolean": ("boolean", "", "bool"),
    "int32": ("integer", "int32", "int32"),
    "int64": ("integer", "int64", "int64"),
    "double": ("number", "double", "float64"),
    "any": ("any", "", "interface {}"),
}
ZEROS: dict[str, Any] = {"string": "", "boolean": False, "integer": 0, "number": 0}


def go_name(of: str) -> str:
    """What a decoding error calls a type, where it follows from the expression."""
    if of.startswith("[]"):
        return "[]" + go_name(of[2:])
    if of.startswith("{}"):
        return "map[string]" + go_name(of[2:])
    if of in SCALARS:
        return SCALARS[of][2]
    package, _, name = of.rpartition(".")
    return f"{package.rpartition('.')[2]}.{name}"


def read_table(name: str) -> bytes:
    """A generated file as it is in the distribution."""
    return files(__package__).joinpath("tables", name).read_bytes()


@cache
def types_table() -> GeneratedTable:
    """The generated types, decoded once per process."""
    return msgspec.json.decode(read_table("types.json"), type=GeneratedTable)


@cache
def defaults_table() -> DefaultsTable:
    """The generated defaults, decoded once per process."""
    return msgspec.json.decode(read_table("defaults.json"), type=DefaultsTable)


class Definitions:
    """All built-in definitions as one graph of types, made on demand."""

    def __init__(
        self,
        extensions: Iterable[Extension] = (),
        *,
        own: Mapping[str, Definition] | None = None,
        table: Mapping[str, Definition] | None = None,
    ) -> None:
        """`own` are definitions that extensions refer to. With `table`, the graph of types that
        are not in the tree yet and have no defaults.
        """
        self._rows = {**(types_table().types if table is None else table), **(own or {})}
        self._seen = defaults_table() if table is None else NOTHING_SEEN
        self._types: dict[str, Type] = {}
        self._shared: dict[tuple[str, tuple[str, ...]], Type] = {}
        self._extra: dict[str, dict[str, Row]] = {}
        for extension in extensions:
            self._extra.setdefault(extension.definition, {})[extension.field] = extension.row

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def row(self, name: str) -> Definition:
        """The table's row of a definition."""
        return self._rows[name]

    def type(self, name: str) -> Type:
        """The type of a definition, complete with everything below it."""
        made = self._types.get(name)
        if made is not None:
            return made
        row = self._rows[name]
        made = self._types[name] = Type(
            shape=row.shape,
            name=name,
            format=row.format,
            go=go_name(name),
            required=row.required,
            atomic=row.atomic,
            nullable=row.shape == "any",
            preserve=row.shape == "any",
        )
        if row.format.startswith("schema-or-"):
            made.items = self.type(JSON_SCHEMA)
        defaults = self._seen.defaults.get(name, {})
        dropped = self._seen.dropped.get(name, ())
        demanded = self._seen.required.get(name, ())
        closed = self._seen.enums.get(name, ())
        for field, facts in row.fields.items():
            made.fields[field] = self._use(
                facts,
                default=defaults.get(field, UNSET),
                dropped=field in dropped,
                demanded=field in demanded,
                closed=field in closed,
            )
        for field, facts in self._extra.get(name, {}).items():
            made.fields[field] = self._use(facts)
        return made

    def _use(self, row: Row, **seen: Any) -> Type:
        base = self._expression(row.of, row.enum)
        forgets, printed = printing(row, base)
        return Type(  # spelled out: dataclasses.replace takes four times as long
            shape=base.shape,
            name=base.name,
            format=base.format,
            fields=base.fields,
            required=base.required,
            values=base.values,
            items=base.items,
            enum=base.enum,
            nullable=base.nullable,
            preserve=base.preserve,
            go=row.go or go_name(row.of),
            inline=row.inline,
            list_type=row.list,
            keys=row.keys,
            merge=bool(row.merge),
            merge_key="" if row.merge == "*" else row.merge,
            retain_keys=row.retain,
            replace=row.replace,
            atomic=base.atomic if row.atomic is None else row.atomic,
            forgets=forgets,
            printed=printed,
            **seen,
            origin=base.definition if base.name else None,
        )

    def _expression(self, of: str, enum: tuple[str, ...]) -> Type:
        known = self._shared.get((of, enum))
        if known is not None:
            return known
        if of.startswith("[]"):
            made = Type(shape="list", items=self._expression(of[2:], enum))
        elif of.startswith("{}"):
            made = Type(shape="map", values=self._expression(of[2:], enum))
        elif of in SCALARS:
            shape, format_, go = SCALARS[of]
            made = Type(shape=shape, format=format_, go=go, enum=enum, preserve=shape == "any")
        else:
            return self.type(of)
        self._shared[of, enum] = made
        return made


def printing(row: Row, base: Type) -> tuple[bool, Any]:
    """Whether Go drops an empty value of a field, and what it prints where there is none."""
    if row.pointer:
        return False, None if row.always else UNSET
    if base.shape in ("list", "map") or base.format == "byte":
        return True, None if row.always else UNSET
    if base.shape == "object":
        return row.zero, UNSET if row.zero else {}
    if base.format in ("date-time", "micro-time") or base.shape == "any":
        return False, UNSET if row.zero else None
    if base.format == "quantity":
        return False, "0"
    if base.shape == "int-or-string":
        return False, 0
    return not row.always, ZEROS[base.shape] if row.always else UNSET
