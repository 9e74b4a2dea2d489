"""From a tree to something that runs: types are checked and closures are made in one pass.

Every expression becomes a kind and a function of a ``Frame``. A call is resolved to one overload
where the kinds of its arguments allow only one; where they are dynamic, the values decide each
time. What the real server refuses at compile time is refused here: unknown variables, fields and
functions, arguments that fit no signature, lists of mixed kinds, literals of a time, duration or
pattern that are none.

Errors are values of control flow, as the language demands: ``&&``, ``||``, ``all`` and ``exists``
forgive an error when another operand decides. Evaluation cannot run away: loops and text functions
spend a budget, and nothing else can repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zonewise.embedded.machinery.cel import evaluation, syntax
from zonewise.embedded.machinery.cel.conversions import CONVERSIONS
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
    resolved,
)
from zonewise.embedded.machinery.cel.library import Overload, functions
from zonewise.embedded.machinery.cel.texts import pattern
from zonewise.embedded.machinery.cel.values import (
    Duration,
    EvaluationError,
    Optional,
    Timestamp,
    TypeName,
)

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
    "matches": pattern,
    "find": pattern,
    "findAll": pattern,
    "int": CONVERSIONS["int"],
    "uint": CONVERSIONS["uint"],
    "double": CONVERSIONS["double"],
    "bool": CONVERSIONS["bool"],
}


class Typed(NamedTuple):
    """An expression's kind and what evaluates it."""

    kind: CelKind
    run: Run


class Compiled(NamedTuple):
    """A whole expression: what it is, what evaluates it, and the tree it was made from.

    ``kinds`` has the kind of every node of the tree, by the node's id.
    """

    kind: CelKind
    run: Run
    variables: frozenset[str]
    tree: syntax.SyntaxNode
    kinds: dict[int, CelKind]


def compiled(text: str, variables: Mapping[str, CelKind]) -> Compiled:
    """An expression over these variables; CompileError says what is wrong with it."""
    compiler = _Compiler(text, variables)
    tree = syntax.parse(text)
    made = compiler.make(tree)
    return Compiled(made.kind, made.run, frozenset(compiler.used), tree, compiler.kinds)


