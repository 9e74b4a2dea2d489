"""Compile an expression: kinds are checked and closures are built in one pass over the tree.

``compile_expression`` gives a ``CelProgram``, which runs within a budget. Written here, not taken
from a library: ``docs/design/002-cel.md`` has the measurements.

Every expression becomes a kind and a function of a ``Frame``. A call is resolved to one overload
where the kinds of its arguments allow only one; where they are dynamic, the values decide each
time. What the real server refuses at compile time is refused here: unknown variables, fields and
functions, arguments that fit no signature, lists of mixed kinds, invalid literals of times,
durations and patterns.

Errors are values of control flow, as the language demands: ``&&``, ``||``, ``all`` and ``exists``
forgive an error when another operand decides. Evaluation cannot run away: loops and text functions
spend a budget, and nothing else can repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zonewise.embedded.machinery.cel import evaluation, syntax
from zonewise.embedded.machinery.cel.conversions import STRING_CONVERSIONS
from zonewise.embedded.machinery.cel.evaluation import Frame, Run
from zonewise.embedded.machinery.cel.formatting import check_template
from zonewise.embedded.machinery.cel.kinds import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    NULL,
    STRING,
    TYPE,
    UINT,
    CelKind,
    is_of,
    list_of,
    map_of,
    matches,
    optional_of,
    resolve,
)
from zonewise.embedded.machinery.cel.library import Overload, functions
from zonewise.embedded.machinery.cel.strings import compile_pattern
from zonewise.embedded.machinery.cel.values import (
    Duration,
    EvaluationError,
    Optional,
    Timestamp,
    TypeName,
)

CALL_BUDGET = 1_000_000
TYPE_NAMES = {
    name: TypeName(name)
    for name in (
        "bool",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "list",
        "map",
        "null_type",
        "type",
    )
}
LITERALS: dict[str, Callable[[str], Any]] = {
    "duration": Duration.parse,
    "timestamp": Timestamp.parse,
    "matches": compile_pattern,
    "find": compile_pattern,
    "findAll": compile_pattern,
    "int": STRING_CONVERSIONS["int"],
    "uint": STRING_CONVERSIONS["uint"],
    "double": STRING_CONVERSIONS["double"],
    "bool": STRING_CONVERSIONS["bool"],
}


class TypedRun(NamedTuple):
    """An expression's kind and the function that evaluates it."""

    kind: CelKind
    run: Run


@dataclass(frozen=True, slots=True)
class CelProgram:
    """A compiled expression; may be run any number of times.

    ``kinds`` has the kind of every node of the tree, by the node's id.
    """

    text: str
    kind: CelKind
    run: Run
    variables: frozenset[str]
    tree: syntax.SyntaxNode
    kinds: dict[int, CelKind]

    def evaluate(
        self, variables: Mapping[str, Any], *, budget: int = CALL_BUDGET
    ) -> tuple[Any, int]:
        """The value, and how many steps it took; EvaluationError if there is none."""
        frame = Frame(dict(variables), budget)
        try:
            return self.run(frame), budget - frame.budget
        except RecursionError:
            raise EvaluationError("values nest too deep") from None


def compile_expression(text: str, variables: Mapping[str, CelKind]) -> CelProgram:
    """Compile an expression over variables of these kinds; CompileError if it is invalid."""
    compiler = _Compiler(text, variables)
    tree = syntax.parse(text)
    root = compiler.compile(tree)
    used = frozenset(compiler.used_variables)
    return CelProgram(text, root.kind, root.run, used, tree, compiler.kinds)


