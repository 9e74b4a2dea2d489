"""Mutating and validating webhooks.

Configurations are compiled at the first write after a change; which webhooks a kind, operation and
subresource concern is then cached, so a write that concerns none costs one dictionary lookup.

Mutating webhooks are called one after another, each seeing the changes of those before it. If one
changed the object, the server's own plugins run again, and webhooks that were called before the
change and have ``reinvocationPolicy: IfNeeded`` are called a second time: twice at most, however
often they change it. Validating webhooks cannot change anything, so they are called concurrently;
of several refusals the first in order is returned. Both read one set of configurations from
beginning to end.

All webhooks of one half have ``REQUEST_SECONDS`` together; each has its own timeout within that. If
a webhook cannot be called, the write is refused or the webhook skipped, as its failure policy says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.objects.core import Namespace
from zonewise.api.text import jsontext
from zonewise.api.text.jsontext import NotJSON
from zonewise.embedded.apiserver.admission import webhook_review
from zonewise.embedded.apiserver.admission.admission import Attributes, Operation
from zonewise.embedded.apiserver.admission.webhook_match import (
    EXEMPT,
    MUTATING,
    VALIDATING,
    Hook,
    compiled,
    viewed,
)
from zonewise.embedded.apiserver.admission.webhook_review import (
    BadAnswer,
    Unreadable,
    WebhookVerdict,
)
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.registry import Registry, Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.apiserver.webhooks.caller import Caller, Unanswered
from zonewise.embedded.machinery.decoding import validation
from zonewise.embedded.machinery.decoding.validation import WrongType
from zonewise.embedded.machinery.fields import managed_fields
from zonewise.embedded.machinery.patch import jsonpatch
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

REQUEST_SECONDS = 60.0
BROKEN_OWNERS = (
    ".metadata.managedFields was in an invalid state after admission; this could be caused by an"
    " outdated mutating admission controller; please fix your requests"
)
_log = logger("webhooks")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A webhook, and the kind in which it gets the object."""

    hook: Hook
    viewed: Served


@dataclass(frozen=True, slots=True)
class Concerned:
    """The webhooks that may concern writes of one kind, operation and subresource."""

    mutating: tuple[Invocation, ...]
    validating: tuple[Invocation, ...]

    def __bool__(self) -> bool:
        return bool(self.mutating or self.validating)


@dataclass(slots=True)
class _Round:
    """Which webhooks were called before the last change, and which are called again for it."""

    asked: set[Hook] = field(default_factory=set)
    again: set[Hook] = field(default_factory=set)
    changed: bool = False

    def change(self) -> None:
        """The object is not what the webhooks so far saw."""
        self.changed = True
        self.again |= self.asked
        self.asked = set()


class _Failed(Exception):
    """A webhook could not be called."""


NOBODY = Concerned((), ())


