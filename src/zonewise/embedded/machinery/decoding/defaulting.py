"""What the server adds to an object: defaults, and the empty fields that Go always prints.

`complete` walks a normalized object once, from the outside in, and at each object of the graph

1. runs the rule of its definition (`RULES`): defaults that depend on other fields;
2. fills absent fields that have a default of their own, from the table;
3. fills absent fields that Go prints even when they are not set;
4. goes into the fields that have something to fill below.

The order makes one pass enough: a rule gets only what the author wrote, and what a rule or a
default created is completed like everything else. Parts of a schema that never need anything are
not walked; a filler is compiled per definition, once, at its first use.

Custom resources treat nulls differently and print nothing; see `crd.custom_resource`. What
admission adds (tolerations, priorities) and what strategies allocate (cluster IPs, node ports,
finalizers) is not here.
"""

from __future__ import annotations

from typing import Any, Protocol

from zonewise.embedded.machinery.decoding.default_rules import RULES
from zonewise.embedded.machinery.schema.schema import UNSET, Schema, copy_json

Obj = dict[str, Any]


class Fill(Protocol):
    """Completes a value; of an object, only the fields that differ from a completed one."""

    def __call__(self, value: Any, settled: Obj | None = None, /) -> None: ...


def complete(schema: Schema, value: Obj, completed: Obj | None = None) -> Obj:
    """Fill an object in place, and return it.

    ``completed`` is a complete object, such as the one that is replaced: fields in which the two
    are equal are complete too, and are not walked.
    """
    fill = filler(schema)
    if fill is not None:
        fill(value, completed)
    return value


def filler(schema: Schema) -> Fill | None:
    """The function that completes values of a schema; None if there is nothing to fill."""
    memo = schema.definition.memo
    if "fill" not in memo:
        memo["fill"] = (
            None if not _needs_filling(schema, set()) else _build_filler(schema.definition)
        )
    fill: Fill | None = memo["fill"]
    return fill


def _needs_filling(schema: Schema, visited: set[int]) -> bool:
    """Whether anything at or below a schema may have to be filled."""
    definition = schema.definition
    cached: bool | None = definition.memo.get("needs")
    if cached is not None:
        return cached
    if id(definition) in visited:
        return False
    visited.add(id(definition))
    needs = definition.name in RULES or any(
        field.default is not UNSET
        or field.absent_value is not UNSET
        or _needs_filling(field, visited)
        for field in definition.fields.values()
    )
    for inner in (definition.items, definition.values):
        needs = needs or (inner is not None and _needs_filling(inner, visited))
    if needs or len(visited) == 1:
        definition.memo["needs"] = needs
    return needs


def _build_filler(schema: Schema) -> Fill:
    match schema.shape:
        case "object":
            return _object_filler(schema)
        case "list":
            assert schema.items is not None
            return _items_filler(schema.items)
        case "map":
            assert schema.values is not None
            return _values_filler(schema.values)
    assert schema.items is not None
    return _one_or_many_filler(schema.items)


def _items_filler(schema: Schema) -> Fill:
    step: Fill | None = None

    def fill(value: Any, _settled: Obj | None = None, /) -> None:
        nonlocal step
        if step is None:
            step = filler(schema)
        if step is not None and value.__class__ is list:
            for item in value:
                step(item)

    return fill


def _values_filler(schema: Schema) -> Fill:
    step: Fill | None = None

    def fill(value: Any, _settled: Obj | None = None, /) -> None:
        nonlocal step
        if step is None:
            step = filler(schema)
        if step is not None and value.__class__ is dict:
            for item in value.values():
                step(item)

    return fill


def _one_or_many_filler(schema: Schema) -> Fill:
    """A schema, or a list of them, or something else."""
    fill_items = _items_filler(schema)

    def fill(value: Any, _settled: Obj | None = None, /) -> None:
        fill_items([value] if value.__class__ is dict else value)

    return fill


def _object_filler(schema: Schema) -> Fill:
    rule = RULES.get(schema.name)
    scalars: list[tuple[str, Any]] = []
    containers: list[tuple[str, Any]] = []
    for name, field in schema.fields.items():
        default = field.absent_value if field.default is UNSET else field.default
        if default is not UNSET:
            (containers if isinstance(default, dict | list) else scalars).append((name, default))
    fields_to_fill = [
        (name, field) for name, field in schema.fields.items() if _needs_filling(field, set())
    ]
    fillers: dict[str, Fill] | None = None

    def fill(value: Any, completed: Obj | None = None, /) -> None:
        nonlocal fillers
        if value.__class__ is not dict:
            return
        if fillers is None:
            fillers = {
                name: step for name, field in fields_to_fill if (step := filler(field)) is not None
            }
        if rule is not None:
            rule(value)
        for name, default in scalars:
            if name not in value:
                value[name] = default
        for name, default in containers:
            if name not in value:
                value[name] = copy_json(default)
        for name in value:
            if name in fillers and (completed is None or completed.get(name) != value[name]):
                fillers[name](value[name])

    return fill
