"""The functions CEL rules may call, by name.

The set is what a Kubernetes API server of this version offers, no more: the standard functions,
strings, sets, lists, regular expressions, URLs, quantities, IP addresses, CIDRs, semantic versions,
formats and optionals. Each module of the library declares its own; a signature is one line of text,
read when CEL is first used. A method's receiver is its first argument. A function raises
``EvaluationError`` and never anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from zonewise.embedded.machinery.cel.kinds import CelKind, signature


class Overload(NamedTuple):
    """One signature of a function and what it does."""

    parameters: tuple[CelKind, ...]
    result: CelKind
    run: Callable[..., Any]
    method: bool


Run = Callable[..., Any]
_DECLARED: list[tuple[str, Run]] = []


def declare(*signatures: str) -> Callable[[Run], Run]:
    """Put a function into the library: ``string.find(string) -> string``."""

    def put(run: Run) -> Run:
        _DECLARED.extend((text, run) for text in signatures)
        return run

    return put


@cache
def functions() -> dict[str, list[Overload]]:
    """All overloads by name; methods and functions of one name are together."""
    # Each declares its own when it is imported, and needs this module to do so.
    from zonewise.embedded.machinery.cel import conversions, kubernetes, lists, operators, texts

    assert all((operators, conversions, texts, lists, kubernetes))
    made: dict[str, list[Overload]] = {}
    for text, run in _DECLARED:
        head, _, result = text.partition(" -> ")
        match = re.fullmatch(r"(?:(.+?)::)?([\w.@!?:\[\]<>=+*/%-]+)\((.*)\)", head)
        assert match is not None, text
        receiver, name, rest = match.groups()
        parameters = [signature(word) for word in _split(rest)]
        if receiver is not None:
            parameters.insert(0, signature(receiver))
        overload = Overload(tuple(parameters), signature(result), run, receiver is not None)
        made.setdefault(name, []).append(overload)
    return made


def _split(text: str) -> list[str]:
    out, depth, word = [], 0, ""
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            out.append(word.strip())
            word = ""
        else:
            word += character
    return [*out, word.strip()] if word.strip() else out
