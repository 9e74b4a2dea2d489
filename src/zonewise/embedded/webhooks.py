"""Mutating and validating webhooks.

Configurations are compiled when they changed and somebody asks; which webhooks a kind, operation
and subresource concern is then remembered, so a write that concerns none pays for one look into a
dictionary.

Mutating webhooks are asked one after another, each seeing what those before it made. If one changed
the object, the server's own plugins look at it again, and those webhooks that were asked before the
change and want to know are asked a second time: twice at most, however often they change it.
Validating webhooks cannot change anything, so they are asked all at once; of several refusals the
first in order is given. Both read one set of configurations from beginning to end.

All webhooks of one half have ``REQUEST_SECONDS`` together; each has its own timeout within that.
A webhook that cannot be asked refuses the write or is passed over, as its failure policy says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from zonewise.api import jsonpatch, jsontext, managed, validation
from zonewise.api.cel import CompileError
from zonewise.api.conditions import ConditionFailed
from zonewise.api.errors import NotFound, ParseError, Status, StatusDetails
from zonewise.api.jsontext import NotJSON
from zonewise.api.validation import WrongType
from zonewise.embedded import bodies, refusals, webhookreview
from zonewise.embedded.admission import Attributes, Operation
from zonewise.embedded.history import Event
from zonewise.embedded.registry import Registry, Served
from zonewise.embedded.state import State
from zonewise.embedded.webhookcall import Caller, Unanswered
from zonewise.embedded.webhookmatch import EXEMPT, MUTATING, VALIDATING, Hook, compiled, viewed
from zonewise.embedded.webhookreview import BadAnswer, Unreadable, Verdict
from zonewise.runtime.logs import logger

Obj = dict[str, Any]
Key = tuple[Served, str, str]

REQUEST_SECONDS = 60.0
BROKEN_OWNERS = (
    ".metadata.managedFields was in an invalid state after admission; this could be caused by an"
    " outdated mutating admission controller; please fix your requests"
)
_log = logger("webhooks")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A webhook, and the kind as which it wants to see the object."""

    hook: Hook
    viewed: Served


@dataclass(frozen=True, slots=True)
class Concerned:
    """Who may have a say in writes of one kind, operation and subresource."""

    mutating: tuple[Invocation, ...]
    validating: tuple[Invocation, ...]

    def __bool__(self) -> bool:
        return bool(self.mutating or self.validating)


@dataclass(slots=True)
class _Round:
    """Which webhooks were asked before the last change, and which are asked again for it."""

    asked: set[Hook] = field(default_factory=set)
    again: set[Hook] = field(default_factory=set)
    changed: bool = False

    def change(self) -> None:
        """The object is not what those who were asked saw."""
        self.changed = True
        self.again |= self.asked
        self.asked = set()


