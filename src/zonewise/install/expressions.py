"""Pieces of CEL expressions, as the printed policies and match conditions share them."""

from __future__ import annotations

import json

from zonewise.install.wanted import Installation

SERVER_KEYS = ("generation", "managedFields", "resourceVersion")
"""What the server itself changes in the metadata of an object with every write."""


def literal(text: str) -> str:
    """A text as a CEL string: whatever is in it, it stays one.

    CEL knows every escape of JSON but surrogates, so other characters are left as they are.
    """
    return json.dumps(text, ensure_ascii=False)


def one_of(texts: tuple[str, ...]) -> str:
    """A CEL list of strings."""
    return f"[{', '.join(map(literal, texts))}]"


def account(wanted: Installation, name: str) -> str:
    """The user that a service account of ours is to the API server."""
    return f"system:serviceaccount:{wanted.namespace}:{name}"


def unchanged(path: str, *apart_from: str) -> str:
    """That a field of the object has every key and value as before, apart from some keys."""
    return same(f"object.{path}", f"oldObject.{path}", *apart_from)


def same(after: str, before: str, *apart_from: str) -> str:
    """That two objects have the same keys and values, apart from some keys.

    Keys are not listed one by one, so that fields of a later version of Kubernetes are kept, too.
    """
    after, before = f"dyn({after})", f"dyn({before})"
    free = f"k in {one_of(apart_from)} || " if apart_from else ""
    kept = f"{before}.all(k, {free}(k in {after} && {after}[k] == {before}[k]))"
    return f"{kept} && {after}.all(k, {free}k in {before})"


def metadata_unchanged(*annotations: str) -> tuple[str, ...]:
    """That nothing in the metadata was changed but some annotations."""
    if not annotations:
        return (unchanged("metadata", *SERVER_KEYS),)
    return (
        unchanged("metadata", "annotations", *SERVER_KEYS),
        unchanged("metadata.?annotations.orValue({})", *annotations),
    )
