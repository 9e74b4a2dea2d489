"""How CEL writes values as text: ``string()``, ``format()`` and ``strings.quote()``."""

from __future__ import annotations

import math
import re
from typing import Any

from zonewise.api.cel.kinds import name_of
from zonewise.api.cel.values import Duration, EvaluationError, Timestamp, TypeName, UInt

_CLAUSE = re.compile(r"%(?:\.(\d+))?(.)", re.DOTALL)
_ESCAPED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED |= {"\v": "\\v", "\\": "\\\\", '"': '\\"'}
PRECISION_LIMIT = 1000


def double_text(value: float) -> str:
    """The shortest decimal that reads back as the same number, as Go's ``%g`` prints it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    power = math.floor(math.log10(abs(value))) if value else 0
    if -5 < power < 21:
        plain = f"{value:f}" if not exponent else f"{int(value)}" if power >= 16 else text
        if exponent and power < 0:
            return f"{value:.{-power + len(mantissa.replace('.', '').lstrip('-')) - 1}f}"
        return text.removesuffix(".0") if not exponent else plain
    if not exponent:
        exponent, mantissa = f"{power}", repr(value / 10.0**power)
    sign = "-" if exponent.startswith("-") else "+"
    return f"{mantissa.removesuffix('.0')}e{sign}{abs(int(exponent)):02}"


def quoted(text: str) -> str:
    """A text as a literal."""
    return '"' + "".join(_ESCAPED.get(c, c) for c in text) + '"'


def formatted(template: str, values: list[Any]) -> str:
    """A template with ``%s %d %f %e %b %x %X %o`` filled in."""
    out, end, used = [], 0, 0
    for match in _CLAUSE.finditer(template):
        out.append(template[end : match.start()])
        end = match.end()
        if match[2] == "%":
            out.append("%")
            continue
        if used >= len(values):
            raise EvaluationError(f"index {used} out of range")
        precision = int(match[1]) if match[1] else None
        out.append(_clause(match[2], precision, values[used]))
        used += 1
    rest = template[end:]
    if "%" in rest:
        raise EvaluationError("unexpected end of string")
    return "".join([*out, rest])


def _clause(verb: str, precision: int | None, value: Any) -> str:
    if precision is not None and precision > PRECISION_LIMIT:
        raise EvaluationError("precision is too large")
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if verb == "s":
        return plain(value)
    if verb == "d" and is_int:
        return str(int(value))
    if verb == "d" and isinstance(value, float):
        return plain(value)
    if verb in "fe" and (is_int or isinstance(value, float)):
        if math.isnan(value) or math.isinf(value):
            return plain(value)
        digits = 6 if precision is None else precision
        return f"{float(value):.{digits}{verb}}"
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


def plain(value: Any) -> str:
    """A value as ``%s`` writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"+Inf": "Infinity", "-Inf": "-Infinity"}.get(double_text(value), double_text(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return "[" + ", ".join(map(plain, value)) + "]"
    if isinstance(value, dict):
        pairs = sorted((plain(key), plain(item)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    if isinstance(value, str | int | UInt | Timestamp | Duration | TypeName):
        return str(value)
    raise EvaluationError(f"error during formatting: {name_of(value)} has no text")
