"""Text that is safe on a terminal: nothing moves the cursor, changes the title or hides text.

Names, labels, annotations and messages come from a cluster or from a dump of one, and are
untrusted. What is not printable (control characters of both sets, marks that change the direction
of writing, lone surrogates) is written as its number, ``\\x1b``, so that it is visible and has no
effect on a terminal. What is printable stays as it is.
"""

from __future__ import annotations

import re

_LINE_CHARS = "\n\t"


def escape_unprintable(text: str, *, keep_lines: bool = False) -> str:
    """The text with everything escaped that a terminal would obey; line ends and tabs may stay."""
    if text.isprintable():
        return text
    exempt = _LINE_CHARS if keep_lines else ""
    return "".join(char if char.isprintable() or char in exempt else _escape(char) for char in text)


def escape_unprintable_json(text: str) -> str:
    """The same JSON value; what is not printable is inside of strings, and is escaped there."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(
        lambda match: match[0] if match[0].isprintable() else _escape_json(match[0]), text
    )


_UNSAFE = re.compile(r"[^\n\x20-\x7e]")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _escape_json(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)
