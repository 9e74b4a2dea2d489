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

from zonewise.api.field_cursor import Field
from zonewise.api.gates import FeatureGates
from zonewise.api.values import names
from zonewise.embedded.apiserver.request.call import User

Obj: TypeAlias = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class StrategyContext:
    """What rules may read besides the object they validate."""

    user: User
    now: str  # RFC 3339, whole seconds
    gates: FeatureGates
    subresource: str = ""
    get_object: Callable[[str, str, str], Obj | None]  # by storage key, namespace and name
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
        values = {path: read_path(obj, path) for path in self.selectable}
        return {path: _render_field(value) for path, value in values.items()}

    def grace(self, obj: Obj, requested: int | None, context: StrategyContext) -> int:
        """Seconds between the request to delete and the end; 0 means at once."""
        return 0

    def on_mark(self, obj: Obj, context: StrategyContext) -> None:
        """Change an object when its deletion is first requested."""

    def is_retained(self, obj: Obj) -> bool:
        """Whether something beyond finalizers in metadata keeps a marked object alive."""
        return False

    def allocate(self, obj: Field, old: Obj | None, context: StrategyContext) -> None:
        """Choose what must be unique in the cluster, as the last step before the write."""

    def settled(self, namespace: str, name: str, obj: Obj | None) -> None:
        """An object now holds this: it was stored, its write failed, or it is deleted.

        Called for kinds that allocate: for all objects at start, and for each that changes.
        """


def words(text: str) -> tuple[str, ...]:
    """A list of names, written as one text."""
    return tuple(text.split())


def revert(fields: Obj, old: Obj, *keys: str) -> None:
    """Make fields what they were in another object."""
    for key in keys:
        if key in old:
            fields[key] = old[key]
        else:
            fields.pop(key, None)


def read_path(obj: Obj, path: str) -> Any:
    """The value at a path of names with dots between them; None where there is none."""
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _render_field(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
