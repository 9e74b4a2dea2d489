"""Events: written once, counted when they repeat, dropped rather than waited for."""

from __future__ import annotations

import asyncio
import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.memory_server import Answered, refusal
from tests.runtime.swap_server import SwapServer, Way

from zonewise.api.errors import LeadershipLost
from zonewise.api.meta import ObjectMeta, ObjectReference
from zonewise.api.objects.core import Node, Service
from zonewise.api.objects.events import Event
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.client.transport import Request
from zonewise.runtime.controller.recorder import Recorder, RecorderLimits, _cut, _stem

pytestmark = pytest.mark.looptime

START = datetime(2026, 1, 1, tzinfo=UTC)
SERVICE = Service(metadata=ObjectMeta(name="web", namespace="shop", uid="u1"))
PATH = Event.resource.path("shop")


class Setup:
    """A running recorder, and the server it writes to."""

    def __init__(self, limits: RecorderLimits | None = None) -> None:
        self.server = SwapServer()
        self.way: Way = self.server.way("recorder")
        self.recorder = Recorder(
            self.way.client(),
            controller="zonewise.io/hints",
            instance="pod-1",
            limits=limits,
            now=lambda: START + timedelta(seconds=asyncio.get_running_loop().time()),
            rng=random.Random(1),
        )
        self.task = asyncio.create_task(self.recorder.run())

    def tell(self, note: str = "no zones", **more: Any) -> None:
        options: dict[str, Any] = {"reason": "NoZones", "action": "Hint"} | more
        self.recorder.event(options.pop("regarding", SERVICE), note=note, **options)

    def events(self, path: str = PATH) -> list[dict[str, Any]]:
        return [item for at, item in self.server.objects.items() if at.startswith(path)]


async def test_a_timer_that_comes_a_little_early_is_due() -> None:
    """A recorder that wakes up a rounding error too early does not spin."""
    setup = Setup()
    await asyncio.sleep(94.989232)
    now = asyncio.get_running_loop().time()
    assert now + 60.0 > round(now + 60.0, 6)
    setup.tell()
    await asyncio.sleep(0)
    setup.tell()
    await asyncio.sleep(100)
    (event,) = setup.events()
    assert event["series"]["count"] == 2


async def test_an_event_says_everything_once() -> None:
    """The Event has all fields the API requires, in its formats."""
    setup = Setup()
    node = Node(metadata=ObjectMeta(name="n1", uid="u2", resource_version="7"))
    setup.tell(type="Warning", related=node)
    await asyncio.sleep(1)
    (event,) = setup.events()
    assert event["metadata"]["name"].startswith("web.") and len(event["metadata"]["name"]) == 25
    assert event["metadata"]["namespace"] == "shop"
    del event["metadata"]
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "zonewise.io/hints",
        "reportingInstance": "pod-1",
        "action": "Hint",
        "reason": "NoZones",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": "shop",
            "name": "web",
            "uid": "u1",
        },
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u2"},
        "note": "no zones",
        "type": "Warning",
    }
    await setup.recorder.close()


async def test_events_of_cluster_wide_objects_are_in_default() -> None:
    """A node's event has a namespace although the node has none."""
    setup = Setup()
    setup.tell(regarding=ObjectReference(kind="Node", name="n1"))
    await asyncio.sleep(1)
    assert len(setup.events(Event.resource.path("default"))) == 1
    await setup.recorder.close()


async def test_repetitions_become_a_series() -> None:
    """A thousand identical events cost one creation and one patch per period."""
    setup = Setup()
    for _ in range(1000):
        setup.tell()
        await asyncio.sleep(0.1)
    await setup.recorder.close()
    (event,) = setup.events()
    assert event["series"] == {
        "count": 1000,
        "lastObservedTime": "2026-01-01T00:01:39.900000Z",
    }
    assert [request.method for request in setup.way.requests] == ["POST", "PATCH", "PATCH"]
    assert setup.recorder.dropped == dict.fromkeys(setup.recorder.dropped, 0)