class Webhooks:
    """The webhooks of a cluster."""

    def __init__(
        self,
        *,
        state: State,
        registry: Registry,
        caller: Caller,
        new_uid: Callable[[], str],
    ) -> None:
        self._state = state
        self._registry = registry
        self._caller = caller
        self._new_uid = new_uid
        self._mutating: tuple[Hook, ...] = ()
        self._validating: tuple[Hook, ...] = ()
        self._known: dict[tuple[Served, str, str], Concerned] = {}
        self._stale = True
        self.skip: Callable[[Hook], bool] = lambda _: False
        """Which webhooks are never called."""
        state.listen(self._observe)
        registry.on_change(self._forget)

    async def close(self) -> None:
        """End all connections."""
        await self._caller.close()

    def concern(self, served: Served, operation: Operation, subresource: str) -> bool:
        """Whether any webhook could match."""
        return bool(self._concerned(served, operation, subresource))

    def _observe(self, kind: str, _: StoreEvent) -> None:
        if kind in {MUTATING, VALIDATING}:
            self._stale = True

    def _forget(self) -> None:
        self._known.clear()

    def _concerned(self, served: Served, operation: str, subresource: str) -> Concerned:
        if self._stale:
            self._compile()
        if not self._mutating and not self._validating:
            return NOBODY
        key = (served, operation, subresource)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._find(served, operation, subresource)
        return known

    def _compile(self) -> None:
        def raws(kind: str) -> Iterable[bytes]:
            return [entry.raw for entry in self._state.list(kind).entries]

        def called(kind: str, *, mutating: bool) -> tuple[Hook, ...]:
            hooks = compiled(raws(kind), mutating=mutating)
            return tuple(hook for hook in hooks if not self.skip(hook))

        self._mutating = called(MUTATING, mutating=True)
        self._validating = called(VALIDATING, mutating=False)
        self._known.clear()
        self._stale = False

    def _find(self, served: Served, operation: str, subresource: str) -> Concerned:
        if served.storage in EXEMPT:
            return NOBODY
        equivalents = [one for one in self._registry if one.storage == served.storage]

        def invocations(hooks: Iterable[Hook]) -> tuple[Invocation, ...]:
            return tuple(
                Invocation(hook, seen)
                for hook in hooks
                if (seen := viewed(hook, served, operation, subresource, equivalents))
            )

        return Concerned(invocations(self._mutating), invocations(self._validating))

    async def mutate(self, attributes: Attributes, plugins: Callable[[Attributes], None]) -> bool:
        """Let mutating webhooks change the object; True if one was called."""
        found = self._concerned(attributes.served, attributes.operation, attributes.subresource)
        if not found.mutating:
            return False
        until = asyncio.get_running_loop().time() + REQUEST_SECONDS
        turn = _Round()
        owners = managed_fields.entries_of(attributes.obj)
        called = await self._turn(attributes, found.mutating, turn, until, first=True)
        if not turn.changed:
            return called
        seen = bodies.encode_plain(attributes.obj)
        plugins(attributes)
        if bodies.encode_plain(attributes.obj) != seen:
            turn.change()
        if turn.again:
            await self._turn(attributes, found.mutating, turn, until, first=False)
        _keep_owners(attributes, owners)
        return called

    async def _turn(
        self,
        attributes: Attributes,
        invocations: Iterable[Invocation],
        turn: _Round,
        until: float,
        *,
        first: bool,
    ) -> bool:
        called = False
        for invocation in invocations:
            hook = invocation.hook
            if not first and hook not in turn.again:
                continue
            if not await self._wanted(attributes, invocation):
                continue
            called = True
            try:
                verdict = await self._ask(attributes, invocation, until, mutating=True)
                changed = await self._patch(attributes, invocation, verdict)
            except _Failed as failure:
                self._failed(hook, failure)
            else:
                if changed:
                    turn.change()
            if hook.again:
                turn.asked.add(hook)
        return called

    async def validate(self, attributes: Attributes) -> None:
        """Let validating webhooks refuse it."""
        found = self._concerned(attributes.served, attributes.operation, attributes.subresource)
        wanted = [one for one in found.validating if await self._wanted(attributes, one)]
        if not wanted:
            return
        until = asyncio.get_running_loop().time() + REQUEST_SECONDS
        outcomes = await asyncio.gather(
            *(self._judge(attributes, one, until) for one in wanted), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, WebhookVerdict):
                webhook_review.warn(attributes.warnings, outcome.warnings)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _judge(
        self, attributes: Attributes, invocation: Invocation, until: float
    ) -> WebhookVerdict | None:
        try:
            verdict = await self._ask(attributes, invocation, until, mutating=False)
        except _Failed as failure:
            self._failed(invocation.hook, failure)
            return None
        return verdict

    def _failed(self, hook: Hook, failure: _Failed) -> None:
        text = f'failed calling webhook "{hook.name}": {failure}'
        if not hook.ignores_failure:
            raise status_errors.internal(text) from None
        _log.warning("webhook skipped", webhook=hook.name, why=text)

    async def _wanted(self, attributes: Attributes, invocation: Invocation) -> bool:
        hook = invocation.hook
        if not hook.wants(
            namespace_labels=self._namespace_labels(attributes, hook),
            obj=_faced(attributes, attributes.obj),
            old=_faced(attributes, attributes.old),
        ):
            return False
        if not hook.spec.match_conditions:
            return True
        from zonewise.embedded.machinery.cel.match_conditions import ConditionFailed

        try:
            return hook.conditions.hold(
                request=webhook_review.request(attributes, invocation.viewed, ""),
                object=await _shown(attributes, invocation, attributes.obj),
                old_object=await _shown(attributes, invocation, attributes.old),
            )
        except ConditionFailed as error:
            if hook.ignores_failure:
                _log.warning("webhook skipped", webhook=hook.name, why=str(error))
                return False
            resource = attributes.served.kind.resource
            raise status_errors.forbidden(resource, attributes.name, str(error)) from None

    def _namespace_labels(self, attributes: Attributes, hook: Hook) -> dict[str, str] | None:
        """Labels for the namespace selector; None where it has no say."""
        namespace = webhook_review.place(attributes)
        if not namespace or not hook.namespaces.requirements:
            return None
        if attributes.served.storage == "/namespaces" and not attributes.subresource:
            obj = attributes.obj or attributes.old
            labels = (obj or {}).get("metadata", {}).get("labels")
            return dict(labels or {})
        entry = self._state.latest("/namespaces", "", namespace)
        if entry is None:
            raise status_errors.not_found(Namespace.resource, namespace)
        return dict(entry.labels)

    async def _ask(
        self, attributes: Attributes, invocation: Invocation, until: float, *, mutating: bool
    ) -> WebhookVerdict:
        hook = invocation.hook
        if attributes.dry_run and not hook.dry_runs:
            raise status_errors.bad_request(
                f'admission webhook "{hook.name}" does not support dry run'
            )
        uid = self._new_uid()
        try:
            version = webhook_review.version_of(hook.spec.admission_review_versions)
        except BadAnswer as error:
            raise _Failed(f"could not create admission objects: {error}") from None
        body = webhook_review.encode(
            webhook_review.request(attributes, invocation.viewed, uid),
            obj=await _shown(attributes, invocation, attributes.obj),
            old=await _shown(attributes, invocation, attributes.old),
            version=version,
        )
        left = max(0.0, until - asyncio.get_running_loop().time())
        try:
            answer = await self._caller.ask(
                hook.spec.client_config, body, min(float(hook.seconds), left)
            )
            verdict = webhook_review.read(answer, uid=uid, version=version, mutating=mutating)
        except (Unanswered, Unreadable) as error:
            raise _Failed(f"failed to call webhook: {error}") from None
        except BadAnswer as error:
            raise _Failed(f"received invalid webhook response: {error}") from None
        if not verdict.allowed:
            webhook_review.warn(attributes.warnings, verdict.warnings)
            raise webhook_review.denial(hook.name, verdict.status)
        if mutating:
            webhook_review.warn(attributes.warnings, verdict.warnings)
        return verdict

    async def _patch(
        self, attributes: Attributes, invocation: Invocation, verdict: WebhookVerdict
    ) -> bool:
        """Carry out a webhook's patch; True if the object is another one now."""
        if not verdict.patch:
            return False
        try:
            patch = jsontext.read(verdict.patch, finite=True)
        except NotJSON as error:
            raise _Failed(f"received undecodable patch in webhook response: {error}") from None
        if not patch and not isinstance(patch, dict):
            return False
        if not isinstance(patch, list):
            raise _Failed(
                "received undecodable patch in webhook response: a JSON patch is a list of"
                " operations"
            )
        obj = attributes.obj
        if obj is None:
            raise status_errors.internal(
                f'admission webhook "{invocation.hook.name}" attempted to modify the object, which'
                " is not supported for this operation"
            )
        if verdict.patch_type != webhook_review.JSON_PATCH:
            raise _Failed(f'unsupported patch type "{verdict.patch_type}"')
        before = await _shown(attributes, invocation, obj)
        assert before is not None
        try:
            after = jsonpatch.apply(before, patch, lenient=True)
        except ParseError as error:
            raise status_errors.internal(str(error)) from None
        if attributes.view is not None:
            if not isinstance(after, dict):
                raise status_errors.internal("a webhook's patch left no object")
            attributes.obj = attributes.view.take(obj, after)
        else:
            after = _accepted(invocation.viewed, after)
            attributes.obj = await _seen(invocation.viewed, attributes.served, after)
        return bool(after != before)


