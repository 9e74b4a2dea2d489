"""What may be written about a message: everything but the fields that CSI marks as secret.

The mark (``csi_secret``) is in the descriptors, so a field that a later version of the protocol
adds is hidden by its own declaration, not by our memory. Names of secret keys are hidden too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from zonewise.csi.protocol import csi_pb2 as csi

HIDDEN = "(hidden)"


def redacted(message: Message) -> dict[str, object]:
    """The fields that are set, as plain values."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: object) -> object:
    # The stubs type extensions more narrowly than the generator declares them.
    options: Any = field.GetOptions()
    if options.Extensions[csi.csi_secret]:
        return HIDDEN
    kind: Descriptor | None = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        pairs = cast("Mapping[str, object]", value)
        return {str(key): _one(inner, item) for key, item in sorted(pairs.items())}
    if field.is_repeated:
        return [_one(field, item) for item in cast("Iterable[object]", value)]
    return _one(field, value)


def _one(field: FieldDescriptor, value: object) -> object:
    if isinstance(value, Message):
        return redacted(value)
    kinds: EnumDescriptor | None = field.enum_type
    if kinds is not None and isinstance(value, int):
        named = kinds.values_by_number.get(value)
        return named.name if named is not None else value
    return value
