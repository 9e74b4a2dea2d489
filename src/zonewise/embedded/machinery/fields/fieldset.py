"""Sets of fields, in the form an API server stores them (FieldsV1).

A set is a tree of dicts whose keys are path elements: ``f:name`` a field, ``k:{"name":"x"}`` an
item of a keyed list, ``v:"x"`` a member of a set, ``i:0`` an index. A node is a member of the set
when it is empty or has the key ``.``; other nodes only lead to members. At the root, ``{}`` is the
empty set. There is no second representation to decode into: decoded JSON is used as it is, and an
unchanged entry is stored again as the object it was read as.

Trees are never changed in place. Every operation returns its left operand itself where the result
equals it, copies only the levels on the way to a difference, and walks the right operand, which
after an ordinary write is a handful of fields beside the hundred that the left one has. All trees
are in canonical order: ``.`` first, then fields, keys, values and indexes, each sorted by value, as
a real server writes them; operations keep that order, and ``canonicalize`` restores it for trees
that come from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from zonewise.api.errors import ParseError

FieldsV1: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

SELF = "."
DEPTH_LIMIT = 200  # of a set that a client sends; objects nest less
CACHED_LENGTH = 256  # characters of the longest path element that is cached

_ESCAPED = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_ELEMENT_KINDS = {"f": 0, "k": 1, "v": 2, "i": 3}


def value_element(value: Any) -> str:
    """The path element of a member of a set-like list."""
    return "v:" + _encode_json(value)


def key_element(keys: Sequence[tuple[str, Any]]) -> str:
    """The path element of an item of a keyed list; ``keys`` are names and values in any order."""
    return "k:" + _encode_json(dict(sorted(keys)))


def single_key_element(name: str, value: str) -> str:
    """The path element of an item with one key, a string: the most frequent case."""
    return (
        _cached_single_key_element(name, value)
        if len(value) <= CACHED_LENGTH
        else key_element([(name, value)])
    )


@lru_cache(maxsize=4096)
def _cached_single_key_element(name: str, value: str) -> str:
    return "k:" + _encode_json({name: value})


def keys_element(names: tuple[str, ...], *values: Any) -> str:
    """The path element of an item with these keys; short scalars are cached."""
    for value in values:
        if not isinstance(value, str | int) or (
            isinstance(value, str) and len(value) > CACHED_LENGTH
        ):
            return key_element(list(zip(names, values, strict=True)))
    return _cached_keys_element(names, *values)


@lru_cache(maxsize=4096, typed=True)
def _cached_keys_element(names: tuple[str, ...], *values: Any) -> str:
    return key_element(list(zip(names, values, strict=True)))


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode().translate(_ESCAPED)


def is_member(node: FieldsV1) -> bool:
    """Whether the field of a node is itself in the set."""
    return not node or SELF in node


def contains(fields: FieldsV1, path: Iterable[str]) -> bool:
    """Whether a path is in the set; the empty path never is."""
    node: FieldsV1 | None = None
    level = fields
    for element in path:
        node = level.get(element)
        if node is None:
            return False
        level = node
    return node is not None and is_member(node)


def children_of(fields: FieldsV1, element: str) -> FieldsV1:
    """The part of the set below an element, as a set of its own."""
    node = fields.get(element)
    if not node:
        return {}
    return node if SELF not in node else {key: sub for key, sub in node.items() if key != SELF}


def from_paths(paths: Iterable[Sequence[str]]) -> FieldsV1:
    """The set of these paths."""
    root: FieldsV1 = {}
    for path in paths:
        chain: FieldsV1 = {}
        for element in reversed(path):
            chain = {element: chain}
        root = union(root, chain)
    return root


def paths(fields: FieldsV1) -> Iterator[Path]:
    """Every member: at each level first the members there, then what is below them."""
    yield from _paths((), fields)


def _paths(prefix: Path, level: FieldsV1) -> Iterator[Path]:
    for element, node in level.items():
        if element != SELF and is_member(node):
            yield (*prefix, element)
    for element, node in level.items():
        if element != SELF and node:
            yield from _paths((*prefix, element), node)


def format_path(path: Iterable[str]) -> str:
    """A path as conflicts print it: ``.spec.ports[port=80,protocol="TCP"].name``."""
    return "".join(map(_format_element, path))


def _format_element(element: str) -> str:
    kind, content = element[0], element[2:]
    if kind == "f":
        return "." + content
    if kind == "v":
        return f"[={_format_value(msgspec.json.decode(content))}]"
    if kind == "k":
        keys = msgspec.json.decode(content)
        return "[" + ",".join(f"{k}={_format_value(keys[k])}" for k in sorted(keys)) + "]"
    return f"[{content}]"


def _format_value(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def union(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """The paths in either set."""
    if not left or not right:
        return left or right
    return _union(left, right)


def _union(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    if left is right or (not left and not right):
        return left
    out: FieldsV1 | None = None
    if is_member(right) and not is_member(left):
        out = {SELF: {}, **left}
    if not left:
        return right if is_member(right) else {SELF: {}, **right}
    grown = False
    for element, right_node in right.items():
        if element == SELF:
            continue
        left_node = left.get(element)
        merged = right_node if left_node is None else _union(left_node, right_node)
        if merged is left_node:
            continue
        grown = grown or left_node is None
        if out is None:
            out = dict(left)
        out[element] = merged
    if out is None:
        return left
    return sort_level(out) if grown else out


def difference(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """The paths in the left set and not in the right one; what is below an equal path stays."""
    if not left or not right:
        return left
    return _subtract_level(left, right, _difference)


def _subtract_level(
    left: FieldsV1, right: FieldsV1, subtract_node: Callable[[FieldsV1, FieldsV1], FieldsV1 | None]
) -> FieldsV1:
    """The left level, with each element that is in the right one replaced by what remains of it."""
    out: FieldsV1 | None = None
    for element, right_node in right.items():
        if element not in left or element == SELF:
            continue
        left_node = left[element]
        remaining = subtract_node(left_node, right_node)
        if remaining is left_node:
            continue
        if out is None:
            out = dict(left)
        if remaining is None:
            del out[element]
        else:
            out[element] = remaining
    return left if out is None else out


def _difference(left: FieldsV1, right: FieldsV1) -> FieldsV1 | None:
    if not left:
        return None if is_member(right) else left
    remaining = _subtract_level(left, right, _difference) if right else left
    if SELF in remaining and is_member(right):
        remaining = {element: node for element, node in remaining.items() if element != SELF}
    return _as_node(remaining)


def _as_node(level: FieldsV1) -> FieldsV1 | None:
    """A level as a node: an empty one is no node, one with only ``.`` is a leaf."""
    if not level:
        return None
    return {} if len(level) == 1 and SELF in level else level


def recursive_difference(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """The left set less every path that is in the right set or below one that is."""
    return _subtract_level(left, right, _recursive_difference) if left and right else left


def _recursive_difference(left: FieldsV1, right: FieldsV1) -> FieldsV1 | None:
    if is_member(right):
        return None
    return _as_node(recursive_difference(left, right)) if left else left


def intersection(left: FieldsV1, right: FieldsV1) -> FieldsV1:
    """The paths in both sets."""
    out: FieldsV1 = {}
    for element, left_node in left.items():
        right_node = right.get(element)
        if right_node is None or element == SELF:
            continue
        inner = intersection(left_node, right_node) if left_node and right_node else {}
        if is_member(left_node) and is_member(right_node):
            out[element] = {SELF: {}, **inner} if inner else {}
        elif inner:
            out[element] = inner
    return out


def select_matching(fields: FieldsV1, patterns: Sequence[Sequence[str]]) -> FieldsV1:
    """The part of the set at or below one of the patterns, in which ``*`` stands for any element.

    A node on the way to a pattern stays a member if it was one.
    """
    if any(not pattern for pattern in patterns):
        return fields
    out: FieldsV1 = {}
    for element, node in fields.items():
        if element == SELF:
            continue
        remaining = [pattern[1:] for pattern in patterns if pattern[0] in ("*", element)]
        if not remaining:
            continue
        inner = select_matching(children_of({element: node}, element), remaining)
        if is_member(node):
            out[element] = {SELF: {}, **inner} if inner else {}
        elif inner:
            out[element] = inner
    return out


def sort_level(level: FieldsV1) -> FieldsV1:
    """One level in canonical order."""
    names = sorted(level)
    if names and names[-1] > "g":  # not only fields, which are in order as text
        names.sort(key=_rank)
    return {name: level[name] for name in names}


def _rank(element: str) -> tuple[int, Any]:
    return _cached_rank(element) if len(element) <= CACHED_LENGTH else _compute_rank(element)


@lru_cache(maxsize=8192)
def _cached_rank(element: str) -> tuple[int, Any]:
    return _compute_rank(element)


def _compute_rank(element: str) -> tuple[int, Any]:
    if element == SELF:
        return (-1, "")
    kind, content = element[0], element[2:]
    if kind == "f":
        return (0, content)
    if kind == "i":
        return (3, int(content))
    value = msgspec.json.decode(content)
    if kind == "k":
        return (1, tuple((name, _value_rank(value[name])) for name in sorted(value)))
    return (2, _value_rank(value))


def _value_rank(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (1, value)
    return (3, _encode_json(value))


def canonicalize(fields: Any) -> FieldsV1:
    """A set that came from outside, checked and put in order.

    Elements of an unknown kind are dropped, as the real server does; malformed ones are refused.
    """
    if not isinstance(fields, Mapping):
        raise ParseError("a set of fields must be an object")
    return _canonicalize(fields, DEPTH_LIMIT)


def _canonicalize(level: Mapping[str, Any], depth: int) -> FieldsV1:
    if not depth:
        raise ParseError(f"a set of fields nests deeper than {DEPTH_LIMIT}")
    out: FieldsV1 = {}
    for element, node in level.items():
        if element == SELF:
            out[SELF] = {}
            continue
        name = _canonicalize_element(element)
        if name is None:
            continue
        if not isinstance(node, Mapping):
            raise ParseError(f"the path element {element!r} must have an object below it")
        sub = _canonicalize(node, depth - 1)
        out[name] = {} if len(sub) == 1 and SELF in sub else sub
    return sort_level(out)


def _canonicalize_element(element: str) -> str | None:
    if len(element) < 2 or element[1] != ":":
        raise ParseError(f"{element!r} is not a path element: it must start with f:, k:, v: or i:")
    kind, content = element[0], element[2:]
    if kind not in _ELEMENT_KINDS:
        return None
    if kind == "f":
        return element
    try:
        if kind == "i":
            return f"i:{int(content)}"
        value = msgspec.json.decode(content)
    except (ValueError, msgspec.DecodeError) as error:
        raise ParseError(f"the path element {element!r} is malformed: {error}") from None
    if kind == "v":
        return value_element(value)
    if not isinstance(value, dict):
        raise ParseError(f"the path element {element!r} must hold the item's keys")
    return key_element(list(value.items()))
