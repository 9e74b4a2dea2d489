"""A failed zone is taken over and given back on an embedded cluster, in virtual time."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import MEMORY, until
from tests.embedded.volume_cluster import living, objects, path, pods, zone

from zonewise.api import Node, PersistentVolumeClaim, Pod, StatefulSet
from zonewise.csi.backends.folders import mounts
from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP, STATUS_MAP, TakeoverStatus
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.csi_driver import CLASS_NAME, DRIVER
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap
from zonewise.storage.configuration import edit_takeover
from zonewise.storage.domains import parse_domain_labels
from zonewise.topology.nodes import is_node_ready

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

LABEL = f"topology.{DRIVER}/takeover.a"
LABELS = parse_domain_labels("topology.kubernetes.io/zone", DRIVER)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder in memory."""
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as name:
        yield Path(name)


async def configure(cluster: EmbeddedCluster, text: str) -> None:
    """Write the configuration."""
    await cluster.client.patch(ConfigMap, CONFIG_MAP, NAMESPACE, {"data": {CONFIG_KEY: text}})


async def take(cluster: EmbeddedCluster, source: str, *by: str) -> None:
    """Take a domain over, or without targets give it back."""
    config_map = await cluster.client.get(ConfigMap, CONFIG_MAP, NAMESPACE)
    text = str(config_map.get("data", CONFIG_KEY))
    await configure(cluster, edit_takeover(text, {source: by or None}, LABELS))


async def outage(cluster: EmbeddedCluster, zone_name: str, failed: str | None) -> None:
    """Make a zone fail or heal, and wait until the cluster notices."""
    nodes = cluster.program.cache.store(Node)
    names = [node.metadata.name for node in nodes if node.metadata.name.startswith(zone_name)]
    for name in names:
        body = {"metadata": {"annotations": {FAILED_ANNOTATION: failed}}}
        await cluster.client.patch(Node, name, None, body)

    def noticed() -> bool:
        return all(
            is_node_ready(node) == (failed is None) for node in nodes if node.metadata.name in names
        )

    await until(noticed)


def standing_in(cluster: EmbeddedCluster) -> set[str]:
    """The nodes with the label."""
    nodes = cluster.program.cache.store(Node)
    return {node.metadata.name for node in nodes if node.metadata.labels.get(LABEL) == "true"}


async def status(cluster: EmbeddedCluster) -> TakeoverStatus:
    """The status of the controller."""
    config_map = await cluster.client.get(ConfigMap, STATUS_MAP, NAMESPACE)
    return TakeoverStatus.parse(str(config_map.get("data", "status.json")))


async def untouched(cluster: EmbeddedCluster) -> dict[str, bytes]:
    """The objects that a takeover must not change: volumes and CSINodes, byte for byte."""
    bodies = {}
    for what in ("/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/csinodes"):
        items = msgspec.json.decode((await cluster.client.raw("GET", what)).body)["items"]
        bodies[what] = msgspec.json.encode(items)
    return bodies


async def single(cluster: EmbeddedCluster) -> Pod:
    """Create a StatefulSet of one pod in zone a; gives its pod."""
    await until(lambda: len(pods(cluster)) == 3)
    await cluster.client.raw("DELETE", "/apis/apps/v1/namespaces/default/statefulsets/db")
    claim = objects()[0]["spec"]["volumeClaimTemplates"][0]
    prefers = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [
                            {
                                "key": "topology.kubernetes.io/zone",
                                "operator": "In",
                                "values": ["a"],
                            }
                        ]
                    },
                }
            ]
        }
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "one", "namespace": "default"},
        "spec": {
            "serviceName": "one",
            "replicas": 1,
            "selector": {"matchLabels": {"app": "one"}},
            "template": {
                "metadata": {"labels": {"app": "one"}},
                "spec": {"affinity": prefers, "containers": [{"name": "c", "image": "c"}]},
            },
            "volumeClaimTemplates": [claim],
        },
    }
    await cluster.seeder.create([body])
    await until(lambda: "one-0" in pods(cluster))
    pod = pods(cluster)["one-0"]
    assert zone(cluster, pod) == "a"
    return pod


