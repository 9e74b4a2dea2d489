"""JSON Patch (RFC 6902).

Documents are plain dictionaries, lists and scalars. The input is never changed: an operation first
copies the containers on the way to its target, unless an earlier operation of the same patch did.
So a patch is atomic by construction (an error leaves nothing half done), ten thousand operations on
one long list copy that list once, and the result shares what was not touched with the document and
with the patch: treat all three as values.

``lenient`` adds what API servers accept beyond the RFC, since users rely on it:

* ``replace`` of an absent member adds it;
* an absent member reads as null, so ``test`` of null proves absence, and ``copy`` copies null;
* an absent ``value`` is null;
* indexes may be negative, counted from the end (``-1`` is the last; in ``add`` it appends), and
  written with a sign or leading zeros.

Bounded as on an API server: ``OPERATION_LIMIT`` operations, and ``COPY_LIMIT`` bytes of JSON copied
by all ``copy`` operations of a patch together, since each could double the document.

A malformed patch is a ParseError; one that does not fit the document is the special case
PatchFailed. Both name the operation by its number, from 0, and its path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from zonewise.api.errors import ParseError, PatchFailed

OPERATION_LIMIT = 10_000
COPY_LIMIT = 3 * 1024 * 1024

Pointer: TypeAlias = tuple[str, ...]

_ABSENT: Any = object()
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_LENIENT_INDEX = re.compile(r"[+-]?[0-9]{1,9}")
_BAD_ESCAPE = re.compile(r"~(?![01])")
_VERBS = ("add", "remove", "replace", "move", "copy", "test")


def apply(document: Any, patch: Sequence[Any], *, lenient: bool = False) -> Any:
    """The document after all operations of the patch, in order; the input stays as it is."""
    if not isinstance(patch, list | tuple):
        raise ParseError("a JSON patch is a list of operations")
    if len(patch) > OPERATION_LIMIT:
        raise ParseError(f"a JSON patch has at most {OPERATION_LIMIT} operations, not {len(patch)}")
    run = _Run(document, lenient=lenient)
    for number, operation in enumerate(patch):
        try:
            run.execute(operation)
        except ParseError as error:
            raise type(error)(f"{_describe_operation(number, operation)}: {error}") from None
        except RecursionError:
            which = _describe_operation(number, operation)
            raise ParseError(f"{which}: nested too deeply") from None
    return run.document


def parse_pointer(text: str) -> Pointer:
    """The names in a JSON Pointer (RFC 6901); "" is the whole document."""
    if not text:
        return ()
    if text[0] != "/":
        raise ParseError(f"pointer {text[:80]!r} does not begin with '/'")
    if _BAD_ESCAPE.search(text):
        raise ParseError(f"pointer {text[:80]!r} has a '~' that is neither ~0 nor ~1")
    return tuple(
        part.replace("~1", "/").replace("~0", "~") if "~" in part else part
        for part in text[1:].split("/")
    )


def format_pointer(pointer: Sequence[str | int]) -> str:
    """The JSON Pointer of names and indexes."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in pointer)


def equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: numbers by value, and true is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