def _keep_owners(attributes: Attributes, before: Any) -> None:
    """Field ownership that a webhook broke is what it was."""
    after = managed_fields.entries_of(attributes.obj)
    if attributes.obj is None or not after or after == before:
        return
    try:
        managed_fields.decode(after, trusted=False)
    except ParseError as error:
        webhook_review.warn(attributes.warnings, [f"{BROKEN_OWNERS}: {error}"])
        attributes.obj["metadata"]["managedFields"] = before


def _faced(attributes: Attributes, obj: Obj | None) -> Obj | None:
    return attributes.view.show(obj) if attributes.view and obj is not None else obj


async def _shown(attributes: Attributes, invocation: Invocation, obj: Obj | None) -> Obj | None:
    """An object as a webhook is to see it."""
    if attributes.view:
        return _faced(attributes, obj)
    return await _seen(attributes.served, invocation.viewed, obj)


async def _seen(served: Served, wanted: Served, obj: Obj | None) -> Obj | None:
    """An object of one version as another version shows it."""
    if obj is None or served is wanted:
        return obj
    if served.versions is not None:
        api_version = wanted.kind.resource.api_version
        return await served.versions.convert(bodies.copied(obj), api_version)
    stored = await bodies.to_storage(served, bodies.copied(obj))
    if wanted.conversion:
        wanted.conversion.from_storage(stored)
    stored["apiVersion"] = wanted.kind.resource.api_version
    stored["kind"] = wanted.kind.resource.kind
    return stored


def _accepted(served: Served, value: Any) -> Obj:
    """A webhook's result, as an object of its kind: without unknown fields, with defaults."""
    resource = served.kind.resource
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        raise status_errors.internal("a webhook's patch left no object")
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    for key, wanted in named.items():
        if served.custom or value.get(key) is not None:
            have = value.get(key)
            if have != wanted:
                raise status_errors.plain_failure(
                    f"a webhook's patch made {have!r} of the {key} {wanted!r}"
                )
    kind = served.kind.type
    copy = bodies.copied(value) | named
    try:
        if served.custom:
            decoded = validation.accept_custom(kind, kind.fields["metadata"], copy, strict=False)
        else:
            decoded = validation.accept(kind, copy, strict=False)
    except WrongType as error:
        raise status_errors.internal(str(error)) from None
    obj: Obj = decoded.value
    bodies.fill_defaults(served, obj)
    return obj
