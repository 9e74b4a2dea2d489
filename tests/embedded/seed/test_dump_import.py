"""A cluster from its dump: what is kept, what is removed, and that it runs again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.rollouts.rollout_scene import rollout, workload
from tests.embedded.whole_cluster import dumped, settled, whole

from zonewise.api import Pod, StatefulSet
from zonewise.api.errors import ConfigError
from zonewise.api.objects.budgets import DomainRollout, TopologyDisruptionBudget
from zonewise.embedded.seed.demo import shop_objects
from zonewise.embedded.seed.dump_import import (
    BUILT_IN,
    ENDED,
    INVENTED,
    MALFORMED,
    NEEDS_SERVER,
    RECREATED,
    import_dump,
    read_dump,
)
from zonewise.embedded.seed.nodes import NodeLayout
from zonewise.runtime.cache import dump

Obj = dict[str, Any]


def build_object(kind: str, name: str = "x", version: str = "v1", **fields: Any) -> Obj:
    """An object as a server shows it."""
    meta = {
        "name": name,
        "uid": "u",
        "resourceVersion": "7",
        "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
        **fields.pop("metadata", {}),
    }
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def owned(kind: str) -> Obj:
    """Metadata of an object that a controller created."""
    owner = {"kind": kind, "name": "o", "uid": "u", "controller": True}
    return {"namespace": "n", "ownerReferences": [owner]}


def only(obj: Obj, **flags: bool) -> Obj:
    """The result of importing one object."""
    imported = import_dump([obj], **flags)
    (result,) = [item for item in imported.objects if item["kind"] == obj["kind"]]
    return result


def reason(obj: Obj, **flags: bool) -> str:
    """The reason why an object is left out."""
    (left,) = import_dump([obj], **flags).left_out
    return left.reason


def test_fields_of_the_other_server_are_removed() -> None:
    """Identity, owners, finalizers, status and bookkeeping annotations are removed."""
    deployment = build_object(
        "Deployment",
        version="apps/v1",
        metadata={
            "namespace": "n",
            "finalizers": ["f"],
            "labels": {"a": "b"},
            "annotations": {
                "deployment.kubernetes.io/revision": "4",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "mine": "yes",
            },
        },
        spec={"replicas": 3, "template": {"spec": {"containers": []}}},
        status={"replicas": 3},
    )
    before = json.dumps(deployment)
    assert only(deployment) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "x",
            "namespace": "n",
            "labels": {"a": "b"},
            "annotations": {"mine": "yes"},
        },
        "spec": {"replicas": 3, "template": {"spec": {"containers": []}}},
    }
    assert json.dumps(deployment) == before, "the dump itself was changed"


def test_fields_of_a_node() -> None:
    """Capacity, labels, cordon and manual taints are kept; conditions, ranges, other taints are
    removed.
    """
    node = build_object(
        "Node",
        metadata={"labels": {"topology.kubernetes.io/zone": "a"}},
        spec={
            "podCIDR": "10.0.0.0/24",
            "providerID": "cloud://1",
            "unschedulable": True,
            "taints": [
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
                {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
            ],
        },
        status={
            "capacity": {"cpu": "4"},
            "allocatable": {"cpu": "3920m"},
            "conditions": [{"type": "Ready", "status": "False"}],
            "images": [{}],
        },
    )
    imported = only(node)
    assert imported["spec"] == {
        "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        "unschedulable": True,
    }
    assert imported["status"] == {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3920m"}}
    assert imported["metadata"]["labels"] == {"topology.kubernetes.io/zone": "a"}


def test_addresses_of_services_are_removed() -> None:
    """Cluster addresses are removed; headless Services, ports and policies are kept."""
    spec = {"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "trafficDistribution": "x"}
    assert only(build_object("Service", spec=spec))["spec"] == {"trafficDistribution": "x"}
    headless = {"clusterIP": "None", "clusterIPs": ["None"], "selector": {"a": "b"}}
    assert only(build_object("Service", spec=headless))["spec"] == {
        "clusterIP": "None",
        "selector": {"a": "b"},
    }


def test_fields_of_admission_are_removed() -> None:
    """Fields that admission set in a pod are removed, so that admission here sets its own."""
    pod = build_object(
        "Pod",
        metadata={"namespace": "n"},
        spec={
            "nodeName": "n1",
            "priority": 7,
            "volumes": [{"name": "kube-api-access-x"}, {"name": "data"}],
            "containers": [
                {"name": "c", "volumeMounts": [{"name": "kube-api-access-x"}, {"name": "data"}]}
            ],
        },
    )
    assert only(pod)["spec"] == {
        "volumes": [{"name": "data"}],
        "containers": [{"name": "c", "volumeMounts": [{"name": "data"}]}],
    }
    assert only(pod, keep_placement=True)["spec"]["nodeName"] == "n1"


def test_merged_selectors_are_restored() -> None:
    """Label keys of constraints and affinities can be merged again by the server here."""
    keyed = {"key": "pod-template-hash", "operator": "In", "values": ["abc"]}
    other = {"key": "app", "operator": "Exists"}
    merged = {
        "matchLabelKeys": ["pod-template-hash"],
        "labelSelector": {"matchExpressions": [other, keyed]},
    }
    spec = {
        "topologySpreadConstraints": [merged],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": merged}
                ]
            }
        },
    }
    imported = only(build_object("Pod", metadata={"namespace": "n"}, spec=spec))["spec"]
    (constraint,) = imported["topologySpreadConstraints"]
    assert constraint["labelSelector"] == {"matchExpressions": [other]}
    affinity = imported["affinity"]["podAntiAffinity"]
    (weighted,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert weighted["podAffinityTerm"]["labelSelector"] == {"matchExpressions": [other]}


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        (build_object("TopologyDisruptionBudget", metadata=owned("DomainRollout")), RECREATED),
        (build_object("PodLocator", metadata={"namespace": "n"}), RECREATED),
        (build_object("DisruptionLedger", metadata={"namespace": "n"}), RECREATED),
        (build_object("ReplicaSet", version="apps/v1", metadata=owned("Deployment")), RECREATED),
        (build_object("Pod", metadata=owned("ReplicaSet"), spec={"nodeName": "n1"}), RECREATED),
        (build_object("Pod", metadata=owned("Node")), "its node runs it by itself"),
        (build_object("Pod", status={"phase": "Succeeded"}), ENDED),
        (
            build_object("Pod", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            "was being deleted",
        ),
        (build_object("Namespace", "kube-system"), BUILT_IN),
        (build_object("Service", "kubernetes", metadata={"namespace": "default"}), BUILT_IN),
        (build_object("PriorityClass", "system-node-critical"), BUILT_IN),
        (build_object("ValidatingWebhookConfiguration"), NEEDS_SERVER),
        (
            build_object("Secret", type="kubernetes.io/service-account-token"),
            "is a credential of the other cluster",
        ),
        (
            build_object(
                "EndpointSlice",
                metadata={
                    "labels": {
                        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"
                    }
                },
            ),
            RECREATED,
        ),
        (build_object("Node", spec={"taints": ["what?"]}), MALFORMED),
        (build_object("Pod", spec={"volumes": 5}), MALFORMED),
        (
            build_object("Pod", spec={"priorityClassName": "gold", "serviceAccountName": 5}),
            MALFORMED,
        ),
    ],
)
def test_unsupported_objects_are_left_out_with_a_reason(obj: Obj, why: str) -> None:
    """Each object that is left out has a reason."""
    assert reason(obj) == why


def test_objects_of_an_operator_are_kept() -> None:
    """Objects of an operator that does not run here are kept."""
    assert only(build_object("TopologyDisruptionBudget", metadata=owned("Shop")))


def test_events_are_not_mentioned() -> None:
    """Events are left out without a note."""
    imported = import_dump(
        [build_object("Event"), build_object("Event", version="events.k8s.io/v1")]
    )
    assert (imported.objects, imported.left_out) == ((), ())


def test_placement_is_kept_on_request() -> None:
    """With --keep-placement owned pods and ReplicaSets stay, without owners, for adoption."""
    pod = build_object("Pod", metadata=owned("ReplicaSet"), spec={"nodeName": "n1"})
    imported = only(pod, keep_placement=True)
    assert imported["spec"] == {"nodeName": "n1"}
    assert "ownerReferences" not in imported["metadata"]
    assert only(build_object("ReplicaSet", metadata=owned("Deployment")), keep_placement=True)
    pending = build_object("Pod", metadata=owned("ReplicaSet"), spec={})
    assert reason(pending, keep_placement=True) == RECREATED


def test_missing_references_are_created() -> None:
    """Namespaces, accounts, classes and claims that pods need are created, and reported."""
    spec = {
        "serviceAccountName": "robot",
        "priorityClassName": "gold",
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    workload = build_object(
        "StatefulSet",
        version="apps/v1",
        metadata={"namespace": "n"},
        spec={
            "template": {"spec": spec},
            "volumeClaimTemplates": [{"spec": {"storageClassName": "fast"}}],
        },
    )
    imported = import_dump([workload])
    assert {(difference.kind, difference.names) for difference in imported.invented} == {
        ("Namespace", ("n",)),
        ("ServiceAccount", ("n/robot",)),
        ("PriorityClass", ("gold",)),
        ("PersistentVolumeClaim", ("n/data",)),
        ("StorageClass", ("fast",)),
    }
    assert {difference.reason for difference in imported.invented} == {INVENTED}
    again = import_dump(imported.objects)
    assert again.invented == ()


def test_an_object_without_a_name_is_refused_with_its_line() -> None:
    """An invalid dump is refused with file and line."""
    entries = dump.parse(b"apiVersion: v1\nkind: Node\nmetadata: {}\n", "d.yaml")
    with pytest.raises(ConfigError, match=r"^d\.yaml:1: this Node has no name$"):
        list(read_dump(entries))


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ("{name: y}", r"the name of this Pod is read as true, which is not text; put it in quotes"),
        ("{name: 1}", "the name of this Pod is read as 1, "),
        ("{name: [x]}", r'the name of this Pod is read as \["x"\], '),
        ("{name: x, namespace: no}", "the namespace of this Pod is read as false, "),
        ("[x]", "this Pod has no name"),
        ("5", "this Pod has no name"),
    ],
)
def test_a_name_that_yaml_does_not_read_as_text_is_refused(metadata: str, says: str) -> None:
    """The sentence has file and line, what was read, and what to write instead."""
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\n"
    with pytest.raises(ConfigError, match=rf"^d\.yaml:1: {says}"):
        list(read_dump(dump.parse(text.encode(), "d.yaml")))


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("kind", ["Node", "Pod", "Service", "ConfigMap", "StorageClass"])
async def test_wrongly_typed_fields_of_a_dump_are_reported(kind: str) -> None:
    """An object with metadata or spec of a wrong type is left out or refused, with a reason."""
    wrong: list[dict[str, object]] = [
        {"metadata": {"name": "x", "labels": {"a": True}}},
        {"metadata": {"name": "x", "labels": 5}},
        {"metadata": {"name": "x", "annotations": ["y"]}},
        {"metadata": {"name": "x", "ownerReferences": "y"}},
        {"metadata": {"name": "x"}, "spec": True},
        {"metadata": {"name": "x"}, "spec": {"volumes": {"a": 1}, "ports": 3, "taints": "y"}},
        {"metadata": {"name": "x"}, "spec": [1], "status": 7, "data": 3, "provisioner": 5},
    ]
    version = "storage.k8s.io/v1" if kind == "StorageClass" else "v1"
    async with whole() as cluster:
        for fields in wrong:
            obj = {"apiVersion": version, "kind": kind, **fields}
            imported = import_dump([obj], keep_placement=True)
            for refused in await cluster.seeder.create(imported.objects):
                assert refused.reason


_VOLUME_FIELDS = ("claimRef", "csi", "driver", "name", "namespace", "nodeName", "volumeName")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "spec",
                    "template",
                    "metadata",
                    "volumes",
                    "taints",
                    "labels",
                    "key",
                    *_VOLUME_FIELDS,
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(
    st.sampled_from(
        [
            "CustomResourceDefinition",
            "Deployment",
            "Job",
            "Namespace",
            "Node",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "Service",
            "StatefulSet",
            "StorageClass",
        ]
    ),
    st.dictionaries(st.sampled_from(["spec", "status", "type"]), values),
    st.dictionaries(st.sampled_from(["annotations", "labels", "ownerReferences"]), values),
    st.booleans(),
)
def test_no_dump_is_a_failure(kind: str, fields: Obj, meta: Obj, keep: bool) -> None:
    """Any object is kept or left out, never a failure."""
    obj = {"apiVersion": "v1", "kind": kind, "metadata": {**meta, "name": "x"}, **fields}
    imported = import_dump([obj], keep_placement=keep)
    assert (
        len(imported.objects)
        - sum(len(difference.names) for difference in imported.invented)
        + sum(len(difference.names) for difference in imported.left_out)
        == 1
    )


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_cluster_runs_from_its_dump() -> None:
    """From the dump of a whole cluster every workload becomes Ready; no object is refused."""
    async with whole([*NodeLayout().nodes(), *shop_objects()]) as cluster:
        await settled(cluster)
        first = await dumped(cluster)
        pods = await places(cluster)
    async with whole(import_dump(first).objects) as cluster:
        await settled(cluster)
        assert len(await places(cluster)) == len(pods)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_with_placement_kept_every_pod_is_where_it_was() -> None:
    """Pods keep their names and nodes, workloads adopt them, and no other pod is created."""
    async with whole([*NodeLayout().nodes(), *shop_objects()]) as cluster:
        await settled(cluster)
        first = await dumped(cluster)
        pods = await places(cluster)
    async with whole(import_dump(first, keep_placement=True).objects) as cluster:
        await settled(cluster)
        assert await places(cluster) == pods
        owners = [pod.metadata.controller for pod in await cluster.client.list(Pod)]
        assert all(owners)


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("keep", [False, True], ids=["scheduled", "placed"])
async def test_a_domain_rollout_continues_in_a_recreated_cluster(keep: bool) -> None:
    """The budgets of a DomainRollout are derived again, and an update reaches every pod."""
    nodes = NodeLayout().nodes()
    async with whole([*nodes, workload("StatefulSet"), rollout("StatefulSet")]) as cluster:
        await settled(cluster)
        first = await dumped(cluster)
    assert "TopologyDisruptionBudget" in {obj["kind"] for obj in first}
    async with whole(import_dump(first, keep_placement=keep).objects) as cluster:
        await settled(cluster)
        change = {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
        await cluster.client.patch(StatefulSet, "foo", "default", change)
        await settled(cluster, within=600)
        item = await cluster.client.get(StatefulSet, "foo", "default")
        assert item.status.updated_replicas == 6
        budgets = await cluster.client.list(TopologyDisruptionBudget)
        (rolled,) = await cluster.client.list(DomainRollout)
        owners = [budget.metadata.controller for budget in budgets]
        assert [owner and owner.uid for owner in owners] == [rolled.metadata.uid] * 2


async def places(cluster: Any) -> dict[str, str]:
    """The node of each pod."""
    return {pod.metadata.name: pod.spec.node_name for pod in await cluster.client.list(Pod)}
