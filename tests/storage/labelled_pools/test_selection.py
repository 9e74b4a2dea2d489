"""Pools that a class takes by their own labels."""

from __future__ import annotations

import pytest

from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.errors import CsiCode, StorageError
from zonewise.storage.labelled_pools.selection import labels_in_metadata
from zonewise.storage.parameters import (
    ClassParameters,
    lenient_class_pools,
    parse_class,
    with_labelled_pools,
)
from zonewise.storage.pools import PoolSpec, PoolState

LABELS = DomainLabels("csi.example.com", ("example.com/region", "example.com/zone"))
ANYTHING = StorageConfiguration()


def labelled(file_system: str = "", **labels: str) -> PoolState:
    """A pool with these labels."""
    return PoolState(1, labels=labels, file_system=file_system)


STATES = {
    "slow-a": labelled(region="r1", zone="a"),
    "fast-a": labelled(region="r1", zone="a", tier="fast"),
    "fast-b": labelled(zone="b", tier="fast"),
    "rack-7": labelled(rack="7", tier="fast"),
    "strange": labelled(zone="not a value", tier="fast"),
    "journal": labelled(),
}


def taken(
    *, states: dict[str, PoolState] | None = None, labels: DomainLabels = LABELS, **given: str
) -> ClassParameters:
    """A class with the pools that it takes."""
    parsed = parse_class(given, labels, ANYTHING)
    assert parsed.pools == ()
    return with_labelled_pools(parsed, STATES if states is None else states, labels, ANYTHING)


def test_every_pool_that_is_labelled_with_a_domain_is_taken() -> None:
    """The segments are the labels that are domain labels, the largest domain first; pools without
    any, or with a value that no node can have, are left alone.
    """
    assert taken(poolLabels="all").pools == (
        PoolSpec("fast-a", segments={"region": "r1", "zone": "a"}),
        PoolSpec("fast-b", segments={"zone": "b"}),
        PoolSpec("slow-a", segments={"region": "r1", "zone": "a"}),
    )
    assert [*taken(poolLabels="all").pools[0].segments] == ["region", "zone"]


def test_a_class_may_require_further_labels() -> None:
    """Of pools with a domain those that have all of the class's labels; a file system, where the
    class names one, must be that of the pool.
    """
    names = [pool.name for pool in taken(poolLabels="tier=fast, zone=b").pools]
    assert names == ["fast-b"]
    states = {"f": labelled("files", zone="a"), "g": labelled("others", zone="a")}
    assert [pool.name for pool in taken(states=states, poolLabels="all").pools] == ["f", "g"]
    named = taken(states=states, poolLabels="all", fsName="others")
    assert [pool.name for pool in named.pools] == ["g"]


def test_without_domain_labels_every_label_is_a_domain() -> None:
    """A driver without topology takes all pools that have a label."""
    pools = taken(poolLabels="all", labels=DomainLabels("csi.example.com")).pools
    assert {pool.name for pool in pools} == {"fast-a", "fast-b", "rack-7", "slow-a"}


@pytest.mark.parametrize("text", ["", "yes", "tier", "tier=", "=fast", "tier=a b", "tier=a,tier=b"])
def test_a_bad_selector_is_refused_with_its_path(text: str) -> None:
    """Anything but "all" and labels is refused, at the parameter."""
    with pytest.raises(StorageError, match=r"^poolLabels: ") as refused:
        taken(poolLabels=text)
    assert refused.value.refusal.code is CsiCode.INVALID_ARGUMENT


@pytest.mark.parametrize("other", ["poolSet", "topologyConstrainedPools"])
def test_pools_are_listed_or_labelled(other: str) -> None:
    """A class that lists its pools cannot take them by labels as well."""
    with pytest.raises(StorageError, match=f"poolLabels: cannot be used together with {other}"):
        parse_class({"poolLabels": "all", other: "x"}, LABELS, ANYTHING)


def test_without_a_labelled_pool_the_refusal_says_what_is_missing() -> None:
    """It names the labels that are needed, the pools that have others, and the command that prints
    how to label; what was placed before is still found, so it is no error of the class.
    """
    refusal = taken(poolLabels="tier=slow", fsName="files").placement_refusal
    assert refusal is not None
    assert refusal.code is CsiCode.FAILED_PRECONDITION
    message = refusal.reason.message
    assert "region or zone, tier=slow, file system files; pools with labels are fast-a (" in message
    assert "zonewise csi pools" in refusal.reason.fix
    none = taken(states={"p": labelled()}, poolLabels="all").placement_refusal
    assert none is not None
    assert none.reason.message.endswith("region or zone; no pool has any label")
    at_default = taken(states={}, poolLabels="all", placement="default-pool", pool="p")
    assert at_default.placement_refusal is None


def test_where_the_configuration_names_pools_only_these_are_taken() -> None:
    """A pool that the configuration lacks is left out, and a class without others is refused."""
    configuration = StorageConfiguration(pools=(PoolSpec("fast-b"),))
    parsed = parse_class({"poolLabels": "all"}, LABELS, configuration)
    resolved = with_labelled_pools(parsed, STATES, LABELS, configuration)
    assert [pool.name for pool in resolved.pools] == ["fast-b"]
    states = {"fast-a": STATES["fast-a"]}
    assert with_labelled_pools(parsed, states, LABELS, configuration).placement_refusal is not None


def test_labels_are_the_metadata_with_the_prefix() -> None:
    """What others keep in the metadata of a pool's application is no label."""
    metadata = {"zonewise.zone": "a", "data": "files", "owner.zone": "b"}
    assert labels_in_metadata(metadata) == {"zone": "a"}


def test_labels_may_have_the_long_prefix() -> None:
    """A label may be ``zonewise.io/zone`` in the metadata; of both the short one counts."""
    assert labels_in_metadata({"zonewise.io/zone": "a"}) == {"zone": "a"}
    for order in (1, -1):
        both = [("zonewise.io/zone", "a"), ("zonewise.zone", "b")][::order]
        assert labels_in_metadata(dict(both)) == {"zone": "b"}


def test_a_takeover_looks_at_labelled_pools_as_at_listed_ones() -> None:
    """The pools of a class by their labels, and its data pool in each of their domains."""
    given = {"poolLabels": "tier=fast", "dataPool": "d"}
    pools = lenient_class_pools(given, LABELS, STATES)
    assert [(pool.name, pool.segments["zone"]) for pool in pools] == [
        ("fast-a", "a"),
        ("fast-b", "b"),
        ("d", "a"),
        ("d", "b"),
    ]
    assert lenient_class_pools({"poolLabels": "?"}, LABELS, STATES) == ()
