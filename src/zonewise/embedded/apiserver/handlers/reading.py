"""Getting, listing and watching.

A list is a page of the committed state, now or at an earlier version; a continue token has that
version and the last key, so all pages are of one version. A watch is a stream of frames that begins
after a version, or with the present objects. Both take selectors; an unknown field in one is an
error, not an empty result.

If a webhook converts stored objects, it is called before the answer is built: for one object, for
the objects of a page or, as selectors apply to the served version and not the stored one, for all
that they select from. A watch converts pending events, in order; while the webhook fails it waits,
and continues when the webhook works again.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from zonewise.api import field_errors
from zonewise.api.errors import ApiError, ParseError, StatusCause
from zonewise.api.resource import Resource
from zonewise.api.values import fieldselector, selector
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.codec.output import Form, Forms, FullObject
from zonewise.embedded.apiserver.conversion.versions import Unconverted
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, encode_status
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.collection import Matches
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.apiserver.store.history import Expired
from zonewise.embedded.apiserver.store.state import State, VersionTooLarge
from zonewise.embedded.apiserver.store.watchers import TIMER_SLACK, Watcher
from zonewise.embedded.machinery.schema.kinds import Kind
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

VERSION_WAIT_SECONDS = 3.0
BOOKMARK_SECONDS = 60.0
WATCH_SECONDS = 1800
RECENT_SECONDS = 1.0
CONVERSION_RETRY_SECONDS = 1.0
SHARED_BODY_BYTES = 256 * 1024
VERSION_MATCHES = ("", "Exact", "NotOlderThan")

_log = logger("reading")


class _Token(msgspec.Struct, omit_defaults=True):
    v: str
    rv: int
    start: str


class Reader:
    """Answers reads."""

    def __init__(
        self,
        *,
        state: State,
        forms: Forms,
        rng: random.Random,
        computed: Mapping[str, Callable[[], Sequence[Entry]]],
    ) -> None:
        self._state = state
        self._computed = computed  # entries of kinds that are not stored, by storage
        self._forms = forms
        self._rng = rng
        # Clients that lost their watches all list at once: they get the same bytes.
        self._recent: tuple[tuple[Form, str, int] | None, bytes] = (None, b"")

    async def get(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """One object."""
        form = self._form(call, served)
        version = call.query.get("resourceVersion", "")
        if version:
            _parse_watch_version(
                version
            )  # unlike a list, a get refuses malformed versions with a 500
        if served.storage in self._computed:
            for computed in self._computed[served.storage]():
                if computed.name == target.name:
                    return self.answer(call, form.encode(computed))
            raise status_errors.not_found(singular_resource(served.kind), target.name)
        await self._wait_for_version(version)
        entry = self._state.get(served.storage, target.namespace, target.name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        await self.convert(served, [entry])
        return self.answer(call, form.encode(entry))

    async def list(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """The objects of a kind, or a page of them."""
        form = self._form(call, served)
        _check_options(call, watch=False)
        matches = self.build_matcher(call, served, target)
        if served.storage in self._computed:
            computed = self._computed[served.storage]()
            selected = [entry for entry in computed if matches is None or matches(entry)]
            return self.answer(call, form.encode_list(selected, {}))
        limit = max(call.number("limit", signed=True) or 0, 0)
        if call.query.get("resourceVersion") == "0":
            limit = 0  # any version is allowed, and a real server's cache then ignores the limit
        token = call.query.get("continue", "")
        if token:
            return await self._next_page(call, served, target, form, matches, limit, token)
        exact_rv = None
        version = call.query.get("resourceVersion", "")
        if call.query.get("resourceVersionMatch") == "Exact" or (
            limit and version not in {"", "0"}
        ):
            exact_rv = _parse_version(version)
        else:
            await self._wait_for_version(version)
        list_key = (form, target.namespace, self._state.visible_rv)
        is_plain = (
            isinstance(form, FullObject) and matches is None and not limit and exact_rv is None
        )
        if is_plain and list_key == self._recent[0]:
            return self.answer(call, self._recent[1])
        try:
            if matches is not None:
                await self.convert_selectable(served, target, exact_rv)
            page = self._state.list(
                served.storage, target.namespace, matches=matches, limit=limit, rv_at=exact_rv
            )
        except Expired as error:
            raise status_errors.expired(
                f"The resourceVersion for the provided list is too old. ({error})"
            ) from None
        except VersionTooLarge as error:
            raise status_errors.version_too_large(error.rv, error.current) from None
        await self.convert(served, page.entries)
        body = form.encode_list(page.entries, _list_meta(page.rv, page.last, page.remaining))
        if is_plain and len(body) > SHARED_BODY_BYTES:
            self._recent = (list_key, body)
            asyncio.get_running_loop().call_later(RECENT_SECONDS, self._drop_recent, body)
        return self.answer(call, body)

    async def convert(self, served: ServedKind, entries: Sequence[Entry]) -> None:
        """Convert entries to the served version, if a webhook is needed."""
        if served.versions is not None:
            await served.versions.convert_entries(entries, served.kind.resource.api_version)

    async def convert_selectable(
        self, served: ServedKind, target: Target, exact_rv: int | None = None
    ) -> None:
        """Convert everything that a selector could select; more may be added meanwhile."""
        if served.versions is None or not served.versions.uses_webhook:
            return
        converted: list[Entry] = []
        while True:
            page = self._state.list(served.storage, target.namespace, rv_at=exact_rv).entries
            if page == converted:
                return
            await self.convert(served, page)
            converted = page

    def _drop_recent(self, body: bytes) -> None:
        if self._recent[1] is body:
            self._recent = (None, b"")

    async def watch(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """A stream of events."""
        form = self._form(call, served)
        _check_options(call, watch=True)
        matches = self.build_matcher(call, served, target)
        version = call.query.get("resourceVersion", "")
        bookmarks = call.flag("allowWatchBookmarks")
        initial_events = call.query.get("sendInitialEvents")
        initial = (
            call.flag("sendInitialEvents") if initial_events is not None else version in {"", "0"}
        )
        name = target.name or self._selected_name(call)
        if initial_events is not None and initial:
            await self._wait_for_version(version)
        try:
            watcher = self._state.watch(
                served.storage,
                target.namespace,
                name if target.namespace or not served.kind.resource.namespaced else "",
                since=None if initial or version in {"", "0"} else _parse_watch_version(version),
                initial=initial,
                initial_end=(lambda rv: form.encode_bookmark(rv, ended=True))
                if initial_events and bookmarks
                else None,
                matches=matches,
                representation=form,
            )
        except Expired as error:
            return Answer(stream=_expired_stream(str(error)))
        except VersionTooLarge as error:
            raise status_errors.version_too_large(error.rv, error.current) from None
        converts = served.versions is not None and served.versions.uses_webhook
        seconds = call.number("timeoutSeconds") or self._rng.uniform(1, 2) * WATCH_SECONDS
        return Answer(
            stream=self._stream(served, watcher, form, seconds, bookmarks),
            on_end=lambda stop: setattr(watcher, "on_close", stop),
            push_to=(lambda sink: setattr(watcher, "sink", sink)) if not converts else None,
            content_type="application/json;stream=watch"
            if "stream=watch" in call.headers.get("accept", "")
            else "application/json",
        )

    def answer(self, call: Call, body: bytes, status: int = 200) -> Answer:
        """An answer in the format that the client accepts."""
        if negotiation.negotiate(call.headers.get("accept", "")).yaml:
            return Answer(
                status=status, body=bodies.encode_yaml(body), content_type="application/yaml"
            )
        return Answer(status=status, body=body)

    async def answer_object(
        self, call: Call, served: ServedKind, entry: Entry, status: int = 200
    ) -> Answer:
        """An object as the answer to a write."""
        await self.convert(served, [entry])
        return self.answer(call, self._form(call, served).encode(entry), status)

    async def answer_list(self, call: Call, served: ServedKind, entries: Sequence[Entry]) -> Answer:
        """Objects as the answer to a write of many."""
        await self.convert(served, entries)
        meta = _list_meta(self._state.visible_rv, None, None)
        return self.answer(call, self._form(call, served).encode_list(entries, meta))

    def build_matcher(self, call: Call, served: ServedKind, target: Target) -> Matches | None:
        """The predicate of a request's selectors; None if they select everything."""
        tests: list[Matches] = []
        labels = call.query.get("labelSelector", "")
        fields = call.query.get("fieldSelector", "")
        try:
            if labels:
                by_label = selector.parse(labels)
                tests.append(
                    lambda entry: by_label.matches(bodies.converted_view(served, entry).labels)
                )
            if fields:
                tests.append(_build_field_matcher(served, fieldselector.parse(fields)))
        except ParseError as error:
            raise status_errors.bad_request(str(error)) from None
        if target.name:
            tests.append(lambda entry: entry.name == target.name)
        if not tests:
            return None
        if len(tests) == 1:
            return tests[0]
        return lambda entry: all(test(entry) for test in tests)

    def _selected_name(self, call: Call) -> str:
        fields = call.query.get("fieldSelector", "")
        return (fieldselector.parse(fields).exact("metadata.name") or "") if fields else ""

    def _form(self, call: Call, served: ServedKind) -> Form:
        format = negotiation.negotiate(call.headers.get("accept", ""))
        return self._forms.get(served, format, call.query.get("includeObject", ""))

    async def _next_page(
        self,
        call: Call,
        served: ServedKind,
        target: Target,
        form: Form,
        matches: Matches | None,
        limit: int,
        token: str,
    ) -> Answer:
        if call.query.get("resourceVersion", "") not in {"", "0"}:
            raise status_errors.bad_request(
                "specifying resource version is not allowed when using continue"
            )
        start = _read_token(token)
        exact_rv: int | None = start.rv if start.rv > 0 else None
        try:
            if matches is not None:
                await self.convert_selectable(served, target, exact_rv)
            page = self._state.list(
                served.storage,
                target.namespace,
                matches=matches,
                limit=limit,
                after=start.start,
                rv_at=exact_rv,
            )
        except Expired:
            fresh = _write_token(-1, start.start)
            raise status_errors.expired_continue(fresh) from None
        except VersionTooLarge as error:
            raise status_errors.bad_request(f"invalid continue token: {error}") from None
        await self.convert(served, page.entries)
        return self.answer(
            call, form.encode_list(page.entries, _list_meta(page.rv, page.last, page.remaining))
        )

    async def _wait_for_version(self, version: str) -> None:
        if version in {"", "0"}:
            return
        rv = _parse_version(version)
        try:
            await self._state.wait_for_version(rv, VERSION_WAIT_SECONDS)
        except VersionTooLarge as error:
            raise status_errors.version_too_large(error.rv, error.current) from None

    async def _stream(
        self, served: ServedKind, watcher: Watcher, form: Form, seconds: float, bookmarks: bool
    ) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        pause = BOOKMARK_SECONDS * self._rng.uniform(0.75, 1.0)
        bookmark_at = loop.time() + pause
        try:
            while True:
                now = loop.time()
                limit = min(end, bookmark_at) if bookmarks else end
                try:
                    chunk = await watcher.next(max(limit - now, 0.0))
                except Unconverted:
                    try:
                        await self.convert(served, watcher.upcoming_entries())
                    except ApiError as error:
                        _log.info("watch queued", kind=served.storage, why=str(error))
                        await asyncio.sleep(
                            max(min(CONVERSION_RETRY_SECONDS, end - loop.time()), 0.0)
                        )
                        if loop.time() + TIMER_SLACK >= end:
                            return
                    continue
                if chunk is None:
                    return
                if chunk:
                    yield chunk
                now = loop.time() + TIMER_SLACK
                if bookmarks and now >= min(bookmark_at, end):
                    bookmark_at = now + pause
                    if watcher.progress:
                        yield form.encode_bookmark(watcher.progress, ended=False)
                if now >= end:
                    return
        finally:
            watcher.close()