class _Compiler:
    def __init__(self, text: str, variables: Mapping[str, CelKind]) -> None:
        self.text = text
        self.scope: dict[str, tuple[Any, CelKind]] = {
            name: (name, kind) for name, kind in variables.items()
        }
        self.used_variables: set[str] = set()
        self.next_slot = 0
        self.kinds: dict[int, CelKind] = {}
        self.mixed_list_depth = 0  # enclosing calls that accept lists of mixed kinds

    def error_at(self, node: syntax.SyntaxNode, message: str) -> syntax.CompileError:
        return syntax.error_at(self.text, node.position, message)

    def compile(self, node: syntax.SyntaxNode) -> TypedRun:
        typed = self.compile_node(node)
        self.kinds[id(node)] = typed.kind
        return typed

    def compile_node(self, node: syntax.SyntaxNode) -> TypedRun:
        match node:
            case syntax.Constant():
                return self.constant(node)
            case syntax.Name():
                return self.name(node)
            case syntax.Select():
                return self.select(node)
            case syntax.FunctionCall():
                return self.call(node)
            case syntax.Junction():
                return self.junction(node)
            case syntax.ListLiteral():
                return self.list_literal(node)
            case syntax.MapLiteral():
                return self.map_literal(node)
            case syntax.Macro():
                return self.macro(node)
        raise self.error_at(node, "unsupported expression")

    def constant(self, node: syntax.Constant) -> TypedRun:
        value = node.value
        for kind in (BOOL, UINT, INT, DOUBLE, BYTES, STRING, NULL):
            if is_of(value, kind):
                return TypedRun(kind, evaluation.constant(value))
        raise self.error_at(node, "unsupported literal")

    def name(self, node: syntax.Name) -> TypedRun:
        if node.name in self.scope:
            slot, kind = self.scope[node.name]
            self.used_variables.add(node.name)
            return TypedRun(kind, lambda frame: frame.slots[slot])
        if node.name in TYPE_NAMES:
            value = TYPE_NAMES[node.name]
            return TypedRun(TYPE, evaluation.constant(value))
        raise self.error_at(node, f"undeclared reference to '{node.name}' (in container '')")

    def select(self, node: syntax.Select) -> TypedRun:
        of = self.compile(node.of)
        optional = of.kind.name == "optional_type"
        holder = of.kind.of[0] if optional else of.kind
        if holder is DYN:
            kind, name = DYN, node.field
        elif holder.name == "map":
            if holder.of[0] not in (STRING, DYN):
                raise self.error_at(node, f"type '{holder}' does not support field selection")
            kind, name = holder.of[1], node.field
        elif holder.properties or holder.fields or holder.name == "object":
            if node.field not in holder.fields:
                raise self.error_at(node, f"undefined field '{node.field}'")
            kind, name = holder.fields[node.field], holder.properties[node.field]
        else:
            raise self.error_at(node, f"type '{holder}' does not support field selection")
        if node.test:
            return TypedRun(BOOL, evaluation.tester(of.run, name))
        if node.optional or optional:
            inner = kind.of[0] if kind.name == "optional_type" else kind
            return TypedRun(optional_of(inner), evaluation.optional_getter(of.run, name))
        return TypedRun(kind, evaluation.getter(of.run, name))

    def junction(self, node: syntax.Junction) -> TypedRun:
        runs = []
        for operand in node.operands:
            typed = self.compile(operand)
            if typed.kind not in (BOOL, DYN):
                name = "_&&_" if node.name == "&&" else "_||_"
                raise self.error_at(
                    node, f"found no matching overload for '{name}' applied to '({typed.kind})'"
                )
            runs.append(typed.run)
        return TypedRun(BOOL, evaluation.junction(runs, node.name == "||"))

    def list_literal(self, node: syntax.ListLiteral) -> TypedRun:
        kind: CelKind | None = None
        parts: list[tuple[Run, bool]] = []
        for item, optional in node.items:
            typed = self.compile(item)
            inner = self.unwrap_optional(item, typed.kind) if optional else typed.kind
            kind = self.join_kinds(item, kind, inner)
            parts.append((typed.run, optional))
        return TypedRun(list_of(kind or DYN), evaluation.list_maker(parts))

    def map_literal(self, node: syntax.MapLiteral) -> TypedRun:
        keys: CelKind | None = None
        values: CelKind | None = None
        parts: list[tuple[Run, Run, bool]] = []
        for key_node, value_node, optional in node.entries:
            key, value = self.compile(key_node), self.compile(value_node)
            inner = self.unwrap_optional(value_node, value.kind) if optional else value.kind
            keys, values = (
                self.join_kinds(key_node, keys, key.kind),
                self.join_kinds(value_node, values, inner),
            )
            parts.append((key.run, value.run, optional))
        return TypedRun(map_of(keys or DYN, values or DYN), evaluation.map_maker(parts))

    def unwrap_optional(self, node: syntax.SyntaxNode, kind: CelKind) -> CelKind:
        if kind.name == "optional_type":
            return kind.of[0]
        if kind is DYN:
            return DYN
        raise self.error_at(node, f"expected type 'optional_type(T)' but found '{kind}'")

    def join_kinds(
        self, node: syntax.SyntaxNode, item_kind: CelKind | None, kind: CelKind
    ) -> CelKind:
        """The kind of a literal's items, which must all have the same."""
        if self.mixed_list_depth and item_kind is DYN:
            return DYN
        alike = (
            item_kind is not None
            and (item_kind is NULL) == (kind is NULL)
            and matches(item_kind, kind, {})
        )
        if item_kind is None or item_kind is DYN or kind is DYN or alike:
            return (
                kind if item_kind is None or (item_kind is DYN and kind is not DYN) else item_kind
            )
        if self.mixed_list_depth:
            return DYN
        raise self.error_at(node, f"expected type '{item_kind}' but found '{kind}'")

    # ------------------------------------------------------------------------------------- calls

    def call(self, node: syntax.FunctionCall) -> TypedRun:
        if node.name == "_?_:_":
            return self.ternary(node)
        if node.name in ("_[_]", "_[?_]"):
            return self.index(node)
        if node.target is not None:
            qualified = self.qualified(node)
            if qualified is not None:
                return self.resolve(node, qualified, node.arguments, method=False)
            if node.name in ("or", "orValue"):
                return self.alternative(node)
            self.mixed_list_depth += node.name == "format"
            typed = self.resolve(node, node.name, [node.target, *node.arguments], method=True)
            self.mixed_list_depth -= node.name == "format"
            return typed
        return self.resolve(node, node.name, node.arguments, method=False)

    def qualified(self, node: syntax.FunctionCall) -> str | None:
        """The name of a function in a namespace, unless a variable hides it."""
        if isinstance(node.target, syntax.Name) and node.target.name not in self.scope:
            name = f"{node.target.name}.{node.name}"
            return name if name in functions() else None
        return None

    def resolve(
        self, node: syntax.FunctionCall, name: str, nodes: list[syntax.SyntaxNode], *, method: bool
    ) -> TypedRun:
        overloads = [
            overload for overload in functions().get(name, ()) if overload.method == method
        ]
        if not overloads:
            raise self.error_at(node, f"undeclared reference to '{name}' (in container '')")
        arguments = [self.compile(argument_node) for argument_node in nodes]
        kinds = [argument.kind for argument in arguments]
        fitting: list[tuple[Overload, CelKind]] = []
        for overload in overloads:
            bindings: dict[str, CelKind] = {}
            if len(overload.parameters) == len(kinds) and all(
                matches(parameter, kind, bindings)
                for parameter, kind in zip(overload.parameters, kinds, strict=True)
            ):
                fitting.append((overload, resolve(overload.result, bindings)))
        if not fitting:
            argument_text = ", ".join(map(str, kinds[1:] if method else kinds))
            call_text = f"{kinds[0]}.({argument_text})" if method else f"({argument_text})"
            raise self.error_at(
                node, f"found no matching overload for '{name}' applied to '{call_text}'"
            )
        self.check_literal(node, name, nodes)
        if name == "format" and method:
            self.check_format(node, nodes)
        results = {kind for _, kind in fitting}
        kind = results.pop() if len(results) == 1 else DYN
        runs = [argument.run for argument in arguments]
        return TypedRun(kind, evaluation.caller([overload for overload, _ in fitting], runs, kinds))

    def check_literal(
        self, node: syntax.SyntaxNode, name: str, nodes: list[syntax.SyntaxNode]
    ) -> None:
        check = LITERALS.get(name)
        position = 1 if name in ("matches", "find", "findAll") else 0
        literal = nodes[position] if check is not None and position < len(nodes) else None
        if (
            check is not None
            and isinstance(literal, syntax.Constant)
            and isinstance(literal.value, str)
        ):
            try:
                check(literal.value)
            except EvaluationError as error:
                raise self.error_at(node, f"invalid {name} argument: {error}") from None

    def check_format(self, node: syntax.SyntaxNode, nodes: list[syntax.SyntaxNode]) -> None:
        """A template that is a literal must fit its argument if that is a list literal."""
        template, values = nodes
        if not isinstance(template, syntax.Constant) or not isinstance(values, syntax.ListLiteral):
            return
        kinds = [self.compile(item).kind for item, _ in values.items]
        try:
            check_template(template.value, kinds)
        except EvaluationError as error:
            raise self.error_at(node, str(error)) from None

    def ternary(self, node: syntax.FunctionCall) -> TypedRun:
        test, first, second = (self.compile(argument) for argument in node.arguments)
        if test.kind not in (BOOL, DYN) or not matches(first.kind, second.kind, {}):
            argument_text = f"({test.kind}, {first.kind}, {second.kind})"
            raise self.error_at(
                node, f"found no matching overload for '_?_:_' applied to '{argument_text}'"
            )
        kind = second.kind if first.kind is DYN else first.kind
        condition, yes, no = test.run, first.run, second.run

        def run(frame: Frame) -> Any:
            decided = condition(frame)
            if decided is True:
                return yes(frame)
            if decided is False:
                return no(frame)
            raise EvaluationError("no such overload")

        return TypedRun(kind, run)

    def index(self, node: syntax.FunctionCall) -> TypedRun:
        of, key = (self.compile(argument) for argument in node.arguments)
        optional = of.kind.name == "optional_type"
        holder = of.kind.of[0] if optional else of.kind
        if holder.name == "list" and key.kind in (INT, DYN):
            kind = holder.of[0]
        elif holder.name == "map" and matches(holder.of[0], key.kind, {}):
            kind = holder.of[1]
        elif holder is DYN:
            kind = DYN
        else:
            argument_text = f"({of.kind}, {key.kind})"
            raise self.error_at(
                node, f"found no matching overload for '_[_]' applied to '{argument_text}'"
            )
        if optional or node.name == "_[?_]":
            return TypedRun(optional_of(kind), evaluation.optional_indexer(of.run, key.run))
        return TypedRun(kind, evaluation.indexer(of.run, key.run))

    def alternative(self, node: syntax.FunctionCall) -> TypedRun:
        """``or`` and ``orValue``, whose argument is evaluated only if it is needed."""
        assert node.target is not None
        of = self.compile(node.target)
        alternatives = [self.compile(argument) for argument in node.arguments]
        if (of.kind is not DYN and of.kind.name != "optional_type") or len(alternatives) != 1:
            raise self.error_at(node, f"found no matching overload for '{node.name}'")
        inner = of.kind.of[0] if of.kind is not DYN else DYN
        expected = inner if node.name == "orValue" else optional_of(inner)
        if not matches(expected, alternatives[0].kind, {}):
            argument_text = f"{of.kind}.({alternatives[0].kind})"
            raise self.error_at(
                node, f"found no matching overload for '{node.name}' applied to '{argument_text}'"
            )
        kind = alternatives[0].kind if inner is DYN else expected
        value, other, unwrap = of.run, alternatives[0].run, node.name == "orValue"

        def run(frame: Frame) -> Any:
            optional = value(frame)
            if not isinstance(optional, Optional):
                raise EvaluationError("no such overload")
            if not optional.items:
                return other(frame)
            return optional.items[0] if unwrap else optional

        return TypedRun(kind, run)

    # ------------------------------------------------------------------------------------ macros

    def macro(self, node: syntax.Macro) -> TypedRun:
        of = self.compile(node.of)
        if node.name in ("optMap", "optFlatMap"):
            return self.optional_macro(node, of)
        kinds = self.variable_kinds(node, of.kind)
        hidden = {name: self.scope.get(name) for name in node.variables}
        slots = []
        for name, kind in zip(node.variables, kinds, strict=True):
            self.next_slot += 1
            self.scope[name] = (self.next_slot, kind)
            slots.append(self.next_slot)
        bodies = [self.compile(argument) for argument in node.arguments]
        for name, old in hidden.items():
            if old is None:
                del self.scope[name]
            else:
                self.scope[name] = old
        return self.fold(node, of, slots, bodies)

    def variable_kinds(self, node: syntax.Macro, kind: CelKind) -> list[CelKind]:
        two = len(node.variables) == 2
        if kind is DYN:
            return [DYN, DYN] if two else [DYN]
        if kind.name == "list":
            return [INT, kind.of[0]] if two else [kind.of[0]]
        if kind.name == "map":
            return [kind.of[0], kind.of[1]] if two else [kind.of[0]]
        message = "cannot be range of a comprehension (must be list, map, or dynamic)"
        raise self.error_at(node, f"expression of type '{kind}' {message}")

    def optional_macro(self, node: syntax.Macro, of: TypedRun) -> TypedRun:
        if of.kind is not DYN and of.kind.name != "optional_type":
            raise self.error_at(node, f"found no matching overload for '{node.name}'")
        name, hidden = node.variables[0], self.scope.get(node.variables[0])
        self.next_slot += 1
        slot = self.next_slot
        self.scope[name] = (slot, of.kind.of[0] if of.kind is not DYN else DYN)
        body = self.compile(node.arguments[0])
        if hidden is None:
            del self.scope[name]
        else:
            self.scope[name] = hidden
        flat, value, inner = node.name == "optFlatMap", of.run, body.run
        if flat and body.kind is not DYN and body.kind.name != "optional_type":
            raise self.error_at(node, "optFlatMap must give an optional value")

        def run(frame: Frame) -> Any:
            optional = value(frame)
            if not isinstance(optional, Optional):
                raise EvaluationError("no such overload")
            if not optional.items:
                return optional
            frame.slots[slot] = optional.items[0]
            result = inner(frame)
            return result if flat else Optional(result)

        return TypedRun(body.kind if flat else optional_of(body.kind), run)

    def fold(
        self, node: syntax.Macro, of: TypedRun, slots: list[int], bodies: list[TypedRun]
    ) -> TypedRun:
        name = node.name
        tests = bodies[:-1] if name in ("map", "transformList", "transformMap") else []
        if name == "transformMapEntry":
            tests = bodies[:-1]
        if name in ("all", "exists", "exists_one", "existsOne", "filter"):
            tests = bodies
        for test in tests:
            if test.kind not in (BOOL, DYN):
                raise self.error_at(node, f"expected type 'bool' but found '{test.kind}'")
        loop = evaluation.Loop(of.run, slots, sum(_size(argument) for argument in node.arguments))
        body = bodies[-1]
        only = tests[0].run if tests else None
        match name:
            case "all" | "exists":
                quantifier = evaluation.quantifier(loop, body.run, decisive=name == "exists")
                return TypedRun(BOOL, quantifier)
            case "exists_one" | "existsOne":
                return TypedRun(BOOL, evaluation.exactly_one(loop, body.run))
            case "filter":
                item = of.kind.of[0] if of.kind.of else DYN
                return TypedRun(list_of(item), evaluation.filterer(loop, body.run))
            case "map" | "transformList":
                return TypedRun(list_of(body.kind), evaluation.mapper(loop, only, body.run))
            case "sortBy":
                if of.kind is not DYN and of.kind.name != "list":
                    raise self.error_at(node, "sortBy can only be called on a list")
                return TypedRun(of.kind, evaluation.sorter(loop, body.run))
        key = of.kind.of[0] if of.kind.name == "map" else INT if of.kind.name == "list" else DYN
        if name == "transformMap":
            return TypedRun(map_of(key, body.kind), evaluation.map_mapper(loop, only, body.run))
        kind = body.kind if body.kind.name == "map" else map_of(DYN, DYN)
        return TypedRun(kind, evaluation.entry_mapper(loop, only, body.run))


def _size(root: syntax.SyntaxNode) -> int:
    return 1 + sum(map(_size, syntax.children(root)))
