"""Bytes to objects and back.

Decoding goes straight from JSON bytes into Structs, never through dictionaries, which cost about
twice the time and the memory. When that fails because of a null where the type has none, the slow
path decodes into dictionaries, takes every null member as absent, as the API server does, and
converts. Real servers send null only where the types allow it: their lists stay on the fast path.

A decoder per type is built once and cached: a process handles few kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from zonewise.api.errors import ParseError
from zonewise.api.meta import ListMeta, Object
from zonewise.api.struct import Struct
from zonewise.api.unstructured import Unstructured

T = TypeVar("T")


class Page(Struct, Generic[T]):
    """A list as the API sends it, or one page of it."""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = ()


class Decoder(Generic[T]):
    """Decodes JSON into one type; raises ParseError for anything that is not of that type."""

    __slots__ = ("_json_decoder", "_type", "_type_name")

    def __init__(self, type_: type[T]) -> None:
        self._type = type_
        self._type_name = _type_name(type_)
        self._json_decoder = msgspec.json.Decoder(type_, dec_hook=_decode_unstructured)

    def decode(self, data: bytes | bytearray | memoryview | str) -> T:
        """Decode one object."""
        try:
            return self._json_decoder.decode(data)
        except msgspec.ValidationError:
            name = self._type_name
            return _convert_without_nulls(self._type, _parse_json(data, name), name)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ParseError(f"{self._type_name}: not JSON: {error}") from error
        except RecursionError as error:
            raise ParseError(f"{self._type_name}: nested too deeply") from error


_decoders: dict[Any, Decoder[Any]] = {}
_page_decoders: dict[Any, Decoder[Any]] = {}


def decoder(type_: type[T]) -> Decoder[T]:
    """The decoder of a type: an ``Object`` class, ``unstructured(resource)`` or any Struct."""
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = Decoder(type_)
    return decoder


def page_decoder(type_: type[T]) -> Decoder[Page[T]]:
    """The decoder of a list of a type, as the API sends it."""
    decoder = _page_decoders.get(type_)
    if decoder is None:
        page: Any = Page
        decoder = _page_decoders[type_] = Decoder(page[type_])
    return decoder


def decode(type_: type[T], data: bytes | bytearray | memoryview | str) -> T:
    """Decode one object."""
    return decoder(type_).decode(data)


def convert(type_: type[T], value: Mapping[str, Any]) -> T:
    """Convert plain dictionaries and lists, such as one document of a YAML dump, to an object."""
    try:
        return msgspec.convert(value, type_, dec_hook=_decode_unstructured)
    except (msgspec.ValidationError, RecursionError):
        return _convert_without_nulls(type_, value, _type_name(type_))


def encode(value: Object | Unstructured | Struct) -> bytes:
    """JSON for the wire; objects begin with their apiVersion and kind."""
    if isinstance(value, Unstructured):
        return msgspec.json.encode(value.manifest())
    body = msgspec.json.encode(value)
    if not isinstance(value, Object):
        return body
    comma = b"," if len(body) > 2 else b""
    return _header(type(value)) + comma + body[1:]


def to_builtins(value: Object | Unstructured | Struct) -> dict[str, Any]:
    """The object as plain dictionaries, lists and texts, ready for a patch."""
    result: dict[str, Any] = msgspec.json.decode(encode(value))
    return result


@lru_cache(maxsize=256)
def _header(type_: type[Object]) -> bytes:
    names = {"apiVersion": type_.resource.api_version, "kind": type_.resource.kind}
    return msgspec.json.encode(names)[:-1]


def _decode_unstructured(type_: type[Any], value: Any) -> Any:
    if issubclass(type_, Unstructured) and isinstance(value, dict):
        return type_(value)
    raise ValueError("Expected `object`")


def _parse_json(data: bytes | bytearray | memoryview | str, name: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{name}: not JSON: {error}") from error
    except RecursionError as error:
        raise ParseError(f"{name}: nested too deeply") from error


def _convert_without_nulls(type_: type[T], value: Any, name: str) -> T:
    try:
        # Through JSON, as a type may keep parts of it undecoded (``msgspec.Raw``).
        data = msgspec.json.encode(_without_nulls(value))
        return msgspec.json.decode(data, type=type_, dec_hook=_decode_unstructured)
    except (msgspec.ValidationError, TypeError) as error:
        raise ParseError(f"{name}: {error}") from error
    except RecursionError as error:
        raise ParseError(f"{name}: nested too deeply") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _type_name(type_: Any) -> str:
    inner = getattr(type_, "__args__", ())
    if inner:
        return f"list of {_type_name(inner[0])}"
    resource = getattr(type_, "resource", None)
    return resource.kind if resource is not None else str(type_.__name__)
