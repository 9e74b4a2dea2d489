"""Label selectors.

A selector is a set of requirements that must all hold. It is text, in the grammar of the API (``env
in (a,b),tier!=web,!old,cpu>4``), or as a ``LabelSelector`` object. Keys and values are checked
against the rules for labels: a selector that could never match is a mistake, and the error names
the part that is wrong.

``str()`` is canonical: sorted by key, values sorted, ``==`` written as ``=``. Selectors of equal
text are equal values. ``required`` says which labels a match must have, so that a store can look a
selector up in an index instead of testing every object.

Matching runs once per object and watcher, so requirements are compiled when they are made, and
equalities, which most selectors consist of, are one subset test in C.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from operator import call
from typing import NamedTuple, TypeAlias

from zonewise.api.errors import ParseError
from zonewise.api.meta import LabelSelector
from zonewise.api.values.labels import label_key_error, label_value_error

_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_TOKEN = re.compile(r"[ \t\r\n]*(?:(?P<symbol>!=|==|[=!(),><])|(?P<word>[^ \t\r\n=!(),><]+)|$)")


Predicate: TypeAlias = Callable[[Mapping[str, str]], bool]


class Operator(Enum):
    """How a label is compared; the value is how it is written."""

    EQUALS = "="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    NOT_EXISTS = "!"
    GREATER = ">"
    LESS = "<"


_ONE_VALUE = {Operator.EQUALS, Operator.NOT_EQUALS, Operator.GREATER, Operator.LESS}
_ANY_VALUES = {Operator.IN, Operator.NOT_IN}
_NUMERIC = {Operator.GREATER, Operator.LESS}
_POSITIVE = {Operator.EQUALS, Operator.IN}
_BY_NAME = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.NOT_EXISTS,
}
_BY_SYMBOL = {
    "=": Operator.EQUALS,
    "==": Operator.EQUALS,
    "!=": Operator.NOT_EQUALS,
    ">": Operator.GREATER,
    "<": Operator.LESS,
    "in": Operator.IN,
    "notin": Operator.NOT_IN,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()
    predicate: Predicate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "predicate", _compile(self.key, self.operator, self.values))

    def _check(self) -> None:
        error = label_key_error(self.key)
        if error is not None:
            raise ParseError(f"label key {_quote(self.key)} {error}")
        count = len(self.values)
        if self.operator in _ONE_VALUE and count != 1:
            raise ParseError(f"{self.operator.value} on {self.key} needs one value, has {count}")
        if self.operator in _ANY_VALUES and not count:
            raise ParseError(f"{self.operator.value} on {self.key} needs a value")
        if self.operator not in _ONE_VALUE | _ANY_VALUES and count:
            raise ParseError(f"{self.operator.value} on {self.key} takes no values")
        for value in sorted(self.values):
            error = label_value_error(value)
            if error is not None:
                raise ParseError(f"value {_quote(value)} of label {self.key} {error}")
            if self.operator in _NUMERIC and integer(value) is None:
                raise ParseError(
                    f"{self.operator.value} on {self.key} needs a whole number, not {value!r}"
                )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the condition holds for these labels."""
        return self.predicate(labels)

    def __str__(self) -> str:
        values = ",".join(sorted(self.values))
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.NOT_EXISTS:
                return f"!{self.key}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value} ({values})"
            case _:
                return f"{self.key}{self.operator.value}{values}"