@pytest.mark.system
@pytest.mark.parametrize("privileged", [False, True], ids=["folders", "images"])
async def test_a_lost_zone_is_taken_over_and_given_back(
    folder: Path, tmp_path: Path, privileged: bool
) -> None:
    """The pod runs in b with its data, then in a again; volume and CSINode never change."""
    folder = tmp_path if privileged else folder
    async with living(folder, privileged=privileged) as cluster:
        pod = await single(cluster)
        (path(folder, pod) / "marker").write_text("from a")
        before = await untouched(cluster)

        await outage(cluster, "a", "true")
        await take(cluster, "a", "b")
        await until(lambda: standing_in(cluster) == {"b-1", "b-2"})
        await until(lambda: pods(cluster).get("one-0", pod).metadata.uid != pod.metadata.uid)
        away = pods(cluster)["one-0"]
        assert zone(cluster, away) == "b"
        marker = path(folder, away) / "marker"
        assert marker.read_text() == "from a"
        marker.write_text("from b")
        if privileged:
            # The dead node never unmounted; its mount was taken away, and its late writes are lost.
            old = path(folder, pod)
            assert mounts.at(old) is None and not [*old.iterdir()]

        await outage(cluster, "a", None)
        await take(cluster, "a")
        await until(lambda: not standing_in(cluster))
        await asyncio.sleep(5)
        assert pods(cluster)["one-0"].metadata.uid == away.metadata.uid
        (notice,) = (await status(cluster)).away_from_home
        assert notice.code == "AwayFromHome" and "default/one-0" in notice.message

        await cluster.client.delete(Pod, "one-0", "default")
        await until(lambda: pods(cluster).get("one-0", away).metadata.uid != away.metadata.uid)
        home = pods(cluster)["one-0"]
        assert zone(cluster, home) == "a"
        assert (path(folder, home) / "marker").read_text() == "from b"
        assert await untouched(cluster) == before
        await asyncio.sleep(5)
        assert (await status(cluster)).to_dict() == {"takeover": {}, "error": ""}


async def test_a_wrong_configuration_keeps_the_last_good_map(folder: Path) -> None:
    """With an invalid file, a cycle or no map the labels stay, and the error is reported."""
    async with living(folder) as cluster:
        await until(lambda: len(pods(cluster)) == 3)
        await take(cluster, "a", "b")
        await until(lambda: standing_in(cluster) == {"b-1", "b-2"})
        config_map = await cluster.client.get(ConfigMap, CONFIG_MAP, NAMESPACE)
        good = json.loads(str(config_map.get("data", CONFIG_KEY)))
        wrong: list[Any] = [
            "{",
            {**good, "topology-takeover": {"a": ["a"]}},
            {**good, "topology-takeover": {"a": ["b"], "b": ["a"]}},
            {**good, "topology-takeover": {"a": ["b", "b"]}},
        ]
        for value in wrong:
            await configure(cluster, value if isinstance(value, str) else json.dumps(value))
            await asyncio.sleep(5)
            assert standing_in(cluster) == {"b-1", "b-2"}
            reported = await status(cluster)
            assert reported.takeover == {"a": ("b",)}
            assert reported.error
        await configure(cluster, "[]")
        await asyncio.sleep(5)
        assert standing_in(cluster) == {"b-1", "b-2"}
        good["topology-takeover"] = {"a": ["all"]}
        await configure(cluster, json.dumps(good))
        await until(lambda: len(standing_in(cluster)) == 4)
        await asyncio.sleep(2)
        assert (await status(cluster)).to_dict() == {"takeover": {"a": ["all"]}, "error": ""}


async def test_a_deleted_configuration_gives_nothing_back(folder: Path) -> None:
    """A deleted configuration is created again with the takeover that is in force."""
    async with living(folder) as cluster:
        await until(lambda: len(pods(cluster)) == 3)
        await take(cluster, "a", "b")
        await until(lambda: standing_in(cluster) == {"b-1", "b-2"})
        await cluster.client.delete(ConfigMap, CONFIG_MAP, NAMESPACE)
        await asyncio.sleep(30)
        assert standing_in(cluster) == {"b-1", "b-2"}
        config_map = await cluster.client.get(ConfigMap, CONFIG_MAP, NAMESPACE)
        assert json.loads(config_map.get("data", CONFIG_KEY))["topology-takeover"] == {"a": ["b"]}


