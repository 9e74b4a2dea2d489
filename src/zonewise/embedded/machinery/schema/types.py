"""What the fields of an object are: one graph of types for built-in kinds and for custom resources.

Validation, defaulting, pruning, both merging patches, server-side apply and the published OpenAPI
all walk this graph, so a fact about a field (its list keys, its merge key, whether it may be null)
is stated once. Built-in kinds are loaded from the generated table, custom resources are compiled
from their structural schema; code that walks types need not distinguish them.

The graph has cycles (a JSON schema describes itself), so types are compared by identity and
filled in after they are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

Shape = Literal[
    "object", "map", "list", "string", "integer", "number", "boolean", "int-or-string", "any"
]
ListType = Literal["atomic", "set", "map"]


class Unset:
    """The absence of a default, which null is not."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@dataclass(slots=True, eq=False, kw_only=True)
class Bounds:
    """A structural schema's constraints on a value; built-in kinds have hand-written rules."""

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
class Type:
    """One field's or one object's type.

    `name` is the definition's name in OpenAPI (`io.k8s.api.core.v1.PodSpec`), empty for inline
    types. What belongs to the place where a type is used (list type, merge key, default) is on a
    copy that shares the definition's `fields`.
    """

    shape: Shape
    name: str = ""
    format: str = ""  # date-time, micro-time, quantity, byte, int32, int64, double …
    go: str = ""  # what a decoding error calls it: int32, v1.Protocol, []v1.Container
    inline: str = ""  # the embedded Go struct a field is from: part of its path in such an error
    fields: dict[str, Type] = field(default_factory=dict)  # of an object, by name on the wire
    required: tuple[str, ...] = ()
    values: Type | None = None  # of a map
    items: Type | None = None  # of a list
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
    forgets: bool = False  # an empty value is the same as none: Go's plain fields with omitempty
    printed: Any = UNSET  # what replaces an absent field: Go's fields without omitempty
    dropped: bool = False  # known and thrown away: its feature gate is off
    demanded: bool = False  # a real server refuses an object without it
    closed: bool = False  # a real server refuses what is not in the enum
    preserve: bool = False  # unknown fields are kept
    embedded: bool = False  # a whole object with apiVersion, kind and metadata
    bounds: Bounds | None = None
    rules: tuple[ValidationRule, ...] = ()
    all_of: tuple[Type, ...] = ()  # value validation only, as structural schemas allow
    any_of: tuple[Type, ...] = ()
    one_of: tuple[Type, ...] = ()
    negated: Type | None = None
    origin: Type | None = None  # the definition this is a use of: both have the same content
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def used_as(self, **facts: Any) -> Type:
        """This type with facts of one place of use; `fields` stays shared, so cycles stay cycles.

        What walks a graph compiles a type once and keeps the result in `memo` of the definition, so
        only facts of the place (`PLACE`) leave the link to the definition intact.
        """
        facts.setdefault("origin", (self.origin or self) if facts.keys() <= PLACE else None)
        return replace(self, **facts)

    @property
    def definition(self) -> Type:
        """The type that shares its content with every place of use."""
        return self.origin or self

    def child(self, name: str) -> Type | None:
        """The type below a key, or None where no such key is known."""
        if self.shape == "map":
            return self.values
        return self.fields.get(name)


PLACE = frozenset(
    {
        "list_type",
        "keys",
        "merge_key",
        "merge",
        "replace",
        "retain_keys",
        "atomic",
        "go",
        "inline",
        "nullable",
        "default",
        "forgets",
        "printed",
        "dropped",
        "demanded",
        "closed",
    }
)

ANY = Type(shape="any", preserve=True, nullable=True)
