"""Slow watchers: which are ended, and when."""

from __future__ import annotations

from typing import Any, cast

from zonewise.embedded.apiserver.http.unread import UnreadBytes
from zonewise.runtime.serving.listener import Encryption


class Link:
    """A connection with unsent bytes."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent
        self.ended = False

    def end(self) -> None:
        """End the connection."""
        self.ended = True
        self.unsent = 0


def crowd(unread: UnreadBytes, *sizes: int) -> list[Any]:
    """Watchers with unread bytes, one after the other."""
    links = [Link(size) for size in sizes]
    for link in links:
        unread.update(cast("Encryption", link))
    return links


def test_the_slowest_are_ended_first() -> None:
    """Above the limit watchers with the oldest unread bytes end, until a quarter is free."""
    unread = UnreadBytes(100)
    links = crowd(unread, 30, 10, 30, 30)
    assert not any(link.ended for link in links) and unread.total == 100
    links += crowd(unread, 10)
    assert [link.ended for link in links] == [True, True, False, False, False]
    assert unread.total == 70 and len(unread) == 3


def test_a_watcher_that_has_read_meanwhile_stays() -> None:
    """Unread bytes are counted again before a watcher is ended."""
    unread = UnreadBytes(100)
    links = crowd(unread, 60, 30)
    links[0].unsent = 0
    links += crowd(unread, 50)
    assert not any(link.ended for link in links)
    assert unread.total == 80 and not unread.is_waiting(links[0])


def test_a_watcher_that_caught_up_waits_anew() -> None:
    """The waiting time of a watcher that caught up starts again."""
    unread = UnreadBytes(100)
    first, second = crowd(unread, 10, 60)
    first.unsent = 0
    assert not unread.is_waiting(first)
    first.unsent = 10
    unread.update(first)
    crowd(unread, 60)
    assert (first.ended, second.ended) == (False, True)


def test_an_ended_watcher_is_forgotten() -> None:
    """The bytes of an ended watch do not count any more."""
    unread = UnreadBytes(100)
    first, second = crowd(unread, 40, 40)
    unread.remove(first)
    unread.remove(first)
    assert unread.total == 40 and len(unread) == 1 and unread.is_waiting(second)
