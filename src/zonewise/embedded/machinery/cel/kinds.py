"""The static types of CEL, and which value is of which.

``DYN`` fits everything in both directions. A kind of one upper-case letter (``A``) is a parameter
of a function's signature and stands for one kind throughout a call. Objects are kinds with fields,
made from a schema; each maps a field's escaped name to its property.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from zonewise.embedded.machinery.cel.syntax import RESERVED
from zonewise.embedded.machinery.cel.values import (
    CelAddress,
    CelFormat,
    CelQuantity,
    Duration,
    Link,
    Optional,
    Prefix,
    Semver,
    Timestamp,
    TypeName,
    UInt,
)

LITERAL_WORDS = frozenset({"true", "false", "null", "in"})


@dataclass(frozen=True, slots=True)
class CelKind:
    """A type: a name, and for containers what is inside."""

    name: str
    of: tuple[CelKind, ...] = ()
    fields: dict[str, CelKind] = field(default_factory=dict, compare=False, repr=False)
    properties: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        if self.name in ("list", "map", "optional_type"):
            return f"{self.name}({', '.join(map(str, self.of))})"
        return self.name


BOOL, INT, UINT, DOUBLE = CelKind("bool"), CelKind("int"), CelKind("uint"), CelKind("double")
STRING, BYTES, NULL, DYN = CelKind("string"), CelKind("bytes"), CelKind("null_type"), CelKind("dyn")
TIMESTAMP, DURATION, TYPE = CelKind("timestamp"), CelKind("duration"), CelKind("type")
NUMBERS = (INT, UINT, DOUBLE)


def list_of(item: CelKind) -> CelKind:
    """Lists of a kind."""
    return CelKind("list", (item,))


def map_of(key: CelKind, value: CelKind) -> CelKind:
    """Maps from a kind to a kind."""
    return CelKind("map", (key, value))


def optional_of(value: CelKind) -> CelKind:
    """A kind that may not be there."""
    return CelKind("optional_type", (value,))


def object_of(fields: dict[str, CelKind], name: str = "object") -> CelKind:
    """An object with these properties; those whose names cannot be written in CEL are left out."""
    named = {escaped(prop): prop for prop in fields}
    known = {ident: prop for ident, prop in named.items() if ident is not None}
    known |= {prop: prop for prop in fields if prop in RESERVED - LITERAL_WORDS}
    return CelKind(name, (), {ident: fields[prop] for ident, prop in known.items()}, known)


_SPECIAL = re.compile(r"__|[-./]")
_REPLACED = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}


def escaped(name: str) -> str | None:
    """How a property is written in CEL, None if it cannot be."""
    if name in RESERVED:
        return f"__{name}__"
    if not re.fullmatch(r"[A-Za-z_./-][A-Za-z0-9_./-]*", name):
        return None
    return _SPECIAL.sub(lambda match: _REPLACED[match.group()], name)


_PYTHON: dict[str, type[Any]] = {
    "string": str,
    "bytes": bytes,
    "list": list,
    "map": dict,
    "timestamp": Timestamp,
    "duration": Duration,
    "optional_type": Optional,
    "kubernetes.Quantity": CelQuantity,
    "kubernetes.URL": Link,
    "net.IP": CelAddress,
    "net.CIDR": Prefix,
    "kubernetes.Semver": Semver,
    "kubernetes.NamedFormat": CelFormat,
}


def is_of(value: Any, kind: CelKind) -> bool:
    """Whether a value is of a kind, as far as a call needs it."""
    match kind.name:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool | UInt)
        case "uint":
            return isinstance(value, UInt)
        case "double":
            return isinstance(value, float)
        case "bool":
            return isinstance(value, bool)
        case "null_type":
            return value is None
        case "type":
            return isinstance(value, TypeName)
        case "string":
            return isinstance(value, str) and not isinstance(value, TypeName)
    wanted = _PYTHON.get(kind.name)
    return wanted is None or isinstance(value, wanted)


def name_of(value: Any) -> str:
    """The name of a value's type."""
    for name in ("bool", "uint", "int", "double", "null_type", "type", "string", *_PYTHON):
        if is_of(value, CelKind(name)):
            return {
                "timestamp": "google.protobuf.Timestamp",
                "duration": "google.protobuf.Duration",
            }.get(name, name)
    return "dyn"


NEVER_NULL = frozenset({"bool", "bytes", "double", "int", "list", "map", "string", "type", "uint"})
"""Kinds that no null is taken for; optionals, objects and times may be compared to one."""


def matches(wanted: CelKind, given: CelKind, bound: dict[str, CelKind]) -> bool:
    """Whether an argument fits a parameter; parameters of the signature are bound on the way."""
    if len(wanted.name) == 1 and wanted.name.isupper():
        known = bound.get(wanted.name)
        if known is None or known is DYN:
            if known is None or given is not DYN:
                bound[wanted.name] = given
            return True
        return given is DYN or matches(known, given, bound) or matches(given, known, bound)
    if wanted is DYN or given is DYN or wanted is given:
        return True
    if NULL in (wanted, given):
        return (given if wanted is NULL else wanted).name not in NEVER_NULL
    if wanted.name != given.name or len(wanted.of) != len(given.of):
        return False
    return all(matches(a, b, bound) for a, b in zip(wanted.of, given.of, strict=True))


def resolved(kind: CelKind, bound: dict[str, CelKind]) -> CelKind:
    """A result with the signature's parameters replaced."""
    if len(kind.name) == 1 and kind.name.isupper():
        return bound.get(kind.name, DYN)
    if not kind.of:
        return kind
    return CelKind(kind.name, tuple(resolved(inner, bound) for inner in kind.of))


_WORD = re.compile(r"[\w.]+|[(),]")


def signature(text: str) -> CelKind:
    """The kind of a signature's word: ``map(string, list(A))``."""
    words = _WORD.findall(text)
    kind, rest = _read(words)
    assert not rest, text
    return kind


_NAMES = {
    "ip": "net.IP",
    "cidr": "net.CIDR",
    "url": "kubernetes.URL",
    "quantity": "kubernetes.Quantity",
    "semver": "kubernetes.Semver",
    "format": "kubernetes.NamedFormat",
    "optional": "optional_type",
    "null": "null_type",
}
_PLAIN = {k.name: k for k in (BOOL, *NUMBERS, STRING, BYTES, NULL, DYN, TIMESTAMP, DURATION, TYPE)}


def _read(words: list[str]) -> tuple[CelKind, list[str]]:
    name, rest = _NAMES.get(words[0], words[0]), words[1:]
    inner: list[CelKind] = []
    if rest and rest[0] == "(":
        while rest[0] != ")":
            kind, rest = _read(rest[1:])
            inner.append(kind)
        rest = rest[1:]
    if not inner and name in _PLAIN:
        return _PLAIN[name], rest
    return CelKind(name, tuple(inner)), rest
