"""Shares of zones: which nodes count, their weight, and which node lacks information."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import Node, convert
from zonewise.topology.shares import MissingCpu, MissingZone, Shares, ZoneShare, shares_of

ROLE = "node-role.kubernetes.io/control-plane"
OLD_ROLE = "node-role.kubernetes.io/master"


def node(
    name: str,
    zone: str = "",
    cpu: str | int | float | None = "4",
    *,
    ready: str | None = "True",
    labels: Mapping[str, str] | None = None,
    cordoned: bool = False,
) -> Node:
    """A node as a server sends it."""
    known = dict(labels or {})
    if zone:
        known["topology.kubernetes.io/zone"] = zone
    return convert(
        Node,
        {
            "metadata": {"name": name, "labels": known},
            "spec": {"unschedulable": cordoned},
            "status": {
                "allocatable": {} if cpu is None else {"cpu": cpu},
                "conditions": [{"type": "MemoryPressure", "status": "False"}]
                + ([{"type": "Ready", "status": ready}] if ready else []),
            },
        },
    )


def test_the_example_of_the_source() -> None:
    """20, 16 and 14 cores are 40, 32 and 28 percent."""
    shares = shares_of([node("n1", "a", "20"), node("n2", "b", "16"), node("n3", "c", "14")])
    assert shares.reason is None
    assert [shares.share(zone) for zone in "abc"] == [
        Fraction(40, 100),
        Fraction(32, 100),
        Fraction(28, 100),
    ]
    assert shares.share("d") == 0


def test_cpu_of_all_nodes_of_a_zone_is_added_exactly() -> None:
    """Quantities in every spelling add up to thousandths of a core, without floats."""
    nodes = [node("n1", "a", "3920m"), node("n2", "a", 0.1), node("n3", "a", 2), node("n4", "b")]
    shares = shares_of(nodes)
    assert shares.zones == (ZoneShare("a", 3, 6020, 6020), ZoneShare("b", 1, 4000, 4000))
    assert shares.total == 10020


@pytest.mark.parametrize(
    "other",
    [
        node("n3", "c", ready="False"),
        node("n3", "c", ready="Unknown"),
        node("n3", "c", ready=None),
        node("n3", "c", labels={ROLE: ""}),
        node("n3", "c", labels={OLD_ROLE: "true"}),
        node("n3", "", labels={ROLE: ""}),
        node("n3", "", ready="False"),
        node("n3", "c", None, ready="False"),
        node("n3", "c", None, labels={ROLE: ""}),
    ],
)
def test_nodes_that_do_not_count(other: Node) -> None:
    """A node that is not Ready or is of the control plane changes nothing, whatever it lacks."""
    base = [node("n1", "a"), node("n2", "b")]
    assert shares_of([*base, other]) == shares_of(base)


def test_cordoned_nodes_count() -> None:
    """Pods on a cordoned node still send traffic."""
    shares = shares_of([node("n1", "a"), node("n2", "b", cordoned=True)])
    assert shares.share("b") == Fraction(1, 2)


def test_missing_zone_disables_and_names_the_node() -> None:
    """One Ready node without a zone stops decisions; the reason names it and says what to do."""
    nodes = [node("n1", "a"), node("n2", "b"), node("n9"), node("n3")]
    shares = shares_of(nodes)
    reason = shares.reason
    assert reason is not None
    assert reason.code == "NodeWithoutZone"
    assert reason.object == "Node/n3"
    assert reason.message == "node n3 has no zone label (and 1 more)"
    assert "topology.kubernetes.io/zone" in reason.fix
    assert [zone.name for zone in shares.zones] == ["a", "b"]


def test_missing_zone_can_skip_the_node() -> None:
    """With skip-node the node leaves the shares and nothing else changes."""
    base = [node("n1", "a", "1"), node("n2", "b", "3")]
    skipped = shares_of([*base, node("n3", "", "100")], missing_zone=MissingZone.SKIP_NODE)
    assert skipped == shares_of(base)


@pytest.mark.parametrize("cpu", [None, "0", "-1", "many"])
def test_missing_cpu_disables_and_names_the_node(cpu: str | None) -> None:
    """A Ready node without usable CPU stops decisions, and the reason names it."""
    reason = shares_of([node("n1", "a"), node("n2", "b", cpu)]).reason
    assert reason is not None
    assert (reason.code, reason.object) == ("NodeWithoutCpu", "Node/n2")
    assert "--missing-cpu=equal" in reason.fix


def test_missing_cpu_can_make_all_nodes_equal() -> None:
    """With equal, all nodes weigh the same as soon as one has no CPU."""
    nodes = [node("n1", "a", "64"), node("n2", "b", None), node("n3", "b", "2")]
    shares = shares_of(nodes, missing_cpu=MissingCpu.EQUAL)
    assert shares.reason is None
    assert (shares.share("a"), shares.share("b")) == (Fraction(1, 3), Fraction(2, 3))
    known = shares_of([node("n1", "a", "3"), node("n2", "b", "1")], missing_cpu=MissingCpu.EQUAL)
    assert known.share("a") == Fraction(3, 4)


def test_one_zone_and_no_zone_are_distinguished() -> None:
    """A single zone is not missing information, and no node is not a single zone."""
    one_zone = shares_of([node("n1", "a"), node("n2", "a")]).reason
    none = shares_of([node("n1", "a", ready="False")]).reason
    assert one_zone is not None
    assert none is not None
    assert (one_zone.code, none.code) == ("OneZone", "NoNodes")
    assert "zone a" in one_zone.message


def test_shares_change_with_cpu_label_readiness_and_role() -> None:
    """Each change of a node's CPU, label, readiness or role gives other shares."""
    base = [node("n1", "a"), node("n2", "b"), node("n3", "c")]
    before = shares_of(base)
    others = [
        node("n3", "c", "8"),
        node("n3", "b"),
        node("n3", "c", ready="False"),
        node("n3", "c", labels={ROLE: ""}),
    ]
    assert all(shares_of([*base[:2], other]) != before for other in others)


@given(st.permutations(range(8)))
def test_order_of_nodes_does_not_matter(order: list[int]) -> None:
    """The same nodes in any order give equal shares and equal reasons."""
    nodes = [node(f"n{n}", "abc"[n % 3], str(n + 1)) for n in range(7)] + [node("n7")]
    shuffled = [nodes[n] for n in order]
    assert shares_of(shuffled) == shares_of(nodes)
    skip = MissingZone.SKIP_NODE
    assert shares_of(shuffled, missing_zone=skip) == shares_of(nodes, missing_zone=skip)


def test_shares_do_not_depend_on_the_order_of_zones() -> None:
    """Shares are equal whatever order their zones were given in."""
    a, b = ZoneShare("a", 1, 1000, 1000), ZoneShare("b", 1, 2000, 2000)
    assert Shares((b, a)) == Shares((a, b))
    assert list(Shares((b, a)).weights) == ["a", "b"]
    assert hash(Shares((b, a))) == hash(Shares((a, b)))