async def test_a_new_version_of_the_object_is_still_the_same_event() -> None:
    """Writing the object between two events does not make them different."""
    setup = Setup()
    for version in ("1", "2", "3"):
        meta = ObjectMeta(name="web", namespace="shop", uid="u1", resource_version=version)
        setup.tell(regarding=Service(metadata=meta))
    await setup.recorder.close()
    (event,) = setup.events()
    assert event["series"]["count"] == 3


async def test_an_event_with_once_is_written_once_by_all() -> None:
    """Another program, a restart and a repetition find the event and change nothing."""
    setup = Setup()
    setup.tell(once=True)
    setup.tell(once=True)
    await asyncio.sleep(1)
    again = Recorder(setup.way.client(), controller="zonewise.io/other", instance="pod-2")
    task = asyncio.create_task(again.run())
    again.event(SERVICE, reason="NoZones", action="Route", note="no zones", once=True)
    await asyncio.sleep(600)
    setup.tell(once=True)
    await asyncio.sleep(600)
    (event,) = setup.events()
    assert event["reportingInstance"] == "pod-1"
    assert event.get("series") is None
    assert not any((*setup.recorder.dropped.values(), *again.dropped.values()))
    setup.tell(once=True, note="another")
    await asyncio.sleep(1)
    assert len(setup.events()) == 2
    task.cancel()


async def test_different_notes_are_different_events() -> None:
    """An event with another note is another event."""
    setup = Setup()
    setup.tell("a")
    setup.tell("b")
    await setup.recorder.close()
    assert {event["note"] for event in setup.events()} == {"a", "b"}


async def test_a_series_that_paused_begins_anew() -> None:
    """After a long pause the same event starts a new series."""
    setup = Setup()
    setup.tell()
    await asyncio.sleep(361)
    setup.tell()
    await setup.recorder.close()
    assert ["series" in event for event in setup.events()] == [False, False]


async def test_a_series_survives_its_deletion() -> None:
    """Servers delete events after an hour; a series that goes on is created again."""
    setup = Setup()
    setup.tell()
    await asyncio.sleep(1)
    setup.server.objects.clear()
    setup.tell()
    await asyncio.sleep(61)
    (event,) = setup.events()
    assert event["series"]["count"] == 2
    await setup.recorder.close()


async def test_one_object_cannot_flood() -> None:
    """Beyond its burst an object has one new event per refill; others are not affected."""
    setup = Setup()
    for number in range(100):
        setup.tell(f"note {number}")
    other = ObjectReference(kind="Service", namespace="shop", name="other")
    setup.tell(regarding=other)
    await asyncio.sleep(1)
    assert len(setup.events()) == 26 and setup.recorder.dropped["limit"] == 75
    await asyncio.sleep(600)
    for number in range(100, 110):
        setup.tell(f"note {number}")
    await setup.recorder.close()
    assert len(setup.events()) == 28


def newest(setup: Setup) -> list[str]:
    """The reason of the newest event, as each way to list events finds it."""
    events = setup.events()

    def last_time(event: dict[str, Any]) -> str:
        return str(event.get("series", {}).get("lastObservedTime") or event["eventTime"])

    by_name = max(events, key=lambda event: str(event["metadata"]["name"]))
    return [by_name["reason"], max(events, key=last_time)["reason"]]


async def test_the_newest_event_is_the_state_after_every_transition() -> None:
    """Enabled, Disabled, Enabled: the third is an Event again and the last one, over a restart and
    for as long as the object may have events.
    """
    setup = Setup()
    states = ["Enabled", "Disabled"] * 10
    for number, reason in enumerate(states):
        if number == 7:
            await setup.recorder.close()
            objects = setup.server.objects
            setup = Setup()
            setup.server.objects.update(objects)
        setup.tell("the same words", reason=reason, transition=True)
        await asyncio.sleep(number % 3)
        await asyncio.sleep(0.01)
        assert newest(setup) == [reason, reason]
    assert len(setup.events()) == len(states)
    assert setup.recorder.dropped == dict.fromkeys(setup.recorder.dropped, 0)
    await setup.recorder.close()