class _Run:
    """The document as it is after the operations so far.

    ``owned`` has the containers this run created, by identity. Each is in the document at most once
    (``copy`` copies deeply), so changing one in place changes nothing else.
    """

    def __init__(self, document: Any, *, lenient: bool) -> None:
        self.document = document
        self.lenient = lenient
        self.copied = 0
        self.owned: dict[int, Any] = {}

    def execute(self, operation: Any) -> None:
        if not isinstance(operation, dict):
            raise ParseError("an operation is an object")
        verb = operation.get("op")
        if verb not in _VERBS:
            raise ParseError(f"'op' is not one of {', '.join(_VERBS)}")
        path = self._parse_pointer(operation, "path")
        match verb:
            case "add":
                self._add(path, self._value(operation))
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, self._value(operation))
            case "move":
                self._move(self._parse_pointer(operation, "from"), path)
            case "copy":
                self._add(path, self._copy(self._get(self._parse_pointer(operation, "from"))))
            case "test" if not equal(self._get(path), self._value(operation)):
                raise PatchFailed("the value is different")

    def _parse_pointer(self, operation: dict[str, Any], name: str) -> Pointer:
        text = operation.get(name)
        if not isinstance(text, str):
            raise ParseError(f"{name!r} is missing or not a string")
        return parse_pointer(text)

    def _value(self, operation: dict[str, Any]) -> Any:
        if "value" not in operation and not self.lenient:
            raise ParseError("'value' is missing")
        return operation.get("value")

    def _copy(self, value: Any) -> Any:
        self.copied += len(msgspec.json.encode(value))
        if self.copied > COPY_LIMIT:
            raise PatchFailed(f"the patch copies more than {COPY_LIMIT} bytes")
        return _deep_copy(value)

    def _get(self, pointer: Pointer, *, present: bool = False) -> Any:
        value = self.document
        for depth, name in enumerate(pointer, 1):
            value = self._child(value, name, pointer[:depth])
            if value is _ABSENT:
                if self.lenient and not present and depth == len(pointer):
                    return None
                raise PatchFailed(f"there is nothing at {_format(pointer[:depth])}")
        return value

    def _add(self, pointer: Pointer, value: Any) -> None:
        if not pointer:
            self.document = value
            return
        parent, last = self._open(pointer), pointer[-1]
        if isinstance(parent, dict):
            parent[last] = value
        elif last == "-":
            parent.append(value)
        else:
            parent.insert(self._index(last, len(parent) + 1, pointer), value)

    def _remove(self, pointer: Pointer) -> None:
        if not pointer:
            raise PatchFailed("the whole document cannot be removed")
        parent, last = self._open(pointer), pointer[-1]
        if self._child(parent, last, pointer) is _ABSENT:
            raise PatchFailed(f"there is nothing at {_format(pointer)}")
        del parent[last if isinstance(parent, dict) else self._index(last, len(parent), pointer)]

    def _replace(self, pointer: Pointer, value: Any) -> None:
        if not pointer:
            self.document = value
            return
        parent, last = self._open(pointer), pointer[-1]
        if self._child(parent, last, pointer) is _ABSENT and not self.lenient:
            raise PatchFailed(f"there is nothing at {_format(pointer)}")
        self._put(parent, last, value, pointer)

    def _move(self, source: Pointer, target: Pointer) -> None:
        if source == target[: len(source)] and source != target:
            raise PatchFailed(f"{_format(source)} cannot be moved into itself")
        value = self._get(source, present=True)
        if source != target:
            self._remove(source)
            self._add(target, value)

    def _open(self, pointer: Pointer) -> Any:
        """The container of the pointer's last part; it and all above it may be changed."""
        self.document = parent = self._own(self.document, ())
        for depth, name in enumerate(pointer[:-1], 1):
            child = self._child(parent, name, pointer[:depth])
            if child is _ABSENT:
                raise PatchFailed(f"there is nothing at {_format(pointer[:depth])}")
            owned = self._own(child, pointer[:depth])
            if owned is not child:
                self._put(parent, name, owned, pointer[:depth])
            parent = owned
        return parent

    def _own(self, value: Any, pointer: Pointer) -> Any:
        if id(value) in self.owned:
            return value
        if not isinstance(value, dict | list | tuple):
            raise PatchFailed(f"{_format(pointer)} is neither an object nor a list")
        copy = dict(value) if isinstance(value, dict) else list(value)
        self.owned[id(copy)] = copy
        return copy

    def _put(self, parent: Any, name: str, value: Any, pointer: Pointer) -> None:
        if isinstance(parent, dict):
            parent[name] = value
        else:
            parent[self._index(name, len(parent), pointer)] = value

    def _child(self, parent: Any, name: str, pointer: Sequence[str]) -> Any:
        if isinstance(parent, dict):
            return parent.get(name, _ABSENT)
        if isinstance(parent, list | tuple):
            return parent[self._index(name, len(parent), pointer)]
        raise PatchFailed(f"{_format(pointer[:-1])} is neither an object nor a list")

    def _index(self, text: str, length: int, pointer: Sequence[str]) -> int:
        if not (_LENIENT_INDEX if self.lenient else _INDEX).fullmatch(text):
            raise PatchFailed(f"{_format(pointer)}: {text[:40]!r} is not an index")
        number = int(text)
        index = number + length if number < 0 else number
        if not 0 <= index < length:
            raise PatchFailed(f"{_format(pointer)}: index {number} is outside the list")
        return index


def _deep_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _deep_copy(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_deep_copy(item) for item in value]
    return value


def _format(pointer: Sequence[str]) -> str:
    text = format_pointer(pointer)
    return repr(text if len(text) <= 200 else text[:199] + "…")


def _describe_operation(number: int, operation: Any) -> str:
    if not isinstance(operation, dict):
        return f"operation {number}"
    path = operation.get("path")
    verb = operation.get("op")
    path_text = f" {path[:200]}" if isinstance(path, str) else ""
    return f"operation {number} ({verb if verb in _VERBS else 'unknown'}{path_text})"
