"""Parameters of classes: their meaning, and each way they can be invalid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import build_domain_labels, parse_domain_labels
from zonewise.storage.errors import CsiCode, StorageError
from zonewise.storage.parameters import (
    ClassParameters,
    CrossDomain,
    PlacementPolicy,
    lenient_class_pools,
    parse_placeable_class,
)
from zonewise.storage.pools import PoolSpec

DRIVER = "csi.zonewise.io"
LABELS = parse_domain_labels("example.com/region;example.com/zone", DRIVER)
NOTHING = StorageConfiguration()
EMBEDDED = parse_configuration(
    json.dumps(
        {
            "version": 2,
            "pools": [
                {
                    "poolName": name,
                    "capacity": "1Gi",
                    "domainSegments": [{"domainLabel": "zone", "value": name}],
                }
                for name in "ab"
            ],
            "poolSets": {"both": ["b", "a"]},
        }
    ),
    LABELS,
)


ONE_POOL = '[{"poolName": "p", "domainSegments": [{"domainLabel": "zone", "value": "a"}]}]'


def pools_json(*pools: Any) -> str:
    """A list of pools as text."""
    return json.dumps(list(pools))


def pool(name: Any = "a", **more: Any) -> dict[str, Any]:
    """A pool of a zone, changed."""
    described = {"poolName": name, "domainSegments": [{"domainLabel": "zone", "value": name}]}
    return {key: value for key, value in (described | more).items() if value is not ...}


def parsed(configuration: StorageConfiguration = NOTHING, **parameters: str) -> ClassParameters:
    """The parameters of a class."""
    return parse_placeable_class(parameters, LABELS, configuration)


def refusal(configuration: StorageConfiguration = NOTHING, **parameters: str) -> str:
    """The error about a class that cannot be used."""
    with pytest.raises(StorageError) as refused:
        parsed(configuration, **parameters)
    assert refused.value.code is CsiCode.INVALID_ARGUMENT
    assert refused.value.reason.fix
    assert "\n" not in str(refused.value)
    return refused.value.reason.message


def test_a_whole_class() -> None:
    """Every parameter is understood."""
    listed = pools_json(
        pool("a", dataPool="a-data"),
        {
            "poolName": "b",
            "domainSegments": [
                {"domainLabel": "example.com/zone", "value": "b"},
                {"domainLabel": f"topology.{DRIVER}/region", "value": "r1"},
            ],
        },
    )
    got = parsed(
        pool="journal",
        dataPool="journal-data",
        topologyConstrainedPools=listed,
        placement="balanced",
        crossDomain="copy",
        clusterID="c1",
        fsName="fs",
    )
    assert got.pools == (
        PoolSpec("a", "a-data", {"zone": "a"}),
        PoolSpec("b", "", {"region": "r1", "zone": "b"}),
    )
    assert list(got.pools[1].segments) == ["region", "zone"]
    assert got.default_pool == PoolSpec("journal", "journal-data", {})
    assert (got.pool, got.cluster_id, got.fs_name) == ("journal", "c1", "fs")
    assert (got.placement, got.cross_domain) == (PlacementPolicy.BALANCED, CrossDomain.COPY)


def test_an_empty_class() -> None:
    """Without pool parameters the configuration's pools are used, by the request's preferences."""
    got = parsed(EMBEDDED)
    assert got.pools == EMBEDDED.pools
    assert (got.placement, got.cross_domain) == (PlacementPolicy.REQUEST, CrossDomain.SAME_DOMAIN)
    assert got.default_pool is None


def test_only_a_default_pool() -> None:
    """A class that names one pool uses it, in the domain that the configuration has."""
    assert parsed(EMBEDDED, pool="b").pools == (PoolSpec("b", "", {"zone": "b"}),)
    assert parsed(pool="rbd", dataPool="ec").pools == (PoolSpec("rbd", "ec", {}),)


def test_a_set_by_name() -> None:
    """Pools that do not fit into a class can be named as a set of the configuration."""
    assert [pool_named.name for pool_named in parsed(EMBEDDED, poolSet="both").pools] == ["b", "a"]
    assert "known are both" in refusal(EMBEDDED, poolSet="none")


def test_keys_for_others() -> None:
    """Keys of the provisioner are ignored, and do not change the class."""
    with_foreign_keys = parse_placeable_class(
        {"pool": "a", "csi.storage.k8s.io/fstype": "xfs"}, LABELS, NOTHING
    )
    assert with_foreign_keys.digest == parsed(pool="a").digest
    assert with_foreign_keys.digest != parsed(pool="b").digest


def test_keys_of_the_backend() -> None:
    """A backend may have its own parameters."""
    further = frozenset({"imageFeatures"})
    got = parse_placeable_class(
        {"imageFeatures": "layering"}, LABELS, NOTHING, backend_keys=further
    )
    assert got.backend_parameters == {"imageFeatures": "layering"}
    assert refusal(imageFeatures="layering").startswith("imageFeatures: unknown parameter")


def test_json_over_several_lines() -> None:
    """A list may be written over several lines, as YAML has it."""
    text = json.dumps([pool("a")], indent=2) + "\n"
    assert parsed(topologyConstrainedPools=text).pools == (PoolSpec("a", "", {"zone": "a"}),)


def test_labels_without_topology() -> None:
    """If the driver has no domain labels, segments are used as they are."""
    bare = build_domain_labels((), DRIVER)
    parameters = {"topologyConstrainedPools": pools_json(pool("a"))}
    assert parse_placeable_class(parameters, bare, NOTHING).pools[0].segments == {"zone": "a"}


SEGMENT = {"domainLabel": "zone", "value": "a"}
POOLS = "topologyConstrainedPools"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{POOLS}: not JSON: Expecting value at line 1, column 1"),
        ("[", f"{POOLS}: not JSON"),
        ('[{"poolName": "a",}]', f"{POOLS}: not JSON: .* at line 1, column 19"),
        ('[{"pool\nName": "a"}]', f"{POOLS}: not JSON: Invalid control character at"),
        ("[NaN]", f"{POOLS}: not JSON: NaN is not a number"),
        ("[1e999999999]", "has too many digits"),
        ("[" * 4000, f"{POOLS}: nested too deeply"),
        ("{}", f"{POOLS}: must be a list, not an object"),
        ("null", f"{POOLS}: must be a list, not null"),
        ("[]", f"{POOLS}: has no pool"),
        ("[[]]", rf"{POOLS}\[0\]: must be an object, not a list"),
        (pools_json("a"), rf"{POOLS}\[0\]: must be an object, not a text"),
        (pools_json(pool(poolName=...)), rf"{POOLS}\[0\].poolName: is missing"),
        (pools_json(pool(7)), rf"{POOLS}\[0\].poolName: must be a text, not a number"),
        (pools_json(pool("")), rf"{POOLS}\[0\].poolName: is empty"),
        (pools_json(pool("../x")), rf"{POOLS}\[0\].poolName: '../x' is not a pool name"),
        (pools_json(pool("..")), rf"{POOLS}\[0\].poolName: '..' is not a pool name"),
        (pools_json(pool(), pool("b", weight=1)), rf"{POOLS}\[1\].weight: unknown key"),
        (pools_json(pool(domainSegments=...)), rf"{POOLS}\[0\].domainSegments: is missing"),
        (pools_json(pool(domainSegments=[])), rf"{POOLS}\[0\].domainSegments: has no segment"),
        (
            pools_json(pool(domainSegments={"zone": "a"})),
            rf"{POOLS}\[0\].domainSegments: must be a list, not an object",
        ),
        (
            pools_json(pool(domainSegments=[{"domainLabel": "zone"}])),
            rf"{POOLS}\[0\].domainSegments\[0\].value: is missing",
        ),
        (
            pools_json(pool(domainSegments=[SEGMENT | {"weight": 1}])),
            rf"{POOLS}\[0\].domainSegments\[0\].weight: unknown key; known are domainLabel, value",
        ),
        (
            pools_json(pool(domainSegments=[SEGMENT, SEGMENT])),
            rf"{POOLS}\[0\].domainSegments\[1\].domainLabel: label 'zone' is given twice",
        ),
        (
            pools_json(
                pool(domainSegments=[SEGMENT, SEGMENT | {"domainLabel": "example.com/zone"}])
            ),
            rf"{POOLS}\[0\].domainSegments\[1\].domainLabel: label 'zone' is given twice",
        ),
        (
            pools_json(pool(domainSegments=[{"domainLabel": "other.io/zone", "value": "a"}])),
            "'other.io/zone' is not one of the domain labels: example.com/region, example.com/zone",
        ),
        (
            pools_json(pool(domainSegments=[{"domainLabel": "zone", "value": "a b"}])),
            rf"{POOLS}\[0\].domainSegments\[0\].value: 'a b' may have only letters",
        ),
        (
            pools_json(pool(domainSegments=[{"domainLabel": "zone", "value": True}])),
            rf"{POOLS}\[0\].domainSegments\[0\].value: must be a text, not true",
        ),
        (pools_json(pool(), pool()), rf"{POOLS}\[1\].poolName: pool 'a' is given twice, first as"),
        (
            '[{"poolName": "a", "poolName": "b", "domainSegments": []}]',
            rf"{POOLS}\[0\].poolName: is given twice",
        ),
        (pools_json(pool(dataPool="")), rf"{POOLS}\[0\].dataPool: is empty"),
        (pools_json(pool(dataPool=None)), rf"{POOLS}\[0\].dataPool: must be a text, not null"),
    ],
)
def test_invalid_pool_lists(text: str, message: str) -> None:
    """A list of the wrong form is refused as a whole, with the path of the error."""
    with pytest.raises(StorageError, match=message) as refused:
        parsed(topologyConstrainedPools=text)
    assert refused.value.code is CsiCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"Pool": "a"}, "Pool: unknown parameter; known are clusterID, crossDomain"),
        ({"pool": ""}, "pool: is empty"),
        ({"pool": "a/b"}, "pool: 'a/b' is not a pool name"),
        ({"fsName": ""}, "fsName: is empty"),
        ({"clusterID": "a\nb"}, "clusterID: has characters that cannot be printed"),
        ({"placement": "random"}, "placement: 'random' is not one of preferred, balanced, default"),
        ({"placement": ""}, "placement: '' is not one of"),
        ({"crossDomain": "yes"}, "crossDomain: 'yes' is not one of same-domain, copy"),
        ({"placement": "default-pool"}, "placement: 'default-pool' needs the parameter pool"),
        (
            {"poolSet": "x", "topologyConstrainedPools": "[]"},
            "poolSet: cannot be used together with topologyConstrainedPools",
        ),
    ],
)
def test_invalid_classes(parameters: dict[str, str], message: str) -> None:
    """Any other key or value is refused."""
    assert refusal(NOTHING, **parameters).startswith(message)


def test_a_pool_that_is_not_there() -> None:
    """If the configuration has pools, a class can use no others."""
    assert "there is no pool 'x'; the configuration has a, b" in refusal(EMBEDDED, pool="x")
    listed = pools_json(pool("a"), pool("x"))
    assert "there is no pool 'x'" in refusal(EMBEDDED, topologyConstrainedPools=listed)
    good = pools_json(pool("a"))
    default = {"pool": "x", "topologyConstrainedPools": good}
    assert "there is no pool 'x'" in refusal(EMBEDDED, **default, placement="default-pool")
    assert parsed(EMBEDDED, **default).pool == "x"  # where the journal of another backend lives


def test_too_long() -> None:
    """Parameters beyond the protocol's limit are refused, and the error suggests a pool set."""
    listed = pools_json(*(pool(f"pool-{number}") for number in range(60)))
    with pytest.raises(StorageError, match="allowed are 4096") as refused:
        parsed(topologyConstrainedPools=listed)
    assert "poolSet" in refused.value.reason.fix


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"topologyConstrainedPools": "{"}, []),
        ({"topologyConstrainedPools": "[]"}, []),
        ({"topologyConstrainedPools": ONE_POOL}, [("p", "a")]),
        ({"topologyConstrainedPools": ONE_POOL, "dataPool": "d"}, [("p", "a"), ("d", "a")]),
        (
            {"topologyConstrainedPools": ONE_POOL.replace('"p",', '"p", "dataPool": "e",')},
            [("p", "a"), ("e", "a")],
        ),
    ],
)
def test_pools_that_a_class_names(given: dict[str, str], expected: list[tuple[str, str]]) -> None:
    """A class names its pools with their domains, and its data pools; an invalid one names none."""
    zones = [
        (class_pool.name, class_pool.segments["zone"])
        for class_pool in lenient_class_pools(given, LABELS, {})
    ]
    assert zones == expected
