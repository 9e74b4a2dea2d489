"""CEL's grammar: parses text into a tree, macros included.

A hand-written lexer and an operator-precedence parser, because both are bounded easily: the text
by ``TEXT_LIMIT``, nesting by ``DEPTH_LIMIT`` (in the grammar *and* in the tree, so that no later
stage recurses deeper). Chains of ``&&`` and ``||`` become one flat node. Macros are recognised here
as the language defines them, by name and number of arguments; the compiler gives them meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.cel.values import UInt

LONGEST_NUMBER = 100
TEXT_LIMIT = 20_000
DEPTH_LIMIT = 100

RESERVED = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"}
    | {"if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
PRECEDENCE = {
    "==": 1, "!=": 1, "<": 1, "<=": 1, ">": 1, ">=": 1, "in": 1,
    "+": 2, "-": 2,
    "*": 3, "/": 3, "%": 3,
}  # fmt: skip
# macro -> how many variables it binds, by how many arguments it is called with
MACROS: dict[str, dict[int, int]] = {
    "all": {2: 1, 3: 2},
    "exists": {2: 1, 3: 2},
    "exists_one": {2: 1, 3: 2},
    "existsOne": {2: 1, 3: 2},
    "filter": {2: 1},
    "map": {2: 1, 3: 1},
    "transformList": {3: 2, 4: 2},
    "transformMap": {3: 2, 4: 2},
    "transformMapEntry": {3: 2, 4: 2},
    "optMap": {2: 1},
    "optFlatMap": {2: 1},
    "sortBy": {2: 1},
}


class CompileError(ParseError):
    """An expression that cannot be compiled; the message shows the position."""


@dataclass(slots=True)
class SyntaxNode:
    """Any expression; ``at`` is its position in the text."""

    position: int


@dataclass(slots=True)
class Constant(SyntaxNode):
    """A literal; its type follows from its value."""

    value: Any


@dataclass(slots=True)
class Name(SyntaxNode):
    """A variable, or the first part of a qualified function name."""

    name: str


@dataclass(slots=True)
class Select(SyntaxNode):
    """A field; with ``test`` whether it is set, with ``optional`` as an optional value."""

    of: SyntaxNode
    field: str
    test: bool = False
    optional: bool = False


@dataclass(slots=True)
class FunctionCall(SyntaxNode):
    """A function, a method, or an operator written ``_+_``."""

    name: str
    target: SyntaxNode | None
    arguments: list[SyntaxNode]


@dataclass(slots=True)
class Junction(SyntaxNode):
    """A chain of ``&&`` or of ``||``."""

    name: str
    operands: list[SyntaxNode]


@dataclass(slots=True)
class ListLiteral(SyntaxNode):
    """Items, each with whether it is left out when it is an empty optional."""

    items: list[tuple[SyntaxNode, bool]]


@dataclass(slots=True)
class MapLiteral(SyntaxNode):
    """Keys and values, each pair with whether it is left out when it is an empty optional."""

    entries: list[tuple[SyntaxNode, SyntaxNode, bool]]


@dataclass(slots=True)
class Macro(SyntaxNode):
    """A macro over ``of`` that binds variables in its ``arguments``."""

    name: str
    of: SyntaxNode
    variables: list[str]
    arguments: list[SyntaxNode]


class Token(NamedTuple):
    """A word of the text."""

    kind: str
    text: str
    position: int


_TOKENS = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*)
    | (?P<float>(?:\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?))
    | (?P<int>0[xX][0-9a-fA-F]+[uU]?|\d+[uU]?)
    | (?P<string>(?:[rR][bB]?|[bB][rR]?)?(?:\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''
        |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>==|!=|<=|>=|&&|\|\||[-+*/%!<>?:.,()\[\]{}])
    """,
    re.VERBOSE,
)
_RAW = re.compile(
    r"""[rR][bB]?(?:\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''|"[^"\n]*"|'[^'\n]*')|[bB][rR](?:"[^"\n]*"|'[^'\n]*')"""
)
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))",
    re.DOTALL,
)


def error_at(text: str, position: int, message: str) -> CompileError:
    """An error that shows its line, with a mark under the position."""
    text_before = text[:position]
    line = text_before.count("\n") + 1
    column = position - (text_before.rfind("\n") + 1)
    line_text = text.split("\n")[line - 1]
    return CompileError(
        f"ERROR: <input>:{line}:{column + 1}: {message}\n | {line_text}\n | {'.' * column}^"
    )