class _Failed(Exception):
    """A webhook could not be asked."""


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
        self._known: dict[Key, Concerned] = {}
        self._stale = True
        state.listen(self._observe)
        registry.on_change(self._forget)

    async def close(self) -> None:
        """End all connections."""
        await self._caller.close()

    def concern(self, served: Served, operation: Operation, subresource: str) -> bool:
        """Whether any webhook could match."""
        return bool(self._concerned(served, operation, subresource))

    def _observe(self, kind: str, _: Event) -> None:
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

        self._mutating = compiled(raws(MUTATING), mutating=True)
        self._validating = compiled(raws(VALIDATING), mutating=False)
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
        """Let mutating webhooks change the object; True if one was asked."""
        found = self._concerned(attributes.served, attributes.operation, attributes.subresource)
        if not found.mutating:
            return False
        until = asyncio.get_running_loop().time() + REQUEST_SECONDS
        turn = _Round()
        owners = managed.entries_of(attributes.obj)
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
            if not self._wanted(attributes, invocation):
                continue
            called = True
            try:
                verdict = await self._ask(attributes, invocation, until, mutating=True)
                changed = self._patch(attributes, invocation, verdict)
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
        wanted = [one for one in found.validating if self._wanted(attributes, one)]
        if not wanted:
            return
        until = asyncio.get_running_loop().time() + REQUEST_SECONDS
        outcomes = await asyncio.gather(
            *(self._judge(attributes, one, until) for one in wanted), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, Verdict):
                webhookreview.warn(attributes.warnings, outcome.warnings)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _judge(
        self, attributes: Attributes, invocation: Invocation, until: float
    ) -> Verdict | None:
        try:
            verdict = await self._ask(attributes, invocation, until, mutating=False)
        except _Failed as failure:
            self._failed(invocation.hook, failure)
            return None
        return verdict

    def _failed(self, hook: Hook, failure: _Failed) -> None:
        text = f'failed calling webhook "{hook.name}": {failure}'
        if not hook.ignores_failure:
            raise refusals.internal(text) from None
        _log.warning("a webhook is passed over", webhook=hook.name, why=text)

    def _wanted(self, attributes: Attributes, invocation: Invocation) -> bool:
        hook = invocation.hook
        if not hook.wants(
            namespace_labels=self._namespace_labels(attributes, hook),
            obj=_faced(attributes, attributes.obj),
            old=_faced(attributes, attributes.old),
        ):
            return False
        if not hook.spec.match_conditions:
            return True
        try:
            return hook.conditions.hold(
                request=webhookreview.request(attributes, invocation.viewed, ""),
                object=_shown(attributes, invocation, attributes.obj),
                old_object=_shown(attributes, invocation, attributes.old),
            )
        except (CompileError, ConditionFailed) as error:
            if hook.ignores_failure:
                return False
            resource = attributes.served.kind.resource
            raise refusals.forbidden(resource, attributes.name, str(error)) from None

    def _namespace_labels(self, attributes: Attributes, hook: Hook) -> dict[str, str] | None:
        """Labels for the namespace selector; None where it has no say."""
        namespace = webhookreview.place(attributes)
        if not namespace or not hook.namespaces.requirements:
            return None
        if attributes.served.storage == "/namespaces" and not attributes.subresource:
            obj = attributes.obj or attributes.old
            labels = (obj or {}).get("metadata", {}).get("labels")
            return dict(labels or {})
        entry = self._state.latest("/namespaces", "", namespace)
        if entry is None:
            raise NotFound(
                Status(
                    status="Failure",
                    message=f'namespaces "{namespace}" not found',
                    reason="NotFound",
                    details=StatusDetails(name=namespace, kind="namespaces"),
                    code=404,
                )
            )
        return dict(entry.labels)

    async def _ask(
        self, attributes: Attributes, invocation: Invocation, until: float, *, mutating: bool
    ) -> Verdict:
        hook = invocation.hook
        if attributes.dry_run and not hook.dry_runs:
            raise refusals.bad_request(f'admission webhook "{hook.name}" does not support dry run')
        uid = self._new_uid()
        try:
            version = webhookreview.version_of(hook.spec.admission_review_versions)
        except BadAnswer as error:
            raise _Failed(f"could not create admission objects: {error}") from None
        body = webhookreview.encode(
            webhookreview.request(attributes, invocation.viewed, uid),
            obj=_shown(attributes, invocation, attributes.obj),
            old=_shown(attributes, invocation, attributes.old),
            version=version,
        )
        left = max(0.0, until - asyncio.get_running_loop().time())
        try:
            answer = await self._caller.ask(
                hook.spec.client_config, body, min(float(hook.seconds), left)
            )
            verdict = webhookreview.read(answer, uid=uid, version=version, mutating=mutating)
        except (Unanswered, Unreadable) as error:
            raise _Failed(f"failed to call webhook: {error}") from None
        except BadAnswer as error:
            raise _Failed(f"received invalid webhook response: {error}") from None
        if not verdict.allowed:
            webhookreview.warn(attributes.warnings, verdict.warnings)
            raise webhookreview.denial(hook.name, verdict.status)
        if mutating:
            webhookreview.warn(attributes.warnings, verdict.warnings)
        return verdict

    def _patch(self, attributes: Attributes, invocation: Invocation, verdict: Verdict) -> bool:
        """Carry out a webhook's patch; True if the object is another one now."""
        if not verdict.patch:
            return False
        try:
            patch = jsontext.read(verdict.patch)
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
            raise refusals.internal(
                f'admission webhook "{invocation.hook.name}" attempted to modify the object, which'
                " is not supported for this operation"
            )
        if verdict.patch_type != webhookreview.JSON_PATCH:
            raise _Failed(f'unsupported patch type "{verdict.patch_type}"')
        before = _shown(attributes, invocation, obj)
        assert before is not None
        try:
            after = jsonpatch.apply(before, patch, lenient=True)
        except ParseError as error:
            raise refusals.internal(str(error)) from None
        if attributes.face is not None:
            if not isinstance(after, dict):
                raise refusals.internal("a webhook's patch left no object")
            attributes.obj = attributes.face.take(obj, after)
        else:
            after = _accepted(invocation.viewed, after)
            attributes.obj = _seen(invocation.viewed, attributes.served, after)
        return bool(after != before)


def _keep_owners(attributes: Attributes, before: Any) -> None:
    """Field ownership that a webhook broke is what it was."""
    after = managed.entries_of(attributes.obj)
    if attributes.obj is None or not after or after == before:
        return
    try:
        managed.decode(after, trusted=False)
    except ParseError as error:
        webhookreview.warn(attributes.warnings, [f"{BROKEN_OWNERS}: {error}"])
        attributes.obj["metadata"]["managedFields"] = before


def _faced(attributes: Attributes, obj: Obj | None) -> Obj | None:
    return attributes.face.show(obj) if attributes.face and obj is not None else obj


def _shown(attributes: Attributes, invocation: Invocation, obj: Obj | None) -> Obj | None:
    """An object as a webhook is to see it."""
    if attributes.face:
        return _faced(attributes, obj)
    return _seen(attributes.served, invocation.viewed, obj)


def _seen(served: Served, wanted: Served, obj: Obj | None) -> Obj | None:
    """An object of one version as another version shows it."""
    if obj is None or served is wanted:
        return obj
    stored = bodies.to_storage(served, bodies.copied(obj))
    if wanted.conversion:
        wanted.conversion.from_storage(stored)
    stored["apiVersion"] = wanted.kind.resource.api_version
    stored["kind"] = wanted.kind.resource.kind
    return stored


def _accepted(served: Served, value: Any) -> Obj:
    """What a webhook made, as an object of its kind: unknown fields are gone, defaults are set."""
    resource = served.kind.resource
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        raise refusals.internal("a webhook's patch left no object")
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    for key, wanted in named.items():
        if served.custom or value.get(key) is not None:
            have = value.get(key)
            if have != wanted:
                raise refusals.plain_failure(
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
        raise refusals.internal(str(error)) from None
    obj: Obj = decoded.value
    bodies.fill_defaults(served, obj)
    return obj
