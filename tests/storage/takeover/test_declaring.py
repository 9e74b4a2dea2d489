"""What a person hears who declares a domain dead, or gives it back."""

from __future__ import annotations

from zonewise.storage.takeover.declaring import (
    NodePlace,
    force_needed,
    still_down,
    still_ready,
    unknown_domain,
)
from zonewise.storage.takeover.standing_in import NO_TAKEOVER, TakeoverMap

DOMAINS = [{"region": "r1", "zone": zone} for zone in "cab"]


def places(*ready: bool) -> list[NodePlace]:
    """Nodes of a, and one of b."""
    return [*(NodePlace(DOMAINS[1], one) for one in ready), NodePlace(DOMAINS[2], True)]


def test_a_name_nobody_knows_is_told_with_those_there_are() -> None:
    """Short, full and larger names are known; where no domain is known nothing is unknown."""
    assert unknown_domain(["a", "r1/b", "r1", "all"], DOMAINS) is None
    said = "there is no domain x; the domains are r1/a, r1/b, r1/c"
    assert unknown_domain(["a", "x"], [*DOMAINS, {}]) == said
    assert unknown_domain(["x"], [{}]) is None


def test_a_takeover_of_the_living_is_warned_of() -> None:
    """With the number of its Ready nodes; where none is there is nothing to say."""
    found = still_ready("a", places(True, False, True))
    assert found is not None
    assert found.message == "2 of 3 nodes of a are Ready: a takeover declares them dead"
    assert still_ready("a", places(False)) is None
    assert still_ready("a", places()) is None


def test_taking_over_the_living_needs_force() -> None:
    """One Ready node is enough; a domain that is down, or taken over already, needs none."""
    assert force_needed("a", places(False, True), NO_TAKEOVER) == (
        "1 of 2 nodes of a are Ready: a takeover declares them dead; wait until they are not"
        " Ready, or add --force to take a over nevertheless"
    )
    assert force_needed("a", places(False, False), NO_TAKEOVER) is None
    assert force_needed("a", places(True), TakeoverMap({"a": ("b",)})) is None
    assert force_needed("a", places(True), TakeoverMap({"b": ("c",)})) is not None


def test_giving_back_the_dead_is_warned_of() -> None:
    """Without a Ready node, or without any, its pods will be Pending."""
    for ready, begin in (((False, False), "none of 2 nodes of a is Ready"), ((), "a has no node")):
        found = still_down("a", places(*ready))
        assert found is not None
        assert found.message.startswith(begin) and "Pending until it is back" in found.message
    assert still_down("a", places(False, True)) is None
