"""Admission: changes or refuses a write after authorization.

Built-in plugins are functions on ``Attributes`` and run in a fixed order (``plugins``); webhooks
follow, because they should get what the server itself added. Mutation comes before the kind's own
validation, validation after it: so everything a webhook writes is validated. Quotas are last, so
that a write which is refused charges nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from zonewise.api.errors import Forbidden, StatusCause
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import User

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SubresourceView:
    """How a subresource is computed from an object, and how its changes are merged back."""

    project: Callable[[Obj], Obj]
    merge: Callable[[Obj, Obj], Obj]


BODY_VIEW = SubresourceView(project=lambda obj: obj, merge=lambda _, changed: changed)
"""For subresources that only have a body: a Binding, an Eviction."""


@dataclass(slots=True, kw_only=True)
class Attributes:
    """The attributes of one write. ``obj`` is None for a deletion, ``old`` for a creation.

    ``options`` are the parameters of the request; for a deletion, its DeleteOptions. ``view`` is
    set if webhooks get something else than the object, such as its Scale.
    """

    operation: Operation
    served: ServedKind
    namespace: str
    name: str
    subresource: str = ""
    obj: dict[str, Any] | None
    old: dict[str, Any] | None
    user: User
    dry_run: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    view: SubresourceView | None = None

    @property
    def display_name(self) -> str:
        """The object's name in refusals; a new one may have only the prefix of a generated name."""
        meta = (self.obj or {}).get("metadata") or {}
        return self.name or meta.get("name") or meta.get("generateName") or ""

    def forbidden(self, message: str, *, causes: Sequence[StatusCause] = ()) -> Forbidden:
        """The error that refuses the write."""
        resource = self.served.kind.resource
        return status_errors.forbidden(resource, self.display_name, message, causes=causes)


AdmissionPlugin = Callable[[Attributes], None]
"""Changes ``attributes.obj`` in place, or raises an ApiError."""

WaitBeforePlugins = Callable[[Attributes], Awaitable[None]]
"""Waits shortly for an object that a plugin needs and a controller is about to write."""


class WebhookAdmission(Protocol):
    """Webhooks, as the admission chain calls them."""

    async def mutate(self, attributes: Attributes, plugins: AdmissionPlugin) -> bool:
        """Let mutating webhooks change the object; True if one was called.

        ``plugins`` runs all built-in ones again after a webhook changed the object.
        """

    async def validate(self, attributes: Attributes) -> None:
        """Let validating webhooks refuse the write."""

    def may_match(self, served: ServedKind, operation: Operation, subresource: str) -> bool:
        """Whether any webhook may match; cheap, so that most writes never wait."""


class Admission:
    """The admission chain."""

    def __init__(
        self,
        mutating: Sequence[AdmissionPlugin],
        validating: Sequence[AdmissionPlugin],
        webhooks: WebhookAdmission,
        *,
        wait: WaitBeforePlugins,
        quotas: AdmissionPlugin,
    ) -> None:
        self._wait = wait
        self._mutating = tuple(mutating)
        self._validating = tuple(validating)
        self._webhooks = webhooks
        self._quotas = quotas

    def add(self, plugin: AdmissionPlugin) -> None:
        """Add a validating plugin, after the built-in ones."""
        self._validating += (plugin,)

    def add_mutating(self, plugin: AdmissionPlugin) -> None:
        """Add a mutating plugin, after the built-in ones."""
        self._mutating += (plugin,)

    async def mutate(self, attributes: Attributes) -> bool:
        """Run mutating plugins and webhooks; True if a webhook was called."""
        await self._wait(attributes)
        self._run_mutating_plugins(attributes)
        if self._webhooks_may_match(attributes):
            return await self._webhooks.mutate(attributes, self._run_mutating_plugins)
        return False

    async def validate(self, attributes: Attributes) -> None:
        """Run validating plugins and webhooks, then charge quotas."""
        for plugin in self._validating:
            plugin(attributes)
        if self._webhooks_may_match(attributes):
            await self._webhooks.validate(attributes)
        self._quotas(attributes)

    def _run_mutating_plugins(self, attributes: Attributes) -> None:
        for plugin in self._mutating:
            plugin(attributes)

    def _webhooks_may_match(self, attributes: Attributes) -> bool:
        return self._webhooks.may_match(
            attributes.served, attributes.operation, attributes.subresource
        )
