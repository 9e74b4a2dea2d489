"""Removal of pods: requests, grants, and pauses after refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.embedded.components.workloads.clock import Clock
from tests.runtime.memory_server import Answered

from zonewise.api.errors import (
    ApiError,
    Conflict,
    NotFound,
    Status,
    StatusCause,
    StatusDetails,
    TooManyRequests,
)
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod import Pod, PodCondition, PodStatus
from zonewise.embedded.components.workloads.removal import Removal, RemovalMode, RemovalRefusal
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response

pytestmark = pytest.mark.asyncio


class Server:
    """Answers every request by a rule, and records it."""

    def __init__(self, rule: Any = None) -> None:
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self._rule = rule or (lambda name: None)

    async def send(self, request: Request) -> Response:
        """Grant or refuse."""
        parts = request.path.split("/")
        verb = "evict" if parts[-1] == "eviction" else "delete"
        name = parts[-2] if verb == "evict" else parts[-1]
        self.requests.append((verb, name))
        self.bodies.append(msgspec.json.decode(request.body or b"{}"))
        error = self._rule(name)
        if error is not None:
            raise error
        return Answered(200, b'{"kind":"Status","status":"Success"}')

    async def close(self) -> None:
        """Nothing is open."""


def pod(name: str, *, ready: bool = True) -> Pod:
    """A pod that is ready, or not."""
    condition = PodCondition(type="Ready", status=str(ready))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, resource_version="7"),
        status=PodStatus(phase="Running", conditions=(condition,)),
    )


def refused(name: str = "", *, code: int = 429, after: float | None = None) -> ApiError:
    """The error of a refused eviction."""
    kinds = {429: TooManyRequests, 409: Conflict, 404: NotFound}
    return kinds[code](Status(code=code, message=f"not {name}"), retry_after=after)


def removal(server: Server, clock: Clock, mode: RemovalMode = "evict") -> Removal[str]:
    """Removal on a server."""
    return Removal(Client(server), mode=mode, clock=clock)


def names(pods: tuple[Pod, ...]) -> list[str]:
    """The names of these pods."""
    return [pod.metadata.name for pod in pods]


async def test_unready_pods_are_deleted_as_they_were_seen() -> None:
    """An unready pod is deleted without a budget, unless it changed meanwhile."""
    server = Server()
    taken = await removal(server, Clock()).remove("w", [pod("a", ready=False), pod("b")], 2)
    assert sorted(server.requests) == [("delete", "a"), ("evict", "b")]
    assert server.bodies[0]["preconditions"] == {"uid": "a", "resourceVersion": "7"}
    assert names(taken.granted) == ["a", "b"]
    server = Server(lambda name: refused(code=409))
    taken = await removal(server, Clock()).remove("w", [pod("a", ready=False)], 1)
    assert taken.granted == ()
    assert taken.retry_after is not None


async def test_delete_ignores_budgets() -> None:
    """With ``delete`` nothing is evicted, as on a plain cluster."""
    server = Server()
    taken = await removal(server, Clock(), "delete").remove("w", [pod("a"), pod("b")], 1)
    assert server.requests == [("delete", "a")]
    assert names(taken.granted) == ["a"]


async def test_a_missing_pod_counts_as_granted() -> None:
    """A pod that was deleted by others counts as granted."""
    server = Server(lambda name: refused(code=404))
    taken = await removal(server, Clock()).remove("w", [pod("a"), pod("b", ready=False)], 2)
    assert names(taken.granted) == ["b", "a"]


async def test_a_refusal_ends_the_round_and_starts_a_pause() -> None:
    """After a refusal no other pod is requested before a pause."""
    clock, server = Clock(), Server(refused)
    hands = removal(server, clock)
    pods = [pod(name) for name in "abcd"]
    taken = await hands.remove("w", pods, 4)
    assert (taken.granted, len(taken.refused), taken.retry_after) == ((), 1, 1.0)
    clock.now += 0.5
    assert (await hands.remove("w", pods, 4)).retry_after == 0.5
    assert len(server.requests) == 1
    clock.now += 0.5
    assert (await hands.remove("w", pods, 4)).retry_after == 2.0
    assert (await hands.remove("other", pods, 4)).retry_after == 1.0


async def test_a_refusal_says_why() -> None:
    """A refusal has the server's message and the budget's details."""
    cause = StatusCause(reason="DisruptionBudget", message="The disruption budget web needs 2.")
    status = Status(code=429, message="Cannot evict pod.", details=StatusDetails(causes=(cause,)))
    server = Server(lambda name: TooManyRequests(status))
    (refusal,) = (await removal(server, Clock()).remove("w", [pod("a")], 1)).refused
    assert refusal.message == "Cannot evict pod. The disruption budget web needs 2."
    status = Status(code=429, message=refusal.message, details=status.details)
    assert RemovalRefusal(refusal.pod, TooManyRequests(status)).message == refusal.message


async def test_each_round_begins_with_another_pod() -> None:
    """The next round begins with the next pod, as the first may be blocked."""
    clock, server = Clock(), Server(refused)
    hands = removal(server, clock)
    pods = [pod(name) for name in "abc"]
    for _ in range(7):
        taken = await hands.remove("w", pods, 1)
        clock.now += taken.retry_after or 0.0
    assert [name for _, name in server.requests] == list("abcabca")


async def test_a_grant_resets_the_pause() -> None:
    """After a grant the pauses start again from the shortest."""
    clock = Clock()
    server = Server(lambda name: refused() if name in "ac" else None)
    hands = removal(server, clock)
    pods = [pod(name) for name in "abcd"]
    taken = await hands.remove("w", pods, 2)
    assert names(taken.granted) == []
    clock.now += 1.0
    taken = await hands.remove("w", pods, 2)
    assert names(taken.granted) == ["b"]
    assert taken.retry_after == 1.0


async def test_retry_after_is_a_lower_bound() -> None:
    """The pause is at least the server's Retry-After."""
    server = Server(lambda name: refused(after=10.0))
    assert (await removal(server, Clock()).remove("w", [pod("a")], 1)).retry_after == 10.0


async def test_an_hour_of_refusals_costs_few_requests() -> None:
    """However many pods there are, and however often removal is tried, requests are few."""
    clock, server = Clock(), Server(refused)
    hands = removal(server, clock)
    pods = [pod(f"p{n}") for n in range(50)]
    end = clock.now + 3600.0
    while clock.now < end:
        await hands.remove("w", pods, 25)
        clock.now += 0.5
    assert len(server.requests) < 100


async def test_a_changed_budget_ends_the_pause() -> None:
    """After a change of a budget the next request may be sent at once."""
    clock, server = Clock(), Server(refused)
    hands = removal(server, clock)
    assert not hands.end_pause("w")
    await hands.remove("w", [pod("a")], 1)
    assert hands.paused() == ("w",)
    assert hands.end_pause("w")
    await hands.remove("w", [pod("a")], 1)
    assert len(server.requests) == 2
    hands.forget("w")
    assert hands.paused() == ()
