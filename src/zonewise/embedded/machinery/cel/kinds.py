"""The static types of CEL (kinds), and which values belong to which.

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
    CelCIDR,
    CelFormat,
    CelQuantity,
    CelURL,
    Duration,
    Optional,
    Semver,
    Timestamp,
    TypeName,
    UInt,
)

LITERAL_WORDS = frozenset({"true", "false", "null", "in"})


@dataclass(frozen=True, slots=True)
class CelKind:
    """A static type: its name, and for containers the kinds of their content."""

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
    """Optional values of a kind."""
    return CelKind("optional_type", (value,))


def object_of(fields: dict[str, CelKind], name: str = "object") -> CelKind:
    """An object with these properties; those whose names cannot be written in CEL are left out."""
    properties_by_name = {escape_name(prop): prop for prop in fields}
    properties = {ident: prop for ident, prop in properties_by_name.items() if ident is not None}
    properties |= {prop: prop for prop in fields if prop in RESERVED - LITERAL_WORDS}
    kinds_of = {ident: fields[prop] for ident, prop in properties.items()}
    return CelKind(name, (), kinds_of, properties)


_NEEDS_ESCAPE = re.compile(r"__|[-./]")
_REPLACEMENTS = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}


def escape_name(name: str) -> str | None:
    """The name of a property in CEL, None if it has none."""
    if name in RESERVED:
        return f"__{name}__"
    if not re.fullmatch(r"[A-Za-z_./-][A-Za-z0-9_./-]*", name):
        return None
    return _NEEDS_ESCAPE.sub(lambda match: _REPLACEMENTS[match.group()], name)


_PYTHON: dict[str, type[Any]] = {
    "string": str,
    "bytes": bytes,
    "list": list,
    "map": dict,
    "timestamp": Timestamp,
    "duration": Duration,
    "optional_type": Optional,
    "kubernetes.Quantity": CelQuantity,
    "kubernetes.URL": CelURL,
    "net.IP": CelAddress,
    "net.CIDR": CelCIDR,
    "kubernetes.Semver": Semver,
    "kubernetes.NamedFormat": CelFormat,
}


def is_of(value: Any, kind: CelKind) -> bool:
    """Whether a value is of a kind; what containers hold is not checked."""
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
    python_class = _PYTHON.get(kind.name)
    return python_class is None or isinstance(value, python_class)


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
"""Kinds that never match null; optionals, objects and times may be compared to it."""


def matches(parameter: CelKind, argument: CelKind, bindings: dict[str, CelKind]) -> bool:
    """Whether an argument fits a parameter; type parameters are added to ``bindings``."""
    if len(parameter.name) == 1 and parameter.name.isupper():
        bound = bindings.get(parameter.name)
        if bound is None or bound is DYN:
            if bound is None or argument is not DYN:
                bindings[parameter.name] = argument
            return True
        return (
            argument is DYN
            or matches(bound, argument, bindings)
            or matches(argument, bound, bindings)
        )
    if parameter is DYN or argument is DYN or parameter is argument:
        return True
    if NULL in (parameter, argument):
        return (argument if parameter is NULL else parameter).name not in NEVER_NULL
    if parameter.name != argument.name or len(parameter.of) != len(argument.of):
        return False
    return all(matches(a, b, bindings) for a, b in zip(parameter.of, argument.of, strict=True))


def resolve(kind: CelKind, bindings: dict[str, CelKind]) -> CelKind:
    """A result kind with its type parameters replaced."""
    if len(kind.name) == 1 and kind.name.isupper():
        return bindings.get(kind.name, DYN)
    if not kind.of:
        return kind
    return CelKind(kind.name, tuple(resolve(inner, bindings) for inner in kind.of))


_WORD = re.compile(r"[\w.]+|[(),]")


def parse_kind(text: str) -> CelKind:
    """Parse a kind in a signature: ``map(string, list(A))``."""
    tokens = _WORD.findall(text)
    kind, remaining = _parse_kind(tokens)
    assert not remaining, text
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


def _parse_kind(tokens: list[str]) -> tuple[CelKind, list[str]]:
    name, remaining = _NAMES.get(tokens[0], tokens[0]), tokens[1:]
    inner: list[CelKind] = []
    if remaining and remaining[0] == "(":
        while remaining[0] != ")":
            kind, remaining = _parse_kind(remaining[1:])
            inner.append(kind)
        remaining = remaining[1:]
    if not inner and name in _PLAIN:
        return _PLAIN[name], remaining
    return CelKind(name, tuple(inner)), remaining
