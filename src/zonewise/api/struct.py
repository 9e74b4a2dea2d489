"""The base of every typed object.

All objects are msgspec Structs with one set of rules, given once here instead of at each class:

* frozen: a store hands the same object to many readers, so none may change it. Build a changed copy
  with ``msgspec.structs.replace``.
* ``gc=False``: a frozen tree has no cycles, so the cyclic collector need not visit it.
  Sequences are tuples for the same reason; the collector untracks what is in them. A hundred
  thousand endpoints then cost it nothing (see ``zonewise.api.objects.discovery`` for the
  measurement).
* keyword only: two strings cannot be swapped by accident.
* ``omit_defaults``: what was not set is not sent, as Kubernetes' own encoders do.
* camelCase names on the wire; acronyms that camelCase gets wrong are spelled with ``field(name=)``.

Unknown fields are skipped while decoding. These Structs are therefore lean views: never send a
decoded one back as a whole (a PUT would delete unknown fields), only patches of fields that are
ours. Types that have every field of the API say so.
"""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec
from msgspec import field


class StructMeta(msgspec.StructMeta):
    """Makes every subclass keyword only; msgspec inherits all other settings but not this one."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> StructMeta:
        config.setdefault("kw_only", True)
        return super().__new__(mcls, name, bases, namespace, **config)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Struct(
    msgspec.Struct, metaclass=StructMeta, frozen=True, gc=False, omit_defaults=True, rename="camel"
):
    """A frozen, keyword-only value with camelCase names on the wire."""


__all__ = ["Struct", "field"]
