"""The schemas of the built-in kinds, from the generated table.

`tables/types.json` states for each definition of a real API server's OpenAPI what cannot be
derived: field types, list types, merge keys, enums, and how Go prints a field (a pointer keeps an
explicit zero, a plain value drops it, a field without omitempty is printed even when it is not
set). `tables/defaults.json` adds the defaults that were observed.

The whole table is decoded at once (a few milliseconds), but a `Schema` is built on demand, a
definition with everything it refers to: a process that only uses Leases never builds those of pods.
A `Definitions` owns its graph, so that fields of our own (`extensions`) exist in one server and not
in another of the same process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from zonewise.embedded.machinery.schema.schema import UNSET, ListType, Schema, Shape

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
LIST_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
JSON_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"


class FieldRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
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

    fields: dict[str, FieldRow] = {}
    required: tuple[str, ...] = ()
    shape: Shape = "object"
    format: str = ""
    atomic: bool = False
    gvk: tuple[tuple[str, str, str], ...] = ()


class TypesTable(msgspec.Struct, frozen=True, gc=False):
    """The generated file."""

    generated: str
    version: str
    types: dict[str, Definition]


class DefaultsTable(msgspec.Struct, frozen=True, gc=False):
    """What was observed of fields, by definition.

    Defaults are only those that depend on nothing else. `dropped` fields are known and not stored:
    their feature gate is off. An object is refused without its `required` fields (OpenAPI claims
    more of them), and with a value outside the enum of the fields in `enums`.
    """

    generated: str
    version: str
    defaults: dict[str, dict[str, Any]]
    dropped: dict[str, tuple[str, ...]]
    required: dict[str, tuple[str, ...]]
    enums: dict[str, tuple[str, ...]]


NOTHING_OBSERVED = DefaultsTable("", "", {}, {}, {}, {})


class Extension(msgspec.Struct, frozen=True):
    """A field of our own in a built-in definition."""

    definition: str
    field: str
    row: FieldRow


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
    """The name of a type in decoding errors, where it follows from the expression."""
    if of.startswith("[]"):
        return "[]" + go_name(of[2:])
    if of.startswith("{}"):
        return "map[string]" + go_name(of[2:])
    if of in SCALARS:
        return SCALARS[of][2]
    package, _, name = of.rpartition(".")
    return f"{package.rpartition('.')[2]}.{name}"


def read_table(name: str) -> bytes:
    """The content of a generated file of the distribution."""
    return files(__package__).joinpath("tables", name).read_bytes()


@cache
def types_table() -> TypesTable:
    """The generated types, decoded once per process."""
    return msgspec.json.decode(read_table("types.json"), type=TypesTable)


@cache
def defaults_table() -> DefaultsTable:
    """The generated defaults, decoded once per process."""
    return msgspec.json.decode(read_table("defaults.json"), type=DefaultsTable)


class Definitions:
    """All built-in definitions as one graph of schemas, built on demand."""

    def __init__(
        self,
        extensions: Iterable[Extension] = (),
        *,
        own_definitions: Mapping[str, Definition] | None = None,
        table: Mapping[str, Definition] | None = None,
    ) -> None:
        """`own_definitions` are those that extensions refer to. `table` replaces the generated
        table with one that is not in the tree yet and has no defaults.
        """
        rows = types_table().types if table is None else table
        self._rows = {**rows, **(own_definitions or {})}
        self._observed = defaults_table() if table is None else NOTHING_OBSERVED
        self._schemas: dict[str, Schema] = {}
        self._expressions: dict[tuple[str, tuple[str, ...]], Schema] = {}
        self._extensions: dict[str, dict[str, FieldRow]] = {}
        for extension in extensions:
            self._extensions.setdefault(extension.definition, {})[extension.field] = extension.row

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def definition(self, name: str) -> Definition:
        """The table's row of a definition."""
        return self._rows[name]

    def schema(self, name: str) -> Schema:
        """The schema of a definition, complete with everything below it."""
        schema = self._schemas.get(name)
        if schema is not None:
            return schema
        row = self._rows[name]
        schema = self._schemas[name] = Schema(
            shape=row.shape,
            name=name,
            format=row.format,
            go_type=go_name(name),
            required=row.required,
            atomic=row.atomic,
            nullable=row.shape == "any",
            preserve_unknown_fields=row.shape == "any",
        )
        if row.format.startswith("schema-or-"):
            schema.items = self.schema(JSON_SCHEMA)
        defaults = self._observed.defaults.get(name, {})
        dropped = self._observed.dropped.get(name, ())
        enforced_required = self._observed.required.get(name, ())
        enforced_enums = self._observed.enums.get(name, ())
        for field, field_row in row.fields.items():
            schema.fields[field] = self._build_field(
                field_row,
                default=defaults.get(field, UNSET),
                dropped=field in dropped,
                enforce_required=field in enforced_required,
                enforce_enum=field in enforced_enums,
            )
        for field, field_row in self._extensions.get(name, {}).items():
            schema.fields[field] = self._build_field(field_row)
        return schema

    def _build_field(self, row: FieldRow, **observed: Any) -> Schema:
        base = self._build_expression(row.of, row.enum)
        omit_empty, absent_value = go_printing(row, base)
        return Schema(  # spelled out: dataclasses.replace takes four times as long
            shape=base.shape,
            name=base.name,
            format=base.format,
            fields=base.fields,
            required=base.required,
            values=base.values,
            items=base.items,
            enum=base.enum,
            nullable=base.nullable,
            preserve_unknown_fields=base.preserve_unknown_fields,
            go_type=row.go or go_name(row.of),
            inline_struct=row.inline,
            list_type=row.list,
            keys=row.keys,
            merge=bool(row.merge),
            merge_key="" if row.merge == "*" else row.merge,
            retain_keys=row.retain,
            replace=row.replace,
            atomic=base.atomic if row.atomic is None else row.atomic,
            omit_empty=omit_empty,
            absent_value=absent_value,
            **observed,
            origin=base.definition if base.name else None,
        )

    def _build_expression(self, of: str, enum: tuple[str, ...]) -> Schema:
        cached = self._expressions.get((of, enum))
        if cached is not None:
            return cached
        if of.startswith("[]"):
            schema = Schema(shape="list", items=self._build_expression(of[2:], enum))
        elif of.startswith("{}"):
            schema = Schema(shape="map", values=self._build_expression(of[2:], enum))
        elif of in SCALARS:
            shape, format_, go = SCALARS[of]
            schema = Schema(
                shape=shape,
                format=format_,
                go_type=go,
                enum=enum,
                preserve_unknown_fields=shape == "any",
            )
        else:
            return self.schema(of)
        self._expressions[of, enum] = schema
        return schema


def go_printing(row: FieldRow, base: Schema) -> tuple[bool, Any]:
    """Whether Go omits an empty value of a field, and what it prints for an absent one."""
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
