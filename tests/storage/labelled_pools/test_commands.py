"""The commands that make labelled pools on Ceph."""

from __future__ import annotations

import pytest

from zonewise.api.errors import ConfigError
from zonewise.storage.domains import DomainLabels
from zonewise.storage.labelled_pools.commands import plan_pools, render_script

LABELS = DomainLabels("csi.example.com", ("example.com/region", "example.com/zone"))
A, B = {"zone": "a", "region": "r1"}, {"region": "r1", "zone": "b"}


def test_each_domain_gets_a_rule_a_pool_and_its_labels() -> None:
    """A rule below the bucket of the domain, a pool by that rule, its application, and a label for
    each part of the domain, in the order of the domain labels.
    """
    script = render_script(plan_pools([A, B], LABELS, prefix="rbd"))
    assert script.splitlines()[:6] == [
        "# region r1, zone a: needs the CRUSH bucket a of type zone, with OSDs in it",
        "ceph osd crush rule create-replicated rbd-a a host",
        "ceph osd pool create rbd-a replicated rbd-a",
        "ceph osd pool application enable rbd-a rbd",
        "ceph osd pool application set rbd-a rbd zonewise.region r1",
        "ceph osd pool application set rbd-a rbd zonewise.zone a",
    ]
    assert script.count("osd pool create") == 2


def test_pools_for_cephfs_are_added_to_the_file_system() -> None:
    """That gives them their application, whose metadata has the labels."""
    (pool,) = plan_pools([A], LABELS, prefix="fs", file_system="files")
    assert pool.commands[2] == ("ceph", "fs", "add_data_pool", "files", "fs-a")
    assert pool.commands[-1][4:] == ("set", "fs-a", "cephfs", "zonewise.zone", "a")
    assert pool.to_dict()["domainSegments"][1] == {"domainLabel": "zone", "value": "a"}


def test_inside_of_a_host_replicas_are_spread_over_osds() -> None:
    """Below a host CRUSH has nothing else to choose from."""
    labels = DomainLabels("csi.example.com", ("kubernetes.io/hostname",))
    (pool,) = plan_pools([{"hostname": "n1"}], labels, prefix="rbd")
    assert pool.commands[0][-2:] == ("n1", "osd")


@pytest.mark.parametrize(
    ("domains", "prefix", "sentence"),
    [
        ([A, A], "rbd", "region r1, zone a and region r1, zone a are both the CRUSH bucket 'a'"),
        ([A, {"region": "r2", "zone": "a"}], "rbd", "region r2, zone a are both the CRUSH bucket"),
        ([A], "-x", "'-x-a' is not a pool name"),
        ([A], "x" * 127, "at most 128"),
    ],
)
def test_what_ceph_could_not_make_is_refused(
    domains: list[dict[str, str]], prefix: str, sentence: str
) -> None:
    """Domains that would be one bucket, and names that no pool can have."""
    with pytest.raises(ConfigError, match=sentence):
        plan_pools(domains, LABELS, prefix=prefix)
