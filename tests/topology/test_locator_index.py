"""Where pods are: claims on addresses, labels of nodes, and maps that are stored once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from zonewise.api.codec import convert
from zonewise.api.objects.core import Node
from zonewise.topology.locator_index import (
    UNKNOWN_LOCATION,
    LabelInterner,
    Locator,
    LocatorIndex,
    canonical_address,
)


def locator(name: str, node: str, *addresses: str, version: int = 1, **labels: str) -> Locator:
    """A locator in namespace x."""
    return Locator(("x", name), name, "2026-01-01T00:00:00Z", version, addresses, node, labels)


def test_an_address_leads_to_a_node_and_its_labels() -> None:
    """One look-up of an address gives node and labels; an address that no pod has is unknown."""
    index = LocatorIndex()
    index.put(locator("p", "n", "10.0.0.1", "fd00::1", zone="a"))
    for address in ("10.0.0.1", "fd00::1"):
        location = index.locate(address)
        assert (location.node, dict(location.labels)) == ("n", {"zone": "a"})
    assert index.locate("10.0.0.9") is UNKNOWN_LOCATION
    index.put(locator("p", "", version=2))
    assert index.locate("10.0.0.1") is UNKNOWN_LOCATION
    assert index.pods_at("10.0.0.1") == []


def test_the_newest_of_several_claims_wins() -> None:
    """Of several pods with an address the one created last has it, in the same second the later
    claim, even if the old one changes.
    """
    index = LocatorIndex()
    index.put(locator("old", "n1", "10.0.0.1", version=5))
    index.put(locator("new", "n2", "10.0.0.1", version=6))
    assert index.locate("10.0.0.1").node == "n2"
    index.put(locator("old", "n1", "10.0.0.1", version=9))
    assert index.locate("10.0.0.1").node == "n2"
    later = replace(locator("late", "n3", "10.0.0.1"), created="2026-01-01T00:00:01Z")
    index.put(later)
    assert index.pods_at("10.0.0.1") == [("x", "late"), ("x", "new"), ("x", "old")]
    assert index.remove(("x", "late")).addresses == {"10.0.0.1"}
    assert index.locate("10.0.0.1").node == "n2"


def test_a_node_has_the_labels_of_the_locator_written_last() -> None:
    """While locators are rewritten one by one, the newest counts."""
    index = LocatorIndex()
    index.put(locator("p", "n", "10.0.0.1", version=1, zone="a"))
    index.put(locator("q", "n", "10.0.0.2", version=2, zone="a"))
    first = index.locate("10.0.0.1").number
    moved = index.put(locator("p", "n", "10.0.0.1", version=3, zone="b"))
    assert moved.nodes == {"n"}
    assert index.labels_of("n") == {"zone": "b"}
    assert index.locate("10.0.0.2").labels == {"zone": "b"}
    assert index.locate("10.0.0.2").number != first
    assert index.put(locator("q", "n", "10.0.0.2", version=4, zone="b")).nodes == frozenset()


def test_nodes_have_the_labels_that_locators_leave_out() -> None:
    """Labels of a Node count where no locator is on it, or where it is limited to other labels;
    of a limited locator it is known which of its labels a node does not have.
    """
    index = LocatorIndex(follow_nodes=True)
    labels = {"rack": "node", "zone": "node"}
    index.put_node(convert(Node, {"metadata": {"name": "n", "labels": labels}}))
    assert index.labels_of("n") == labels
    limited = replace(locator("p", "n", "10.0.0.1", zone="a"), keys=("row", "zone"))
    assert index.put(limited).nodes == {"n"}
    assert index.labels_of("n") == {"rack": "node", "zone": "a"}
    known = index.located_labels_of("n")
    assert known is not None
    assert [known.know([key]) for key in ("zone", "row", "rack")] == [True, True, False]
    assert index.put(locator("p", "n", "10.0.0.1", zone="a", version=2)).nodes == {"n"}
    assert index.labels_of("n") == {"zone": "a"}
    assert index.remove(("x", "p")).nodes == {"n"}
    assert index.labels_of("n") == labels


def test_labels_of_pods_are_those_of_nodes() -> None:
    """Where pods are read, labels and addresses are those of Nodes; a deleted Node has none."""
    index = LocatorIndex(follow_nodes=True)
    node = {
        "metadata": {"name": "n", "labels": {"zone": "a"}},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "172.16.0.1"},
                {"type": "Hostname", "address": "n"},
            ]
        },
    }
    index.put(replace(locator("p", "n", "10.0.0.1"), keys=()))
    assert index.labels_of("n") == {}
    assert index.locate("10.0.0.1") is UNKNOWN_LOCATION
    assert index.put_node(convert(Node, node)).nodes == {"n"}
    assert index.put_node(convert(Node, node)).nodes == frozenset()
    assert index.locate("10.0.0.1").labels == {"zone": "a"}
    assert index.locate("172.16.0.1").node == "n"
    assert index.locate("n") is UNKNOWN_LOCATION
    assert index.remove_node("n").nodes == {"n"}
    assert index.locate("172.16.0.1") is UNKNOWN_LOCATION
    assert index.labels_of("n") == {}


def test_equal_labels_are_stored_once_and_freed_with_their_last_user() -> None:
    """A thousand pods on ten nodes have ten maps; none is left when they are gone."""
    maps = LabelInterner()
    index = LocatorIndex(interner=maps)
    for number in range(1000):
        node = f"n{number % 10}"
        index.put(locator(f"p{number}", node, f"10.0.{number // 250}.{number % 250}", host=node))
    assert len(maps) == 10
    for number in range(1000):
        index.remove(("x", f"p{number}"))
    assert len(maps) == 0
    assert len(index) == 0


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_the_same_objects_is_the_same_index(seed: int) -> None:
    """The index depends on the objects, not on their order."""
    rng = random.Random(seed)
    items = [
        locator(
            f"p{at}", f"n{rng.randint(0, 3)}", f"10.0.0.{rng.randint(0, 5)}", version=at, z=str(at)
        )
        for at in range(12)
    ]
    answers = set()
    for _ in range(5):
        rng.shuffle(items)
        index = LocatorIndex()
        for item in items:
            index.put(item)
        spots = (index.locate(f"10.0.0.{at}") for at in range(6))
        answers.add(tuple((location.node, tuple(location.labels.items())) for location in spots))
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("FD00:0:0:0::1", "fd00::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("no address", "no address"),
    ],
)
def test_addresses_have_one_text(text: str, same: str) -> None:
    """IPv4 inside of IPv6 becomes IPv4; text is in lower case and without an interface."""
    assert canonical_address(text) == same
