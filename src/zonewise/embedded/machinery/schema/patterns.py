"""Regular expressions as an API server understands them: RE2.

Patterns are untrusted (a CustomResourceDefinition, a CEL rule), so they must run in time linear in
the text: with a backtracking engine any user who may create a definition could stop the whole
server. RE2 is also the syntax of the real server: what it refuses (look-around, back references,
repetition above 1000) is refused here in nearly the same words. The library is loaded with the
first pattern.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from zonewise.api.errors import ParseError

PROGRAM_LIMIT = 8 << 20  # bytes one compiled pattern may take; RE2's own default

_GO_MESSAGES = {
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "no argument for repetition operator": "missing argument to repetition operator",
    "missing )": "missing closing )",
    "unexpected )": "unexpected )",
    "missing ]": "missing closing ]",
}


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str, compiled: Any) -> None:
        self.text = text
        self._compiled = compiled

    def matches(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in the text."""
        return self._compiled.search(text) is not None

    def find_first(self, text: str) -> str:
        """The first match, empty if there is none."""
        match = self._compiled.search(text)
        return "" if match is None else str(match.group(0))

    def find_all(self, text: str, limit: int = -1) -> list[str]:
        """Matches that do not overlap, at most ``limit`` of them unless that is negative."""
        occurrences: list[str] = []
        for match in self._compiled.finditer(text):
            if 0 <= limit <= len(occurrences):
                break
            occurrences.append(str(match.group(0)))
        return occurrences


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> Pattern:
    """Compile a pattern; ParseError with the real server's message if it is invalid."""
    re2 = import_module("re2")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_LIMIT
    try:
        return Pattern(text, re2.compile(text, options))
    except re2.error as error:
        raw = error.args[0] if error.args else b""
        message = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
        problem, _, fragment = message.partition(": ")
        raise ParseError(
            f"error parsing regexp: {_GO_MESSAGES.get(problem, problem)}: `{fragment or text}`"
        ) from None
