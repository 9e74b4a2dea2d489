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


def redact(message: Message) -> dict[str, object]:
    """The fields that are set, as plain values."""
    return {field.name: _redact_field(field, value) for field, value in message.ListFields()}


def _redact_field(field: FieldDescriptor, value: object) -> object:
    # The stubs type extensions more narrowly than the generator declares them.
    options: Any = field.GetOptions()
    if options.Extensions[csi.csi_secret]:
        return HIDDEN
    message_type: Descriptor | None = field.message_type
    if message_type is not None and message_type.GetOptions().map_entry:
        value_field = message_type.fields_by_name["value"]
        values = cast("Mapping[str, object]", value)
        return {str(key): _plain_value(value_field, item) for key, item in sorted(values.items())}
    if field.is_repeated:
        return [_plain_value(field, item) for item in cast("Iterable[object]", value)]
    return _plain_value(field, value)


def _plain_value(field: FieldDescriptor, value: object) -> object:
    if isinstance(value, Message):
        return redact(value)
    enum_type: EnumDescriptor | None = field.enum_type
    if enum_type is not None and isinstance(value, int):
        enum_value = enum_type.values_by_number.get(value)
        return enum_value.name if enum_value is not None else value
    return value
