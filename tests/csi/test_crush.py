"""What Ceph's maps say about pools: their domains, their health, their capacity."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from zonewise.csi.backends.ceph.crush import find_contradictions, find_failed_domains, parse_pools
from zonewise.storage.pools import PoolSpec

CRUSH = {
    "buckets": [
        {"id": -1, "name": "default", "type_name": "root", "items": [{"id": -2}, {"id": -3}]},
        {"id": -2, "name": "a", "type_name": "zone", "items": [{"id": 0}, {"id": 1}]},
        {"id": -3, "name": "b", "type_name": "zone", "items": [{"id": 2}]},
    ],
    "rules": [
        {"rule_id": 0, "steps": [{"op": "take", "item": -2}, {"op": "emit"}]},
        {"rule_id": 1, "steps": [{"op": "take", "item": -1}, {"op": "emit"}]},
    ],
}


def pool(name: str, rule: int, **more: Any) -> dict[str, Any]:
    """A pool of ``osd dump``."""
    usual = {"pool": 7, "quota_max_bytes": 0, "flags_names": "hashpspool", "min_size": 1}
    return {"pool_name": name, "crush_rule": rule, **usual, **more}


def dump(*pools: dict[str, Any], up: tuple[int, ...] = (0, 1, 2)) -> dict[str, Any]:
    """``osd dump``."""
    return {"osds": [{"osd": osd, "up": int(osd in up)} for osd in range(3)], "pools": list(pools)}


def space(**stored: int) -> dict[str, Any]:
    """``df``: 100 bytes are left everywhere."""
    return {
        "pools": [
            {"name": name, "stats": {"max_avail": 100, "stored": used}}
            for name, used in stored.items()
        ]
    }


def test_health_is_the_part_of_osds_that_is_up() -> None:
    """With half of its OSDs a pool has half its health; with too few it is dead."""
    half = parse_pools(space(p=0), dump(pool("p", 0), up=(1, 2)), CRUSH)["p"].state
    assert (half.health, half.alive, half.capacity) == (Fraction(1, 2), True, 100)
    dead = parse_pools(space(p=0), dump(pool("p", 0), up=(2,)), CRUSH)["p"].state
    assert not dead.alive
    assert dead.health == 0
    few = parse_pools(space(p=0), dump(pool("p", 0, min_size=2), up=(1,)), CRUSH)["p"]
    assert not few.alive


def test_a_quota_and_a_full_flag_are_limits() -> None:
    """The capacity is what a quota leaves; a full pool has none."""
    pools = parse_pools(
        space(q=30, f=0),
        dump(pool("q", 0, quota_max_bytes=50), pool("f", 1, flags_names="full,full_quota")),
        CRUSH,
    )
    assert pools["q"].state.capacity == 20
    assert pools["f"].state.capacity == 0
    assert pools["q"].state.limit is None


def test_a_pool_has_the_labels_of_its_application() -> None:
    """Labels are the application's metadata with our prefix, for the application of the driver; a
    pool that no file system uses has none for CephFS.
    """
    label = {"zonewise.zone": "a"}
    pools = parse_pools(
        space(images=0, files=0, unused=0),
        dump(
            pool("images", 0, application_metadata={"rbd": label | {"owner": "x"}}),
            pool("files", 0, application_metadata={"cephfs": label | {"data": "fs"}}),
            pool("unused", 0, application_metadata={"cephfs": label}),
        ),
        CRUSH,
    )
    by_application = {
        (name, application): (state.labels, state.file_system)
        for name, ceph_pool in pools.items()
        for application in ("rbd", "cephfs")
        if (state := ceph_pool.labelled_state(application)).labels or state.file_system
    }
    assert by_application == {
        ("images", "rbd"): ({"zone": "a"}, ""),
        ("files", "cephfs"): ({"zone": "a"}, "fs"),
    }


def test_declared_and_real_domains() -> None:
    """A pool that is declared in a zone but spans two, or is in another, is reported."""
    pools = parse_pools(space(a=0, wide=0), dump(pool("a", 0), pool("wide", 1)), CRUSH)
    specs = [
        PoolSpec("a", segments={"region": "r1", "zone": "a"}),
        PoolSpec("wide", segments={"zone": "b"}),
        PoolSpec("gone", segments={"zone": "a"}),
    ]
    assert find_contradictions(specs, pools) == [
        {"pool": "gone", "declared": "", "crush": "there is no such pool"},
        {"pool": "wide", "declared": "zone=b", "crush": "zone=a, b"},
    ]
    assert find_contradictions([PoolSpec("a", segments={"zone": "b"})], pools) == [
        {"pool": "a", "declared": "zone=b", "crush": "zone=a"}
    ]


def test_a_zone_has_failed_when_none_of_its_osds_is_up() -> None:
    """The smallest type that CRUSH has counts; buckets without OSDs are ignored."""
    osds = {"osds": [{"osd": 0, "up": 0}, {"osd": 1, "up": 1}, {"osd": 2, "up": 0}]}
    crush = {
        "buckets": [
            {"id": -1, "name": "default", "type_name": "root", "items": [{"id": -2}, {"id": -3}]},
            {"id": -2, "name": "a", "type_name": "zone", "items": [{"id": 0}]},
            {"id": -3, "name": "b", "type_name": "zone", "items": [{"id": 1}, {"id": 2}]},
            {"id": -4, "name": "c", "type_name": "zone", "items": []},
            {"id": -5, "name": "a~ssd", "type_name": "zone", "items": [{"id": 0}]},
        ]
    }
    domains = find_failed_domains(osds, crush, ("region", "zone"))
    assert domains == (frozenset({"a", "b"}), frozenset({"a"}))
    assert find_failed_domains(osds, crush, ("rack",)) == (frozenset(), frozenset())