def parse(text: str) -> SyntaxNode:
    """The tree of an expression."""
    if len(text) > TEXT_LIMIT:
        raise CompileError(f"expression is longer than {TEXT_LIMIT} characters")
    return _Parser(text).parse_all()


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while position < len(text):
        match = _RAW.match(text, position)
        if match is not None:
            yield Token("string", match.group(), position)
            position = match.end()
            continue
        match = _TOKENS.match(text, position)
        if match is None:
            raise error_at(
                text, position, f"Syntax error: token recognition error at: '{text[position]}'"
            )
        kind = match.lastgroup or ""
        if (
            kind == "float"
            and match.group().startswith(".")
            and position
            and text[position - 1].isalnum()
        ):
            kind, match = "mark", re.compile(r"\.").match(text, position)  # a.5 is no number
            assert match is not None
        if kind != "space":
            yield Token(kind, match.group(), position)
        position = match.end()
    yield Token("end", "<EOF>", len(text))


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.next = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.next]

    def unexpected_token(self, expected: str) -> CompileError:
        message = f"Syntax error: mismatched input '{self.token.text}' expecting {expected}"
        return error_at(self.text, self.token.position, message)

    def is_mark(self, mark: str) -> bool:
        return self.token.kind == "mark" and self.token.text == mark

    def accept(self, mark: str) -> bool:
        if self.is_mark(mark):
            self.next += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise self.unexpected_token(f"'{mark}'")

    def parse_all(self) -> SyntaxNode:
        node = self.expression()
        if self.token.kind != "end":
            raise self.unexpected_token("<EOF>")
        if _depth_of(node) > DEPTH_LIMIT:
            raise CompileError(f"expression recursion limit exceeded: {DEPTH_LIMIT}")
        return node

    def expression(self) -> SyntaxNode:
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise error_at(
                self.text,
                self.token.position,
                f"expression recursion limit exceeded: {DEPTH_LIMIT}",
            )
        node = self.junction("||")
        if self.is_mark("?"):
            position = self.token.position
            self.next += 1
            first = self.junction("||")
            self.expect(":")
            node = FunctionCall(position, "_?_:_", None, [node, first, self.expression()])
        self.depth -= 1
        return node

    def junction(self, mark: str) -> SyntaxNode:
        def operand() -> SyntaxNode:
            return self.junction("&&") if mark == "||" else self.operators(1)

        position, operands = self.token.position, [operand()]
        while self.accept(mark):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Junction(position, mark, operands)

    def operators(self, floor: int) -> SyntaxNode:
        left = self.unary()
        while self.token.kind in ("mark", "name"):
            mark = self.token.text
            level = PRECEDENCE.get(mark, 0)
            if level < floor:
                break
            position = self.token.position
            self.next += 1
            right = self.operators(level + 1)
            name = "@in" if mark == "in" else f"_{mark}_"
            left = FunctionCall(position, name, None, [left, right])
        return left

    def unary(self) -> SyntaxNode:
        position, marks = self.token.position, 0
        mark = self.token.text if self.token.kind == "mark" else ""
        if mark not in ("!", "-"):
            return self.member(self.primary())
        while self.is_mark(mark):
            self.next += 1
            marks += 1
        if mark == "-" and self.token.kind in ("int", "float") and marks == 1:
            self.tokens[self.next] = self.token._replace(text="-" + self.token.text)
            return self.member(self.primary())
        node = self.member(self.primary())
        if marks % 2 == 0:
            return node
        return FunctionCall(position, "!_" if mark == "!" else "-_", None, [node])

    def member(self, node: SyntaxNode) -> SyntaxNode:
        while self.token.kind == "mark":
            position = self.token.position
            if self.accept("."):
                optional = self.accept("?")
                if self.token.kind != "name":
                    raise self.unexpected_token("IDENTIFIER")
                word = self.token
                self.next += 1
                if self.is_mark("(") and not optional:
                    node = self.call(word.position, word.text, node)
                else:
                    if word.text in ("true", "false", "null", "in"):
                        raise error_at(
                            self.text, word.position, f"Syntax error: '{word.text}' is reserved"
                        )
                    node = Select(position, node, word.text, optional=optional)
            elif self.accept("["):
                optional = self.accept("?")
                index = self.expression()
                self.expect("]")
                node = FunctionCall(position, "_[?_]" if optional else "_[_]", None, [node, index])
            else:
                break
        return node

    def arguments(self, close: str) -> list[SyntaxNode]:
        arguments: list[SyntaxNode] = []
        while not self.accept(close):
            arguments.append(self.expression())
            if not self.accept(","):
                self.expect(close)
                break
        return arguments

    def call(self, position: int, name: str, target: SyntaxNode | None) -> SyntaxNode:
        self.expect("(")
        arguments = self.arguments(")")
        if target is None and name == "has" and len(arguments) == 1:
            tested = arguments[0]
            if not isinstance(tested, Select) or tested.test:
                raise error_at(self.text, position, "invalid argument to has() macro")
            return Select(
                tested.position, tested.of, tested.field, test=True, optional=tested.optional
            )
        bound = MACROS.get(name, {}).get(len(arguments))
        if target is not None and bound is not None:
            variables = []
            for argument in arguments[:bound]:
                if not isinstance(argument, Name):
                    raise error_at(self.text, argument.position, "argument must be a simple name")
                variables.append(argument.name)
            return Macro(position, name, target, variables, arguments[bound:])
        return FunctionCall(position, name, target, arguments)

    def primary(self) -> SyntaxNode:
        token = self.token
        self.next += 1
        if token.kind == "mark" and token.text == "(":
            node = self.expression()
            self.expect(")")
            return node
        if token.kind == "mark" and token.text == "[":
            return self.list_literal(token.position)
        if token.kind == "mark" and token.text == "{":
            return self.map_literal(token.position)
        if token.kind == "mark" and token.text == "." and self.token.kind == "name":
            token = self.token
            self.next += 1
        if token.kind in ("int", "float"):
            return self.number(token)
        if token.kind == "string":
            return Constant(token.position, _unquote(self.text, token))
        if token.kind == "name":
            if token.text in ("true", "false"):
                return Constant(token.position, token.text == "true")
            if token.text == "null":
                return Constant(token.position, None)
            if token.text in RESERVED:
                raise error_at(self.text, token.position, f"reserved identifier: {token.text}")
            if self.is_mark("("):
                return self.call(token.position, token.text, None)
            return Name(token.position, token.text)
        self.next -= 1
        raise self.unexpected_token("an expression")

    def number(self, token: Token) -> SyntaxNode:
        text = token.text
        if token.kind == "float":
            return Constant(token.position, float(text))
        unsigned = text[-1] in "uU"
        digits = text[:-1] if unsigned else text
        if len(digits) > LONGEST_NUMBER:
            raise error_at(self.text, token.position, "invalid int literal")
        value = int(digits, 16 if "x" in digits.lower() else 10)
        if unsigned:
            if not 0 <= value < 2**64:
                raise error_at(self.text, token.position, "invalid uint literal")
            return Constant(token.position, UInt(value))
        if not -(2**63) <= value < 2**63:
            raise error_at(self.text, token.position, "invalid int literal")
        return Constant(token.position, value)

    def list_literal(self, position: int) -> SyntaxNode:
        items: list[tuple[SyntaxNode, bool]] = []
        while not self.accept("]"):
            optional = self.accept("?")
            items.append((self.expression(), optional))
            if not self.accept(","):
                self.expect("]")
                break
        return ListLiteral(position, items)

    def map_literal(self, position: int) -> SyntaxNode:
        entries: list[tuple[SyntaxNode, SyntaxNode, bool]] = []
        while not self.accept("}"):
            optional = self.accept("?")
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression(), optional))
            if not self.accept(","):
                self.expect("}")
                break
        return MapLiteral(position, entries)


