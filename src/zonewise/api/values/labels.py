"""Validation of labels, and of the keys of labels and annotations.

A key is a name of at most 63 characters, optionally after a DNS subdomain of at most 253 and a
slash: ``zone``, ``topology.kubernetes.io/zone``. A value is empty or looks like a name. Functions
return the error as a clause that follows the key or value ("is empty"), or None. They are cached:
clusters have few different labels and check each of them often.
"""

from __future__ import annotations

import re
from functools import lru_cache

NAME_LIMIT = 63
PREFIX_LIMIT = 253

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")

_NAME_RULE = (
    "may have only letters, digits, '-', '_' and '.', and must begin and end with a letter or digit"
)


@lru_cache(maxsize=4096)
def label_key_error(key: str) -> str | None:
    """The error in the key of a label or annotation, None if it is valid."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return "has more than one '/'"
    if slash and not prefix:
        return "has nothing before the '/'"
    if len(prefix) > PREFIX_LIMIT:
        return f"has a prefix of more than {PREFIX_LIMIT} characters"
    if prefix and not _SUBDOMAIN.fullmatch(prefix):
        return (
            "has a prefix that is not a DNS subdomain: lower case letters, digits, '-' and '.',"
            " each part beginning and ending with a letter or digit"
        )
    if not name:
        return "has no name after the '/'" if slash else "is empty"
    if len(name) > NAME_LIMIT:
        return f"has a name of more than {NAME_LIMIT} characters"
    return None if _NAME.fullmatch(name) else _NAME_RULE


@lru_cache(maxsize=4096)
def label_value_error(value: str) -> str | None:
    """The error in the value of a label, None if it is valid."""
    if len(value) > NAME_LIMIT:
        return f"has more than {NAME_LIMIT} characters"
    return None if not value or _NAME.fullmatch(value) else _NAME_RULE
