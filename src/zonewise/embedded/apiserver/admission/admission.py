"""Admission: what may still change an object, or refuse it, after its author was allowed to write
it.

Built-in plugins are pure functions on ``Attributes`` and run first, in one order; webhooks follow,
because they are strangers and should see what the server itself added. Mutation comes before the
kind's own validation, validation after it: so nothing a webhook writes escapes the rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request.call import User

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SubresourceView:
    """What a subresource shows of an object, and what becomes of the object when that changes."""

    show: Callable[[Obj], Obj]
    take: Callable[[Obj, Obj], Obj]


BODY = SubresourceView(show=lambda obj: obj, take=lambda _, changed: changed)
"""For subresources that are only a body: a Binding, an Eviction."""


@dataclass(slots=True, kw_only=True)
class Attributes:
    """One write on its way in. ``obj`` is None for a deletion, ``old`` is None for a creation.

    ``options`` are the parameters of the request; for a deletion, its DeleteOptions. ``view`` is
    set where webhooks get something else than the object, such as its Scale.
    """

    operation: Operation
    served: Served
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
    def called(self) -> str:
        """What a refusal calls the object: it may not have more than the start of its name yet."""
        meta = (self.obj or {}).get("metadata") or {}
        return self.name or meta.get("name") or meta.get("generateName") or ""


AdmissionPlugin = Callable[[Attributes], None]
"""Changes ``attributes.obj`` in place, or raises an ApiError."""

Wait = Callable[[Attributes], Awaitable[None]]
"""Waits a moment for what a plugin will look for and a controller is about to write."""


class Hooks(Protocol):
    """Webhooks, as the chain calls them."""

    async def mutate(self, attributes: Attributes, plugins: AdmissionPlugin) -> bool:
        """Let mutating webhooks change the object; True if one was called.

        ``plugins`` are all built-in ones: they look again at what a webhook changed.
        """

    async def validate(self, attributes: Attributes) -> None:
        """Let validating webhooks refuse it."""

    def concern(self, served: Served, operation: Operation, subresource: str) -> bool:
        """Whether any webhook could match; cheap, so that most writes never wait."""


class Admission:
    """The chain."""

    def __init__(
        self,
        mutating: Sequence[AdmissionPlugin],
        validating: Sequence[AdmissionPlugin],
        hooks: Hooks | None = None,
        *,
        wait: Wait | None = None,
    ) -> None:
        self._wait = wait
        self._mutating = tuple(mutating)
        self._validating = tuple(validating)
        self._hooks = hooks

    def add(self, plugin: AdmissionPlugin) -> None:
        """Let one more plugin judge what is written, after the server's own."""
        self._validating += (plugin,)

    async def mutate(self, attributes: Attributes) -> bool:
        """Run the mutating half; True if something outside this process may have had a say."""
        if self._wait:
            await self._wait(attributes)
        self._plug(attributes)
        if self._hooks and self._concerned(attributes):
            return await self._hooks.mutate(attributes, self._plug)
        return False

    async def validate(self, attributes: Attributes) -> None:
        """Run the validating half."""
        for plugin in self._validating:
            plugin(attributes)
        if self._hooks and self._concerned(attributes):
            await self._hooks.validate(attributes)

    def _plug(self, attributes: Attributes) -> None:
        for plugin in self._mutating:
            plugin(attributes)

    def _concerned(self, attributes: Attributes) -> bool:
        assert self._hooks is not None
        return self._hooks.concern(attributes.served, attributes.operation, attributes.subresource)
