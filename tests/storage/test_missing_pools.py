"""Whether a class has a pool where its pods run."""

from __future__ import annotations

import json

import pytest

from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.missing_pools import find_missing_pool
from zonewise.storage.pools import PoolState

LABELS = DomainLabels("csi.example.com", ("example.com/region", "example.com/zone"))
CONFIGURATION = parse_configuration(
    json.dumps(
        {
            "version": 2,
            "pools": [
                {
                    "poolName": "a",
                    "capacity": "1Gi",
                    "domainSegments": [{"domainLabel": "zone", "value": "a"}],
                }
            ],
        }
    ),
    LABELS,
)
HERE, NEW = {"region": "r", "zone": "a"}, {"region": "r", "zone": "c"}


def test_a_domain_without_a_pool_is_named_with_what_follows() -> None:
    """The class, the domain, what happens to its volumes, and what to do."""
    assert find_missing_pool("fast", {}, HERE, LABELS, CONFIGURATION) is None
    reason = find_missing_pool("fast", {}, NEW, LABELS, CONFIGURATION)
    assert reason is not None
    assert reason.message.startswith("class fast has no pool in region r, zone c: ")
    assert "used from everywhere" in reason.message
    strict = find_missing_pool("fast", {"placement": "preferred"}, NEW, LABELS, CONFIGURATION)
    assert strict is not None
    assert "cannot be used there" in strict.message and "remove" in strict.fix


def test_a_class_that_takes_pools_by_labels_misses_those_without_one() -> None:
    """What the backend says of its pools counts, and the fix is to label one; if it says nothing,
    nothing is missed.
    """
    given = {"poolLabels": "all"}
    states = {"p": PoolState(1, labels={"zone": "c"}), "q": PoolState(1)}
    empty = StorageConfiguration()
    assert find_missing_pool("fast", given, NEW, LABELS, empty, states) is None
    reason = find_missing_pool("fast", given, HERE, LABELS, empty, states)
    assert reason is not None
    assert reason.fix.startswith("Label a pool of that domain")
    assert find_missing_pool("fast", given, HERE, LABELS, empty, {}) is None
    assert find_missing_pool("fast", given, NEW, LABELS, CONFIGURATION) is not None


@pytest.mark.parametrize(
    "parameters",
    [
        {"placement": "balanced"},
        {"placement": "default-pool", "pool": "a"},
        {"pool": "everywhere"},
        {"poolSet": "unknown"},
        {"topologyConstrainedPools": "["},
    ],
)
def test_classes_that_miss_nothing(parameters: dict[str, str]) -> None:
    """Classes that do not place by domains, whose pool is everywhere, or that are not valid."""
    assert find_missing_pool("fast", parameters, NEW, LABELS, CONFIGURATION) is None
    assert find_missing_pool("fast", {}, {}, LABELS, CONFIGURATION) is None


def test_parameters_of_others_do_not_matter() -> None:
    """Keys of the backend and of sidecars are ignored."""
    given = {"imageFeatures": "layering", "csi.storage.k8s.io/fstype": "xfs"}
    assert find_missing_pool("fast", given, NEW, LABELS, CONFIGURATION) is not None
