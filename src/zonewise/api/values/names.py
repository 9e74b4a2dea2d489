"""Validation of names; each function returns its error messages, none if the name is valid.

The messages are an API server's own. Nearly all names are valid, and cost one match of a pattern.
"""

from __future__ import annotations

import re

from zonewise.api.values.labels import NAME_LIMIT, PREFIX_LIMIT, label_key_error, label_value_error

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_PORT_NAME = re.compile(r"(?=.{0,15}\Z)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*\Z")
_PORT_NAME_LETTERS = re.compile(r"[-a-z0-9]*\Z")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_CONFIG_MAP_KEY = re.compile(r"[-._a-zA-Z0-9]+\Z")

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
_QUALIFIED_NAME_TEXT = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character, with an optional DNS subdomain prefix and '/'"
)
_NAME_PART_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',"
    " and must start and end with an alphanumeric character"
)
_CONFIG_MAP_KEY_TEXT = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"


def label_errors(name: str) -> list[str]:
    """One part of a DNS name, as Namespaces are called."""
    if _LABEL.match(name) and len(name) <= 63:
        return []
    return _pattern_errors(name, _LABEL, 63, _LABEL_TEXT)


def label_1035_errors(name: str) -> list[str]:
    """One part of a DNS name that starts with a letter."""
    return _pattern_errors(name, _LABEL_1035, 63, _LABEL_1035_TEXT)


def subdomain_errors(name: str) -> list[str]:
    """A DNS name, as most objects are called."""
    if _SUBDOMAIN.match(name) and len(name) <= 253:
        return []
    return _pattern_errors(name, _SUBDOMAIN, 253, _SUBDOMAIN_TEXT)


def path_segment_errors(name: str) -> list[str]:
    """Any text that can be a segment of a path, as roles and bindings are called."""
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{part}'" for part in ("/", "%") if part in name]


def port_name_errors(name: str) -> list[str]:
    """The name of a port, where numbers are also allowed."""
    if _PORT_NAME.match(name):
        return []
    errors = []
    if len(name) > 15:
        errors.append("must be no more than 15 characters")
    if not _PORT_NAME_LETTERS.match(name):
        errors.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not any("a" <= letter <= "z" for letter in name):
        errors.append("must contain at least one letter (a-z)")
    if "--" in name:
        errors.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        errors.append("must not begin or end with a hyphen")
    return errors


def qualified_name_errors(name: str) -> list[str]:
    """The key of a label or an annotation: ``zone``, ``topology.kubernetes.io/zone``."""
    # The cache behind ``label_key_error`` would keep a long text alive.
    if len(name) <= PREFIX_LIMIT + 1 + NAME_LIMIT and label_key_error(name) is None:
        return []
    prefix, slash, part = name.partition("/")
    if "/" in part:
        return [_QUALIFIED_NAME_TEXT]
    errors = []
    if not slash:
        part = name
    elif not prefix:
        errors.append("prefix part must be non-empty")
    else:
        errors += [f"prefix part {message}" for message in subdomain_errors(prefix)]
    if not part:
        errors.append("name part must be non-empty")
    elif len(part.encode()) > NAME_LIMIT:
        errors.append(f"name part must be no more than {NAME_LIMIT} bytes")
    if not _NAME_PART.match(part):
        errors.append(_NAME_PART_TEXT)
    return errors


def label_value_errors(value: str) -> list[str]:
    """The value of a label."""
    if len(value) <= NAME_LIMIT and label_value_error(value) is None:
        return []
    return _pattern_errors(value, _LABEL_VALUE, NAME_LIMIT, _LABEL_VALUE_TEXT)


def config_map_key_errors(key: str) -> list[str]:
    """The key of a ConfigMap or a Secret, which is the name of a file."""
    errors = _pattern_errors(key, _CONFIG_MAP_KEY, 253, _CONFIG_MAP_KEY_TEXT)
    if key in {".", ".."}:
        errors.append(f"must not be '{key}'")
    elif key.startswith(".."):
        errors.append("must not start with '..'")
    return errors


def _pattern_errors(name: str, pattern: re.Pattern[str], limit: int, message: str) -> list[str]:
    errors = []
    if len(name.encode()) > limit:
        errors.append(f"must be no more than {limit} bytes")
    if not pattern.match(name):
        errors.append(message)
    return errors