async def test_a_restart_with_a_wrong_configuration_gives_nothing_back(folder: Path) -> None:
    """Until a configuration can be read, the labels stay."""
    async with living(folder) as cluster:
        await until(lambda: len(pods(cluster)) == 3)
        await take(cluster, "a", "b")
        await until(lambda: standing_in(cluster) == {"b-1", "b-2"})
        await configure(cluster, "{")
    async with living(folder) as cluster:
        await until(lambda: len(pods(cluster)) == 3)
        await asyncio.sleep(30)
        assert standing_in(cluster) == {"b-1", "b-2"}


async def test_new_volumes_belong_to_the_domain_of_the_node_that_stands_in(folder: Path) -> None:
    """During a takeover a new claim gets a volume of b's own pool, with b as its home."""
    async with living(folder) as cluster:
        await single(cluster)
        await outage(cluster, "a", "true")
        await take(cluster, "a", "b")
        await until(lambda: standing_in(cluster) == {"b-1", "b-2"})
        await cluster.client.patch(StatefulSet, "one", "default", {"spec": {"replicas": 3}})
        await until(lambda: {"one-0", "one-1", "one-2"} <= set(pods(cluster)))
        for name in ("one-1", "one-2"):
            claim = await cluster.client.get(PersistentVolumeClaim, f"data-{name}", "default")
            where = f"/api/v1/persistentvolumes/{claim.spec.volume_name}"
            volume = msgspec.json.decode((await cluster.client.raw("GET", where)).body)
            there = zone(cluster, pods(cluster)[name])
            home, second = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
            assert there in "bc"
            assert home["matchExpressions"][0]["values"] == [there]
            assert second["matchExpressions"] == [
                {"key": f"topology.{DRIVER}/takeover.{there}", "operator": "In", "values": ["true"]}
            ]
            assert volume["spec"]["storageClassName"] == CLASS_NAME


async def test_a_takeover_of_a_living_zone_moves_no_pod(folder: Path) -> None:
    """Labels come and go, pods on Ready nodes stay where they are."""
    async with living(folder) as cluster:
        pod = await single(cluster)
        await take(cluster, "a", "all")
        await until(lambda: len(standing_in(cluster)) == 4)
        await asyncio.sleep(30)
        assert pods(cluster)["one-0"].metadata.uid == pod.metadata.uid
        await take(cluster, "a")
        await until(lambda: not standing_in(cluster))
        assert pods(cluster)["one-0"].metadata.uid == pod.metadata.uid


async def automate(cluster: EmbeddedCluster, **members: Any) -> None:
    """Let domains be taken over automatically."""
    config_map = await cluster.client.get(ConfigMap, CONFIG_MAP, NAMESPACE)
    value = json.loads(str(config_map.get("data", CONFIG_KEY)))
    value["automatic-takeover"] = {"by": ["all"], "pause": "2m", **members}
    await configure(cluster, json.dumps(value))


async def test_a_zone_whose_nodes_are_lost_is_taken_over_and_given_back(folder: Path) -> None:
    """With automatic takeover the pod of a lost zone runs elsewhere after the delay, and the zone
    is given back when its nodes were Ready for as long; the status says what is waited for.
    """
    async with living(folder) as cluster:
        pod = await single(cluster)
        await automate(cluster)
        await outage(cluster, "a", "true")
        await asyncio.sleep(60)
        assert not standing_in(cluster)
        (waiting,) = (await status(cluster)).automatic
        assert waiting.code == "TakeoverPending" and "none of 2 nodes" in waiting.message
        await asyncio.sleep(75)
        assert standing_in(cluster) == {"b-1", "b-2", "c-1", "c-2"}
        await until(lambda: pods(cluster).get("one-0", pod).metadata.uid != pod.metadata.uid)

        await outage(cluster, "a", None)
        await asyncio.sleep(60)
        assert len(standing_in(cluster)) == 4
        (waiting,) = (await status(cluster)).automatic
        assert waiting.code == "GivebackPending"
        await asyncio.sleep(75)
        assert not standing_in(cluster)
        answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
        reasons = {item["reason"] for item in msgspec.json.decode(answer.body)["items"]}
        assert {
            "TakeoverPending",
            "TakenOverAutomatically",
            "GivebackPending",
            "GivenBackAutomatically",
        } <= reasons