def singular_resource(kind: Kind) -> Resource:
    """A resource with the singular name, where a real server does not use the plural."""
    return replace(kind.resource, plural=kind.singular)


def _build_field_matcher(
    served: ServedKind, field_selector: fieldselector.FieldSelector
) -> Matches:
    selectable = served.rules.selectable
    for term in field_selector.terms:
        if (
            term.field not in {"metadata.name", "metadata.namespace"}
            and term.field not in selectable
        ):
            raise status_errors.bad_request(f"field label not supported: {term.field}")
    extract: Callable[[bytes], dict[str, str]] = _extractor(served)

    def matches(entry: Entry) -> bool:
        fields = {"metadata.name": entry.name, "metadata.namespace": entry.namespace}
        if selectable:
            fields.update(
                bodies.converted_view(served, entry).selectable_fields(served.rules, extract)
            )
        return field_selector.matches(fields)

    return matches


def _extractor(served: ServedKind) -> Callable[[bytes], dict[str, str]]:
    return lambda raw: served.rules.fields(bodies.decode_stored(raw))


def _check_options(call: Call, *, watch: bool) -> None:
    query = call.query
    for name in ("limit", "timeoutSeconds"):
        call.number(name, signed=True)
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    with_continue = "resourceVersionMatch is forbidden when continue is provided"
    errors: list[StatusCause] = []

    def forbid(text: str, field: str = "resourceVersionMatch") -> None:
        errors.append(field_errors.forbidden(field, text))

    def refuse_match(supported: tuple[str, ...]) -> None:
        errors.append(field_errors.unsupported("resourceVersionMatch", match, supported))

    if "sendInitialEvents" in query:
        if not watch:
            forbid("sendInitialEvents is forbidden for list", "sendInitialEvents")
        elif match != "NotOlderThan":
            forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
            if match:
                refuse_match(("NotOlderThan",))
    elif match:
        if watch:
            forbid(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
            if match != "NotOlderThan":
                refuse_match(("NotOlderThan",))
        elif not version:
            forbid("resourceVersionMatch is forbidden unless resourceVersion is provided")
        elif match not in VERSION_MATCHES:
            refuse_match(VERSION_MATCHES)
        elif match == "Exact" and version == "0":
            forbid('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
        elif query.get("continue"):
            forbid(with_continue)
    if watch and query.get("continue"):
        forbid(with_continue)
    if errors:
        raise status_errors.invalid_options("ListOptions", errors)


def _parse_version(text: str) -> int:
    if _is_version(text):
        return int(text)
    raise status_errors.bad_request(f"invalid resource version: {_invalid_version(text)}")


def _parse_watch_version(text: str) -> int:
    if _is_version(text):
        return int(text)
    raise status_errors.server_error(_invalid_version(text))


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _invalid_version(text: str) -> str:
    return (
        f'resourceVersion: Invalid value: "{text}":'
        f' strconv.ParseUint: parsing "{text}": invalid syntax'
    )


def _list_meta(rv: int, last: str | None, remaining: int | None) -> Obj:
    meta: Obj = {"resourceVersion": str(rv)}
    if last is not None:
        meta["continue"] = _write_token(rv, last)
        if remaining:
            meta["remainingItemCount"] = remaining
    return meta


def _write_token(rv: int, last: str) -> str:
    raw = msgspec.json.encode(_Token("meta.k8s.io/v1", rv, last))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read_token(text: str) -> _Token:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        token = msgspec.json.decode(raw, type=_Token)
    except (ValueError, msgspec.DecodeError) as error:
        raise status_errors.bad_request(
            f"invalid continue token: continue key is not valid: {error}"
        ) from None
    if token.v != "meta.k8s.io/v1" or not token.start:
        raise status_errors.bad_request("invalid continue token: continue key is not valid")
    return token


async def _expired_stream(message: str) -> AsyncGenerator[bytes, None]:
    status = encode_status(status_errors.expired(message).status)
    yield b'{"type":"ERROR","object":%b}\n' % status
