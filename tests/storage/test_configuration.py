"""The configuration file: what is read from it, and each way it can be invalid."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.errors import ConfigError
from zonewise.storage import strict_json
from zonewise.storage.configuration import CephCluster, StorageConfiguration, parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.pools import PoolSpec, PoolState
from zonewise.storage.takeover.stand_ins import TakeoverMap, parse_takeover_map

LABELS = parse_domain_labels("example.com/region;example.com/zone", "csi.zonewise.io")


def read(value: Any) -> StorageConfiguration:
    """Read a file."""
    return parse_configuration(json.dumps(value), LABELS)


def v2(**more: Any) -> dict[str, Any]:
    """A file of version 2."""
    return {"version": 2} | more


def pool(**more: Any) -> dict[str, Any]:
    """A pool."""
    return {"poolName": "a", "capacity": "1Gi"} | more


def test_a_whole_file() -> None:
    """Pools, sets, clusters and takeover are read, numbers exactly."""
    got = parse_configuration(
        """{"version": 2,
            "topology-takeover": {"zone-a": ["zone-b", "r1/c"], "zone-d": ["all"]},
            "pools": [{"poolName": "a", "capacity": "8Gi", "health": 0.1,
                       "domainSegments": [{"domainLabel": "example.com/zone", "value": "a"}]},
                      {"poolName": "wide", "capacity": 1000}],
            "poolSets": {"s": ["a", {"poolName": "x", "dataPool": "y", "domainSegments":
                                     [{"domainLabel": "zone", "value": "a"}]}]},
            "clusters": [{"clusterID": "c1", "monitors": ["h:6789"], "user": "u",
                          "keyFile": "/k", "readAffinity": true}, {"clusterID": "c2"}]}""",
        LABELS,
    )
    assert got.pools == (PoolSpec("a", "", {"zone": "a"}), PoolSpec("wide"))
    assert got.pool_states == {
        "a": PoolState(8 * 2**30, 0, Fraction(1, 10), labels={"zone": "a"}),
        "wide": PoolState(1000),
    }
    assert got.pool_sets == {"s": (got.pools[0], PoolSpec("x", "y", {"zone": "a"}))}
    first = CephCluster("c1", ("h:6789",), "u", "/k", read_affinity=True)
    assert got.clusters == (first, CephCluster("c2"))
    assert got.find_cluster("c2") == CephCluster("c2")
    assert got.takeover == TakeoverMap({"zone-a": ("zone-b", "r1/c"), "zone-d": ("all",)})


def test_version_1() -> None:
    """A bare list is version 1: clusters, with members for others."""
    foreign = {"cephFS": {"subvolumeGroup": "csi"}, "readAffinity": {"enabled": True}}
    got = read([{"clusterID": "c", "monitors": ["m"], **foreign}])
    assert (got.version, got.clusters) == (1, (CephCluster("c", ("m",)),))
    assert read([]) == StorageConfiguration(version=1)


def test_version_1_keeps_a_takeover() -> None:
    """A file without a takeover key leaves the takeover in force as it is."""
    before = read(v2(**{"topology-takeover": {"a": ["b"]}}))
    assert read([]).inherit_takeover(before).takeover == before.takeover
    assert read(v2()).inherit_takeover(before).takeover == TakeoverMap()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "version: is missing"),
        (v2(version=3), "version: must be 2"),
        (v2(version=True), "version: must be 2"),
        (v2(version="2"), "version: must be 2"),
        (v2(pool=[]), "pool: unknown key; known are automatic-takeover, clusters, poolSets, pools"),
        ("text", "must be an object, not a text"),
        (v2(pools={}), "pools: must be a list, not an object"),
        (v2(pools=[pool(), pool()]), "pools[1].poolName: pool 'a' is given twice"),
        (v2(pools=[{"poolName": "a"}]), "pools[0].capacity: is missing"),
        (v2(pools=[pool(capacity="lots")]), "pools[0].capacity: not a quantity: 'lots'"),
        (v2(pools=[pool(capacity="0")]), "pools[0].capacity: '0' is not a number of bytes above 0"),
        (v2(pools=[pool(capacity="1m")]), "pools[0].capacity: '1m' is not a number of bytes"),
        (v2(pools=[pool(capacity=1.5)]), "pools[0].capacity: must be a quantity"),
        (v2(pools=[pool(capacity=None)]), "pools[0].capacity: must be a quantity"),
        (v2(pools=[pool(capacity="10E")]), "pools[0].capacity: '10E' is not a number"),
        (v2(pools=[pool(health=2)]), "pools[0].health: must be a number from 0 to 1"),
        (v2(pools=[pool(health="good")]), "pools[0].health: must be a number from 0 to 1"),
        (v2(pools=[pool(health=True)]), "pools[0].health: must be a number from 0 to 1"),
        (v2(pools=[pool(size=1)]), "pools[0].size: unknown key"),
        (v2(pools=[pool(domainSegments=[])]), "pools[0].domainSegments: has no segment"),
        (v2(pools=[pool(poolName="/etc")]), "pools[0].poolName: '/etc' is not a pool name"),
        (v2(poolSets=None), "poolSets: must be an object, not null"),
        (v2(poolSets=[]), "poolSets: must be an object, not a list"),
        (v2(poolSets={"s": []}), "poolSets.s: has no pool"),
        (v2(poolSets={"s": ["x"]}), "poolSets.s[0]: 'x' is not one of the pools"),
        (v2(pools=[pool()], poolSets={"s": ["a", "a"]}), "poolSets.s[1].poolName: pool 'a' is"),
        (v2(poolSets={"s": [{"poolName": "x"}]}), "poolSets.s[0].domainSegments: is missing"),
        (v2(clusters=[{}]), "clusters[0].clusterID: is missing"),
        (v2(clusters=[{"clusterID": "c", "mons": []}]), "clusters[0].mons: unknown key"),
        (
            v2(clusters=[{"clusterID": "c"}] * 2),
            "clusters[1].clusterID: cluster 'c' is given twice",
        ),
        (v2(clusters=[{"clusterID": "c" * 65}]), "clusters[0].clusterID: must have at most 64"),
        (
            v2(clusters=[{"clusterID": "c", "monitors": "m"}]),
            "clusters[0].monitors: must be a list",
        ),
        (
            v2(clusters=[{"clusterID": "c", "readAffinity": "yes"}]),
            "clusters[0].readAffinity: must be true or false, not a text",
        ),
        ([{"monitors": []}], "[0].clusterID: is missing"),
        (v2(**{"\ud800": 1}), r"a key has characters that cannot be printed: '\ud800'"),
        (v2(poolSets={"\x1b[31m": []}), r"poolSets: a key has characters that cannot be printed"),
    ],
)
def test_invalid_files(value: Any, message: str) -> None:
    """The error is one sentence that begins with the path."""
    with pytest.raises(ConfigError) as refused:
        read(value)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("takeover", "message"),
    [
        ({"a": ["a"]}, "topology-takeover.a[0]: domain 'a' cannot take over itself"),
        ({"r1": ["r1/a"]}, "topology-takeover.r1[0]: domain 'r1' cannot take over itself"),
        ({"a": ["b"], "b": ["a"]}, "topology-takeover: domains take over each other: a → b → a"),
        (
            {"x": ["a"], "a": ["d", "b"], "b": ["c"], "c": ["a"]},
            "topology-takeover: domains take over each other: a → b → c → a",
        ),
        (
            {"b": ["all"], "a": ["b"]},
            "topology-takeover: domains take over each other: b → all → a → b",
        ),
        (
            {"a": ["c"], "d": ["all"], "c": ["b"], "b": ["all"]},
            "topology-takeover: domains take over each other: a → c → b → all → a",
        ),
        ({"a": []}, "topology-takeover.a: names no domain that takes over, nor 'all'"),
        ({"a": "b"}, "topology-takeover.a: must be a list, not a text"),
        ({"a": ["b", "b"]}, "topology-takeover.a[1]: domain 'b' is given twice"),
        ({"a": ["all", "b"]}, "topology-takeover.a: 'all' cannot be combined"),
        ({"all": ["b"]}, "topology-takeover.all: 'all' cannot be taken over"),
        ({"a b": ["b"]}, "topology-takeover.a b: 'a b' is not a domain"),
        ({"a": ["r1/"]}, "topology-takeover.a[0]: 'r1/' is not a domain: '' is empty"),
        ([], "topology-takeover: must be an object, not a list"),
    ],
)
def test_invalid_takeovers(takeover: Any, message: str) -> None:
    """Domains that take over themselves or each other, and invalid names, are refused."""
    with pytest.raises(ConfigError) as refused:
        read(v2(**{"topology-takeover": takeover}))
    assert str(refused.value).startswith(message)


def test_an_error_is_short_however_long_the_text_is() -> None:
    """Errors are shown in events and on terminals."""
    with pytest.raises(ConfigError) as refused:
        read(v2(pools=[pool(poolName="a" * 100_000)]))
    assert len(str(refused.value)) < 600


def test_a_map_of_many_domains_is_read_in_one_pass() -> None:
    """Reading takes time in proportion to the text, so a long list cannot block a program."""
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    value = strict_json.parse('{"z": []}', "")
    value[0][1].extend(Name(f"y{number}") for number in range(2000))
    assert len(parse_takeover_map(value, "").targets["z"]) == 2000
    assert compared < 20 * 2000


def test_chains_are_no_cycles() -> None:
    """A domain that stands in for another can be taken over itself."""
    got = read(v2(**{"topology-takeover": {"a": ["b", "c"], "b": ["c"], "d": ["c"]}}))
    assert set(got.takeover.targets) == {"a", "b", "d"}
    for both in ({"a": ["all"], "b": ["all"]}, {"a": ["all"], "d": ["b"], "c": ["all"]}):
        assert set(read(v2(**{"topology-takeover": both})).takeover.targets) == {*both}


WHOLE = json.dumps(v2(pools=[pool()], clusters=[{"clusterID": "c"}]))


@given(st.integers(0, len(WHOLE) - 1))
def test_half_a_file(length: int) -> None:
    """A file that was written only in part is never read as a whole one."""
    with pytest.raises(ConfigError):
        parse_configuration(WHOLE[:length], LABELS)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json(value: Any) -> None:
    """Any JSON in the file is read, or refused in one sentence."""
    try:
        parse_configuration(json.dumps(value), LABELS)
    except ConfigError as refused:
        assert str(refused)
