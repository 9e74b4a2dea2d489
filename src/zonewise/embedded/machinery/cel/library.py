"""The functions that CEL rules may call, by name.

The set is what a Kubernetes API server of this version offers, no more: the standard functions,
strings, sets, lists, regular expressions, URLs, quantities, IP addresses, CIDRs, semantic versions,
formats and optionals. Each module declares its own functions; a signature is one line of text that
is parsed when CEL is first used. A method's receiver is its first argument. A function raises only
``EvaluationError``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from zonewise.embedded.machinery.cel.kinds import CelKind, parse_kind


class Overload(NamedTuple):
    """One signature of a function and its implementation."""

    parameters: tuple[CelKind, ...]
    result: CelKind
    run: Callable[..., Any]
    method: bool


Function = Callable[..., Any]
_DECLARED: list[tuple[str, Function]] = []


def declare(*signatures: str) -> Callable[[Function], Function]:
    """Register a function for signatures such as ``string::find(string) -> string``."""

    def register(run: Function) -> Function:
        _DECLARED.extend((text, run) for text in signatures)
        return run

    return register


@cache
def functions() -> dict[str, list[Overload]]:
    """All overloads by name; methods and functions of one name are together."""
    # These modules register their functions on import, with `declare` of this module.
    from zonewise.embedded.machinery.cel import conversions, kubernetes, lists, operators, strings

    assert all((operators, conversions, strings, lists, kubernetes))
    overloads: dict[str, list[Overload]] = {}
    for text, run in _DECLARED:
        head, _, result = text.partition(" -> ")
        match = re.fullmatch(r"(?:(.+?)::)?([\w.@!?:\[\]<>=+*/%-]+)\((.*)\)", head)
        assert match is not None, text
        receiver, name, rest = match.groups()
        parameters = [parse_kind(word) for word in _split_parameters(rest)]
        if receiver is not None:
            parameters.insert(0, parse_kind(receiver))
        overload = Overload(tuple(parameters), parse_kind(result), run, receiver is not None)
        overloads.setdefault(name, []).append(overload)
    return overloads


def _split_parameters(text: str) -> list[str]:
    out, depth, word = [], 0, ""
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            out.append(word.strip())
            word = ""
        else:
            word += character
    return [*out, word.strip()] if word.strip() else out
