"""The worst-case cost of a rule, from the bounds in its schema.

A real server refuses a definition whose rules could take too long on an object that its schema
accepts, and requests bounds for lists, maps and strings. Its model: reading a name or a field costs
1, scanning a string a tenth of its length, a loop its range times its body. A string, list or map
without a bound is as long as a request can be; the result of a function whose size is unknown is
longer than anything.

The estimate decides which definitions are accepted, so it has to equal the real server's. It is
computed once per rule of a definition, never when objects are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from zonewise.embedded.machinery.cel import syntax
from zonewise.embedded.machinery.cel.compiler import CelProgram
from zonewise.embedded.machinery.cel.kinds import CelKind
from zonewise.embedded.machinery.schema.schema import UNSET, Schema

REQUEST_SIZE = 3 * 1024 * 1024
MAX_COST = 2**64 - 1
RULE_LIMIT = 10_000_000
DEFINITION_LIMIT = 100_000_000
NOTABLE_COST = DEFINITION_LIMIT // 100

_TEXT_SIZES = {"duration": (3, 32), "date": (12, 12), "date-time": (21, 32)}
_SCALARS = {"bool", "double", "duration", "int", "timestamp", "uint"}
_SCANNING = {"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"}
_SIZE_PRESERVING = {"lowerAscii", "upperAscii", "substring", "trim"}
_PARSED = {"cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"}


_TEXT = Schema(shape="string")
_META = {
    "apiVersion": _TEXT,
    "kind": _TEXT,
    "metadata": Schema(shape="object", fields={"name": _TEXT, "generateName": _TEXT}),
}
"""What rules can read of every object, whatever its schema: strings as long as a request."""


class Estimate(NamedTuple):
    """An expression's worst-case cost and size, and its schema if it is part of the object."""

    cost: int
    size: int = MAX_COST
    schema: Schema | None = None
    item_size: int = MAX_COST  # of a literal's items


def min_size(schema: Schema) -> int:
    """The fewest bytes of JSON that a value takes."""
    match schema.shape:
        case "boolean":
            return 4
        case "integer" | "number" | "int-or-string":
            return 1
        case "string":
            return _TEXT_SIZES.get(schema.format, (2, 0))[0]
        case "object":
            required = [name for name in schema.required if name in schema.fields]
            return 2 + sum(
                len(name) + min_size(schema.fields[name]) + 4
                for name in required
                if schema.fields[name].default is UNSET
            )
    return 2


