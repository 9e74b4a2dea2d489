"""Values as text: ``string()``, ``format()`` and ``strings.quote()``."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from zonewise.embedded.machinery.cel.kinds import CelKind, name_of
from zonewise.embedded.machinery.cel.values import (
    Duration,
    EvaluationError,
    Timestamp,
    TypeName,
    UInt,
)

_CLAUSE = re.compile(r"%(?:\.(\d+))?(.)", re.DOTALL)
_ESCAPED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED |= {"\v": "\\v", "\\": "\\\\", '"': '\\"'}
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
PRECISION_LIMIT = 1000


def format_double(value: float) -> str:
    """The shortest decimal that reads back as the same number, as Go's ``%g`` prints it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    number = Decimal(repr(value)).normalize()
    sign, digits, exponent = number.as_tuple()
    power = len(digits) + int(exponent) - 1
    if not value or -5 < power < 6:
        return f"{number:f}"
    text = "".join(map(str, digits))
    mantissa = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
    return f"{'-' * sign}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02}"


def quote(text: str) -> str:
    """A text as a literal."""
    return '"' + "".join(_ESCAPED.get(c, c) for c in text) + '"'


def format_template(template: str, values: list[Any]) -> str:
    """A template with ``%s %d %f %e %b %x %X %o`` filled in."""
    pieces, end, index = [], 0, 0
    for match in _CLAUSE.finditer(template):
        pieces.append(template[end : match.start()])
        end = match.end()
        if match[2] == "%":
            pieces.append("%")
            continue
        if index >= len(values):
            raise EvaluationError(f"index {index} out of range")
        precision = int(match[1]) if match[1] else None
        pieces.append(_format_clause(match[2], precision, values[index]))
        index += 1
    rest = template[end:]
    if "%" in rest:
        raise EvaluationError("unexpected end of string")
    return "".join([*pieces, rest])


def _format_clause(verb: str, precision: int | None, value: Any) -> str:
    if precision is not None and precision > PRECISION_LIMIT:
        raise EvaluationError("precision is too large")
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if verb == "s":
        return format_plain(value)
    if verb == "d" and is_int:
        return str(int(value))
    if verb in "fe" and isinstance(value, float):
        return _format_decimal(verb, precision, value)
    if verb == "b" and (is_int or isinstance(value, bool)):
        return f"{int(value):b}"
    if verb in "xX":
        if is_int:
            return f"{int(value):{verb}}"
        if isinstance(value, str | bytes):
            raw = value.encode() if isinstance(value, str) else value
            return raw.hex().upper() if verb == "X" else raw.hex()
    if verb == "o" and is_int:
        return f"{int(value):o}"
    if verb not in "sdfebxXo":
        raise EvaluationError(
            f'could not parse formatting clause: unrecognized formatting clause "{verb}"'
        )
    raise EvaluationError(f"error during formatting: {name_of(value)} does not fit %{verb}")


_KINDS_BY_VERB = {
    "s": None,
    "d": ("int", "uint"),
    "f": ("double",),
    "e": ("double",),
    "b": ("int", "uint", "bool"),
    "x": ("int", "uint", "string", "bytes"),
    "X": ("int", "uint", "string", "bytes"),
    "o": ("int", "uint"),
}


def check_template(template: str, kinds: list[CelKind]) -> None:
    """Refuse a template that does not fit values of these kinds."""
    verbs = [match[2] for match in _CLAUSE.finditer(template) if match[2] != "%"]
    if "%" in _CLAUSE.sub("", template):
        raise EvaluationError("unexpected end of string")
    for verb, kind in zip(verbs, kinds, strict=False):
        if verb not in _KINDS_BY_VERB:
            raise EvaluationError(
                f'could not parse formatting clause: unrecognized formatting clause "{verb}"'
            )
        allowed = _KINDS_BY_VERB[verb]
        if allowed is not None and kind.name != "dyn" and kind.name not in allowed:
            raise EvaluationError(f"error during formatting: {kind} does not fit %{verb}")
    if len(verbs) > len(kinds):
        raise EvaluationError(f"index {len(kinds)} out of range")
    if len(verbs) < len(kinds):
        raise EvaluationError(
            "too many arguments supplied to string.format "
            f"(expected {len(verbs)}, got {len(kinds)})"
        )


def _format_decimal(verb: str, precision: int | None, value: float) -> str:
    """Digits in groups for ``%f``; for ``%e`` always six of them and a power in superscript."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if verb == "f":
        return f"{value:,.{6 if precision is None else precision}f}"
    digits, _, power = f"{value:.6e}".partition("e")
    return f"{digits}×10{power.removeprefix('+').translate(_SUPERSCRIPT)}"


def format_plain(value: Any) -> str:
    """A value as ``%s`` writes it."""
    if isinstance(value, float):
        return format_double(value)
    if isinstance(value, bytes):
        return _decode_utf8(value)
    if isinstance(value, str | Timestamp | Duration):
        return str(value)
    return format_literal(value)


def _decode_utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def format_literal(value: Any) -> str:
    """A value inside of a list or map as ``%s`` writes it: as a literal."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        special = math.isnan(value) or math.isinf(value)
        return quote(format_double(value)) if special else f"{value:.6f}"
    if isinstance(value, bytes):
        return "b" + quote(_decode_utf8(value))
    if isinstance(value, Timestamp):
        return f'timestamp("{value}")'
    if isinstance(value, Duration):
        return f'duration("{value}")'
    if isinstance(value, str) and not isinstance(value, TypeName):
        return quote(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(format_literal, value)) + "]"
    if isinstance(value, dict):
        pairs = sorted((format_literal(key), format_literal(item)) for key, item in value.items())
        return "{" + ", ".join(f"{key}:{item}" for key, item in pairs) + "}"
    if isinstance(value, int | UInt | TypeName):
        return str(value)
    raise EvaluationError(f"error during formatting: {name_of(value)} has no text")
