"""Text as a terminal may get it: nothing in it moves a cursor, changes a title or hides a letter.

Names, labels, annotations and messages come from a cluster or from a dump of one, and are
untrusted. What is not printable (control characters of both sets, marks that turn the direction of
writing, lone surrogates) is shown by its number, ``\\x1b``, so that it is visible and has no effect
on a terminal. What is printable stays as it is.
"""

from __future__ import annotations

import re

_KEPT = "\n\t"


def visible(text: str, *, lines: bool = False) -> str:
    """The text without anything a terminal would obey; ``lines`` keeps line ends and tabs."""
    if text.isprintable():
        return text
    kept = _KEPT if lines else ""
    return "".join(one if one.isprintable() or one in kept else _number(one) for one in text)


def visible_json(text: str) -> str:
    """The same JSON value; what is not printable is inside of strings, and escaped there."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(
        lambda found: found[0] if found[0].isprintable() else _escaped(found[0]), text
    )


_UNSAFE = re.compile(r"[^\n\x20-\x7e]")


def _number(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)
