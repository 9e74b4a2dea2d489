"""Mutating and validating webhooks.

Configurations are compiled at the first write after a change; the webhooks that match a kind,
operation and subresource are then cached, so a write that matches none costs one dictionary lookup.

Mutating webhooks are called one after another; each gets the changes of those before it. If one
changed the object, the built-in plugins run again, and webhooks that were called before the change
and have ``reinvocationPolicy: IfNeeded`` are called a second time: twice at most, however often
they change it. Validating webhooks cannot change anything, so they are called concurrently; of
several refusals the first in order is returned. Both use one set of configurations from beginning
to end.

All mutating webhooks have ``REQUEST_SECONDS`` together, and so have all validating ones; each has
its own timeout within that. If a webhook cannot be called, the write is refused or the webhook
skipped, by its failure policy.
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
    EXEMPT_KINDS,
    MUTATING,
    VALIDATING,
    Hook,
    compile_webhooks,
    matching_kind,
)
from zonewise.embedded.apiserver.admission.webhook_review import (
    InvalidResponse,
    UndecodableResponse,
    WebhookVerdict,
)
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.apiserver.webhooks.caller import WebhookCaller, WebhookCallError
from zonewise.embedded.machinery.decoding import decoder
from zonewise.embedded.machinery.decoding.decoder import WrongType
from zonewise.embedded.machinery.fields import managed_fields
from zonewise.embedded.machinery.patch import jsonpatch
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

REQUEST_SECONDS = 60.0
INVALID_MANAGED_FIELDS = (
    ".metadata.managedFields was in an invalid state after admission; this could be caused by an"
    " outdated mutating admission controller; please fix your requests"
)
_log = logger("webhooks")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A webhook, and the kind in which it gets the object."""

    hook: Hook
    served: ServedKind


@dataclass(frozen=True, slots=True)
class MatchingWebhooks:
    """The webhooks that may match writes of one kind, operation and subresource."""

    mutating: tuple[Invocation, ...]
    validating: tuple[Invocation, ...]

    def __bool__(self) -> bool:
        return bool(self.mutating or self.validating)


@dataclass(slots=True)
class _Reinvocations:
    """Which webhooks were called since the last change, and which are due a second time."""

    called: set[Hook] = field(default_factory=set)
    due: set[Hook] = field(default_factory=set)
    changed: bool = False

    def mark_changed(self) -> None:
        """Note that the object is not what the webhooks called so far got."""
        self.changed = True
        self.due |= self.called
        self.called = set()


class _CallFailed(Exception):
    """A webhook could not be called."""


NO_WEBHOOKS = MatchingWebhooks((), ())


