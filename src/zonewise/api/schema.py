"""What the fields of an object are: one graph of types for built-in kinds and for custom resources.

Validation, defaulting, pruning, both merging patches, server-side apply and the published OpenAPI all walk this graph, so
a fact about a field (its list keys, its merge key, whether it may be null) is stated once. Built-in kinds are loaded from
the generated table, custom resources are compiled from their structural schema; nothing that walks can tell the two apart.

The graph has cycles (a JSON schema describes itself), so types are compared by identity and filled in after they are made.
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
    """What a structural schema may ask of a value beyond its shape; built-in kinds have rules by hand instead."""

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
class Rule:
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

    `name` is the definition's name in OpenAPI (`io.k8s.api.core.v1.PodSpec`), empty for inline types. What belongs to the
    place where a type is used (list type, merge key, default) is on a copy that shares the definition's `fields`.
    """

    shape: Shape
    name: str = ""
    format: str = ""  # date-time, micro-time, quantity, byte, int32, int64, double …
    fields: dict[str, Type] = field(default_factory=dict)  # of an object, by name on the wire
    required: tuple[str, ...] = ()
    values: Type | None = None  # of a map
    items: Type | None = None  # of a list
    list_type: ListType = "atomic"
    keys: tuple[str, ...] = ()  # of a list of type map: what tells its items apart
    atomic: bool = False  # an object or map that server-side apply owns as one value
    merge_key: str = ""  # strategic merge: the key items are matched by
    merge: bool = False  # strategic merge: lists are merged, not replaced
    retain_keys: bool = False  # strategic merge: a union whose other members a patch clears
    enum: tuple[Any, ...] = ()
    nullable: bool = False
    default: Any = UNSET
    preserve: bool = False  # unknown fields are kept
    embedded: bool = False  # a whole object with apiVersion, kind and metadata
    bounds: Bounds | None = None
    rules: tuple[Rule, ...] = ()
    all_of: tuple[Type, ...] = ()  # value validation only, as structural schemas allow
    any_of: tuple[Type, ...] = ()
    one_of: tuple[Type, ...] = ()
    negated: Type | None = None

    def used_as(self, **facts: Any) -> Type:
        """This type with facts of one place of use; `fields` stays shared, so cycles stay cycles."""
        return replace(self, **facts)

    def child(self, name: str) -> Type | None:
        """The type below a key, or None where no such key is known."""
        if self.shape == "map":
            return self.values
        return self.fields.get(name)


ANY = Type(shape="any", preserve=True, nullable=True)