async def test_transitions_at_one_instant_are_in_order() -> None:
    """A clock that stands still gives each transition a later moment and name."""
    setup = Setup()
    for number in range(20):
        setup.tell(reason=f"R{number}", transition=True)
    await asyncio.sleep(1)
    assert newest(setup) == ["R19", "R19"]
    await setup.recorder.close()


@pytest.mark.parametrize("count", [26, 27, 1000])
async def test_the_last_of_too_many_transitions_is_held_back_and_sent(count: int) -> None:
    """A flapping object has few more events than others; the newest is sent after 30 seconds."""
    setup = Setup()
    states = [("Enabled", "Disabled")[number % 2] for number in range(count)]
    for reason in states:
        setup.tell("the same words", reason=reason, transition=True)
    await asyncio.sleep(1)
    assert len(setup.events()) == 25
    await asyncio.sleep(30)
    assert len(setup.events()) == 26
    assert newest(setup) == [states[-1]] * 2
    assert setup.recorder.dropped["limit"] == count - 26
    await asyncio.sleep(3000)
    assert len(setup.events()) == 26
    for reason in states[::-1]:
        setup.tell("the same words", reason=reason, transition=True)
    await setup.recorder.close()
    assert newest(setup) == [states[0]] * 2


@pytest.mark.parametrize("period", [1, 7, 20, 29, 31, 100])
async def test_a_state_that_goes_on_changing_is_told_in_time(period: int) -> None:
    """After any number of transitions the newest Event is about a state of the last 30 seconds, and
    there are no more of them than one in that time.
    """
    setup = Setup()
    history: list[tuple[float, str]] = []
    loop = asyncio.get_running_loop()
    for number in range(100):
        reason = f"R{number}"
        setup.tell(reason=reason, transition=True)
        history.append((loop.time(), reason))
        await asyncio.sleep(period)
        current = {reason, *(state for at, state in history if at >= loop.time() - period - 31)}
        assert newest(setup)[0] in current
    await asyncio.sleep(31)
    assert newest(setup) == ["R99", "R99"]
    assert len(setup.events()) <= 25 + 100 * period / 30 + 2
    await setup.recorder.close()


async def test_a_transition_outlives_an_outage_of_the_server() -> None:
    """What could not be sent is sent when the server answers again, unless something newer was."""
    setup = Setup()
    setup.way.cut = True
    setup.tell(reason="Disabled", transition=True)
    await asyncio.sleep(1000)
    setup.tell(reason="Enabled", transition=True)
    await asyncio.sleep(1000)
    attempts = len(setup.way.requests)
    assert attempts < 4 * 2000 / 60 + 4
    setup.way.cut = False
    await asyncio.sleep(70)
    (event,) = setup.events()
    assert event["reason"] == "Enabled"
    assert event["eventTime"].startswith("2026-01-01T00:16:40")
    await setup.recorder.close()


async def test_memory_of_transitions_is_bounded() -> None:
    """Of more objects than are remembered the oldest are forgotten, and counted."""
    setup = Setup(RecorderLimits(series=50, burst=0, refill=1e9))
    for number in range(500):
        pod = ObjectReference(kind="Pod", namespace="shop", name=f"p{number}")
        setup.tell(regarding=pod, transition=True)
    assert (len(setup.recorder._newest), len(setup.recorder._postponed)) == (50, 50)
    assert setup.recorder.dropped["limit"] == 450
    await setup.recorder.close()
    assert len(setup.events()) == 50


async def test_a_slow_server_delays_no_caller() -> None:
    """Recording takes no time while the server is silent; events above the limit are dropped."""
    setup = Setup(RecorderLimits(queue=10, burst=1000))
    setup.way.there = lambda request: 1e6
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for number in range(50):
        setup.tell(f"note {number}")
        await asyncio.sleep(0)
    assert loop.time() == begin
    assert setup.recorder.dropped["full"] == 39
    await setup.recorder.close(within=3)
    assert loop.time() - begin == 3
    assert setup.recorder.dropped["shutdown"] == 10
    setup.task.cancel()
    await asyncio.wait([setup.task])
    await setup.way.close()