class _Compiler:
    def __init__(self, text: str, variables: Mapping[str, CelKind]) -> None:
        self.text = text
        self.scope: dict[str, tuple[Any, CelKind]] = {
            name: (name, kind) for name, kind in variables.items()
        }
        self.used: set[str] = set()
        self.next_slot = 0
        self.kinds: dict[int, CelKind] = {}
        self.mixed = 0  # inside of how many calls that take lists of anything

    def fault(self, node: syntax.SyntaxNode, words: str) -> syntax.CompileError:
        return syntax.fault(self.text, node.at, words)

    def make(self, node: syntax.SyntaxNode) -> Typed:
        made = self.made(node)
        self.kinds[id(node)] = made.kind
        return made

    def made(self, node: syntax.SyntaxNode) -> Typed:
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
        raise self.fault(node, "unsupported expression")

    def constant(self, node: syntax.Constant) -> Typed:
        value = node.value
        for kind in (BOOL, UINT, INT, DOUBLE, BYTES, STRING, NULL):
            if is_of(value, kind):
                return Typed(kind, evaluation.constant(value))
        raise self.fault(node, "unsupported literal")

    def name(self, node: syntax.Name) -> Typed:
        if node.name in self.scope:
            slot, kind = self.scope[node.name]
            self.used.add(node.name)
            return Typed(kind, lambda frame: frame.slots[slot])
        if node.name in TYPE_NAMES:
            value = TYPE_NAMES[node.name]
            return Typed(TYPE, evaluation.constant(value))
        raise self.fault(node, f"undeclared reference to '{node.name}' (in container '')")

    def select(self, node: syntax.Select) -> Typed:
        of = self.make(node.of)
        optional = of.kind.name == "optional_type"
        holder = of.kind.of[0] if optional else of.kind
        if holder is DYN:
            kind, name = DYN, node.field
        elif holder.name == "map":
            if holder.of[0] not in (STRING, DYN):
                raise self.fault(node, f"type '{holder}' does not support field selection")
            kind, name = holder.of[1], node.field
        elif holder.properties or holder.fields or holder.name == "object":
            if node.field not in holder.fields:
                raise self.fault(node, f"undefined field '{node.field}'")
            kind, name = holder.fields[node.field], holder.properties[node.field]
        else:
            raise self.fault(node, f"type '{holder}' does not support field selection")
        if node.test:
            return Typed(BOOL, evaluation.tester(of.run, name))
        if node.optional or optional:
            inner = kind.of[0] if kind.name == "optional_type" else kind
            return Typed(optional_of(inner), evaluation.optional_getter(of.run, name))
        return Typed(kind, evaluation.getter(of.run, name))

    def junction(self, node: syntax.Junction) -> Typed:
        runs = []
        for operand in node.operands:
            made = self.make(operand)
            if made.kind not in (BOOL, DYN):
                name = "_&&_" if node.name == "&&" else "_||_"
                raise self.fault(
                    node, f"found no matching overload for '{name}' applied to '({made.kind})'"
                )
            runs.append(made.run)
        return Typed(BOOL, evaluation.junction(runs, node.name == "||"))

    def list_literal(self, node: syntax.ListLiteral) -> Typed:
        kind: CelKind | None = None
        parts: list[tuple[Run, bool]] = []
        for item, optional in node.items:
            made = self.make(item)
            inner = self.unwrapped(item, made.kind) if optional else made.kind
            kind = self.joined(item, kind, inner)
            parts.append((made.run, optional))
        return Typed(list_of(kind or DYN), evaluation.list_maker(parts))

    def map_literal(self, node: syntax.MapLiteral) -> Typed:
        keys: CelKind | None = None
        values: CelKind | None = None
        parts: list[tuple[Run, Run, bool]] = []
        for key_node, value_node, optional in node.entries:
            key, value = self.make(key_node), self.make(value_node)
            inner = self.unwrapped(value_node, value.kind) if optional else value.kind
            keys, values = (
                self.joined(key_node, keys, key.kind),
                self.joined(value_node, values, inner),
            )
            parts.append((key.run, value.run, optional))
        return Typed(map_of(keys or DYN, values or DYN), evaluation.map_maker(parts))

    def unwrapped(self, node: syntax.SyntaxNode, kind: CelKind) -> CelKind:
        if kind.name == "optional_type":
            return kind.of[0]
        if kind is DYN:
            return DYN
        raise self.fault(node, f"expected type 'optional_type(T)' but found '{kind}'")

    def joined(self, node: syntax.SyntaxNode, known: CelKind | None, kind: CelKind) -> CelKind:
        """The kind of a literal's items, which must all be of one."""
        if self.mixed and known is DYN:
            return DYN
        alike = known is not None and (known is NULL) == (kind is NULL) and matches(known, kind, {})
        if known is None or known is DYN or kind is DYN or alike:
            return kind if known is None or (known is DYN and kind is not DYN) else known
        if self.mixed:
            return DYN
        raise self.fault(node, f"expected type '{known}' but found '{kind}'")

    # ------------------------------------------------------------------------------------- calls

    def call(self, node: syntax.FunctionCall) -> Typed:
        if node.name == "_?_:_":
            return self.ternary(node)
        if node.name in ("_[_]", "_[?_]"):
            return self.index(node)
        if node.target is not None:
            qualified = self.qualified(node)
            if qualified is not None:
                return self.resolve(node, qualified, node.arguments, method=False)
            if node.name in ("or", "orValue"):
                return self.otherwise(node)
            self.mixed += node.name == "format"
            made = self.resolve(node, node.name, [node.target, *node.arguments], method=True)
            self.mixed -= node.name == "format"
            return made
        return self.resolve(node, node.name, node.arguments, method=False)

    def qualified(self, node: syntax.FunctionCall) -> str | None:
        """The name of a function in a namespace, unless a variable hides it."""
        if isinstance(node.target, syntax.Name) and node.target.name not in self.scope:
            name = f"{node.target.name}.{node.name}"
            return name if name in functions() else None
        return None

    def resolve(
        self, node: syntax.FunctionCall, name: str, nodes: list[syntax.SyntaxNode], *, method: bool
    ) -> Typed:
        overloads = [one for one in functions().get(name, ()) if one.method == method]
        if not overloads:
            raise self.fault(node, f"undeclared reference to '{name}' (in container '')")
        made = [self.make(one) for one in nodes]
        kinds = [one.kind for one in made]
        fitting: list[tuple[Overload, CelKind]] = []
        for overload in overloads:
            bound: dict[str, CelKind] = {}
            if len(overload.parameters) == len(kinds) and all(
                matches(wanted, given, bound)
                for wanted, given in zip(overload.parameters, kinds, strict=True)
            ):
                fitting.append((overload, resolved(overload.result, bound)))
        if not fitting:
            given = ", ".join(map(str, kinds[1:] if method else kinds))
            shown = f"{kinds[0]}.({given})" if method else f"({given})"
            raise self.fault(node, f"found no matching overload for '{name}' applied to '{shown}'")
        self.check_literal(node, name, nodes)
        if name == "format" and method:
            self.check_format(node, nodes)
        results = {kind for _, kind in fitting}
        kind = results.pop() if len(results) == 1 else DYN
        runs = [one.run for one in made]
        return Typed(kind, evaluation.caller([one for one, _ in fitting], runs, kinds))

    def check_literal(
        self, node: syntax.SyntaxNode, name: str, nodes: list[syntax.SyntaxNode]
    ) -> None:
        check = LITERALS.get(name)
        at = 1 if name in ("matches", "find", "findAll") else 0
        literal = nodes[at] if check is not None and at < len(nodes) else None
        if (
            check is not None
            and isinstance(literal, syntax.Constant)
            and isinstance(literal.value, str)
        ):
            try:
                check(literal.value)
            except EvaluationError as error:
                raise self.fault(node, f"invalid {name} argument: {error}") from None

    def check_format(self, node: syntax.SyntaxNode, nodes: list[syntax.SyntaxNode]) -> None:
        """A template that is a literal must fit the list it gets, if that is one too."""
        template, values = nodes
        if not isinstance(template, syntax.Constant) or not isinstance(values, syntax.ListLiteral):
            return
        kinds = [self.make(item).kind for item, _ in values.items]
        try:
            check_template(template.value, kinds)
        except EvaluationError as error:
            raise self.fault(node, str(error)) from None

    def ternary(self, node: syntax.FunctionCall) -> Typed:
        test, first, second = (self.make(one) for one in node.arguments)
        if test.kind not in (BOOL, DYN) or not matches(first.kind, second.kind, {}):
            given = f"({test.kind}, {first.kind}, {second.kind})"
            raise self.fault(node, f"found no matching overload for '_?_:_' applied to '{given}'")
        kind = second.kind if first.kind is DYN else first.kind
        condition, yes, no = test.run, first.run, second.run

        def run(frame: Frame) -> Any:
            decided = condition(frame)
            if decided is True:
                return yes(frame)
            if decided is False:
                return no(frame)
            raise EvaluationError("no such overload")

        return Typed(kind, run)

    def index(self, node: syntax.FunctionCall) -> Typed:
        of, at = (self.make(one) for one in node.arguments)
        optional = of.kind.name == "optional_type"
        holder = of.kind.of[0] if optional else of.kind
        if holder.name == "list" and at.kind in (INT, DYN):
            kind = holder.of[0]
        elif holder.name == "map" and matches(holder.of[0], at.kind, {}):
            kind = holder.of[1]
        elif holder is DYN:
            kind = DYN
        else:
            given = f"({of.kind}, {at.kind})"
            raise self.fault(node, f"found no matching overload for '_[_]' applied to '{given}'")
        if optional or node.name == "_[?_]":
            return Typed(optional_of(kind), evaluation.optional_indexer(of.run, at.run))
        return Typed(kind, evaluation.indexer(of.run, at.run))

    def otherwise(self, node: syntax.FunctionCall) -> Typed:
        """``or`` and ``orValue``, whose argument is evaluated only if it is needed."""
        assert node.target is not None
        of = self.make(node.target)
        rest = [self.make(one) for one in node.arguments]
        if (of.kind is not DYN and of.kind.name != "optional_type") or len(rest) != 1:
            raise self.fault(node, f"found no matching overload for '{node.name}'")
        inner = of.kind.of[0] if of.kind is not DYN else DYN
        wanted = inner if node.name == "orValue" else optional_of(inner)
        if not matches(wanted, rest[0].kind, {}):
            given = f"{of.kind}.({rest[0].kind})"
            raise self.fault(
                node, f"found no matching overload for '{node.name}' applied to '{given}'"
            )
        kind = rest[0].kind if inner is DYN else wanted
        value, other, unwrap = of.run, rest[0].run, node.name == "orValue"

        def run(frame: Frame) -> Any:
            found = value(frame)
            if not isinstance(found, Optional):
                raise EvaluationError("no such overload")
            if not found.items:
                return other(frame)
            return found.items[0] if unwrap else found

        return Typed(kind, run)

    # ------------------------------------------------------------------------------------ macros

    def macro(self, node: syntax.Macro) -> Typed:
        of = self.make(node.of)
        if node.name in ("optMap", "optFlatMap"):
            return self.optional_macro(node, of)
        kinds = self.variable_kinds(node, of.kind)
        hidden = {name: self.scope.get(name) for name in node.variables}
        slots = []
        for name, kind in zip(node.variables, kinds, strict=True):
            self.next_slot += 1
            self.scope[name] = (self.next_slot, kind)
            slots.append(self.next_slot)
        bodies = [self.make(one) for one in node.arguments]
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
        words = "cannot be range of a comprehension (must be list, map, or dynamic)"
        raise self.fault(node, f"expression of type '{kind}' {words}")

    def optional_macro(self, node: syntax.Macro, of: Typed) -> Typed:
        if of.kind is not DYN and of.kind.name != "optional_type":
            raise self.fault(node, f"found no matching overload for '{node.name}'")
        name, hidden = node.variables[0], self.scope.get(node.variables[0])
        self.next_slot += 1
        slot = self.next_slot
        self.scope[name] = (slot, of.kind.of[0] if of.kind is not DYN else DYN)
        body = self.make(node.arguments[0])
        if hidden is None:
            del self.scope[name]
        else:
            self.scope[name] = hidden
        flat, value, inner = node.name == "optFlatMap", of.run, body.run
        if flat and body.kind is not DYN and body.kind.name != "optional_type":
            raise self.fault(node, "optFlatMap must give an optional value")

        def run(frame: Frame) -> Any:
            found = value(frame)
            if not isinstance(found, Optional):
                raise EvaluationError("no such overload")
            if not found.items:
                return found
            frame.slots[slot] = found.items[0]
            made = inner(frame)
            return made if flat else Optional(made)

        return Typed(body.kind if flat else optional_of(body.kind), run)

    def fold(self, node: syntax.Macro, of: Typed, slots: list[int], bodies: list[Typed]) -> Typed:
        name = node.name
        tests = bodies[:-1] if name in ("map", "transformList", "transformMap") else []
        if name == "transformMapEntry":
            tests = bodies[:-1]
        if name in ("all", "exists", "exists_one", "existsOne", "filter"):
            tests = bodies
        for test in tests:
            if test.kind not in (BOOL, DYN):
                raise self.fault(node, f"expected type 'bool' but found '{test.kind}'")
        loop = evaluation.Loop(of.run, slots, sum(_size(one) for one in node.arguments))
        body = bodies[-1]
        only = tests[0].run if tests else None
        match name:
            case "all" | "exists":
                return Typed(BOOL, evaluation.quantifier(loop, body.run, decisive=name == "exists"))
            case "exists_one" | "existsOne":
                return Typed(BOOL, evaluation.exactly_one(loop, body.run))
            case "filter":
                item = of.kind.of[0] if of.kind.of else DYN
                return Typed(list_of(item), evaluation.filterer(loop, body.run))
            case "map" | "transformList":
                return Typed(list_of(body.kind), evaluation.mapper(loop, only, body.run))
            case "sortBy":
                if of.kind is not DYN and of.kind.name != "list":
                    raise self.fault(node, "sortBy can only be called on a list")
                return Typed(of.kind, evaluation.sorter(loop, body.run))
        key = of.kind.of[0] if of.kind.name == "map" else INT if of.kind.name == "list" else DYN
        if name == "transformMap":
            return Typed(map_of(key, body.kind), evaluation.map_mapper(loop, only, body.run))
        kind = body.kind if body.kind.name == "map" else map_of(DYN, DYN)
        return Typed(kind, evaluation.entry_mapper(loop, only, body.run))


def _size(root: syntax.SyntaxNode) -> int:
    return 1 + sum(map(_size, syntax.children(root)))
