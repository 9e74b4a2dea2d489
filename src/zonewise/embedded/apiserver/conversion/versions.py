"""The versions of one custom resource, and the conversion between them.

An object is stored in the storage version at the time of its write; in every other version it is
converted. The stored form is first prepared by its own schema (defaults, unknown fields), then
converted, then pruned by the schema of the other version. With the strategy None a conversion only
changes the apiVersion and is synchronous. With a webhook it is a remote call, so it is done ahead:
``convert_entries`` converts many objects at once and caches each result in its entry, for as long
as that entry exists; ``view_at`` only reads there. If it is missing, ``Unconverted`` is raised with
a function that converts; ``with_conversions`` calls it and tries again.

Concurrent readers of the same entry in the same version share one call. A call has at most
``BATCH`` objects and, but for a single large one, ``BATCH_BYTES`` bytes, so that its response can
be read. A definition that changes gets a new ``Versions``, which uses no result of the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from zonewise.api.errors import ApiError
from zonewise.api.objects.admissionregistration import WebhookClientConfig
from zonewise.embedded.apiserver.conversion import review
from zonewise.embedded.apiserver.conversion.review import BadConversion
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.store.entry import Entry, encode, encoded_prefix
from zonewise.embedded.apiserver.webhooks.caller import WebhookCaller, WebhookCallError
from zonewise.embedded.machinery.crd import custom_resource
from zonewise.embedded.machinery.schema.kinds import Kind

Obj = dict[str, Any]
T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
BATCH = 100
BATCH_BYTES = 1024 * 1024
CACHE_SIZE = 64


class Unconverted(Exception):
    """An object is not converted yet; ``convert`` does it."""

    def __init__(self, convert: Callable[[], Awaitable[None]]) -> None:
        super().__init__("not converted yet")
        self.convert = convert


async def with_conversions(compute: Callable[[], T]) -> T:
    """The result of a computation that may need converted objects; it may run repeatedly."""
    while True:
        try:
            return compute()
        except Unconverted as missing:
            await missing.convert()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionWebhook:
    """The conversion webhook, and the review versions it accepts."""

    config: WebhookClientConfig
    review_versions: tuple[str, ...]
    caller: WebhookCaller
    new_uid: Callable[[], str]


class Versions:
    """All versions of a custom resource, served or not, by apiVersion."""

    def __init__(
        self, *, stored_as: str, kinds: Mapping[str, Kind], webhook: ConversionWebhook | None
    ):
        self.stored_as = stored_as
        self._kinds = kinds
        self._webhook = webhook
        self._prefixes = {
            api_version: encoded_prefix(kind.resource.kind, api_version)
            for api_version, kind in kinds.items()
        }
        self._in_progress: dict[tuple[Entry, str], asyncio.Task[None]] = {}
        self._cache: dict[tuple[str, bytes], bytes] = {}

    @property
    def uses_webhook(self) -> bool:
        """Whether a webhook converts."""
        return self._webhook is not None

    def kind_at(self, api_version: str) -> Kind | None:
        """The kind at a version."""
        return self._kinds.get(api_version)

    def is_current(self, entry: Entry) -> bool:
        """Whether an object is stored in the present storage version."""
        return entry.raw.startswith(self._prefixes[self.stored_as])

    def view_at(self, entry: Entry, api_version: str) -> Entry:
        """An entry in a version: itself, or as a webhook converted it."""
        if self._webhook is None or entry.raw.startswith(self._prefixes[api_version]):
            return entry
        view = (entry.views or {}).get((self, api_version))
        if view is None:
            raise Unconverted(lambda: self.convert_entries([entry], api_version))
        return view

    def convert_stored(self, obj: Obj, api_version: str) -> Obj:
        """A stored object in another version, without a webhook."""
        return self._coerce_to(self._prepare_stored(obj), api_version)

    async def to_storage(self, obj: Obj) -> Obj:
        """An object of any version in the storage version."""
        if obj["apiVersion"] == self.stored_as:
            return obj
        return await self.convert(obj, self.stored_as)

    async def convert(self, obj: Obj, api_version: str) -> Obj:
        """An object of any version in another one."""
        if obj["apiVersion"] == api_version:
            return obj
        if self._webhook is None:
            return self._coerce_to(dict(obj), api_version)
        (converted,) = await self._call_webhook([obj], api_version)
        return converted

    def convert_cached(self, obj: Obj, api_version: str) -> Obj:
        """The same, synchronous, within ``with_conversions``; an empty object stays empty."""
        if self._webhook is None or not obj or obj["apiVersion"] == api_version:
            return self._coerce_to(dict(obj), api_version)
        key = (api_version, msgspec.json.encode(obj))
        cached = self._cache.get(key)
        if cached is None:
            raise Unconverted(lambda: self._fill_cache(key, obj))
        result: Obj = msgspec.json.decode(cached)
        return result

    async def _fill_cache(self, key: tuple[str, bytes], obj: Obj) -> None:
        converted = msgspec.json.encode(await self.convert(obj, key[0]))
        if len(self._cache) >= CACHE_SIZE:
            self._cache.clear()
        self._cache[key] = converted

    async def convert_entries(self, entries: Iterable[Entry], api_version: str) -> None:
        """Convert entries for ``view_at``."""
        if self._webhook is None:
            return
        waiting: dict[asyncio.Task[None], None] = {}
        missing: list[Entry] = []
        for entry in entries:
            if entry.raw.startswith(self._prefixes[api_version]):
                continue
            if (self, api_version) in (entry.views or ()):
                continue
            running = self._in_progress.get((entry, api_version))
            if running is not None:
                waiting[running] = None
            else:
                missing.append(entry)
        for batch in _batches(missing):
            task = asyncio.create_task(self._convert_batch(batch, api_version))
            task.add_done_callback(_consume_exception)  # the waiters may be cancelled
            for entry in batch:
                self._in_progress[entry, api_version] = task
            waiting[task] = None
        for task in waiting:
            await asyncio.shield(task)

    async def _convert_batch(self, entries: Sequence[Entry], api_version: str) -> None:
        try:
            stored = [self._prepare_stored(msgspec.json.decode(entry.raw)) for entry in entries]
            converted = await self._call_webhook(stored, api_version)
            for entry, obj in zip(entries, converted, strict=True):
                views = {key: view for key, view in (entry.views or {}).items() if key[0] is self}
                views[self, api_version] = Entry.decode(encode(obj), entry.rv)
                entry.views = views
        finally:
            for entry in entries:
                self._in_progress.pop((entry, api_version), None)

    async def _call_webhook(self, objects: Sequence[Obj], api_version: str) -> list[Obj]:
        assert self._webhook is not None
        hook = self._webhook
        version = review.version_of(hook.review_versions)
        if version is None:
            raise status_errors.server_error("no supported conversion review versions")
        uid = hook.new_uid()
        body = review.encode(objects, uid=uid, api_version=api_version, version=version)
        try:
            answer = await hook.caller.call(hook.config, body, TIMEOUT_SECONDS)
            converted = review.decode(
                answer, objects, uid=uid, api_version=api_version, version=version
            )
        except WebhookCallError as error:
            raise self._conversion_error(objects[0], f"failed: {error}") from None
        except BadConversion as error:
            raise self._conversion_error(objects[0], str(error)) from None
        return [self._coerce_to(obj, api_version) for obj in converted]

    def _conversion_error(self, obj: Obj, problem: str) -> ApiError:
        kind = f"{obj['apiVersion']}, Kind={obj['kind']}"
        return status_errors.server_error(f"conversion webhook for {kind} {problem}")

    def _prepare_stored(self, obj: Obj) -> Obj:
        """A stored object with defaults and pruning of the present schema of its own version."""
        kind = self._kinds.get(obj["apiVersion"])
        return obj if kind is None else dict(custom_resource.prepare(kind.schema, obj).value)

    def _coerce_to(self, obj: Obj, api_version: str) -> Obj:
        obj["apiVersion"] = api_version
        kind = self._kinds.get(api_version)
        return obj if kind is None else custom_resource.coerce(kind.schema, obj)


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if batch and (len(batch) >= BATCH or size + len(entry.raw) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += len(entry.raw)
    if batch:
        yield batch


def _consume_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
