"""What names may look like; each check answers with sentences, none where the name is fine."""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_PORT_NAME = re.compile(r"[-a-z0-9]*\Z")

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must"
    " start and end with an alphanumeric character"
)
_LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an"
    " alphabetic character, and end with an alphanumeric character"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.',"
    " and must start and end with an alphanumeric character"
)


def label(name: str) -> list[str]:
    """One part of a DNS name, as Namespaces are called."""
    return _judge(name, _LABEL, 63, _LABEL_TEXT)


def label_1035(name: str) -> list[str]:
    """One part of a DNS name that starts with a letter."""
    return _judge(name, _LABEL_1035, 63, _LABEL_1035_TEXT)


def subdomain(name: str) -> list[str]:
    """A DNS name, as most objects are called."""
    return _judge(name, _SUBDOMAIN, 253, _SUBDOMAIN_TEXT)


def path_segment(name: str) -> list[str]:
    """Anything that can stand between two slashes, as roles and bindings are called."""
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{part}'" for part in ("/", "%") if part in name]


def port_name(name: str) -> list[str]:
    """A name a port may have where numbers are also allowed."""
    found = []
    if len(name) > 15:
        found.append("must be no more than 15 characters")
    if not _PORT_NAME.match(name):
        found.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not any("a" <= letter <= "z" for letter in name):
        found.append("must contain at least one letter (a-z)")
    if "--" in name:
        found.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        found.append("must not begin or end with a hyphen")
    return found


def _judge(name: str, pattern: re.Pattern[str], limit: int, text: str) -> list[str]:
    found = []
    if len(name.encode()) > limit:
        found.append(f"must be no more than {limit} bytes")
    if not pattern.match(name):
        found.append(text)
    return found