def _unquote(text: str, token: Token) -> str | bytes:
    body = token.text
    prefix = re.match(r"[rRbB]*", body)
    marks = prefix.group().lower() if prefix else ""
    body = body[len(marks) :]
    width = 3 if body[:3] in ('"""', "'''") else 1
    body = body[width:-width]
    is_bytes = "b" in marks
    if "r" not in marks:
        pieces: list[str | bytes] = []
        end = 0
        for match in _ESCAPE.finditer(body):
            pieces += [body[end : match.start()], _unescape(text, token.position, match, is_bytes)]
            end = match.end()
        pieces.append(body[end:])
        if is_bytes:
            return b"".join(p if isinstance(p, bytes) else p.encode() for p in pieces)
        return "".join(p for p in pieces if isinstance(p, str))
    return body.encode() if is_bytes else body


def _unescape(text: str, position: int, match: re.Match[str], is_bytes: bool) -> str | bytes:
    two, upper, four, eight, octal, other = match.groups()
    if other is not None:
        if other not in _ESCAPES:
            raise error_at(text, position, f"Syntax error: unknown escape sequence \\{other}")
        return _ESCAPES[other]
    code = int(octal, 8) if octal is not None else int(two or upper or four or eight or "0", 16)
    if is_bytes and (four or eight) is None:
        return bytes([code])
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise error_at(text, position, "Syntax error: invalid unicode code point")
    return chr(code)


def children(node: SyntaxNode) -> list[SyntaxNode]:
    """The expressions right below one."""
    match node:
        case Select():
            return [node.of]
        case FunctionCall():
            return [*([node.target] if node.target is not None else []), *node.arguments]
        case Junction():
            return node.operands
        case ListLiteral():
            return [item for item, _ in node.items]
        case MapLiteral():
            return [part for key, value, _ in node.entries for part in (key, value)]
        case Macro():
            return [node.of, *node.arguments]
    return []


def _depth_of(root: SyntaxNode) -> int:
    level, depth = [root], 0
    while level:
        level = [child for node in level for child in children(node)]
        depth += 1
    return depth
