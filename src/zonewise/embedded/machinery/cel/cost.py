"""What a rule may cost at worst, from the bounds its schema gives.

A real server refuses a definition whose rules could take too long on some object that its schema
admits, and asks the author to bound lists, maps and texts. Its model: reading a name or a field
costs 1, scanning a text a tenth of its length, a loop its range times its body. A text, list or map
without a bound is as long as a request can make it; the result of a function whose size is unknown
is longer than anything.

The estimate decides what may be written, so it has to be the real server's also where another
number would be as good. It is computed once per rule of a definition, never when objects are
written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from zonewise.embedded.machinery.cel import syntax
from zonewise.embedded.machinery.cel.compiler import Compiled
from zonewise.embedded.machinery.cel.kinds import CelKind
from zonewise.embedded.machinery.schema.types import UNSET, Type

REQUEST_SIZE = 3 * 1024 * 1024
MOST = 2**64 - 1
RULE_LIMIT = 10_000_000
DEFINITION_LIMIT = 100_000_000
NOTABLE = DEFINITION_LIMIT // 100

_TEXT_SIZES = {"duration": (3, 32), "date": (12, 12), "date-time": (21, 32)}
_SCALARS = {"bool", "double", "duration", "int", "timestamp", "uint"}
_PER_ITEM = {"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"}
_THROUGH = {"lowerAscii", "upperAscii", "substring", "trim"}
_PARSED = {"cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"}


_TEXT = Type(shape="string")
_META = {
    "apiVersion": _TEXT,
    "kind": _TEXT,
    "metadata": Type(shape="object", fields={"name": _TEXT, "generateName": _TEXT}),
}
"""What rules can read of every object, whatever its schema says: texts as long as a request."""


class Estimate(NamedTuple):
    """An expression's cost and size at worst, and its schema where it is a part of the object."""

    cost: int
    size: int = MOST
    of: Type | None = None
    item: int = MOST  # the size of an item of a literal


def least_size(kind: Type) -> int:
    """The fewest bytes of JSON a value takes."""
    match kind.shape:
        case "boolean":
            return 4
        case "integer" | "number" | "int-or-string":
            return 1
        case "string":
            return _TEXT_SIZES.get(kind.format, (2, 0))[0]
        case "object":
            needed = [name for name in kind.required if name in kind.fields]
            return 2 + sum(
                len(name) + least_size(kind.fields[name]) + 4
                for name in needed
                if kind.fields[name].default is UNSET
            )
    return 2


