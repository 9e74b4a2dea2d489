"""Automatic takeover: flapping does not trigger it, and manual decisions are not undone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.errors import ConfigError
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.takeover.automatic import (
    AutomaticDecision,
    AutomaticTakeover,
    decide_automatic,
)
from zonewise.storage.takeover.domain_states import DomainTimes, count_times, judge_storage
from zonewise.storage.takeover.stand_ins import TakeoverMap

PAUSE = 300.0
BY_ALL = AutomaticTakeover(("all",), PAUSE)
ZONES = ("a", "b", "c")
WAITING = {"TakeoverPending", "GivebackPending", "StillDown"}
LABELS = parse_domain_labels("e.io/zone", "csi.zonewise.io")


class Life:
    """A cluster that is examined from time to time."""

    def __init__(self, settings: AutomaticTakeover = BY_ALL) -> None:
        self.settings = settings
        self.taken: dict[str, tuple[str, ...]] = {}
        self.automatic: set[str] = set()
        self.watch = DomainTimes()
        self.codes: list[str] = []

    def look(self, now: float, *failed: str) -> float | None:
        """Examine the cluster, and apply the decision."""
        self.watch = count_times(failed, ZONES, self.watch, now)
        states = {"ceph": judge_storage(self.watch, self.settings.pause)}
        decision = decide_automatic(
            self.settings, states, TakeoverMap(self.taken), self.automatic, {}, now
        )
        self.codes += [reason.code for reason in decision.reasons]
        self.codes += [hold.code for hold in decision.holds if hold.code not in WAITING]
        for name, by in decision.changes.items():
            if by is None:
                del self.taken[name]
                self.automatic.discard(name)
            else:
                self.taken[name] = by
                self.automatic.add(name)
        return decision.retry_after


def test_down_for_the_whole_pause() -> None:
    """A domain is taken over when the pause is over, not before, and given back when it was up for
    as long.
    """
    life = Life()
    assert life.look(0, "a") == PAUSE
    assert life.look(299, "a") == 1
    assert life.taken == {}
    assert life.look(300, "a") is None
    assert life.taken == {"a": ("all",)}
    assert life.look(400) == PAUSE
    assert life.look(699) == 1
    assert life.taken == {"a": ("all",)}
    life.look(700)
    assert life.taken == {}
    assert life.codes == ["TakenOverAutomatically", "GivenBackAutomatically"]


@given(
    st.lists(st.tuples(st.floats(1, PAUSE - 1), st.floats(1, PAUSE - 1)), min_size=1, max_size=30),
    st.booleans(),
)
def test_a_flapping_domain_moves_nothing(times: list[tuple[float, float]], taken: bool) -> None:
    """A domain that is never down or up for the whole pause changes nothing."""
    life = Life()
    if taken:
        life.taken, life.automatic = {"a": ("all",)}, {"a"}
    before = dict(life.taken)
    now = 0.0
    for down, up in times:
        life.look(now, "a")
        life.look(now + down / 2, "a")
        now += down
        life.look(now)
        life.look(now + up / 2)
        now += up
    assert life.taken == before
    assert life.codes == []


def test_manual_takeovers_stay() -> None:
    """A domain that was taken over by hand is not given back, however healthy it is."""
    life = Life()
    life.taken = {"a": ("b",)}
    for now in range(0, 3000, 100):
        life.look(now)
    assert life.taken == {"a": ("b",)}


def test_half_of_all_domains_are_not_taken() -> None:
    """If half of all domains fail, we are probably cut off, so nothing is taken over."""
    life = Life()
    life.look(0, "a", "b")
    life.look(1000, "a", "b")
    assert life.taken == {}
    assert life.codes == ["TooManyDown", "TooManyDown"]
    life.look(1001, "a")
    assert life.taken == {"a": ("all",)}


def test_failed_targets_do_not_stand_in() -> None:
    """A target that failed itself, or is taken over, does not stand in."""
    life = Life(AutomaticTakeover(("a", "b"), PAUSE))
    life.taken = {"b": ("c",)}
    life.look(0, "a")
    life.look(300, "a")
    assert life.taken == {"b": ("c",)}
    assert life.codes == ["NobodyLeft"]


def test_a_domain_that_stands_in_is_taken_over_by_healthy_ones() -> None:
    """A domain that stands in for another is taken over by named domains when it fails."""
    life = Life()
    life.taken = {"a": ("b",)}
    life.look(0, "b")
    life.look(PAUSE, "b")
    assert life.taken == {"a": ("b",), "b": ("c",)}


def test_a_domain_named_all_stays_and_holds_up_no_other() -> None:
    """A failed domain with the name that stands for all of them is held, and others are taken over;
    it does not stand in where domains are named.
    """

    def decide(settings: AutomaticTakeover, taken: TakeoverMap, *failed: str) -> AutomaticDecision:
        times = count_times(failed, {"a", "b", "c", "d", "all"}, DomainTimes(), 0)
        states = {"ceph": judge_storage(times, PAUSE)}
        return decide_automatic(settings, states, taken, (), {}, PAUSE)

    decision = decide(BY_ALL, TakeoverMap({}), "a", "all")
    assert decision.changes == {"a": ("all",)}
    assert [hold.code for hold in decision.holds] == ["NameReserved"]
    looped = decide(BY_ALL, TakeoverMap({"d": ("a",)}), "a")
    assert looped.changes == {"a": ("b", "c")}


def test_the_configuration_turns_it_on() -> None:
    """Automatic takeover is off without the key; an invalid value is an error of one sentence with
    its path.
    """
    text = json.dumps({"version": 2, "automatic-takeover": {"by": ["all"], "pause": "5m"}})
    assert parse_configuration(text, LABELS).automatic_takeover == BY_ALL
    assert parse_configuration('{"version": 2}', LABELS).automatic_takeover is None
    for value, words in (
        ({"by": ["all"]}, "automatic-takeover.pause: is missing"),
        ({"by": [], "pause": "5m"}, "automatic-takeover.by: names no domain"),
        ({"by": ["all", "b"], "pause": "5m"}, "cannot be combined"),
        ({"by": ["b", "b"], "pause": "5m"}, "twice"),
        ({"by": ["b"], "pause": "10s"}, "shorter than 30s"),
        ({"by": ["b"], "pause": "soon"}, "automatic-takeover.pause"),
        ({"by": ["b"], "pause": "5m", "x": 1}, "unknown key"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_configuration(json.dumps({"version": 2, "automatic-takeover": value}), LABELS)
