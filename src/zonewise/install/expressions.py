"""Pieces of CEL expressions, as the printed policies and match conditions share them."""

from __future__ import annotations

import json

SERVER_KEYS = ("generation", "managedFields", "resourceVersion")
"""What the server itself changes in the metadata of an object with every write."""


def quote(text: str) -> str:
    """A text as a CEL string: nothing in it is read as CEL.

    CEL knows every escape of JSON but surrogates, so other characters are left as they are.
    """
    return json.dumps(text, ensure_ascii=False)


def quote_all(texts: tuple[str, ...]) -> str:
    """A CEL list of strings."""
    return f"[{', '.join(map(quote, texts))}]"


def require_unchanged(path: str, *apart_from: str) -> str:
    """That a field of the object has every key and value as before, apart from some keys."""
    return require_same(f"object.{path}", f"oldObject.{path}", *apart_from)


def require_same(after: str, before: str, *apart_from: str) -> str:
    """That two objects have the same keys and values, apart from some keys.

    Keys are not listed, so that fields of later versions of Kubernetes are compared, too.
    """
    after, before = f"dyn({after})", f"dyn({before})"
    free = f"k in {quote_all(apart_from)} || " if apart_from else ""
    retained = f"{before}.all(k, {free}(k in {after} && {after}[k] == {before}[k]))"
    return f"{retained} && {after}.all(k, {free}k in {before})"


def require_same_metadata(*annotations: str) -> tuple[str, ...]:
    """That nothing in the metadata was changed but some annotations."""
    if not annotations:
        return (require_unchanged("metadata", *SERVER_KEYS),)
    return (
        require_unchanged("metadata", "annotations", *SERVER_KEYS),
        require_unchanged("metadata.?annotations.orValue({})", *annotations),
    )
