"""The schema of an object and its fields, the same for built-in kinds and for custom resources.

Validation, defaulting, pruning, both merging patches, server-side apply and the published OpenAPI
all walk this graph, so a fact about a field (its list keys, its merge key, whether it may be null)
is stated once. Built-in kinds are loaded from the generated table, custom resources are compiled
from their structural schema; code that walks schemas need not distinguish them.

The graph has cycles (a JSON schema describes itself), so schemas are compared by identity and
filled in after they are created.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

Shape = Literal[
    "object", "map", "list", "string", "integer", "number", "boolean", "int-or-string", "any"
]
ListType = Literal["atomic", "set", "map"]


class Unset:
    """Says that there is no default; null is a default."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@dataclass(slots=True, eq=False, kw_only=True)
class Bounds:
    """A structural schema's constraints on a value; built-in kinds are validated by code."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    min_properties: int | None = None
    max_properties: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class ValidationRule:
    """One CEL rule of `x-kubernetes-validations`."""

    rule: str
    message: str = ""
    message_expression: str = ""
    reason: str = "FieldValueInvalid"
    field_path: str = ""
    optional_old_self: bool | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Schema:
    """The schema of one field or one object.

    `name` is the definition's name in OpenAPI (`io.k8s.api.core.v1.PodSpec`), empty for inline
    schemas. Facts about one use of a definition (list type, merge key, default) are on a copy that
    shares the definition's `fields`.
    """

    shape: Shape
    name: str = ""
    format: str = ""  # date-time, micro-time, quantity, byte, int32, int64, double …
    go_type: str = ""  # what a decoding error calls it: int32, v1.Protocol, []v1.Container
    inline_struct: str = ""  # the embedded Go struct of a field: in the path of such an error
    fields: dict[str, Schema] = field(default_factory=dict)  # of an object, by name on the wire
    required: tuple[str, ...] = ()
    values: Schema | None = None  # of a map
    items: Schema | None = None  # of a list
    list_type: ListType = "atomic"
    keys: tuple[str, ...] = ()  # of a list of type map: what identifies its items
    atomic: bool = False  # an object or map that server-side apply owns as one value
    merge_key: str = ""  # strategic merge: the key items are matched by
    merge: bool = False  # strategic merge: lists are merged, not replaced
    replace: bool = False  # strategic merge: an object is replaced, not merged
    retain_keys: bool = False  # strategic merge: a union whose other members a patch clears
    enum: tuple[Any, ...] = ()
    nullable: bool = False
    default: Any = UNSET
    omit_empty: bool = False  # an empty value is not stored: Go's plain fields with omitempty
    absent_value: Any = UNSET  # stored if the field is absent: Go's fields without omitempty
    dropped: bool = False  # known and not stored: its feature gate is off
    enforce_required: bool = False  # a real server refuses an object without it
    enforce_enum: bool = False  # a real server refuses what is not in the enum
    preserve_unknown_fields: bool = False  # with what is below it
    embedded_resource: bool = False  # a whole object with apiVersion, kind and metadata
    bounds: Bounds | None = None
    rules: tuple[ValidationRule, ...] = ()
    all_of: tuple[Schema, ...] = ()  # value validation only, as structural schemas allow
    any_of: tuple[Schema, ...] = ()
    one_of: tuple[Schema, ...] = ()
    negated: Schema | None = None
    origin: Schema | None = None  # the definition this is a use of: both have the same content
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def used_as(self, **facts: Any) -> Schema:
        """A copy with facts about one use; `fields` is shared, so cycles stay cycles.

        Code that walks a graph compiles a definition once and stores the result in its `memo`, so
        only facts that do not change the content (`USE_FACTS`) keep the link to the definition.
        """
        facts.setdefault("origin", (self.origin or self) if facts.keys() <= USE_FACTS else None)
        return replace(self, **facts)

    @property
    def definition(self) -> Schema:
        """The schema that shares its content with every use."""
        return self.origin or self

    def child(self, name: str) -> Schema | None:
        """The schema below a key, or None if the key is unknown."""
        if self.shape == "map":
            return self.values
        return self.fields.get(name)


USE_FACTS = frozenset(
    {
        "list_type",
        "keys",
        "merge_key",
        "merge",
        "replace",
        "retain_keys",
        "atomic",
        "go_type",
        "inline_struct",
        "nullable",
        "default",
        "omit_empty",
        "absent_value",
        "dropped",
        "enforce_required",
        "enforce_enum",
    }
)


def copy_json(value: Any) -> Any:
    """A deep copy of a JSON value; defaults are copied, so objects never share them."""
    if value.__class__ is dict:
        return {name: copy_json(item) for name, item in value.items()}
    if value.__class__ is list:
        return [copy_json(item) for item in value]
    return value


ANY = Schema(shape="any", preserve_unknown_fields=True, nullable=True)
