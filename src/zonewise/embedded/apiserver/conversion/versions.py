"""The versions of one custom resource, and the conversion between them.

An object is stored in the storage version at the time of its write; every other version shows it
converted. The stored form is first brought up to its own schema (defaults, unknown fields), then
converted, then pruned by the wanted version's schema. With the strategy None a conversion only
changes the apiVersion and is synchronous. With a webhook it is a remote call, so it is made ahead:
``fill`` converts many objects at once and keeps each result with its entry, for as long as that
entry exists; ``view`` only looks there. What is missing raises ``Unconverted``, which carries the
call: ``settled`` makes it and tries again.

Concurrent readers of the same entry in the same version share one call. A call has at most
``BATCH`` objects and, but for a single large one, ``BATCH_BYTES`` bytes, so that its answer can be
read. A definition that changes gets another ``Versions``, which uses no result of the one before.
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
from zonewise.embedded.apiserver.store.entry import Entry, encode, prefix
from zonewise.embedded.apiserver.webhooks.caller import Caller, Unanswered
from zonewise.embedded.machinery.crd import custom
from zonewise.embedded.machinery.schema.kinds import Kind

Obj = dict[str, Any]
T = TypeVar("T")

SECONDS = 30.0
BATCH = 100
BATCH_BYTES = 1024 * 1024
REMEMBERED = 64


class Unconverted(Exception):
    """What is looked for is not converted yet."""

    def __init__(self, settle: Callable[[], Awaitable[None]]) -> None:
        super().__init__("not converted yet")
        self.settle = settle


async def settled(compute: Callable[[], T]) -> T:
    """What a computation gives that may look for converted objects; it may be begun repeatedly."""
    while True:
        try:
            return compute()
        except Unconverted as missing:
            await missing.settle()


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The conversion webhook, and the versions of reviews it accepts."""

    config: WebhookClientConfig
    reviews: tuple[str, ...]
    caller: Caller
    new_uid: Callable[[], str]


class Versions:
    """All versions of a custom resource, served or not, by apiVersion."""

    def __init__(self, *, stored_as: str, kinds: Mapping[str, Kind], webhook: Webhook | None):
        self.stored_as = stored_as
        self._kinds = kinds
        self._webhook = webhook
        self._prefixes = {
            api_version: prefix(kind.resource.kind, api_version)
            for api_version, kind in kinds.items()
        }
        self._going: dict[tuple[Entry, str], asyncio.Task[None]] = {}
        self._known: dict[tuple[str, bytes], bytes] = {}

    @property
    def asks(self) -> bool:
        """Whether a webhook converts."""
        return self._webhook is not None

    def of(self, api_version: str) -> Kind | None:
        """The kind at a version."""
        return self._kinds.get(api_version)

    def is_current(self, entry: Entry) -> bool:
        """Whether an object is stored in the version in which it would be today."""
        return entry.raw.startswith(self._prefixes[self.stored_as])

    def view(self, entry: Entry, wanted: str) -> Entry:
        """An entry as a version shows it: itself, or what a webhook made of it."""
        if self._webhook is None or entry.raw.startswith(self._prefixes[wanted]):
            return entry
        found = (entry.views or {}).get((self, wanted))
        if found is None:
            raise Unconverted(lambda: self.fill([entry], wanted))
        return found

    def renamed(self, obj: Obj, wanted: str) -> Obj:
        """A stored object at another version, where a version is no more than a name."""
        return self._as(self._current(obj), wanted)

    async def to_storage(self, obj: Obj) -> Obj:
        """An object of any version in the one that is stored."""
        if obj["apiVersion"] == self.stored_as:
            return obj
        return await self.convert(obj, self.stored_as)

    async def convert(self, obj: Obj, wanted: str) -> Obj:
        """An object of any version at another one."""
        if obj["apiVersion"] == wanted:
            return obj
        if self._webhook is None:
            return self._as(dict(obj), wanted)
        (found,) = await self._ask([obj], wanted)
        return found

    def converted(self, obj: Obj, wanted: str) -> Obj:
        """The same, synchronous, within ``settled``; an empty object stays empty."""
        if self._webhook is None or not obj or obj["apiVersion"] == wanted:
            return self._as(dict(obj), wanted)
        key = (wanted, msgspec.json.encode(obj))
        known = self._known.get(key)
        if known is None:
            raise Unconverted(lambda: self._remember(key, obj))
        found: Obj = msgspec.json.decode(known)
        return found

    async def _remember(self, key: tuple[str, bytes], obj: Obj) -> None:
        made = msgspec.json.encode(await self.convert(obj, key[0]))
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = made

    async def fill(self, entries: Iterable[Entry], wanted: str) -> None:
        """Have ``view`` find all of these."""
        if self._webhook is None:
            return
        waiting: dict[asyncio.Task[None], None] = {}
        asked: list[Entry] = []
        for entry in entries:
            if entry.raw.startswith(self._prefixes[wanted]):
                continue
            if (self, wanted) in (entry.views or ()):
                continue
            going = self._going.get((entry, wanted))
            if going is not None:
                waiting[going] = None
            else:
                asked.append(entry)
        for batch in _batches(asked):
            task = asyncio.create_task(self._view(batch, wanted))
            task.add_done_callback(_seen)  # the waiters may be cancelled
            for entry in batch:
                self._going[entry, wanted] = task
            waiting[task] = None
        for task in waiting:
            await asyncio.shield(task)

    async def _view(self, entries: Sequence[Entry], wanted: str) -> None:
        try:
            stored = [self._current(msgspec.json.decode(entry.raw)) for entry in entries]
            found = await self._ask(stored, wanted)
            for entry, obj in zip(entries, found, strict=True):
                kept = {key: one for key, one in (entry.views or {}).items() if key[0] is self}
                kept[self, wanted] = Entry.of(encode(obj), entry.rv)
                entry.views = kept
        finally:
            for entry in entries:
                self._going.pop((entry, wanted), None)

    async def _ask(self, objects: Sequence[Obj], wanted: str) -> list[Obj]:
        assert self._webhook is not None
        hook = self._webhook
        version = review.version_of(hook.reviews)
        if version is None:
            raise status_errors.plain_failure("no supported conversion review versions")
        uid = hook.new_uid()
        body = review.encode(objects, uid=uid, wanted=wanted, version=version)
        try:
            answer = await hook.caller.ask(hook.config, body, SECONDS)
            found = review.decode(answer, objects, uid=uid, wanted=wanted, version=version)
        except Unanswered as error:
            raise self._failed(objects[0], f"failed: {error}") from None
        except BadConversion as error:
            raise self._failed(objects[0], str(error)) from None
        return [self._as(obj, wanted) for obj in found]

    def _failed(self, obj: Obj, why: str) -> ApiError:
        kind = f"{obj['apiVersion']}, Kind={obj['kind']}"
        return status_errors.plain_failure(f"conversion webhook for {kind} {why}")

    def _current(self, obj: Obj) -> Obj:
        """A stored object as the present schema of its own version has it."""
        kind = self._kinds.get(obj["apiVersion"])
        return obj if kind is None else dict(custom.prepared(kind.type, obj).value)

    def _as(self, obj: Obj, wanted: str) -> Obj:
        obj["apiVersion"] = wanted
        kind = self._kinds.get(wanted)
        return obj if kind is None else custom.coerced(kind.type, obj)


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


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
