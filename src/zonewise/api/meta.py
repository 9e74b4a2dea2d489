"""What all objects have in common.

Times stay text here: comparing and printing them needs no parsing, and parsing a hundred thousand
of them takes time. ``zonewise.api.values.times`` converts them to datetimes for calculations.

A type says ``| None`` where real API servers send an explicit null (Go's encoder does so for empty
lists, pointers and times that have no ``omitempty``). Nulls anywhere else, as users write them in
YAML, are taken as absent by the slow path of ``zonewise.api.codec``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field

Key: TypeAlias = tuple[str, str]
"""Namespace and name; the namespace of a cluster-wide object is ""."""

IntOrString: TypeAlias = int | str
"""A number or a percentage (``25%``) or a port's name."""

QuantityText: TypeAlias = str | int | float
"""A quantity as written; servers send text, people also write numbers."""


class OwnerReference(Struct):
    """The owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Struct):
    """Name, identity, version and labels of an object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return (self.namespace, self.name)

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if one does."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class ListMeta(Struct):
    """Version and paging of a list."""

    resource_version: str = ""
    continue_: str = field(name="continue", default="")
    remaining_item_count: int | None = None


class Object(Struct):
    """A Kubernetes object: metadata, and a class that names its resource.

    A class that is ``metadata_only`` has its objects sent without anything else.
    """

    resource: ClassVar[Resource]
    metadata_only: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return (self.metadata.namespace, self.metadata.name)


class Condition(Struct):
    """One aspect of an object's state: ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str | None = None


class _TypedCondition(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def status(self) -> str: ...


C = TypeVar("C", bound=_TypedCondition)


def find_condition(conditions: Iterable[C], type: str) -> C | None:
    """The condition of a type, if there is one."""
    for condition in conditions:
        if condition.type == type:
            return condition
    return None


def is_condition_true(conditions: Iterable[_TypedCondition], type: str) -> bool:
    """Whether there is a condition of a type and its status is ``True``."""
    condition = find_condition(conditions, type)
    return condition is not None and condition.status == "True"


class LabelSelectorRequirement(Struct):
    """One condition on labels: ``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = ()


class LabelSelector(Struct):
    """A selector of labels; ``zonewise.api.values.selector`` compiles it."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class ObjectReference(Struct):
    """A reference to another object."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""

    @classmethod
    def to(cls, obj: Object) -> ObjectReference:
        """A reference to an object as it is now, with its version."""
        meta = obj.metadata
        return cls(
            api_version=obj.resource.api_version,
            kind=obj.resource.kind,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
