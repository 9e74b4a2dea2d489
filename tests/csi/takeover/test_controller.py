"""The takeover controller's status: warnings about pools that only classes name."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import StorageClass
from zonewise.csi.takeover.controller import (
    ConfigMap,
    StatesByCluster,
    TakeoverController,
    TakeoverSettings,
)
from zonewise.csi.takeover.source import FollowedConfiguration
from zonewise.csi.takeover.status import STATUS_KEY, STATUS_MAP
from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.pools import PoolState

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ZONE = "topology.kubernetes.io/zone"
DRIVER = "csi.zonewise.io"
LABELS = parse_domain_labels(ZONE, DRIVER)


def storage_class(name: str, provisioner: str, pool: str, **more: str) -> StorageClass:
    """A class with a pool in zone a, whose data is in another."""
    pools = [
        {
            "poolName": pool,
            "dataPool": f"{pool}-data",
            "domainSegments": [{"domainLabel": "zone", "value": "a"}],
        }
    ]
    return StorageClass(
        metadata=ObjectMeta(name=name),
        provisioner=provisioner,
        parameters={"topologyConstrainedPools": json.dumps(pools), **more},
    )


async def test_dead_pools_of_classes_are_reported() -> None:
    """There are warnings for dead pools that the driver's classes list or take by their labels, not
    for living or foreign ones.
    """

    async def states(_: StorageConfiguration) -> StatesByCluster:
        dead = PoolState(1, alive=False)
        alive, labelled = PoolState(1), PoolState(1, alive=False, labels={"zone": "a"})
        listed = {"one": dead, "one-data": alive, "two": alive, "two-data": dead}
        return {"": listed | {"three": labelled, "four": dead}}

    source = FollowedConfiguration()
    parts = {
        "takeover": lambda context: TakeoverController(
            context,
            TakeoverSettings(source=source, labels=LABELS, namespace="default", read_states=states),
        )
    }
    async with virtual_cluster(parts) as cluster:
        client = cluster.client
        for zone in "ab":
            await client.create(Node(metadata=ObjectMeta(name=zone, labels={ZONE: zone})))
        for manifest in (
            storage_class("one", DRIVER, "one"),
            storage_class("again", DRIVER, "one"),
            storage_class("two", "another.example.com", "two"),
            StorageClass(metadata=ObjectMeta(name="wrong"), provisioner=DRIVER, parameters={}),
            StorageClass(
                metadata=ObjectMeta(name="three"),
                provisioner=DRIVER,
                parameters={"poolLabels": "all"},
            ),
        ):
            await client.create(manifest)
        text = json.dumps({"version": 2, "topology-takeover": {"a": ["b"]}})
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(40)
        config_map = await client.get(ConfigMap, STATUS_MAP, "default")
        warnings = json.loads(str(config_map.get("data", STATUS_KEY)))["warnings"]
        assert [(warning["reason"], warning["object"]) for warning in warnings] == [
            ("TakenPoolDead", "Pool/one"),
            ("TakenPoolDead", "Pool/three"),
        ]


async def test_dead_pools_are_reported_by_cluster() -> None:
    """With several clusters a class's pools are looked up in, and named after, its own."""

    async def states(_: StorageConfiguration) -> StatesByCluster:
        pools = {"one": PoolState(1, alive=False), "one-data": PoolState(1)}
        return {"east": pools, "west": pools}

    source = FollowedConfiguration()
    parts = {
        "takeover": lambda context: TakeoverController(
            context,
            TakeoverSettings(source=source, labels=LABELS, namespace="default", read_states=states),
        )
    }
    async with virtual_cluster(parts) as cluster:
        client = cluster.client
        for zone in "ab":
            await client.create(Node(metadata=ObjectMeta(name=zone, labels={ZONE: zone})))
        await client.create(storage_class("one", DRIVER, "one", clusterID="west"))
        clusters = [{"clusterID": "east"}, {"clusterID": "west"}]
        text = {"version": 2, "topology-takeover": {"a": ["b"]}, "clusters": clusters}
        source.use(parse_configuration(json.dumps(text), LABELS))
        await asyncio.sleep(40)
        config_map = await client.get(ConfigMap, STATUS_MAP, "default")
        warnings = json.loads(str(config_map.get("data", STATUS_KEY)))["warnings"]
        assert [warning["object"] for warning in warnings] == ["Pool/west/one"]