class Webhooks:
    """The webhooks of a cluster."""

    def __init__(
        self, *, state: State, registry: Registry, caller: WebhookCaller, new_uid: Callable[[], str]
    ) -> None:
        self._state = state
        self._registry = registry
        self._caller = caller
        self._new_uid = new_uid
        self._mutating: tuple[Hook, ...] = ()
        self._validating: tuple[Hook, ...] = ()
        self._matching: dict[tuple[ServedKind, str, str], MatchingWebhooks] = {}
        self._stale = True
        self.skip: Callable[[Hook], bool] = lambda _: False
        """Decides which webhooks are never called."""
        state.listen(self._observe)
        registry.on_change(self._clear_matching)

    async def close(self) -> None:
        """End all connections."""
        await self._caller.close()

    def may_match(self, served: ServedKind, operation: Operation, subresource: str) -> bool:
        """Whether any webhook may match."""
        return bool(self._matching_webhooks(served, operation, subresource))

    def _observe(self, kind: str, _: StoreEvent) -> None:
        if kind in {MUTATING, VALIDATING}:
            self._stale = True

    def _clear_matching(self) -> None:
        self._matching.clear()

    def _matching_webhooks(
        self, served: ServedKind, operation: str, subresource: str
    ) -> MatchingWebhooks:
        if self._stale:
            self._compile()
        if not self._mutating and not self._validating:
            return NO_WEBHOOKS
        key = (served, operation, subresource)
        matching = self._matching.get(key)
        if matching is None:
            matching = self._matching[key] = self._find_matching(served, operation, subresource)
        return matching

    def _compile(self) -> None:
        def raws(kind: str) -> Iterable[bytes]:
            return [entry.raw for entry in self._state.list(kind).entries]

        def enabled_hooks(kind: str, *, mutating: bool) -> tuple[Hook, ...]:
            hooks = compile_webhooks(raws(kind), mutating=mutating)
            return tuple(hook for hook in hooks if not self.skip(hook))

        self._mutating = enabled_hooks(MUTATING, mutating=True)
        self._validating = enabled_hooks(VALIDATING, mutating=False)
        self._matching.clear()
        self._stale = False

    def _find_matching(
        self, served: ServedKind, operation: str, subresource: str
    ) -> MatchingWebhooks:
        if served.storage in EXEMPT_KINDS:
            return NO_WEBHOOKS
        equivalents = [other for other in self._registry if other.storage == served.storage]

        def invocations(hooks: Iterable[Hook]) -> tuple[Invocation, ...]:
            return tuple(
                Invocation(hook, matched)
                for hook in hooks
                if (matched := matching_kind(hook, served, operation, subresource, equivalents))
            )

        return MatchingWebhooks(invocations(self._mutating), invocations(self._validating))

    async def mutate(self, attributes: Attributes, plugins: Callable[[Attributes], None]) -> bool:
        """Let mutating webhooks change the object; True if one was called."""
        matching = self._matching_webhooks(
            attributes.served, attributes.operation, attributes.subresource
        )
        if not matching.mutating:
            return False
        deadline = asyncio.get_running_loop().time() + REQUEST_SECONDS
        reinvocations = _Reinvocations()
        managed = managed_fields.entries_of(attributes.obj)
        called = await self._call_mutating(
            attributes, matching.mutating, reinvocations, deadline, first=True
        )
        if not reinvocations.changed:
            return called
        after_webhooks = bodies.encode_plain(attributes.obj)
        plugins(attributes)
        if bodies.encode_plain(attributes.obj) != after_webhooks:
            reinvocations.mark_changed()
        if reinvocations.due:
            await self._call_mutating(
                attributes, matching.mutating, reinvocations, deadline, first=False
            )
        _restore_managed_fields(attributes, managed)
        return called

    async def _call_mutating(
        self,
        attributes: Attributes,
        invocations: Iterable[Invocation],
        reinvocations: _Reinvocations,
        deadline: float,
        *,
        first: bool,
    ) -> bool:
        called = False
        for invocation in invocations:
            hook = invocation.hook
            if not first and hook not in reinvocations.due:
                continue
            if not await self._is_selected(attributes, invocation):
                continue
            called = True
            try:
                verdict = await self._call(attributes, invocation, deadline, mutating=True)
                changed = await self._apply_patch(attributes, invocation, verdict)
            except _CallFailed as failure:
                self._handle_failure(hook, failure)
            else:
                if changed:
                    reinvocations.mark_changed()
            if hook.is_reinvoked:
                reinvocations.called.add(hook)
        return called

    async def validate(self, attributes: Attributes) -> None:
        """Let validating webhooks refuse the write."""
        matching = self._matching_webhooks(
            attributes.served, attributes.operation, attributes.subresource
        )
        invocations = [
            invocation
            for invocation in matching.validating
            if await self._is_selected(attributes, invocation)
        ]
        if not invocations:
            return
        deadline = asyncio.get_running_loop().time() + REQUEST_SECONDS
        outcomes = await asyncio.gather(
            *(
                self._call_validating(attributes, invocation, deadline)
                for invocation in invocations
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, WebhookVerdict):
                webhook_review.add_warnings(attributes.warnings, outcome.warnings)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _call_validating(
        self, attributes: Attributes, invocation: Invocation, deadline: float
    ) -> WebhookVerdict | None:
        try:
            verdict = await self._call(attributes, invocation, deadline, mutating=False)
        except _CallFailed as failure:
            self._handle_failure(invocation.hook, failure)
            return None
        return verdict

    def _handle_failure(self, hook: Hook, failure: _CallFailed) -> None:
        text = f'failed calling webhook "{hook.name}": {failure}'
        if not hook.ignores_failure:
            raise status_errors.internal(text) from None
        _log.warning("webhook skipped", webhook=hook.name, why=text)

    async def _is_selected(self, attributes: Attributes, invocation: Invocation) -> bool:
        hook = invocation.hook
        if not hook.selects(
            namespace_labels=self._namespace_labels(attributes, hook),
            obj=_project(attributes, attributes.obj),
            old=_project(attributes, attributes.old),
        ):
            return False
        if not hook.spec.match_conditions:
            return True
        from zonewise.embedded.machinery.cel.match_conditions import ConditionFailed

        try:
            return hook.conditions.evaluate(
                request=webhook_review.build_request(attributes, invocation.served, ""),
                object=await _object_for(attributes, invocation, attributes.obj),
                old_object=await _object_for(attributes, invocation, attributes.old),
            )
        except ConditionFailed as error:
            if hook.ignores_failure:
                _log.warning("webhook skipped", webhook=hook.name, why=str(error))
                return False
            resource = attributes.served.kind.resource
            raise status_errors.forbidden(resource, attributes.name, str(error)) from None

    def _namespace_labels(self, attributes: Attributes, hook: Hook) -> dict[str, str] | None:
        """Labels for the namespace selector; None if it does not apply."""
        namespace = webhook_review.namespace_of(attributes)
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

    async def _call(
        self, attributes: Attributes, invocation: Invocation, deadline: float, *, mutating: bool
    ) -> WebhookVerdict:
        hook = invocation.hook
        if attributes.dry_run and not hook.supports_dry_run:
            raise status_errors.bad_request(
                f'admission webhook "{hook.name}" does not support dry run'
            )
        uid = self._new_uid()
        try:
            version = webhook_review.version_of(hook.spec.admission_review_versions)
        except InvalidResponse as error:
            raise _CallFailed(f"could not create admission objects: {error}") from None
        body = webhook_review.encode_review(
            webhook_review.build_request(attributes, invocation.served, uid),
            obj=await _object_for(attributes, invocation, attributes.obj),
            old=await _object_for(attributes, invocation, attributes.old),
            version=version,
        )
        remaining = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            answer = await self._caller.call(
                hook.spec.client_config, body, min(float(hook.seconds), remaining)
            )
            verdict = webhook_review.decode_review(
                answer, uid=uid, version=version, mutating=mutating
            )
        except (WebhookCallError, UndecodableResponse) as error:
            raise _CallFailed(f"failed to call webhook: {error}") from None
        except InvalidResponse as error:
            raise _CallFailed(f"received invalid webhook response: {error}") from None
        if not verdict.allowed:
            webhook_review.add_warnings(attributes.warnings, verdict.warnings)
            raise webhook_review.denial_error(hook.name, verdict.status)
        if mutating:
            webhook_review.add_warnings(attributes.warnings, verdict.warnings)
        return verdict

    async def _apply_patch(
        self, attributes: Attributes, invocation: Invocation, verdict: WebhookVerdict
    ) -> bool:
        """Apply a webhook's patch; True if it changed the object."""
        if not verdict.patch:
            return False
        try:
            patch = jsontext.read(verdict.patch, finite=True)
        except NotJSON as error:
            raise _CallFailed(f"received undecodable patch in webhook response: {error}") from None
        if not patch and not isinstance(patch, dict):
            return False
        if not isinstance(patch, list):
            raise _CallFailed(
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
            raise _CallFailed(f'unsupported patch type "{verdict.patch_type}"')
        original = await _object_for(attributes, invocation, obj)
        assert original is not None
        try:
            patched = jsonpatch.apply(original, patch, lenient=True)
        except ParseError as error:
            raise status_errors.internal(str(error)) from None
        if attributes.view is not None:
            if not isinstance(patched, dict):
                raise status_errors.internal("the result of a webhook's patch is not an object")
            attributes.obj = attributes.view.merge(obj, patched)
        else:
            patched = _decode_patched(invocation.served, patched)
            attributes.obj = await _convert(invocation.served, attributes.served, patched)
        return bool(patched != original)


def _restore_managed_fields(attributes: Attributes, original: Any) -> None:
    """Restore managed fields that a webhook made invalid."""
    entries = managed_fields.entries_of(attributes.obj)
    if attributes.obj is None or not entries or entries == original:
        return
    try:
        managed_fields.decode(entries, trusted=False)
    except ParseError as error:
        webhook_review.add_warnings(attributes.warnings, [f"{INVALID_MANAGED_FIELDS}: {error}"])
        attributes.obj["metadata"]["managedFields"] = original


def _project(attributes: Attributes, obj: Obj | None) -> Obj | None:
    return attributes.view.project(obj) if attributes.view and obj is not None else obj


async def _object_for(
    attributes: Attributes, invocation: Invocation, obj: Obj | None
) -> Obj | None:
    """An object as a webhook gets it."""
    if attributes.view:
        return _project(attributes, obj)
    return await _convert(attributes.served, invocation.served, obj)


async def _convert(served: ServedKind, target: ServedKind, obj: Obj | None) -> Obj | None:
    """An object of one version converted to another."""
    if obj is None or served is target:
        return obj
    if served.versions is not None:
        api_version = target.kind.resource.api_version
        return await served.versions.convert(bodies.copy(obj), api_version)
    stored = await bodies.to_storage(served, bodies.copy(obj))
    if target.conversion:
        target.conversion.from_storage(stored)
    stored["apiVersion"] = target.kind.resource.api_version
    stored["kind"] = target.kind.resource.kind
    return stored


def _decode_patched(served: ServedKind, value: Any) -> Obj:
    """A webhook's result, as an object of its kind: without unknown fields, with defaults."""
    resource = served.kind.resource
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        raise status_errors.internal("the result of a webhook's patch is not an object")
    type_meta = {"apiVersion": resource.api_version, "kind": resource.kind}
    for key, expected in type_meta.items():
        if served.custom or value.get(key) is not None:
            actual = value.get(key)
            if actual != expected:
                raise status_errors.server_error(
                    f"a webhook's patch changed {key} from {expected!r} to {actual!r}"
                )
    schema = served.kind.schema
    copy = bodies.copy(value) | type_meta
    try:
        if served.custom:
            decoded = decoder.decode_custom_value(
                schema, schema.fields["metadata"], copy, strict=False
            )
        else:
            decoded = decoder.decode_value(schema, copy, strict=False)
    except WrongType as error:
        raise status_errors.internal(str(error)) from None
    obj: Obj = decoded.value
    bodies.fill_defaults(served, obj)
    return obj
