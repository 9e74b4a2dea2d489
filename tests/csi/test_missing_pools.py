"""The event on a claim whose class has no pool where its pod will run."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.api import Node, PersistentVolumeClaim, StorageClass, convert
from zonewise.csi.errors import unavailable
from zonewise.csi.missing_pools import SELECTED_NODE, MissingPoolReporter
from zonewise.csi.takeover.controller import StatesByCluster
from zonewise.csi.takeover.source import FollowedConfiguration
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.pools import PoolState

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ZONE = "topology.kubernetes.io/zone"
DRIVER = "csi.zonewise.io"


async def notes(zone: str, states: StatesByCluster | None, **parameters: str) -> list[str]:
    """What is said about a claim for a zone; ``states`` None: no cluster answers."""
    source = FollowedConfiguration()
    source.use(StorageConfiguration())

    async def read_states(configuration: StorageConfiguration) -> StatesByCluster:
        if states is None:
            raise unavailable("no monitor answers")
        return states

    def report(context: Any) -> MissingPoolReporter:
        labels = parse_domain_labels(ZONE, DRIVER)
        return MissingPoolReporter(context, source=source, labels=labels, read_states=read_states)

    async with virtual_cluster({"missing-pools": report}) as cluster:
        given = {"provisioner": DRIVER, "parameters": {"poolLabels": "all", **parameters}}
        spec = {
            "storageClassName": "fast",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        metadata = {"name": "data", "namespace": "default", "annotations": {SELECTED_NODE: "n"}}
        node = {"metadata": {"name": "n", "labels": {ZONE: zone}}}
        await cluster.client.create(convert(StorageClass, {"metadata": {"name": "fast"}, **given}))
        await cluster.client.create(convert(Node, node))
        claim = convert(PersistentVolumeClaim, {"metadata": metadata, "spec": spec})
        await cluster.client.create(claim)
        await asyncio.sleep(5)
        answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
        return [item["note"] for item in msgspec.json.decode(answer.body)["items"]]


async def test_labels_of_the_backends_pools_count() -> None:
    """A zone without a labelled pool is named, with how to label one; a zone with one is not."""
    states = {"ceph": {"p": PoolState(1, labels={"zone": "a"})}}
    assert await notes("a", states) == []
    (note,) = await notes("b", states)
    assert note.startswith("class fast has no pool in zone b: ")
    assert "Label a pool of that domain" in note


async def test_the_cluster_of_the_class_counts() -> None:
    """Of several clusters the one that the class names is looked at."""
    states = {"east": {"p": PoolState(1, labels={"zone": "a"})}}
    states["west"] = {"p": PoolState(1, labels={"zone": "b"})}
    assert await notes("a", states, clusterID="east") == []
    assert len(await notes("a", states, clusterID="west")) == 1


async def test_nothing_is_said_while_no_cluster_answers() -> None:
    """What cannot be read is not missing."""
    assert await notes("b", None) == []
