"""Why something was decided, in one form for all outputs.

A decision returns a ``Reason``; the Kubernetes event, the object's condition, ``zonewise explain``
and the dashboard print it. ``code`` is stable and CamelCase, because alerts and tests name it and
because a condition's ``reason`` must match that form. ``message`` states facts with the numbers in
it, ``fix`` says what would change the answer. Equal reasons are equal values: that is how a shell
detects whether there is anything new to report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from zonewise.api.errors import ParseError
from zonewise.api.struct import Struct, field

_CODE = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")
Number = int | float | str


class Reason(Struct):
    """One reason: code, sentence, the object at fault, the numbers, and what would fix it.

    ``object`` is ``Kind/name`` or ``Kind/namespace/name``, empty if no single object is at fault.
    Exact fractions are numbers as text (``"1/3"``).
    """

    code: str
    message: str
    object: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    fix: str = ""

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise ParseError(f"reason code {self.code!r} is not CamelCase")
        if not self.message:
            raise ParseError(f"reason {self.code} has no message")

    def __hash__(self) -> int:
        return hash((self.code, self.message, self.object, self.fix))

    def __str__(self) -> str:
        """Message and fix as sentences, as events and conditions carry them."""
        return f"{_sentence(self.message)} {_sentence(self.fix)}" if self.fix else self.message

    def to_dict(self) -> dict[str, str]:
        """Code, message and fix, as reports in JSON have them."""
        return {"code": self.code, "message": self.message, "fix": self.fix}


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