def max_elements(schema: Schema) -> int:
    """How many items, entries or characters a value has at most."""
    bounds = schema.bounds
    if schema.shape == "list" and schema.items is not None:
        limit = bounds.max_items if bounds else None
        return _limit_or(limit, (REQUEST_SIZE - 2) // (min_size(schema.items) + 1))
    if schema.shape == "map" and schema.values is not None:
        limit = bounds.max_properties if bounds else None
        return _limit_or(limit, (REQUEST_SIZE - 2) // (min_size(schema.values) + 6))
    if schema.shape in ("string", "int-or-string"):
        if schema.format in _TEXT_SIZES:
            return _TEXT_SIZES[schema.format][1]
        limit = bounds.max_length if bounds else None
        if limit is not None:
            return max(0, limit) * (1 if schema.format == "byte" else 4)
        if schema.enum and schema.shape == "string":
            return max(len(text) for text in schema.enum if isinstance(text, str))
        return REQUEST_SIZE - 2
    return 0


def _limit_or(limit: int | None, otherwise: int) -> int:
    return otherwise if limit is None else max(0, limit)


def times(a: int, b: int) -> int:
    """A product that stays within 64 bits."""
    return min(a * b, MAX_COST)


def scale(size: int, factor: float) -> int:
    """A part of a size, rounded up."""
    return MAX_COST if size >= MAX_COST else math.ceil(size * factor)


def estimate_cost(program: CelProgram, variables: Mapping[str, Schema]) -> int:
    """What an expression costs at worst, for variables of these schemas."""
    scope = {name: Estimate(0, max_elements(schema), schema) for name, schema in variables.items()}
    return min(_Estimator(program.kinds, scope).estimate(program.tree).cost, MAX_COST)


class _Estimator:
    def __init__(self, kinds: dict[int, CelKind], scope: dict[str, Estimate]) -> None:
        self.kinds = kinds
        self.scope = scope

    def kind(self, node: syntax.SyntaxNode) -> CelKind:
        return self.kinds[id(node)]

    def estimate(self, node: syntax.SyntaxNode) -> Estimate:
        match node:
            case syntax.Constant():
                value = node.value
                return Estimate(0, len(value) if isinstance(value, str | bytes) else 1)
            case syntax.Name():
                # a name that is not a variable (a type) counts as the object itself
                variable = self.scope.get(node.name, Estimate(1, self.scope["self"].size))
                return self.with_scalar_size(node, variable._replace(cost=1))
            case syntax.Select():
                return self.select(node)
            case syntax.Junction():
                return Estimate(sum(self.estimate(operand).cost for operand in node.operands), 1)
            case syntax.ListLiteral():
                items = [self.estimate(item) for item, _ in node.items]
                widest = max((item.size for item in items), default=0)
                return Estimate(10 + sum(item.cost for item in items), len(items), item_size=widest)
            case syntax.MapLiteral():
                parts = (part for key, value, _ in node.entries for part in (key, value))
                estimates = [self.estimate(part) for part in parts]
                return Estimate(30 + sum(part.cost for part in estimates), len(node.entries))
            case syntax.Macro():
                return self.macro(node)
            case syntax.FunctionCall():
                return self.call(node)
        return Estimate(0)

    def with_scalar_size(self, node: syntax.SyntaxNode, estimate: Estimate) -> Estimate:
        """Plain values without a schema have size 1."""
        if (
            estimate.schema is None
            and estimate.size >= MAX_COST
            and self.is_scalar(self.kind(node))
        ):
            return estimate._replace(size=1)
        return estimate

    def is_scalar(self, kind: CelKind) -> bool:
        if kind.name == "optional_type":
            return self.is_scalar(kind.of[0])
        return kind.name in _SCALARS

    def estimate_child(self, node: syntax.SyntaxNode, cost: int, schema: Schema | None) -> Estimate:
        size = MAX_COST if schema is None else max_elements(schema)
        return self.with_scalar_size(node, Estimate(cost, size, schema))

    def select(self, node: syntax.Select) -> Estimate:
        of = self.estimate(node.of)
        if node.test:
            return Estimate(of.cost, 1)
        holder = self.kind(node.of)
        name = holder.properties.get(node.field, node.field)
        schema = None
        if of.schema is not None:
            schema = of.schema.fields.get(name, of.schema.values)
            if of.schema.embedded_resource and name in _META:
                schema = _META[name]
        structured = holder.name == "map" or bool(holder.fields)
        fee = 1 if structured or node.optional else 0
        return self.estimate_child(node, of.cost + fee, schema)

    def call(self, node: syntax.FunctionCall) -> Estimate:
        target = self.estimate(node.target) if self.has_target(node) and node.target else None
        arguments = [self.estimate(argument) for argument in node.arguments]
        argument_cost = sum(argument.cost for argument in arguments)
        if node.name == "_?_:_":
            test, yes, no = arguments
            return Estimate(
                test.cost + max(yes.cost, no.cost), max(yes.size, no.size), yes.schema or no.schema
            )
        if node.name in ("_[_]", "_[?_]"):
            holder = arguments[0].schema
            schema = (holder.items or holder.values) if holder is not None else None
            if schema is None and arguments[0].item_size < MAX_COST:
                return Estimate(argument_cost + 1, arguments[0].item_size)
            return self.estimate_child(node, argument_cost + 1, schema)
        if node.name == "dyn":
            return arguments[0]._replace(cost=arguments[0].cost + 1)
        fee, size = self.estimate_function(node, target, arguments)
        target_cost = target.cost if target is not None else 0
        cost = min(target_cost + argument_cost + fee, MAX_COST)
        return self.with_scalar_size(node, Estimate(cost, size))

    def has_target(self, node: syntax.FunctionCall) -> bool:
        return node.target is not None and id(node.target) in self.kinds

    def estimate_function(
        self, node: syntax.FunctionCall, target: Estimate | None, args: list[Estimate]
    ) -> tuple[int, int]:
        """What a call itself costs, and how large its result is."""
        name = node.name
        if name in ("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"):
            return self.comparison(node, args), 1
        if name == "_+_" and self.kind(node).name in ("string", "bytes", "list"):
            size = min(args[0].size + args[1].size, MAX_COST)
            return (1 if self.kind(node).name == "list" else scale(size, 0.1)), size
        if name == "@in" and self.kind(node.arguments[1]).name == "list":
            return args[1].size, 1
        if name in ("startsWith", "endsWith") and args:
            return scale(args[0].size, 0.1), 1
        if name == "contains" and target is not None:
            return times(scale(target.size, 0.1), scale(args[0].size, 0.1)), 1
        if name in ("matches", "find", "findAll"):
            text, pattern = (target, args[0]) if target is not None else (args[0], args[1])
            cost = times(scale(min(text.size + 1, MAX_COST), 0.1), scale(pattern.size, 0.25))
            return cost, 1 if name == "matches" else text.size
        if name in _SCANNING and target is not None and node.target is not None:
            return self.per_item(self.kind(node.target), target), MAX_COST
        if target is not None:
            return self.method(name, target, args)
        if name in ("url", *_PARSED) and args:
            return scale(args[0].size, 0.1), args[0].size if name == "url" else MAX_COST
        if name in ("string", "bytes") and args:
            return self.conversion(node, args[0])
        return 1, MAX_COST

    def comparison(self, node: syntax.FunctionCall, args: list[Estimate]) -> int:
        kind = self.kind(node.arguments[0]).name
        if kind.startswith(("kubernetes.", "net.")):
            return 1
        text = kind in ("string", "bytes") or node.name in ("_==_", "_!=_")
        return scale(min(args[0].size, args[1].size), 0.1) if text else 1

    def conversion(self, node: syntax.FunctionCall, argument: Estimate) -> tuple[int, int]:
        argument_kind = self.kind(node.arguments[0]).name
        if (node.name, argument_kind) == ("bytes", "string"):
            return scale(argument.size, 0.1), times(argument.size, 4)
        if (node.name, argument_kind) == ("string", "bytes"):
            return scale(argument.size, 0.1), argument.size
        return 1, MAX_COST

    def per_item(self, kind: CelKind, target: Estimate) -> int:
        if kind.name != "list":
            return scale(target.size, 0.1)
        item_cost = 1
        if kind.of[0].name in ("string", "bytes"):
            items = target.schema.items if target.schema is not None else None
            item_cost += scale(MAX_COST if items is None else max_elements(items), 0.1)
        return times(target.size, item_cost)

    def method(self, name: str, target: Estimate, args: list[Estimate]) -> tuple[int, int]:
        if name in _SIZE_PRESERVING:
            return scale(target.size, 0.1), target.size
        if name == "replace":
            grown = times(min(target.size + 1, MAX_COST), max(args[1].size, 1))
            return scale(target.size, 0.2), min(grown + target.size, MAX_COST)
        if name == "split":
            return scale(target.size, 0.2), target.size
        if name == "join":
            items = target.schema.items if target.schema is not None else None
            size = times(target.size, MAX_COST if items is None else max_elements(items))
            if args:
                size = min(size + times(args[0].size, target.size), MAX_COST)
            return scale(size, 0.1), size
        if name == "validate" and args:
            return times(scale(args[0].size, 0.1), 32), MAX_COST
        if name == "format":
            return scale(target.size, 0.1), MAX_COST
        if name in ("containsIP", "containsCIDR"):
            return 4 + scale(args[0].size, 0.1) if args[0].size < MAX_COST else 7, 1
        if name in ("slice", "reverse", "first", "last"):
            return min(10 + target.size, MAX_COST), target.size
        if name in ("distinct", "sort"):
            return min(10 + times(target.size, target.size), MAX_COST), target.size
        if name == "flatten":
            return min(10 + target.size, MAX_COST), MAX_COST
        return 1, MAX_COST

    def macro(self, node: syntax.Macro) -> Estimate:
        of = self.estimate(node.of)
        hidden = {name: self.scope.get(name) for name in node.variables}
        self.scope.update(zip(node.variables, self.bind_variables(node, of), strict=True))
        bodies = [self.estimate(argument) for argument in node.arguments]
        for name, old in hidden.items():
            if old is None:
                del self.scope[name]
            else:
                self.scope[name] = old
        body, bodies_cost = bodies[-1].cost, sum(body_estimate.cost for body_estimate in bodies)
        match node.name:
            case "all":
                return Estimate(min(of.cost + 1 + times(of.size, 3 + body), MAX_COST), 1)
            case "exists":
                return Estimate(min(of.cost + 1 + times(of.size, 4 + body), MAX_COST), 1)
            case "exists_one" | "existsOne":
                return Estimate(min(of.cost + 2 + times(of.size, 2 + body), MAX_COST), 1)
            case "filter":
                cost = min(of.cost + 11 + times(of.size, 13 + body), MAX_COST)
                return Estimate(cost, of.size, of.schema, of.item_size)
            case "optMap" | "optFlatMap":
                return Estimate(of.cost + 2 + body)
            case "transformMap" | "transformMapEntry":
                cost = min(of.cost + 31 + times(of.size, 4 + bodies_cost), MAX_COST)
                return Estimate(cost, of.size)
            case "sortBy":
                cost = min(of.cost + 22 + times(of.size, 12 + body + of.size), MAX_COST)
                return Estimate(cost, of.size, of.schema, of.item_size)
        cost = min(of.cost + 11 + times(of.size, 12 + bodies_cost), MAX_COST)
        return Estimate(cost, of.size, item_size=bodies[-1].size)

    def bind_variables(self, node: syntax.Macro, of: Estimate) -> list[Estimate]:
        """The estimates of a macro's variables."""
        kind = self.kind(node.of)
        plain = Estimate(1, 1)
        inner = of.schema.items or of.schema.values if of.schema is not None else None
        # items of what is not part of the object count as the object itself
        unknown = Estimate(1, self.scope["self"].size)
        item = unknown if inner is None else Estimate(1, max_elements(inner), inner)
        if kind.name == "optional_type":
            return [Estimate(1, of.size, of.schema)]
        if kind.name == "map":
            key = Estimate(1, 0 if of.schema is not None else MAX_COST)
            return [key, item] if len(node.variables) == 2 else [key]
        return [plain, item] if len(node.variables) == 2 else [item]
