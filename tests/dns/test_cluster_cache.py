"""Cached answers: the rotations of their records, and when each is written."""

from __future__ import annotations

from zonewise.dns.cluster_cache import ClusterCache, Turns, kind_of
from zonewise.dns.sections import Sections


def test_each_order_is_written_when_its_turn_first_comes() -> None:
    """Writing the first order writes no other; after one round nothing is written any more."""
    written: list[int] = []

    def write(turn: int) -> bytes:
        written.append(turn)
        return b"%d" % turn

    turns = Turns(b"0", 1, 3, write)
    assert turns.next() == b"0"
    assert written == []
    assert [turns.next() for _ in range(6)] == [b"1", b"2", b"0", b"1", b"2", b"0"]
    assert written == [1, 2]


def test_an_answer_with_a_single_order_is_written_once() -> None:
    """An answer whose records do not rotate is one packet."""
    turns = Turns(b"x", 1)
    assert [turns.next() for _ in range(3)] == [b"x"] * 3
    assert turns.size == 1


def test_answers_are_counted_by_kind_however_many_are_cached() -> None:
    """Questions of one kind share a counter that outlives their entries in the cache."""
    cache = ClusterCache()
    kind = kind_of(
        "cluster.local.", 1, 0, stream=False, do=False, question_size=50, answer_size=150
    )
    other = kind_of(
        "cluster.local.", 28, 3, stream=False, do=False, question_size=50, answer_size=150
    )
    for name, what in ((b"a", kind), (b"b", kind), (b"c", other)):
        cache.keep(name, frozenset({("service", "x", name.decode())}), Turns(b"packet", 6), what)
    for name, hits in ((b"a", 3), (b"b", 4), (b"c", 5)):
        cache.table[name].tally.hits += hits
    assert cache.table[b"a"].tally is cache.table[b"b"].tally
    cache.drop([("service", "x", "a"), ("service", "x", "c")])
    assert cache.counts() == {kind: 7, other: 5}


def test_long_questions_count() -> None:
    """Long questions count as memory: they make the table no larger than its bound."""
    cache = ClusterCache(size=100_000)
    kind = kind_of(
        "cluster.local.", 1, 3, stream=False, do=False, question_size=500, answer_size=150
    )
    for number in range(500):
        cache.keep(f"{number:0500}".encode(), frozenset(), Turns(b"answer", 6), kind)
    assert cache.size <= 100_000
    assert cache.size >= len(cache.table) * 1500


def test_packets_do_not_evict_the_answers_they_are_made_of() -> None:
    """A client that varies its questions evicts packets; the answer is not computed again."""
    cache = ClusterCache(size=100_000)
    key = (b"\3web\0", 1, False)
    cache.keep(key, frozenset(), Turns(Sections.empty(key[0], 0), 100))
    for number in range(500):
        cache.keep(number.to_bytes(4, "big"), frozenset(), Turns(b"packet", 6))
    assert cache.evicted > 400
    assert cache.get(key, 0) is not None


def test_a_change_meanwhile_is_noticed() -> None:
    """An answer is outdated by a change of an object it depends on, and by no other."""
    cache = ClusterCache()
    token, other = ("service", "x", "a"), ("service", "x", "b")
    begun = [cache.begin(frozenset({token})) for _ in range(2)]
    cache.drop([other])
    assert cache.end(begun[0])
    cache.drop([token])
    assert not cache.end(begun[1])
    assert cache.size == 0
