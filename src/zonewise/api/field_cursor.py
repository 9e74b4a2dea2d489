"""A cursor over the fields of an object, for rules that read as an API server's own.

::

    errors: FieldErrors = []
    spec = Field(obj, errors)["spec"]
    spec["minReplicas"].minimum(1)
    spec["serviceName"].optional().dns_label()
    for port in spec["ports"].each():
        port["protocol"].required().enum(PROTOCOLS)

A cursor knows its value, its parent and its own name; the text of its path (``spec.ports[0].name``)
is made only when an error is recorded, so an object without errors costs no text. All cursors below
one root record into the root's list, in the order in which the rules run.

What is missing reads as None, and None passes every check but ``required``: it is a pointer that is
nil. A field whose absence counts as Go's zero value is read with it: ``port.get("name", "")``.

Checks can be chained. One that fails records its error and returns ``NOTHING``, which is false and
passes all further checks, so the first error of a chain is its only one; rules that apply side by
side are written as two statements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.values import names

FieldErrors: TypeAlias = list[StatusCause]

IMMUTABLE = "field is immutable"
OWN: Any = object()
"""The value of an error that is about the cursor's own value."""


class Field(msgspec.Struct, frozen=True, gc=False):
    """One field of an object: its value, and where it is.

    ``key`` is the name of a field, the index of an item, or the key of a map's entry in a tuple.
    The parent of a root is the list of errors, and its key, mostly empty, the path to the root.
    """

    value: Any
    parent: Field | FieldErrors
    key: str | int | tuple[str] = ""

    if TYPE_CHECKING:

        def __bool__(self) -> bool:
            """Whether it is not ``NOTHING``; without this method, which costs less."""

    def __getitem__(self, name: str) -> Field:
        """The field of that name; without a value, if this one has none."""
        value = self.value
        return Field(value[name] if value and name in value else None, self, name)

    def get(self, name: str, default: Any) -> Field:
        """The field of that name, with a value for where it is missing."""
        value = self.value
        return Field(value.get(name, default) if value else default, self, name)

    def each(self) -> Iterator[Field]:
        """The items of a list."""
        index = 0
        for item in self.value or ():
            yield Field(item, self, index)
            index += 1  # noqa: SIM113 - half the price of enumerate

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The entries of a map, each with its key."""
        for key, item in (self.value or {}).items():
            yield key, Field(item, self, (key,))

    def entry(self, key: str) -> Field:
        """The entry of a map."""
        value = self.value
        return Field(value.get(key) if value else None, self, (key,))

    def item(self, index: int) -> Field:
        """An item of a list that has it."""
        return Field(self.value[index], self, index)

    def child(self, name: str, value: Any) -> Field:
        """A field of that name whose value comes from elsewhere."""
        return Field(value, self, name)

    def named(self, key: str | int) -> Field:
        """This field under the name by which an API server reports it."""
        return Field(self.value, self.parent, key)

    def holding(self, value: Any) -> Field:
        """This field with another value."""
        return Field(value, self.parent, self.key)

    @property
    def path(self) -> str:
        """``spec.ports[0].name``, ``metadata.labels[app]``."""
        steps: list[str] = []
        field: Field | FieldErrors = self
        while isinstance(field, Field):
            key = field.key
            if isinstance(key, str):
                if key:
                    steps.append(f".{key}")
            else:
                steps.append(f"[{key if isinstance(key, int) else key[0]}]")
            field = field.parent
        return "".join(reversed(steps)).removeprefix(".")

    @property
    def errors(self) -> FieldErrors:
        """The list that all cursors below one root share."""
        field: Field | FieldErrors = self.parent
        while isinstance(field, Field):
            field = field.parent
        return field

    def is_valid(self, validate: Callable[[Field], object]) -> bool:
        """Run a rule on this field; whether it recorded no error."""
        errors = self.errors
        before = len(errors)
        validate(self)
        return len(errors) == before

    # ------------------------------------------------------------------ errors

    def missing(self, detail: str = "") -> None:
        """Record that something must be here."""
        self.errors.append(field_errors.required(self.path, detail))

    def invalid(self, detail: str, value: Any = OWN) -> None:
        """Record that the value breaks the rule that ``detail`` states."""
        value = self.value if value is OWN else value
        self.errors.append(field_errors.invalid(self.path, value, detail))

    def unsupported(self, supported: Iterable[str], value: Any = OWN) -> None:
        """Record that the value is none of the supported ones."""
        value = self.value if value is OWN else value
        self.errors.append(field_errors.unsupported(self.path, value, supported))

    def duplicate(self, value: Any = OWN) -> None:
        """Record that the value is here a second time."""
        value = self.value if value is OWN else value
        self.errors.append(field_errors.duplicate(self.path, value))

    def forbid(self, detail: str) -> None:
        """Record that the field may not be set, or not be changed."""
        self.errors.append(field_errors.forbidden(self.path, detail))

    def not_found(self) -> None:
        """Record that the value names something that does not exist."""
        self.errors.append(field_errors.not_found(self.path, self.value))

    def too_long(self, limit: int) -> None:
        """Record a text of more than ``limit`` bytes."""
        self.errors.append(field_errors.too_long(self.path, limit))

    def internal(self, detail: str) -> None:
        """Record that the value could not be validated, as an earlier rule failed."""
        self.errors.append(field_errors.internal(self.path, detail))

    # ------------------------------------------------------------------ whether there is a value

    def required(self, detail: str = "") -> Field:
        """A value that is not empty."""
        if self.value:
            return self
        self.missing(detail)
        return NOTHING

    def present(self, detail: str = "") -> Field:
        """A value, even an empty one."""
        if self.value is not None:
            return self
        self.missing(detail)
        return NOTHING

    def require(self, *keys: str) -> None:
        """Fields of this one that may not be empty."""
        for key in keys:
            self[key].required()

    def optional(self) -> Field:
        """This field, or ``NOTHING`` if it is empty: the checks that follow need a value."""
        return self if self.value else NOTHING

    def forbid_set(self, detail: str) -> Field:
        """No value at all."""
        if self.value is None:
            return self
        self.forbid(detail)
        return NOTHING

    def invalid_set(self, detail: str) -> Field:
        """No value at all, reported as an invalid one."""
        return self if self.value is None else self.invalid_if(detail)

    def forbid_filled(self, detail: str) -> Field:
        """No value but an empty one."""
        if not self.value:
            return self
        self.forbid(detail)
        return NOTHING

    # ------------------------------------------------------------------ what the value may be

    def enum(self, supported: Collection[str]) -> Field:
        """One of few values."""
        value = self.value
        if value is None or value in supported:
            return self
        self.unsupported(supported)
        return NOTHING

    def minimum(self, least: int, detail: str = "") -> Field:
        """At least this much."""
        value = self.value
        if value is None or value >= least:
            return self
        self.invalid(detail or f"must be greater than or equal to {least}")
        return NOTHING

    def maximum(self, most: int, detail: str = "") -> Field:
        """At most this much."""
        value = self.value
        if value is None or value <= most:
            return self
        self.invalid(detail or f"must be less than or equal to {most}")
        return NOTHING

    def not_negative(self) -> Field:
        """Zero or more."""
        value = self.value
        if value is None or value >= 0:
            return self
        self.invalid("must be greater than or equal to 0")
        return NOTHING

    def positive(self) -> Field:
        """One or more."""
        value = self.value
        if value is None or value > 0:
            return self
        self.invalid("must be greater than 0")
        return NOTHING

    def between(self, least: int, most: int, detail: str = "") -> Field:
        """In a range, with both of its ends."""
        value = self.value
        if value is None or least <= value <= most:
            return self
        self.invalid(detail or f"must be between {least} and {most}, inclusive")
        return NOTHING

    def port_number(self) -> Field:
        """A number of a port."""
        value = self.value
        if value is None or 1 <= value <= 65535:
            return self
        return self.between(1, 65535)

    def port(self) -> Field:
        """A port by its number or by its name."""
        return self.port_name() if isinstance(self.value, str) else self.port_number()

    def max_items(self, limit: int) -> Field:
        """A list of at most so many items."""
        value = self.value
        if value is None or len(value) <= limit:
            return self
        self.errors.append(field_errors.too_many(self.path, len(value), limit))
        return NOTHING

    def max_length(self, limit: int) -> Field:
        """A text of at most so many characters."""
        value = self.value
        if value is None or len(value) <= limit:
            return self
        self.too_long(limit)
        return NOTHING

    def max_bytes(self, limit: int) -> Field:
        """A text of at most so many bytes."""
        value = self.value
        if value is None or len(value.encode()) <= limit:
            return self
        self.too_long(limit)
        return NOTHING

    def immutable(self, old: Any) -> Field:
        """The value it had before."""
        if self.value == old:
            return self
        self.invalid(IMMUTABLE)
        return NOTHING

    def unique(self, seen: set[Any]) -> Field:
        """A value that is not in ``seen``; it is added."""
        value = self.value
        if value is None:
            return self
        if value in seen:
            self.duplicate()
            return NOTHING
        seen.add(value)
        return self

    def matches(self, pattern: re.Pattern[str], detail: str) -> Field:
        """A text of some form."""
        value = self.value
        if value is None or pattern.match(value):
            return self
        self.invalid(detail)
        return NOTHING

    def invalid_if(self, detail: str) -> Field:
        """Reject the value for a reason; an empty ``detail`` means that it is valid."""
        if not detail:
            return self
        self.invalid(detail)
        return NOTHING

    # ------------------------------------------------------------------ names

    def name(self, find_errors: Callable[[str], list[str]]) -> Field:
        """A name of some form; ``find_errors`` says what is wrong with it."""
        value = self.value
        return self if value is None else self.without_errors(find_errors(value))

    def without_errors(self, details: Iterable[str]) -> Field:
        """A value that breaks none of the rules of which ``details`` has a sentence each."""
        field = self
        for detail in details:
            self.invalid(detail)
            field = NOTHING
        return field

    def dns_label(self) -> Field:
        """One part of a DNS name."""
        value = self.value
        if value is None or not (details := names.label_errors(value)):
            return self
        return self.without_errors(details)

    def dns_1035_label(self) -> Field:
        """One part of a DNS name that starts with a letter."""
        return self.name(names.label_1035_errors)

    def dns_subdomain(self) -> Field:
        """A DNS name."""
        value = self.value
        if value is None or not (details := names.subdomain_errors(value)):
            return self
        return self.without_errors(details)

    def qualified_name(self) -> Field:
        """A key as labels have it."""
        value = self.value
        if value is None or not (details := names.qualified_name_errors(value)):
            return self
        return self.without_errors(details)

    def label_value(self) -> Field:
        """A value as labels have it."""
        value = self.value
        if value is None or not (details := names.label_value_errors(value)):
            return self
        return self.without_errors(details)

    def path_segment(self) -> Field:
        """Anything that can stand between two slashes."""
        return self.name(names.path_segment_errors)

    def port_name(self) -> Field:
        """A name as ports have it."""
        value = self.value
        if value is None or not (details := names.port_name_errors(value)):
            return self
        return self.without_errors(details)


class _Nothing(Field, frozen=True, gc=False):
    """What is left of a chain of checks that has ended."""

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, name: str) -> Field:
        return self

    def get(self, name: str, default: Any) -> Field:
        return self

    def required(self, detail: str = "") -> Field:
        return self

    def present(self, detail: str = "") -> Field:
        return self

    @property
    def errors(self) -> FieldErrors:
        return []


NOTHING: Field = _Nothing(None, [])
