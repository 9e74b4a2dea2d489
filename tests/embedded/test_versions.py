"""The versions of a custom resource: calls of the conversion webhook, and cached conversions."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from zonewise.api.errors import ApiError
from zonewise.api.objects.admissionregistration import WebhookClientConfig
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.conversion import versions
from zonewise.embedded.apiserver.conversion.versions import (
    ConversionWebhook,
    Unconverted,
    Versions,
    with_conversions,
)
from zonewise.embedded.apiserver.store.entry import Entry, encode
from zonewise.embedded.apiserver.webhooks.caller import ServiceResolver, WebhookCaller
from zonewise.embedded.machinery.crd.structural import compile_schema
from zonewise.embedded.machinery.schema.kinds import Kind

Obj = dict[str, Any]
GROUP = "example.io"
V1, V2 = f"{GROUP}/v1", f"{GROUP}/v2"
SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class RecordingCaller(WebhookCaller):
    """A webhook in this process that records its calls, and numbers them in the objects."""

    def __init__(self) -> None:
        super().__init__(ServiceResolver(lambda *_: None, lambda *_: (), lambda some: some[0]))
        self.questions: list[int] = []
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, config: WebhookClientConfig, body: bytes, seconds: float) -> bytes:
        """Convert."""
        await self.gate.wait()
        request = msgspec.json.decode(body)["request"]
        self.questions.append(len(request["objects"]))
        converted = [
            item | {"apiVersion": request["desiredAPIVersion"], "question": len(self.questions)}
            for item in request["objects"]
        ]
        result = {"status": "Failure", "message": "no"} if self.broken else {"status": "Success"}
        response = {"uid": request["uid"], "convertedObjects": converted, "result": result}
        return msgspec.json.encode(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "ConversionReview",
                "response": response,
            }
        )


def make_versions(caller: WebhookCaller) -> Versions:
    """Two versions; v1 is stored."""
    numbers = itertools.count()
    kinds = {
        f"{GROUP}/{number}": Kind(
            resource=Resource(GROUP, number, "Door", "doors"),
            singular="door",
            list_kind="DoorList",
            verbs=(),
            build_schema=lambda: compile_schema(SCHEMA),
            custom=True,
            openapi_schema=SCHEMA,
        )
        for number in ("v1", "v2")
    }
    webhook = ConversionWebhook(
        config=WebhookClientConfig(url="https://a.example"),
        review_versions=("v1",),
        caller=caller,
        new_uid=lambda: str(next(numbers)),
    )
    return Versions(stored_as=V1, kinds=kinds, webhook=webhook)


def entry(name: str, **more: Any) -> Entry:
    """A stored Door."""
    obj = {"kind": "Door", "apiVersion": V1, "metadata": {"name": name, "uid": name}, **more}
    return Entry.decode(encode(obj), 7)


def test_the_stored_version_needs_no_conversion() -> None:
    """An entry in its stored version is returned as it is."""
    stored = entry("a")
    assert make_versions(RecordingCaller()).view_at(stored, V1) is stored


async def test_missing_conversions_are_requested() -> None:
    """A missing conversion raises Unconverted, which can be resolved."""
    all_of, stored = make_versions(RecordingCaller()), entry("a")
    with pytest.raises(Unconverted):
        all_of.view_at(stored, V2)
    seen = await with_conversions(lambda: all_of.view_at(stored, V2))
    assert (msgspec.json.decode(seen.raw)["apiVersion"], seen.rv) == (V2, 7)
    assert all_of.view_at(stored, V2) is seen


async def test_concurrent_readers_share_one_conversion() -> None:
    """However many watch a version, its webhook is called once for each object."""
    caller = RecordingCaller()
    caller.gate.clear()
    all_of, entries = make_versions(caller), [entry("a"), entry("b")]
    waiting = [asyncio.create_task(all_of.convert_entries(entries, V2)) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # a cancelled reader does not cancel the request of others
    caller.gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert caller.questions == [2]
    await all_of.convert_entries(entries, V2)
    assert caller.questions == [2]


async def test_calls_have_a_limited_size() -> None:
    """Many objects are split into several calls, and a large object has a call of its own."""
    caller = RecordingCaller()
    large = entry("large", text="x" * versions.BATCH_BYTES)
    small = [entry(f"n{number}") for number in range(2 * versions.BATCH + 1)]
    await make_versions(caller).convert_entries([*small, large], V2)
    assert sorted(caller.questions) == [1, 1, versions.BATCH, versions.BATCH]


async def test_a_failure_is_shared_and_not_cached() -> None:
    """All readers of a failed call get the error; the next reader calls again."""
    caller = RecordingCaller()
    caller.broken = True
    all_of, stored = make_versions(caller), entry("a")
    outcome = await asyncio.gather(
        *(all_of.convert_entries([stored], V2) for _ in range(3)), return_exceptions=True
    )
    message = "conversion webhook for example.io/v1, Kind=Door failed: no"
    assert [str(error) for error in outcome if isinstance(error, ApiError)] == [message] * 3
    caller.broken = False
    await all_of.convert_entries([stored], V2)
    assert all_of.view_at(stored, V2).name == "a"
    assert caller.questions == [1, 1]


async def test_a_changed_definition_drops_conversions() -> None:
    """Objects are converted again after a change of the definition, and old conversions are
    dropped.
    """
    caller = RecordingCaller()
    before, after, stored = make_versions(caller), make_versions(caller), entry("a")
    await before.convert_entries([stored], V2)
    with pytest.raises(Unconverted):
        after.view_at(stored, V2)
    await after.convert_entries([stored], V2)
    assert stored.views is not None
    assert list(stored.views) == [(after, V2)]


async def test_a_copy_at_another_resource_version_keeps_its_views() -> None:
    """A copy at another resourceVersion has the conversion, without another call."""
    all_of, stored = make_versions(RecordingCaller()), entry("a")
    await all_of.convert_entries([stored], V2)
    moved = all_of.view_at(stored.with_version(9), V2)
    assert (moved.rv, msgspec.json.decode(moved.raw)["metadata"]["resourceVersion"]) == (9, "9")
