"""The versions of a custom resource: who is asked how often, and what is believed for how long."""

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


class Asked(WebhookCaller):
    """A webhook in this process that says of each object which question it came with."""

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
        made = [
            one | {"apiVersion": request["desiredAPIVersion"], "question": len(self.questions)}
            for one in request["objects"]
        ]
        result = {"status": "Failure", "message": "no"} if self.broken else {"status": "Success"}
        response = {"uid": request["uid"], "convertedObjects": made, "result": result}
        return msgspec.json.encode(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "ConversionReview",
                "response": response,
            }
        )


def made(caller: WebhookCaller) -> Versions:
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


def test_the_stored_version_asks_nobody() -> None:
    """An entry in the version it is stored in is what it is."""
    one = entry("a")
    assert made(Asked()).view_at(one, V1) is one


async def test_what_is_not_there_can_be_got() -> None:
    """A look for what was not converted says so, and knows how to get it."""
    all_of, one = made(Asked()), entry("a")
    with pytest.raises(Unconverted):
        all_of.view_at(one, V2)
    seen = await with_conversions(lambda: all_of.view_at(one, V2))
    assert (msgspec.json.decode(seen.raw)["apiVersion"], seen.rv) == (V2, 7)
    assert all_of.view_at(one, V2) is seen


async def test_many_who_want_the_same_wait_for_one_question() -> None:
    """However many watch a version, its webhook is asked once for each object."""
    caller = Asked()
    caller.gate.clear()
    all_of, entries = made(caller), [entry("a"), entry("b")]
    waiting = [asyncio.create_task(all_of.convert_entries(entries, V2)) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # whoever leaves does not take the answer with them
    caller.gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert caller.questions == [2]
    await all_of.convert_entries(entries, V2)
    assert caller.questions == [2]


async def test_questions_are_of_a_size_that_can_be_answered() -> None:
    """Many objects are many questions, and a large object is one of its own."""
    caller = Asked()
    large = entry("large", text="x" * versions.BATCH_BYTES)
    small = [entry(f"n{number}") for number in range(2 * versions.BATCH + 1)]
    await made(caller).convert_entries([*small, large], V2)
    assert sorted(caller.questions) == [1, 1, versions.BATCH, versions.BATCH]


async def test_a_failure_is_everybodys_and_not_remembered() -> None:
    """All who waited for a failed question hear of it; the next one asks again."""
    caller = Asked()
    caller.broken = True
    all_of, one = made(caller), entry("a")
    outcome = await asyncio.gather(
        *(all_of.convert_entries([one], V2) for _ in range(3)), return_exceptions=True
    )
    said = "conversion webhook for example.io/v1, Kind=Door failed: no"
    assert [str(found) for found in outcome if isinstance(found, ApiError)] == [said] * 3
    caller.broken = False
    await all_of.convert_entries([one], V2)
    assert all_of.view_at(one, V2).name == "a"
    assert caller.questions == [1, 1]


async def test_a_changed_definition_believes_nothing_of_the_one_before() -> None:
    """What was converted by other rules is converted again, and the old answer is dropped."""
    caller = Asked()
    before, after, one = made(caller), made(caller), entry("a")
    await before.convert_entries([one], V2)
    with pytest.raises(Unconverted):
        after.view_at(one, V2)
    await after.convert_entries([one], V2)
    assert one.views is not None
    assert list(one.views) == [(after, V2)]


async def test_a_copy_at_another_resource_version_keeps_its_views() -> None:
    """What leaves a selection is shown at the version at which it left, without a question."""
    all_of, one = made(Asked()), entry("a")
    await all_of.convert_entries([one], V2)
    moved = all_of.view_at(one.with_version(9), V2)
    assert (moved.rv, msgspec.json.decode(moved.raw)["metadata"]["resourceVersion"]) == (9, "9")