async def test_passing_faults_are_retried() -> None:
    """A server that is busy for a moment gets the event later, and only once."""
    setup = Setup()
    faults = [refusal(429, "TooManyRequests", headers={"Retry-After": "7"}), refusal(503, "x")]

    def refuse(request: Request) -> Answered | None:
        return faults.pop(0) if faults else None

    setup.way.refuses = refuse
    setup.tell()
    await asyncio.sleep(6.9)
    assert setup.events() == []
    await asyncio.sleep(10)
    assert len(setup.events()) == 1 and setup.recorder.dropped["failed"] == 0
    await setup.recorder.close()


async def test_lasting_faults_drop_the_event() -> None:
    """After a few attempts an event is dropped, and the next one is tried."""
    setup = Setup()
    setup.way.cut = True
    setup.tell()
    await asyncio.sleep(60)
    assert setup.recorder.dropped["failed"] == 1 and len(setup.way.requests) == 4
    setup.way.cut = False
    setup.tell()
    await asyncio.sleep(1)
    (event,) = setup.events()
    assert "series" not in event
    await setup.recorder.close()


async def test_refusals_are_not_retried() -> None:
    """A namespace that is being deleted refuses events, which is not a problem."""
    setup = Setup()
    setup.way.refuses = lambda request: refusal(403, "Forbidden", "namespace is being terminated")
    setup.tell()
    await asyncio.sleep(60)
    assert setup.recorder.dropped["refused"] == 1 and len(setup.way.requests) == 1
    await setup.recorder.close()


async def test_a_lost_leader_writes_no_events() -> None:
    """With a fenced client events stop like all other writes, without an error."""
    setup = Setup()

    def fence() -> None:
        raise LeadershipLost("gone")

    setup.recorder._client = setup.way.client(fence=fence)
    setup.tell()
    await asyncio.sleep(1)
    assert setup.recorder.dropped["refused"] == 1 and setup.way.requests == []
    await setup.recorder.close()


async def test_closing_ends_the_task_and_refuses_more() -> None:
    """After close all events are written, run has ended, and later events are only counted."""
    setup = Setup()
    setup.tell()
    await setup.recorder.close()
    assert setup.task.done() and len(setup.events()) == 1
    setup.tell("late")
    assert setup.recorder.dropped["shutdown"] == 1
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await Recorder(setup.way.client(), controller="x.io/y", instance="z").close()
    assert loop.time() == begin


async def test_memory_is_bounded() -> None:
    """The recorder remembers a bounded number of objects with events."""
    setup = Setup(RecorderLimits(series=50))
    for number in range(500):
        setup.tell(regarding=ObjectReference(kind="Pod", namespace="shop", name=f"p{number}"))
        await asyncio.sleep(0.01)
    assert len(setup.recorder._series) == 50 and len(setup.recorder._buckets) == 50
    await setup.recorder.close()
    assert len(setup.events()) == 500


async def test_an_object_that_cannot_be_read_is_counted() -> None:
    """An object with invalid metadata raises nothing in the caller."""
    setup = Setup()
    broken = unstructured(Resource("x", "v1", "X", "xs"))({"metadata": {"labels": 3}})
    setup.tell(regarding=broken)
    assert setup.recorder.dropped["refused"] == 1
    await setup.recorder.close()


@given(st.text(max_size=2000), st.integers(4, 1024))
def test_texts_are_cut_to_bytes(text: str, limit: int) -> None:
    """A text never exceeds its bytes, never ends in half a character, and is kept if it fits."""
    cut = _cut(text, limit)
    assert len(cut.encode()) <= limit
    if len(text.encode("utf-8", "replace")) <= limit:
        assert cut == text.encode("utf-8", "replace").decode()


@given(st.text(max_size=400))
def test_any_object_name_gives_a_valid_event_name(name: str) -> None:
    """Kinds whose names have colons or capitals can have events too."""
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    full = f"{_stem(name)}.0123456789abcdef"
    assert len(full) <= 253 and re.fullmatch(rf"{label}(\.{label})*", full)
