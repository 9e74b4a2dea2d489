"""What a controller waits to see before it acts again."""

from __future__ import annotations

from tests.embedded.components.workloads.clock import Clock

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod import Pod
from zonewise.runtime.cache.store import Store
from zonewise.runtime.controller.expectations import PATIENCE, Expectations


def pod(name: str, version: str, *, uid: str = "", leaving: bool = False) -> Pod:
    """A pod at a version."""
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=uid or name,
            resource_version=version,
            deletion_timestamp="2026-01-01T00:00:00Z" if leaving else None,
        )
    )


def make_expectations() -> tuple[Store[Pod], Clock, Expectations[str, Pod]]:
    """A store at version 10, and expectations about it."""
    store: Store[Pod] = Store()
    clock = Clock()
    store.replace([pod("a", "5"), pod("b", "6")], "10")
    return store, clock, Expectations(store, clock)


def test_nothing_was_done_and_nothing_is_awaited() -> None:
    """A key without writes has no expectations."""
    _, _, expected = make_expectations()
    assert expected.settled("x")


def test_a_creation_is_awaited_until_the_store_has_its_version() -> None:
    """A creation is awaited until the store has passed its version, even if the pod is deleted by
    then.
    """
    store, _, expected = make_expectations()
    expected.wrote("x", pod("c", "12"))
    expected.wrote("x", pod("d", "11"))
    assert not expected.settled("x")
    assert expected.settled("y")
    store.apply(pod("d", "11"))
    assert not expected.settled("x")
    store.bookmark("12")
    assert expected.settled("x")


def test_a_removal_is_awaited_until_the_pod_is_gone_or_replaced() -> None:
    """A removal is awaited until the pod is being deleted, is gone or was replaced."""
    store, _, expected = make_expectations()
    for name in ("a", "b"):
        expected.removed("x", pod(name, "6"))
    assert not expected.settled("x")
    store.apply(pod("a", "11", leaving=True))
    assert not expected.settled("x")
    store.apply(pod("b", "12", uid="other"))
    assert expected.settled("x")


def test_expectations_expire() -> None:
    """A server that never shows a write does not stop a controller for ever."""
    _, clock, expected = make_expectations()
    expected.wrote("x", pod("c", "99"))
    clock.now += PATIENCE - 1
    assert not expected.settled("x")
    clock.now += 1
    assert expected.settled("x")


def test_a_key_that_is_gone_is_forgotten() -> None:
    """Another object of the same name starts without expectations."""
    _, _, expected = make_expectations()
    expected.wrote("x", pod("c", "99"))
    expected.forget("x")
    assert expected.settled("x")
