"""The scheduling queue: order, pauses, and what makes pods ready to try."""

from __future__ import annotations

from zonewise.embedded.components.scheduler.queue import FLUSH_SECONDS, SchedulingQueue
from zonewise.scheduling.decision import ClusterEvent

A, B, C = ("default", "a"), ("default", "b"), ("default", "c")


def test_priority_then_time_decides() -> None:
    """Higher priority comes first, then longer waiting."""
    pending = SchedulingQueue()
    pending.add(A, 0, 0.0)
    pending.add(B, 0, 1.0)
    pending.add(C, 5, 2.0)
    assert [pending.pop(3.0) for _ in range(4)] == [C, A, B, None]


def test_a_pod_rests_until_something_helps() -> None:
    """Only a change that may help makes a pod ready again, and only after its pause."""
    pending = SchedulingQueue()
    pending.add(A, 0, 0.0)
    assert pending.pop(0.0) == A
    pending.add_unschedulable(A, ClusterEvent.NODE, 0.0)
    pending.record(ClusterEvent.POD_DELETED)
    assert pending.pop(50.0) is None
    pending.record(ClusterEvent.NODE)
    assert pending.pop(50.0) == A
    pending.add_unschedulable(A, ClusterEvent.NODE, 50.0)
    pending.record(ClusterEvent.NODE)
    assert pending.pop(51.9) is None
    assert pending.next_due() == 52.0
    assert pending.pop(52.0) == A


def test_pauses_double_up_to_ten_seconds() -> None:
    """A pod that fails again and again is tried at least every ten seconds."""
    pending = SchedulingQueue()
    pending.add(A, 0, 0.0)
    now, pauses = 0.0, []
    for _ in range(6):
        assert pending.pop(now) == A
        pending.back_off(A, now)
        due = pending.next_due()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_pod_that_rests_is_tried_after_minutes_anyway() -> None:
    """A pod is tried after minutes even if no change was noticed."""
    pending = SchedulingQueue()
    pending.add(A, 0, 0.0)
    pending.pop(0.0)
    pending.add_unschedulable(A, ClusterEvent.VOLUME, 0.0)
    assert pending.next_due() == FLUSH_SECONDS
    assert pending.pop(FLUSH_SECONDS - 1) is None
    assert pending.pop(FLUSH_SECONDS) == A


def test_a_removed_pod_is_not_scheduled() -> None:
    """A pod that was removed while it was ready, resting or pausing is never given out."""
    pending = SchedulingQueue()
    for key in (A, B, C):
        pending.add(key, 0, 0.0)
    pending.pop(0.0)
    pending.add_unschedulable(A, ClusterEvent.NODE, 0.0)
    pending.pop(0.0)
    pending.back_off(B, 0.0)
    for key in (A, B, C):
        pending.remove(key)
    pending.record(ClusterEvent.NODE)
    assert pending.pop(1e6) is None
    assert pending.next_due() is None
    assert not len(pending) and A not in pending


def test_a_changed_pod_is_tried_after_its_pause() -> None:
    """A pod that changes while it rests is ready when its pause is over."""
    pending = SchedulingQueue()
    pending.add(A, 0, 0.0)
    pending.pop(0.0)
    pending.add_unschedulable(A, ClusterEvent.NODE, 0.0)
    pending.add(A, 0, 0.5)
    assert pending.pop(0.9) is None
    assert pending.pop(1.0) == A
