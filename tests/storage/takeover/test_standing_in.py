"""Takeover: which nodes stand in for which domain, how that is labelled, what is reported."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.values.labels import label_key_error
from zonewise.storage.domains import DomainLabels, parse_domain_labels
from zonewise.storage.pools import Pool, PoolSpec, PoolState
from zonewise.storage.takeover.stand_ins import (
    TakeoverMap,
    add_takeover_term,
    covers,
    desired_takeover_labels,
    diff_takeover_labels,
    takeover_key,
    takeover_term,
)
from zonewise.storage.takeover.warnings import (
    VolumeUse,
    find_away_from_home,
    find_takeover_warnings,
)

LABELS = parse_domain_labels("e.io/region;e.io/zone", "csi.zonewise.io")
ZONE = parse_domain_labels("e.io/zone", "csi.zonewise.io")
KEY = "topology.csi.zonewise.io"


def at(region: str, zone: str) -> dict[str, str]:
    """A domain."""
    return {"region": region, "zone": zone}


def test_names() -> None:
    """A domain is named by all its values, or by the last; larger domains contain smaller ones."""
    assert covers("a", at("r1", "a"))
    assert covers("r1/a", at("r1", "a"))
    assert covers("r1", at("r1", "a"))
    assert not covers("r2/a", at("r1", "a"))
    assert not covers("r1/a", {"region": "r1"})
    assert not covers("a", {})


def test_one_stands_in_for_another() -> None:
    """Only nodes of the targets stand in, and never those of the failed domain."""
    taken = TakeoverMap({"a": ("b", "r2/c")})
    assert taken.stands_in(at("r1", "b"), "a")
    assert taken.stands_in(at("r2", "c"), "a")
    assert not taken.stands_in(at("r1", "c"), "a")
    assert not taken.stands_in(at("r1", "a"), "a")
    assert not taken.stands_in(at("r1", "b"), "x")
    assert not taken.stands_in({}, "a")


def test_all_stand_in() -> None:
    """``all`` means the nodes of every domain that is not taken over itself."""
    taken = TakeoverMap({"a": ("all",), "d": ("b",)})
    assert taken.stands_in(at("r1", "b"), "a")
    assert not taken.stands_in(at("r1", "d"), "a")
    assert not taken.stands_in(at("r1", "a"), "a")


def test_labels_of_nodes() -> None:
    """A node has a label for every domain it stands in for, and none without a takeover."""
    homes = [at("r1", "a"), at("r1", "b"), {"region": "r1"}]
    node = at("r2", "c")
    assert desired_takeover_labels(node, TakeoverMap(), homes, LABELS) == {}
    zone = desired_takeover_labels(node, TakeoverMap({"r1/a": ("c",)}), homes, LABELS)
    assert zone == {f"{KEY}/takeover.r1.a": "true"}
    region = desired_takeover_labels(node, TakeoverMap({"r1": ("all",)}), homes, LABELS)
    assert list(region) == [f"{KEY}/takeover.{name}" for name in ("r1", "r1.a", "r1.b")]


def test_home_comes_first() -> None:
    """A volume's topology is its home, then one key for the nodes that stand in."""
    home = {f"{KEY}/zone": "a"}
    assert add_takeover_term((home,), {"zone": "a"}, ZONE) == (home, {f"{KEY}/takeover.a": "true"})
    assert add_takeover_term((), {"zone": "a"}, ZONE) == ()
    assert takeover_term({}, ZONE) == {}


def test_changes_of_labels() -> None:
    """Labels are added and removed by a patch that touches no others."""
    desired = {f"{KEY}/takeover.a": "true"}
    existing = {f"{KEY}/takeover.b": "true", f"{KEY}/zone": "c", "takeover.x": "y"}
    assert diff_takeover_labels(existing, desired, ZONE) == {
        f"{KEY}/takeover.a": "true",
        f"{KEY}/takeover.b": None,
    }
    assert diff_takeover_labels(desired, desired, ZONE) == {}
    assert diff_takeover_labels({f"{KEY}/takeover.a": "no"}, desired, ZONE) == desired


NAMES = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True)


@given(st.lists(NAMES, min_size=1, max_size=2), st.lists(NAMES, min_size=1, max_size=2))
def test_every_domain_has_a_label_of_its_own(left: list[str], other: list[str]) -> None:
    """A key is valid however long the names are, and two domains never share one."""
    labels = DomainLabels("csi.zonewise.io", ("e.io/region", "e.io/zone"))
    keys = []
    for values in (left, other):
        names = ("zone",) if len(values) == 1 else ("region", "zone")
        key = takeover_key(dict(zip(names, values, strict=True)), labels)
        assert label_key_error(key) is None
        assert key.startswith(f"{KEY}/takeover.")
        keys.append(key)
    assert (keys[0] == keys[1]) == (left == other) or _same_text(left, other)


def _same_text(left: list[str], other: list[str]) -> bool:
    """A single name with a dot reads as two names, so that zones have one name in every class."""
    return ".".join(left) == ".".join(other)


def test_long_names() -> None:
    """A name that does not fit ends in a hash of it."""
    key = takeover_key({"zone": "z" * 63}, ZONE)
    assert len(key.partition("/")[2]) == 63
    assert key != takeover_key({"zone": "z" * 62 + "y"}, ZONE)


def test_away_from_home() -> None:
    """When a domain is given back, pods that still run elsewhere are reported by name."""
    uses = [
        VolumeUse("pv-2", "", "n2", {"zone": "a"}, {"zone": "b"}),
        VolumeUse("pv-1", "shop/db-0", "n2", {"zone": "a"}, {"zone": "b"}),
        VolumeUse("pv-3", "shop/db-1", "n1", {"zone": "a"}, {"region": "r", "zone": "a"}),
        VolumeUse("pv-4", "shop/web", "n2", {}, {"zone": "b"}),
    ]
    first, second = find_away_from_home(uses)
    assert first.message == "volume pv-2 of a is still attached to node n2 in b"
    assert second.message == "pod shop/db-0 uses volume pv-1 of a on node n2 in b"
    assert second.object == "Pod/shop/db-0"
    assert "starts at home" in second.fix
    assert "keep other pods of its set Pending" in second.fix
    taken = find_away_from_home(uses, TakeoverMap({"a": ("b",)}))
    assert [reason.message for reason in taken] == [first.message, second.message]
    assert "taken over" in taken[1].fix and "Delete" not in taken[1].fix


@pytest.mark.parametrize("dead", [PoolState(1, alive=False), PoolState(1, 0, Fraction(0))])
def test_warnings(dead: PoolState) -> None:
    """Unknown names, and pools that failed with their domain, are warned about."""
    pools = [
        Pool(PoolSpec("a", "", {"zone": "a"}), dead),
        Pool(PoolSpec("b", "", {"zone": "b"}), PoolState(1)),
    ]
    taken = TakeoverMap({"a": ("b", "x"), "b": ("all",)})
    got = find_takeover_warnings(taken, pools, [{"zone": "c"}])
    assert [(reason.code, reason.object) for reason in got] == [
        ("UnknownDomain", ""),
        ("TakenPoolDead", "Pool/a"),
    ]
    assert "domain x" in got[0].message