class Selector:
    """Requirements that must all hold; without any it matches everything."""

    __slots__ = ("_exact", "_predicates", "_text", "requirements")

    def __init__(self, requirements: Iterable[Requirement] = ()) -> None:
        self.requirements = tuple(
            sorted(requirements, key=lambda requirement: (requirement.key, str(requirement)))
        )
        self._text = ",".join(map(str, self.requirements))
        self._exact: dict[str, str] = {}
        predicates = []
        for requirement in self.requirements:
            if requirement.operator in _POSITIVE and len(requirement.values) == 1:
                value = next(iter(requirement.values))
                if self._exact.setdefault(requirement.key, value) == value:
                    continue
            predicates.append(requirement.predicate)
        self._predicates = tuple(predicates)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels are selected."""
        if not self._exact.items() <= labels.items():
            return False
        return not self._predicates or all(map(call, self._predicates, repeat(labels)))

    @property
    def required(self) -> dict[str, frozenset[str]]:
        """The labels that a match must have, each with its allowed values."""
        required: dict[str, frozenset[str]] = {}
        for requirement in self.requirements:
            if requirement.operator in _POSITIVE:
                values = required.get(requirement.key, requirement.values)
                required[requirement.key] = values & requirement.values
        return required

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Selector({self._text!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selector):
            return NotImplemented
        return self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _match_nothing() -> Selector:
    nothing = Selector()
    nothing._exact = {"": ""}  # no label has an empty key, so this never matches
    nothing._text = "<nothing>"
    return nothing


EVERYTHING = Selector()
NOTHING = _match_nothing()


def parse(text: str) -> Selector:
    """Parse a selector; an empty text selects everything."""
    try:
        return Selector(_parse_requirements(text))
    except ParseError as error:
        raise ParseError(f"label selector {_quote(text)}: {error}") from None


def from_labels(labels: Mapping[str, str]) -> Selector:
    """The selector of objects that have all these labels, as a Service selects its pods."""
    pairs = labels.items()
    return Selector(Requirement(key, Operator.EQUALS, frozenset((value,))) for key, value in pairs)


def from_object(selector: LabelSelector | None) -> Selector:
    """The selector of an object: an empty one selects everything, an absent one nothing."""
    if selector is None:
        return NOTHING
    requirements = list(from_labels(selector.match_labels).requirements)
    for expression in selector.match_expressions:
        operator = _BY_NAME.get(expression.operator)
        if operator is None:
            raise ParseError(
                f"label selector: operator {_quote(expression.operator)} on {expression.key}"
                " is not one of In, NotIn, Exists and DoesNotExist"
            )
        values = frozenset(expression.values or ())
        requirements.append(Requirement(expression.key, operator, values))
    return Selector(requirements)


def integer(text: str) -> int | None:
    """The whole number in a label's value, as ``>`` and ``<`` read it, or None."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _compile(key: str, operator: Operator, values: frozenset[str]) -> Predicate:
    """Compile the condition into a function without repeated lookups."""
    match operator:
        case Operator.EQUALS | Operator.IN:
            return lambda labels: labels.get(key) in values
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return lambda labels: labels.get(key) not in values
        case Operator.EXISTS:
            return lambda labels: key in labels
        case Operator.NOT_EXISTS:
            return lambda labels: key not in labels
    bound = int(next(iter(values)))

    def compare(labels: Mapping[str, str]) -> bool:
        number = integer(labels.get(key, ""))
        if number is None:
            return False
        return number > bound if operator is Operator.GREATER else number < bound

    return compare


class _Token(NamedTuple):
    text: str
    position: int
    word: bool

    def __str__(self) -> str:
        return f"{_quote(self.text)} at character {self.position + 1}" if self.text else "the end"


def _tokenize(text: str) -> Iterator[_Token]:
    position = 0
    while True:
        match = _TOKEN.match(text, position)
        assert match is not None, "any character is a symbol, a space or part of a word"
        word, symbol = match["word"], match["symbol"]
        token_text = word or symbol or ""
        yield _Token(token_text, match.end() - len(token_text), word is not None)
        if not token_text:
            return
        position = match.end()


def _parse_requirements(text: str) -> Iterator[Requirement]:
    """Recursive descent over the grammar, one token ahead; every yield is one requirement."""
    tokens = list(_tokenize(text))
    tokens.reverse()
    if not tokens[-1].text:
        return
    while True:
        yield _parse_requirement(tokens)
        separator = tokens.pop()
        if not separator.text:
            return
        if separator.text != ",":
            raise ParseError(f"expected ',' or the end, found {separator}")


def _parse_requirement(tokens: list[_Token]) -> Requirement:
    first = tokens.pop()
    negated = first.text == "!"
    key = tokens.pop() if negated else first
    if not key.word:
        raise ParseError(f"expected a label key, found {key}")
    following = tokens[-1]
    if negated or following.text in {"", ","}:
        operator = Operator.NOT_EXISTS if negated else Operator.EXISTS
        return Requirement(key.text, operator)
    tokens.pop()
    symbol = _BY_SYMBOL.get(following.text)
    if symbol is None:
        raise ParseError(f"expected in, notin, =, ==, !=, > or < after a key, found {following}")
    values = _parse_set(tokens) if symbol in _ANY_VALUES else frozenset((_parse_value(tokens),))
    return Requirement(key.text, symbol, values)


def _parse_value(tokens: list[_Token]) -> str:
    if tokens[-1].text in {"", ","}:
        return ""
    token = tokens.pop()
    if not token.word:
        raise ParseError(f"expected a value, found {token}")
    return token.text


def _parse_set(tokens: list[_Token]) -> frozenset[str]:
    """Values in parentheses; as on an API server, nothing between commas is the empty value."""
    token = tokens.pop()
    if token.text != "(":
        raise ParseError(f"expected '(', found {token}")
    values: set[str] = set()
    while True:
        if tokens[-1].word:
            values.add(tokens.pop().text)
        else:
            values.add("")
        token = tokens.pop()
        if token.text == ")":
            return frozenset(values)
        if token.text != ",":
            raise ParseError(f"expected ',' or ')', found {token}")


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")
