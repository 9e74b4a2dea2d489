"""What a kind requires beyond its schema.

``Rules`` is what most kinds have in common; a kind that differs has a subclass in a module beside
this one. Rules are pure: they see the object, the one it replaces and a ``StrategyContext``; they
change the object in place or record errors, and do no I/O. The order is an API server's: decode,
defaults, mutating admission, ``prepare``, ``validate``, validating admission.

Validation gets a cursor at the object (``zonewise.api.field_cursor``) and records what is wrong
below it. The object that is replaced stays a plain dict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zonewise.api.field_cursor import Field, FieldErrors
from zonewise.api.gates import FeatureGates
from zonewise.api.values import names
from zonewise.embedded.apiserver.request.call import User

Obj: TypeAlias = dict[str, Any]
Faults: TypeAlias = FieldErrors


@dataclass(slots=True, kw_only=True)
class StrategyContext:
    """What rules may read besides the object they validate."""

    user: User
    now: str  # RFC 3339, whole seconds
    gates: FeatureGates
    subresource: str = ""
    look: Callable[[str, str, str], Obj | None]  # storage key, namespace, name -> that object
    dry_run: bool = False
    inside: bool = False
    warnings: list[str] = field(default_factory=list)


class Rules:
    """The rules most kinds share."""

    generation: bool = False
    """Whether ``metadata.generation`` counts the changes of everything but metadata and status."""

    answers_deleted: bool = False
    """Whether DELETE answers the object instead of a Status."""

    blind_update: bool = True
    """Whether a PUT may leave out resourceVersion."""

    creates_on_update: bool = False
    """Whether a PUT of a missing object creates it."""

    status_keeps_metadata: bool = False
    """Whether a write to ``status`` leaves labels and annotations as they were."""

    selectable: frozenset[str] = frozenset()
    """Fields a field selector may name beyond metadata.name and metadata.namespace."""

    takes_status: bool = False
    """Whether a new object may bring its status along."""

    scale_paths: tuple[str, str, str] = (".spec.replicas", ".status.replicas", ".spec.selector")
    """The paths of wanted size, present size and selector, for kinds with a scale."""

    graceful: bool = False
    """Whether a deletion has a grace period."""

    allocates: bool = False
    """Whether ``allocate`` takes something; then ``settled`` is called for every object."""

    default_policy: str = "Background"
    """What a deletion does with dependents where the client does not say."""

    def name_errors(self, name: str) -> list[str]:
        """What is wrong with the name of an object."""
        return names.subdomain_errors(name)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Set what only the server sets, drop what clients may not; status is dropped before."""

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """Keep what an update may not touch; status is the old one already."""

    def prepare_status(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """The same for a write to ``status``; everything but metadata and status is the old
        already.
        """

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        """The rules for a new object."""
        self.validate(obj, context)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The rules for an object that replaces ``old``."""
        self.validate(obj, context)

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The rules for a new status."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        """The rules for an object, new or not."""

    def warn(self, obj: Obj, old: Obj | None, context: StrategyContext) -> None:
        """Say what is odd about an object that is fine; ``old`` is None for a new one."""

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Whether this update raises the generation."""
        keys = (obj.keys() | old.keys()) - {"metadata", "status", "apiVersion", "kind"}
        return any(obj.get(key) != old.get(key) for key in keys)

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the ``selectable`` fields."""
        return {}

    def grace(self, obj: Obj, asked: int | None, context: StrategyContext) -> int:
        """Seconds between the request to delete and the end; 0 means at once."""
        return 0

    def on_mark(self, obj: Obj, context: StrategyContext) -> None:
        """Change an object when its deletion is first requested."""

    def held(self, obj: Obj) -> bool:
        """Whether something beyond finalizers in metadata keeps a marked object alive."""
        return False

    def allocate(self, obj: Field, old: Obj | None, context: StrategyContext) -> None:
        """Choose what must be unique in the cluster, as the last step before the write."""

    def settled(self, namespace: str, name: str, obj: Obj | None) -> None:
        """An object now holds this: it was stored, its write failed, or it is deleted.

        Called for kinds that allocate: for all objects at start, and for each that changes.
        """


class LegacyRules(Rules):
    """Rules that still return their errors."""

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        """The rules for a new object."""
        obj.errors.extend(self.find_create(obj.value, context))

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The rules for an object that replaces ``old``."""
        obj.errors.extend(self.find_update(obj.value, old, context))

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The rules for a new status."""
        obj.errors.extend(self.find_status(obj.value, old, context))

    def find_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new object."""
        return self.find(obj, context)

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with an object that replaces ``old``."""
        return self.find(obj, context)

    def find_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        return []

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with an object, new or not."""
        return []
