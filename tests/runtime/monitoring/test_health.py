"""Health checks: what they say and when a watch counts as dead."""

from __future__ import annotations

from zonewise.runtime.client.watch import WatchStats
from zonewise.runtime.monitoring.health import Health, fresh_watches, synced_watches


def test_nothing_to_check_is_healthy() -> None:
    """A program without checks is alive and ready."""
    health = Health()
    assert health.alive() == () and health.ready() == ()


def test_readiness_includes_liveness() -> None:
    """A failed check of liveness fails readiness, not the other way round."""
    health = Health()
    health.add_alive("loop", lambda: "stuck")
    health.add_ready("cache", lambda: None)
    assert [(result.name, result.reason) for result in health.ready()] == [
        ("loop", "stuck"),
        ("cache", ""),
    ]
    assert [result.good for result in health.alive()] == [False]


def test_a_check_that_raises_has_failed() -> None:
    """A check that raises has failed, and its reason is one bounded line."""

    def broken() -> str | None:
        raise ValueError("two\nlines" * 200)

    health = Health()
    health.add_alive("x", broken)
    (result,) = health.alive()
    assert "ValueError: two lines" in result.reason and len(result.reason) <= 300


def test_a_silent_watch_is_found_and_named() -> None:
    """A watch is dead by the age of its last byte alone, even if it is connected."""
    now = 1000.0
    nodes = WatchStats("nodes", started=0.0, last_byte=950.0)
    pods = WatchStats("pods", namespace="kube-system", started=0.0, connected=True)
    check = fresh_watches(lambda: [nodes, pods], lambda: now, limit=600)
    pods.last_byte = 401.0
    assert check() is None
    pods.last_byte = 399.0
    assert check() == "the watch of pods in namespace kube-system received nothing for 601 s"
    nodes.last_byte, nodes.last_error = 100.0, "connection refused"
    assert check() == "the watch of nodes received nothing for 900 s: connection refused"


def test_a_watch_that_never_spoke_counts_from_its_start() -> None:
    """A watch without any byte has the age since its start."""
    assert fresh_watches(lambda: [WatchStats("nodes")], lambda: 1e6)() is None
    stats = WatchStats("nodes", started=900.0)
    assert fresh_watches(lambda: [stats], lambda: 1000.0, limit=600)() is None
    assert fresh_watches(lambda: [stats], lambda: 1600.0, limit=600)() is not None


def test_readiness_waits_for_the_first_lists() -> None:
    """The reason names the kinds whose list is not complete."""
    nodes, pods = WatchStats("nodes", synced=True), WatchStats("pods")
    check = synced_watches(lambda: [nodes, pods])
    assert check() == "still reading pods"
    pods.synced = True
    assert check() is None
