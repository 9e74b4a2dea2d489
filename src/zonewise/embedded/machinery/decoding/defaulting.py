"""What the server adds to an object: defaults, and the empty fields that are printed anyway.

`complete` walks a tidy object once, from the outside in, and at each object of the graph

1. runs the rules by hand of its definition (`RULES`): defaults that depend on other fields;
2. fills absent fields that have a default of their own, from the table;
3. fills absent fields that Go prints even when they are not set;
4. goes into the fields that have something to fill below.

The order is what makes it one pass: a rule sees what its author wrote and nothing else, and what a
rule or a default created is completed like everything else. Parts of a type that never need
anything are not walked; a walker is compiled per definition, once, when it is first met.

Custom resources have their own way with nulls and no printing; see `custom`. What admission adds
(tolerations, priorities) and what the rules of a kind allocate (cluster IPs, node ports,
finalizers) is not here.
"""

from __future__ import annotations

from typing import Any, Protocol

from zonewise.embedded.machinery.decoding.default_rules import RULES
from zonewise.embedded.machinery.schema.types import UNSET, Type

Obj = dict[str, Any]


class Fill(Protocol):
    """Completes a value; of an object, only the fields in which it differs from a complete one."""

    def __call__(self, value: Any, settled: Obj | None = None, /) -> None: ...


def complete(kind: Type, value: Obj, settled: Obj | None = None) -> Obj:
    """Fill an object in place, and return it.

    ``settled`` is a complete object, such as the one that is replaced: fields in which the two are
    equal are complete too, and are not walked.
    """
    fill = filler(kind)
    if fill is not None:
        fill(value, settled)
    return value


def filler(kind: Type) -> Fill | None:
    """The function that completes values of a type; None if there is nothing it could do."""
    memo = kind.definition.memo
    if "fill" not in memo:
        memo["fill"] = None if not _needs(kind, set()) else _make(kind.definition)
    found: Fill | None = memo["fill"]
    return found


def _needs(kind: Type, seen: set[int]) -> bool:
    """Whether anything at or below a type may have to be filled."""
    definition = kind.definition
    known: bool | None = definition.memo.get("needs")
    if known is not None:
        return known
    if id(definition) in seen:
        return False
    seen.add(id(definition))
    needs = definition.name in RULES or any(
        field.default is not UNSET or field.printed is not UNSET or _needs(field, seen)
        for field in definition.fields.values()
    )
    for below in (definition.items, definition.values):
        needs = needs or (below is not None and _needs(below, seen))
    if needs or len(seen) == 1:
        definition.memo["needs"] = needs
    return needs


def _make(kind: Type) -> Fill:
    match kind.shape:
        case "object":
            return _object(kind)
        case "list":
            assert kind.items is not None
            return _items(kind.items)
        case "map":
            assert kind.values is not None
            return _values(kind.values)
    assert kind.items is not None
    return _one_or_many(kind.items)


def _items(kind: Type) -> Fill:
    step: Fill | None = None

    def fill(value: Any, _settled: Obj | None = None, /) -> None:
        nonlocal step
        if step is None:
            step = filler(kind)
        if step is not None and value.__class__ is list:
            for item in value:
                step(item)

    return fill


def _values(kind: Type) -> Fill:
    step: Fill | None = None

    def fill(value: Any, _settled: Obj | None = None, /) -> None:
        nonlocal step
        if step is None:
            step = filler(kind)
        if step is not None and value.__class__ is dict:
            for item in value.values():
                step(item)

    return fill


def _one_or_many(kind: Type) -> Fill:
    """A schema, or a list of them, or something else."""
    many = _items(kind)

    def fill(value: Any, _settled: Obj | None = None, /) -> None:
        many([value] if value.__class__ is dict else value)

    return fill


def _object(kind: Type) -> Fill:
    rule = RULES.get(kind.name)
    plain: list[tuple[str, Any]] = []
    fresh: list[tuple[str, Any]] = []
    for name, field in kind.fields.items():
        given = field.printed if field.default is UNSET else field.default
        if given is not UNSET:
            (fresh if isinstance(given, dict | list) else plain).append((name, given))
    deep = [(name, field) for name, field in kind.fields.items() if _needs(field, set())]
    below: dict[str, Fill] | None = None

    def fill(value: Any, settled: Obj | None = None, /) -> None:
        nonlocal below
        if value.__class__ is not dict:
            return
        if below is None:
            below = {name: step for name, field in deep if (step := filler(field)) is not None}
        if rule is not None:
            rule(value)
        for name, given in plain:
            if name not in value:
                value[name] = given
        for name, given in fresh:
            if name not in value:
                value[name] = copied(given)
        for name, item in value.items():
            fill_item = below.get(name)
            if fill_item is not None and (settled is None or settled.get(name) != item):
                fill_item(item)

    return fill


def copied(value: Any) -> Any:
    """A copy of a JSON value: what a default hands out must never be shared."""
    if value.__class__ is dict:
        return {name: copied(item) for name, item in value.items()}
    if value.__class__ is list:
        return [copied(item) for item in value]
    return value