async def test_the_delay_of_a_lost_zone_survives_a_restart(folder: Path) -> None:
    """A cluster that is restarted during the delay takes the zone over when the delay is over, not
    a whole delay later: a minute of it at most is added.
    """
    async with living(folder, killed=True) as cluster:
        await single(cluster)
        await automate(cluster, pause="30m")
        await outage(cluster, "a", "true")
        await asyncio.sleep(1500)
        assert not standing_in(cluster)
    async with living(folder) as cluster:
        await asyncio.sleep(250)
        assert not standing_in(cluster)
        await asyncio.sleep(70)
        assert len(standing_in(cluster)) == 4


async def test_when_all_nodes_seem_lost_nothing_is_taken_over(folder: Path) -> None:
    """If the nodes of all zones are lost nothing is taken over, and the status says why."""
    async with living(folder) as cluster:
        await single(cluster)
        await automate(cluster, sources=["nodes"])
        await outage(cluster, "a", "true")
        await outage(cluster, "b", "true")
        await outage(cluster, "c", "true")
        await asyncio.sleep(600)
        assert not standing_in(cluster)
        assert {hold.code for hold in (await status(cluster)).automatic} == {"TooFewNodesReady"}


async def test_a_source_that_is_not_there_is_reported(folder: Path) -> None:
    """The source ceph on volumes in folders does nothing, and the status says so."""
    async with living(folder) as cluster:
        await until(lambda: len(pods(cluster)) == 3)
        await automate(cluster, sources=["ceph"])
        await asyncio.sleep(30)
        (problem,) = (await status(cluster)).automatic
        assert problem.code == "NoStorageHealth"


@pytest.mark.system
async def test_volumes_of_a_node_out_of_service_are_used_by_its_neighbour(tmp_path: Path) -> None:
    """The taint alone lets the pod of a lost node start again in its zone, with its data; the node
    is fenced meanwhile, and may have volumes again when the taint is gone.
    """
    async with living(tmp_path, privileged=True) as cluster:
        pod = await single(cluster)
        node = pod.spec.node_name
        (path(tmp_path, pod) / "marker").write_text("from the lost node")
        body: Any = {"metadata": {"annotations": {FAILED_ANNOTATION: "true"}}}
        await cluster.client.patch(Node, node, None, body)
        nodes = cluster.program.cache.store(Node)
        await until(lambda: not is_node_ready(nodes.get(("", node)) or nodes.values()[0]))
        lost = await cluster.client.get(Node, node)
        taints = msgspec.to_builtins(lost.spec.taints)
        out = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
        body = {"spec": {"taints": [*taints, out]}}
        tainted = asyncio.get_running_loop().time()
        await cluster.client.patch(Node, node, None, body)
        await until(lambda: pods(cluster).get("one-0", pod).metadata.uid != pod.metadata.uid)
        assert asyncio.get_running_loop().time() - tainted < 60
        moved = pods(cluster)["one-0"]
        assert (zone(cluster, moved), moved.spec.node_name != node) == ("a", True)
        assert (path(tmp_path, moved) / "marker").read_text() == "from the lost node"
        old = path(tmp_path, pod)
        assert mounts.at(old) is None and not [*old.iterdir()]
        await asyncio.sleep(5)
        assert [fence.code for fence in (await status(cluster)).out_of_service] == ["NodeFenced"]

        await cluster.client.patch(Node, node, None, {"spec": {"taints": taints}})
        await outage(cluster, "a", None)
        await asyncio.sleep(60)
        assert (await status(cluster)).out_of_service == ()
        assert (path(tmp_path, moved) / "marker").read_text() == "from the lost node"