def most_elements(kind: Type) -> int:
    """How many items, entries or characters a value has at most."""
    bounds = kind.bounds
    if kind.shape == "list" and kind.items is not None:
        asked = bounds.max_items if bounds else None
        return _bounded(asked, (REQUEST_SIZE - 2) // (least_size(kind.items) + 1))
    if kind.shape == "map" and kind.values is not None:
        asked = bounds.max_properties if bounds else None
        return _bounded(asked, (REQUEST_SIZE - 2) // (least_size(kind.values) + 6))
    if kind.shape in ("string", "int-or-string"):
        if kind.format in _TEXT_SIZES:
            return _TEXT_SIZES[kind.format][1]
        asked = bounds.max_length if bounds else None
        if asked is not None:
            return max(0, asked) * (1 if kind.format == "byte" else 4)
        if kind.enum and kind.shape == "string":
            return max(len(one) for one in kind.enum if isinstance(one, str))
        return REQUEST_SIZE - 2
    return 0


def _bounded(asked: int | None, otherwise: int) -> int:
    return otherwise if asked is None else max(0, asked)


def times(a: int, b: int) -> int:
    """A product that stays within 64 bits."""
    return min(a * b, MOST)


def part(size: int, factor: float) -> int:
    """A part of a size, rounded up."""
    return MOST if size >= MOST else math.ceil(size * factor)


def estimated(made: Compiled, variables: Mapping[str, Type]) -> int:
    """What an expression costs at worst, for variables of these schemas."""
    scope = {name: Estimate(0, most_elements(kind), kind) for name, kind in variables.items()}
    return min(_Estimator(made.kinds, scope).of(made.tree).cost, MOST)


class _Estimator:
    def __init__(self, kinds: dict[int, CelKind], scope: dict[str, Estimate]) -> None:
        self.kinds = kinds
        self.scope = scope

    def kind(self, node: syntax.SyntaxNode) -> CelKind:
        return self.kinds[id(node)]

    def of(self, node: syntax.SyntaxNode) -> Estimate:
        match node:
            case syntax.Constant():
                value = node.value
                return Estimate(0, len(value) if isinstance(value, str | bytes) else 1)
            case syntax.Name():
                # a name that is no variable (a type's) is taken for the object itself
                found = self.scope.get(node.name, Estimate(1, self.scope["self"].size))
                return self.sized(node, found._replace(cost=1))
            case syntax.Select():
                return self.select(node)
            case syntax.Junction():
                return Estimate(sum(self.of(one).cost for one in node.operands), 1)
            case syntax.ListLiteral():
                items = [self.of(item) for item, _ in node.items]
                widest = max((item.size for item in items), default=0)
                return Estimate(10 + sum(i.cost for i in items), len(items), item=widest)
            case syntax.MapLiteral():
                parts = [self.of(one) for key, value, _ in node.entries for one in (key, value)]
                return Estimate(30 + sum(one.cost for one in parts), len(node.entries))
            case syntax.Macro():
                return self.macro(node)
            case syntax.FunctionCall():
                return self.call(node)
        return Estimate(0)

    def sized(self, node: syntax.SyntaxNode, found: Estimate) -> Estimate:
        """Plain values without a schema have size 1."""
        if found.of is None and found.size >= MOST and self.is_scalar(self.kind(node)):
            return found._replace(size=1)
        return found

    def is_scalar(self, kind: CelKind) -> bool:
        if kind.name == "optional_type":
            return self.is_scalar(kind.of[0])
        return kind.name in _SCALARS

    def below(self, node: syntax.SyntaxNode, cost: int, kind: Type | None) -> Estimate:
        size = MOST if kind is None else most_elements(kind)
        return self.sized(node, Estimate(cost, size, kind))

    def select(self, node: syntax.Select) -> Estimate:
        of = self.of(node.of)
        if node.test:
            return Estimate(of.cost, 1)
        holder = self.kind(node.of)
        name = holder.properties.get(node.field, node.field)
        kind = None
        if of.of is not None:
            kind = of.of.fields.get(name, of.of.values)
            if of.of.embedded and name in _META:
                kind = _META[name]
        structured = holder.name == "map" or bool(holder.fields)
        return self.below(node, of.cost + (1 if structured or node.optional else 0), kind)

    def call(self, node: syntax.FunctionCall) -> Estimate:
        target = self.of(node.target) if self.has_target(node) and node.target else None
        arguments = [self.of(one) for one in node.arguments]
        spent = sum(one.cost for one in arguments)
        if node.name == "_?_:_":
            test, yes, no = arguments
            return Estimate(
                test.cost + max(yes.cost, no.cost), max(yes.size, no.size), yes.of or no.of
            )
        if node.name in ("_[_]", "_[?_]"):
            holder = arguments[0].of
            kind = (holder.items or holder.values) if holder is not None else None
            if kind is None and arguments[0].item < MOST:
                return Estimate(spent + 1, arguments[0].item)
            return self.below(node, spent + 1, kind)
        if node.name == "dyn":
            return arguments[0]._replace(cost=arguments[0].cost + 1)
        fee, size = self.function(node, target, arguments)
        before = target.cost if target is not None else 0
        return self.sized(node, Estimate(min(before + spent + fee, MOST), size))

    def has_target(self, node: syntax.FunctionCall) -> bool:
        return node.target is not None and id(node.target) in self.kinds

    def function(
        self, node: syntax.FunctionCall, target: Estimate | None, args: list[Estimate]
    ) -> tuple[int, int]:
        """What a call itself costs, and how large its result is."""
        name = node.name
        if name in ("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"):
            return self.comparison(node, args), 1
        if name == "_+_" and self.kind(node).name in ("string", "bytes", "list"):
            size = min(args[0].size + args[1].size, MOST)
            return (1 if self.kind(node).name == "list" else part(size, 0.1)), size
        if name == "@in" and self.kind(node.arguments[1]).name == "list":
            return args[1].size, 1
        if name in ("startsWith", "endsWith") and args:
            return part(args[0].size, 0.1), 1
        if name == "contains" and target is not None:
            return times(part(target.size, 0.1), part(args[0].size, 0.1)), 1
        if name in ("matches", "find", "findAll"):
            text, form = (target, args[0]) if target is not None else (args[0], args[1])
            cost = times(part(min(text.size + 1, MOST), 0.1), part(form.size, 0.25))
            return cost, 1 if name == "matches" else text.size
        if name in _PER_ITEM and target is not None and node.target is not None:
            return self.per_item(self.kind(node.target), target), MOST
        if target is not None:
            return self.method(name, target, args)
        if name in ("url", *_PARSED) and args:
            return part(args[0].size, 0.1), args[0].size if name == "url" else MOST
        if name in ("string", "bytes") and args:
            return self.conversion(node, args[0])
        return 1, MOST

    def comparison(self, node: syntax.FunctionCall, args: list[Estimate]) -> int:
        kind = self.kind(node.arguments[0]).name
        if kind.startswith(("kubernetes.", "net.")):
            return 1
        text = kind in ("string", "bytes") or node.name in ("_==_", "_!=_")
        return part(min(args[0].size, args[1].size), 0.1) if text else 1

    def conversion(self, node: syntax.FunctionCall, argument: Estimate) -> tuple[int, int]:
        given = self.kind(node.arguments[0]).name
        if (node.name, given) == ("bytes", "string"):
            return part(argument.size, 0.1), times(argument.size, 4)
        if (node.name, given) == ("string", "bytes"):
            return part(argument.size, 0.1), argument.size
        return 1, MOST

    def per_item(self, kind: CelKind, target: Estimate) -> int:
        if kind.name != "list":
            return part(target.size, 0.1)
        each = 1
        if kind.of[0].name in ("string", "bytes"):
            items = target.of.items if target.of is not None else None
            each += part(MOST if items is None else most_elements(items), 0.1)
        return times(target.size, each)

    def method(self, name: str, target: Estimate, args: list[Estimate]) -> tuple[int, int]:
        if name in _THROUGH:
            return part(target.size, 0.1), target.size
        if name == "replace":
            grown = times(min(target.size + 1, MOST), max(args[1].size, 1))
            return part(target.size, 0.2), min(grown + target.size, MOST)
        if name == "split":
            return part(target.size, 0.2), target.size
        if name == "join":
            items = target.of.items if target.of is not None else None
            size = times(target.size, MOST if items is None else most_elements(items))
            if args:
                size = min(size + times(args[0].size, target.size), MOST)
            return part(size, 0.1), size
        if name == "validate" and args:
            return times(part(args[0].size, 0.1), 32), MOST
        if name == "format":
            return part(target.size, 0.1), MOST
        if name in ("containsIP", "containsCIDR"):
            return 4 + part(args[0].size, 0.1) if args[0].size < MOST else 7, 1
        if name in ("slice", "reverse", "first", "last"):
            return min(10 + target.size, MOST), target.size
        if name in ("distinct", "sort"):
            return min(10 + times(target.size, target.size), MOST), target.size
        if name == "flatten":
            return min(10 + target.size, MOST), MOST
        return 1, MOST

    def macro(self, node: syntax.Macro) -> Estimate:
        of = self.of(node.of)
        hidden = {name: self.scope.get(name) for name in node.variables}
        self.scope.update(zip(node.variables, self.bound(node, of), strict=True))
        bodies = [self.of(one) for one in node.arguments]
        for name, old in hidden.items():
            if old is None:
                del self.scope[name]
            else:
                self.scope[name] = old
        body, spent = bodies[-1].cost, sum(one.cost for one in bodies)
        match node.name:
            case "all":
                return Estimate(min(of.cost + 1 + times(of.size, 3 + body), MOST), 1)
            case "exists":
                return Estimate(min(of.cost + 1 + times(of.size, 4 + body), MOST), 1)
            case "exists_one" | "existsOne":
                return Estimate(min(of.cost + 2 + times(of.size, 2 + body), MOST), 1)
            case "filter":
                cost = min(of.cost + 11 + times(of.size, 13 + body), MOST)
                return Estimate(cost, of.size, of.of, of.item)
            case "optMap" | "optFlatMap":
                return Estimate(of.cost + 2 + body)
            case "transformMap" | "transformMapEntry":
                cost = min(of.cost + 31 + times(of.size, 4 + spent), MOST)
                return Estimate(cost, of.size)
            case "sortBy":
                cost = min(of.cost + 22 + times(of.size, 12 + body + of.size), MOST)
                return Estimate(cost, of.size, of.of, of.item)
        cost = min(of.cost + 11 + times(of.size, 12 + spent), MOST)
        return Estimate(cost, of.size, item=bodies[-1].size)

    def bound(self, node: syntax.Macro, of: Estimate) -> list[Estimate]:
        """The values of a macro's variables."""
        kind = self.kind(node.of)
        plain = Estimate(1, 1)
        inner = of.of.items or of.of.values if of.of is not None else None
        # items of what is no part of the object are taken for the object itself
        unknown = Estimate(1, self.scope["self"].size)
        item = unknown if inner is None else Estimate(1, most_elements(inner), inner)
        if kind.name == "optional_type":
            return [Estimate(1, of.size, of.of)]
        if kind.name == "map":
            key = Estimate(1, 0 if of.of is not None else MOST)
            return [key, item] if len(node.variables) == 2 else [key]
        return [plain, item] if len(node.variables) == 2 else [item]
