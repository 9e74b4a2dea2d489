"""Getting, listing and watching.

A list is a page of the committed state, now or at an earlier version; a continue token carries that
version and the last key, so all pages show one moment. A watch is a stream of frames that begins
after a version, or with the present objects. Both take selectors; an unknown field in one is an
error, not an empty result.

Where a webhook converts what is stored, it is called before the answer is built: for one object,
for the objects of a page or, as selectors apply to the shown version and not the stored one, for
all that they select from. A watch converts pending events, in order; while the webhook fails it
waits, and continues when the webhook works again.
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
from zonewise.embedded.apiserver.codec.output import Form, Forms, Whole
from zonewise.embedded.apiserver.conversion.versions import Unconverted
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, encode_status
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.collection import Matches
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.apiserver.store.history import Expired
from zonewise.embedded.apiserver.store.state import State, TooNew
from zonewise.embedded.apiserver.store.watchers import SLACK, Watcher
from zonewise.embedded.machinery.schema.kinds import Kind
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

FRESH_SECONDS = 3.0
BOOKMARK_SECONDS = 60.0
WATCH_SECONDS = 1800
RECENT_SECONDS = 1.0
PATIENCE_SECONDS = 1.0
LARGE = 256 * 1024
MATCHES = ("", "Exact", "NotOlderThan")

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
        self._computed = computed  # kinds that are not stored, by where they would be
        self._forms = forms
        self._rng = rng
        # Clients that lost their watches list all at once: they get the same bytes.
        self._recent: tuple[tuple[Form, str, int] | None, bytes] = (None, b"")

    async def get(self, call: Call, served: Served, target: Target) -> Answer:
        """One object."""
        form = self._form(call, served)
        version = call.query.get("resourceVersion", "")
        if version:
            _watch_version(version)  # unlike a list, a get has no kinder word for nonsense
        if served.storage in self._computed:
            for one in self._computed[served.storage]():
                if one.name == target.name:
                    return self.answer(call, form.one(one))
            raise status_errors.not_found(singular(served.kind), target.name)
        await self._fresh(version)
        entry = self._state.get(served.storage, target.namespace, target.name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        await self.convert(served, [entry])
        return self.answer(call, form.one(entry))

    async def list(self, call: Call, served: Served, target: Target) -> Answer:
        """The objects of a kind, or a page of them."""
        form = self._form(call, served)
        _check_options(call, watch=False)
        matches = self.matches(call, served, target)
        if served.storage in self._computed:
            found = self._computed[served.storage]()
            chosen = [one for one in found if matches is None or matches(one)]
            return self.answer(call, form.many(chosen, {}))
        limit = max(call.number("limit", signed=True) or 0, 0)
        if call.query.get("resourceVersion") == "0":
            limit = 0  # any state will do, and a real server's cache gives all of it
        token = call.query.get("continue", "")
        if token:
            return await self._next_page(call, served, target, form, matches, limit, token)
        at = None
        version = call.query.get("resourceVersion", "")
        if call.query.get("resourceVersionMatch") == "Exact" or (
            limit and version not in {"", "0"}
        ):
            at = _version(version)
        else:
            await self._fresh(version)
        same = (form, target.namespace, self._state.visible_rv)
        plain = isinstance(form, Whole) and matches is None and not limit and at is None
        if plain and same == self._recent[0]:
            return self.answer(call, self._recent[1])
        try:
            if matches is not None:
                await self.selectable(served, target, at)
            page = self._state.list(
                served.storage, target.namespace, matches=matches, limit=limit, at=at
            )
        except Expired as error:
            raise status_errors.expired(
                f"The resourceVersion for the provided list is too old. ({error})"
            ) from None
        except TooNew as error:
            raise status_errors.too_far_ahead(error.rv, error.current) from None
        await self.convert(served, page.entries)
        body = form.many(page.entries, _meta(page.rv, page.last, page.remaining))
        if plain and len(body) > LARGE:
            self._recent = (same, body)
            asyncio.get_running_loop().call_later(RECENT_SECONDS, self._forget, body)
        return self.answer(call, body)

    async def convert(self, served: Served, entries: Sequence[Entry]) -> None:
        """Have entries at hand in the version they are served in."""
        if served.versions is not None:
            await served.versions.fill(entries, served.kind.resource.api_version)

    async def selectable(self, served: Served, target: Target, at: int | None = None) -> None:
        """Have everything converted that a selector could select; more may be added meanwhile."""
        if served.versions is None or not served.versions.asks:
            return
        before: list[Entry] = []
        while True:
            page = self._state.list(served.storage, target.namespace, at=at).entries
            if page == before:
                return
            await self.convert(served, page)
            before = page

    def _forget(self, body: bytes) -> None:
        if self._recent[1] is body:
            self._recent = (None, b"")

    async def watch(self, call: Call, served: Served, target: Target) -> Answer:
        """A stream of what happens."""
        form = self._form(call, served)
        _check_options(call, watch=True)
        matches = self.matches(call, served, target)
        version = call.query.get("resourceVersion", "")
        marks = call.flag("allowWatchBookmarks")
        asked = call.query.get("sendInitialEvents")
        initial = call.flag("sendInitialEvents") if asked is not None else version in {"", "0"}
        name = target.name or self._single(call)
        if asked is not None and initial:
            await self._fresh(version)
        try:
            watcher = self._state.watch(
                served.storage,
                target.namespace,
                name if target.namespace or not served.kind.resource.namespaced else "",
                since=None if initial or version in {"", "0"} else _watch_version(version),
                initial=initial,
                initial_end=(lambda rv: form.mark(rv, ended=True)) if asked and marks else None,
                matches=matches,
                representation=form,
            )
        except Expired as error:
            return Answer(stream=_gone(str(error)))
        except TooNew as error:
            raise status_errors.too_far_ahead(error.rv, error.current) from None
        asks = served.versions is not None and served.versions.asks
        seconds = call.number("timeoutSeconds") or self._rng.uniform(1, 2) * WATCH_SECONDS
        return Answer(
            stream=self._stream(served, watcher, form, seconds, marks),
            on_end=lambda stop: setattr(watcher, "on_close", stop),
            push_to=(lambda sink: setattr(watcher, "sink", sink)) if not asks else None,
            content_type="application/json;stream=watch"
            if "stream=watch" in call.headers.get("accept", "")
            else "application/json",
        )

    def answer(self, call: Call, body: bytes, status: int = 200) -> Answer:
        """A body in the format the client reads."""
        if negotiation.wanted(call.headers.get("accept", "")).yaml:
            return Answer(status=status, body=bodies.as_yaml(body), content_type="application/yaml")
        return Answer(status=status, body=body)

    async def shown(self, call: Call, served: Served, entry: Entry, status: int = 200) -> Answer:
        """An object as the answer to a write."""
        await self.convert(served, [entry])
        return self.answer(call, self._form(call, served).one(entry), status)

    async def listed(self, call: Call, served: Served, entries: Sequence[Entry]) -> Answer:
        """Objects as the answer to a write that concerned many."""
        await self.convert(served, entries)
        meta = _meta(self._state.visible_rv, None, None)
        return self.answer(call, self._form(call, served).many(entries, meta))

    def matches(self, call: Call, served: Served, target: Target) -> Matches | None:
        """What the selectors of a request select; None where they select everything."""
        tests: list[Matches] = []
        labels = call.query.get("labelSelector", "")
        fields = call.query.get("fieldSelector", "")
        try:
            if labels:
                by_label = selector.parse(labels)
                tests.append(lambda entry: by_label.matches(bodies.view(served, entry).labels))
            if fields:
                tests.append(_by_fields(served, fieldselector.parse(fields)))
        except ParseError as error:
            raise status_errors.bad_request(str(error)) from None
        if target.name:
            tests.append(lambda entry: entry.name == target.name)
        if not tests:
            return None
        if len(tests) == 1:
            return tests[0]
        return lambda entry: all(test(entry) for test in tests)

    def _single(self, call: Call) -> str:
        fields = call.query.get("fieldSelector", "")
        return (fieldselector.parse(fields).exact("metadata.name") or "") if fields else ""

    def _form(self, call: Call, served: Served) -> Form:
        wanted = negotiation.wanted(call.headers.get("accept", ""))
        return self._forms.of(served, wanted, call.query.get("includeObject", ""))

    async def _next_page(
        self,
        call: Call,
        served: Served,
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
        at: int | None = start.rv if start.rv > 0 else None
        try:
            if matches is not None:
                await self.selectable(served, target, at)
            page = self._state.list(
                served.storage,
                target.namespace,
                matches=matches,
                limit=limit,
                after=start.start,
                at=at,
            )
        except Expired:
            fresh = _write_token(-1, start.start)
            raise status_errors.expired_continue(fresh) from None
        except TooNew as error:
            raise status_errors.bad_request(f"invalid continue token: {error}") from None
        await self.convert(served, page.entries)
        return self.answer(call, form.many(page.entries, _meta(page.rv, page.last, page.remaining)))

    async def _fresh(self, version: str) -> None:
        if version in {"", "0"}:
            return
        wanted = _version(version)
        try:
            await self._state.reach(wanted, FRESH_SECONDS)
        except TooNew as error:
            raise status_errors.too_far_ahead(error.rv, error.current) from None

    async def _stream(
        self, served: Served, watcher: Watcher, form: Form, seconds: float, marks: bool
    ) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        pause = BOOKMARK_SECONDS * self._rng.uniform(0.75, 1.0)
        mark_at = loop.time() + pause
        try:
            while True:
                now = loop.time()
                limit = min(end, mark_at) if marks else end
                try:
                    chunk = await watcher.next(max(limit - now, 0.0))
                except Unconverted:
                    try:
                        await self.convert(served, watcher.ahead())
                    except ApiError as error:
                        _log.info("watch queued", kind=served.storage, why=str(error))
                        await asyncio.sleep(max(min(PATIENCE_SECONDS, end - loop.time()), 0.0))
                        if loop.time() + SLACK >= end:
                            return
                    continue
                if chunk is None:
                    return
                if chunk:
                    yield chunk
                now = loop.time() + SLACK
                if marks and now >= min(mark_at, end):
                    mark_at = now + pause
                    if watcher.progress:
                        yield form.mark(watcher.progress, ended=False)
                if now >= end:
                    return
        finally:
            watcher.close()


def singular(kind: Kind) -> Resource:
    """A kind under its singular name, where a real server does not use its plural."""
    return replace(kind.resource, plural=kind.singular)


def _by_fields(served: Served, wanted: fieldselector.FieldSelector) -> Matches:
    known = served.rules.selectable
    for term in wanted.terms:
        if term.field not in {"metadata.name", "metadata.namespace"} and term.field not in known:
            raise status_errors.bad_request(f"field label not supported: {term.field}")
    extract: Callable[[bytes], dict[str, str]] = _extractor(served)

    def matches(entry: Entry) -> bool:
        fields = {"metadata.name": entry.name, "metadata.namespace": entry.namespace}
        if known:
            fields.update(bodies.view(served, entry).selectable(served.rules, extract))
        return wanted.matches(fields)

    return matches


def _extractor(served: Served) -> Callable[[bytes], dict[str, str]]:
    return lambda raw: served.rules.fields(bodies.decode_stored(raw))


def _check_options(call: Call, *, watch: bool) -> None:
    query = call.query
    for name in ("limit", "timeoutSeconds"):
        call.number(name, signed=True)
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    found: list[StatusCause] = []
    if "sendInitialEvents" in query:
        if not watch:
            found.append(
                field_errors.forbidden(
                    "sendInitialEvents", "sendInitialEvents is forbidden for list"
                )
            )
        elif match != "NotOlderThan":
            text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            found.append(field_errors.forbidden("resourceVersionMatch", text))
            if match:
                known = ("NotOlderThan",)
                found.append(field_errors.unsupported("resourceVersionMatch", match, known))
    elif match:
        if watch:
            text = (
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
            found.append(field_errors.forbidden("resourceVersionMatch", text))
            if match != "NotOlderThan":
                known = ("NotOlderThan",)
                found.append(field_errors.unsupported("resourceVersionMatch", match, known))
        elif not version:
            text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            found.append(field_errors.forbidden("resourceVersionMatch", text))
        elif match not in MATCHES:
            found.append(field_errors.unsupported("resourceVersionMatch", match, MATCHES))
        elif match == "Exact" and version == "0":
            text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            found.append(field_errors.forbidden("resourceVersionMatch", text))
        elif query.get("continue"):
            text = "resourceVersionMatch is forbidden when continue is provided"
            found.append(field_errors.forbidden("resourceVersionMatch", text))
    if watch and query.get("continue"):
        text = "resourceVersionMatch is forbidden when continue is provided"
        found.append(field_errors.forbidden("resourceVersionMatch", text))
    if found:
        raise status_errors.invalid_options("ListOptions", found)


def _version(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise status_errors.bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}":'
            f' strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def _watch_version(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise status_errors.plain_failure(
            f'resourceVersion: Invalid value: "{text}":'
            f' strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def _meta(rv: int, last: str | None, remaining: int | None) -> Obj:
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


async def _gone(message: str) -> AsyncGenerator[bytes, None]:
    status = encode_status(status_errors.expired(message).status)
    yield b'{"type":"ERROR","object":%b}\n' % status
