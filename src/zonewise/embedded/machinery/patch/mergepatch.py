"""JSON Merge Patch (RFC 7386).

Objects are merged member by member, null deletes a member, everything else replaces. Nothing is
changed in place; the result shares unchanged parts with the document and with the patch, so treat
all three as values.
"""

from __future__ import annotations

from typing import Any

from zonewise.api.errors import ParseError


def apply(document: Any, patch: Any) -> Any:
    """The document after the patch; the input stays as it is."""
    try:
        return _merge(document, patch)
    except RecursionError:
        raise ParseError("merge patch is nested too deeply") from None


def _merge(document: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result
