"""Messages for a person who declares a domain dead, or gives it back."""

from __future__ import annotations

from zonewise.storage.takeover.stand_ins import NO_TAKEOVER, TakeoverMap
from zonewise.storage.takeover.warnings import (
    NodeReadiness,
    explain_force,
    find_unknown_domain,
    warn_of_down_nodes,
    warn_of_ready_nodes,
)

DOMAINS = [{"region": "r1", "zone": zone} for zone in "cab"]


def places(*ready: bool) -> list[NodeReadiness]:
    """Nodes of a, and one of b."""
    return [
        *(NodeReadiness(DOMAINS[1], is_ready) for is_ready in ready),
        NodeReadiness(DOMAINS[2], True),
    ]


def test_an_unknown_name_is_reported_with_the_known_ones() -> None:
    """Short, full and larger names are known; without known domains no name is reported."""
    assert find_unknown_domain(["a", "r1/b", "r1", "all"], DOMAINS) is None
    message = "there is no domain x; the domains are r1/a, r1/b, r1/c"
    assert find_unknown_domain(["a", "x"], [*DOMAINS, {}]) == message
    assert find_unknown_domain(["x"], [{}]) is None


def test_a_takeover_of_a_live_domain_is_warned_of() -> None:
    """The warning has the number of its Ready nodes; without any there is no warning."""
    warning = warn_of_ready_nodes("a", places(True, False, True))
    assert warning is not None
    assert warning.message == "2 of 3 nodes of a are Ready: a takeover declares them dead"
    assert warn_of_ready_nodes("a", places(False)) is None
    assert warn_of_ready_nodes("a", places()) is None


def test_taking_over_a_live_domain_needs_force() -> None:
    """Taking over a domain with one Ready node needs force; one that is down, or taken over
    already, needs none.
    """
    assert explain_force("a", places(False, True), NO_TAKEOVER) == (
        "1 of 2 nodes of a are Ready: a takeover declares them dead; wait until they are not"
        " Ready, or add --force to take a over nevertheless"
    )
    assert explain_force("a", places(False, False), NO_TAKEOVER) is None
    assert explain_force("a", places(True), TakeoverMap({"a": ("b",)})) is None
    assert explain_force("a", places(True), TakeoverMap({"b": ("c",)})) is not None


def test_giving_back_a_dead_domain_is_warned_of() -> None:
    """Without a Ready node, or without any node, its pods will be Pending."""
    for ready, begin in (((False, False), "none of 2 nodes of a is Ready"), ((), "a has no node")):
        warning = warn_of_down_nodes("a", places(*ready))
        assert warning is not None
        assert warning.message.startswith(begin) and "Pending until it is back" in warning.message
    assert warn_of_down_nodes("a", places(False, True)) is None
