"""Field selectors: ``status.phase!=Running,spec.nodeName=n1``.

Terms of ``=``, ``==`` and ``!=`` joined by commas, all of which must hold. In a value, a backslash
escapes a comma, an equals sign and itself. An absent field counts as empty. The server decides
which fields a kind supports, so a selector has only their names; ``str()`` is canonical.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zonewise.api.errors import ParseError

_PART = re.compile(r"(?:\\.|[^,\\]|\\$)+", re.DOTALL)
_OPERATOR = re.compile(r"!=|==|=")
_ESCAPE = re.compile(r"\\(.?)|([,=])", re.DOTALL)
_SPECIAL = re.compile(r"[\\,=]")


class FieldTerm(NamedTuple):
    """One condition: a field is, or is not, exactly a value."""

    field: str
    value: str
    equal: bool = True

    def __str__(self) -> str:
        value = _SPECIAL.sub(r"\\\g<0>", self.value)
        return f"{self.field}{'=' if self.equal else '!='}{value}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Terms that must all hold; without any it matches everything."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Whether an object with these fields is selected."""
        return all((fields.get(term.field, "") == term.value) is term.equal for term in self.terms)

    def exact(self, field: str) -> str | None:
        """The value a field must have, if a term requires one: the key for an index."""
        return next((term.value for term in self.terms if term.equal and term.field == field), None)

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


def parse(text: str) -> FieldSelector:
    """Parse a selector; an empty text selects everything."""
    terms = (_parse_term(match[0], text) for match in _PART.finditer(text))
    return FieldSelector(tuple(sorted(terms, key=str)))


def _parse_term(part: str, text: str) -> FieldTerm:
    operator = _OPERATOR.search(part)
    if operator is None or not operator.start():
        raise ParseError(
            f"field selector {text[:200]!r}: {part[:80]!r} is not field=value or field!=value"
        )
    value = _ESCAPE.sub(lambda match: _unescape(match, text), part[operator.end() :])
    return FieldTerm(part[: operator.start()], value, operator[0] != "!=")


def _unescape(match: re.Match[str], text: str) -> str:
    if match[2]:
        raise ParseError(
            f"field selector {text[:200]!r}: a value with {match[2]!r} needs a backslash before it"
        )
    if match[1] and match[1] in "\\,=":
        return match[1]
    raise ParseError(
        f"field selector {text[:200]!r}: {match[0]!r} is not an escape: only"
        " '\\\\', '\\,' and '\\='"
    )
