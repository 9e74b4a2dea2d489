"""Where a volume is and why, from objects alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from msgspec import structs
from tests.explain.dumps import DRIVER, KEY

from zonewise.api import (
    CSINode,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
    convert,
)
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.storage import TypedReference
from zonewise.api.reason import Reason
from zonewise.explain.volume_report import VolumeReport, render_volume
from zonewise.explain.volumes import VolumeCluster, explain_claim, explain_volume
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import DomainLabels

TAKEOVER = f"topology.{DRIVER}/takeover.a"
SEGMENTS = [{"domainLabel": "zone", "value": "a"}]
POOLS = json.dumps(
    {
        "version": 2,
        "pools": [
            {
                "poolName": f"pool-{zone}",
                "capacity": size,
                "domainSegments": [{"domainLabel": "zone", "value": zone}],
            }
            for zone, size in (("a", "4Gi"), ("b", "1Gi"))
        ],
    }
)


def storage_class(mode: str = "WaitForFirstConsumer", **more: Any) -> StorageClass:
    """The driver's class."""
    body = {"metadata": {"name": "zonal"}, "provisioner": DRIVER, "volumeBindingMode": mode, **more}
    return convert(StorageClass, body)


def claim(size: str = "1Gi", *, node: str = "", volume: str = "") -> PersistentVolumeClaim:
    """A claim of that class."""
    marks = {"volume.kubernetes.io/selected-node": node} if node else {}
    body = {
        "metadata": {"name": "data", "namespace": "shop", "uid": "u", "annotations": marks},
        "spec": {
            "storageClassName": "zonal",
            "accessModes": ["ReadWriteOnce"],
            "volumeName": volume,
            "resources": {"requests": {"storage": size}},
        },
        "status": {"phase": "Bound" if volume else "Pending"},
    }
    return convert(PersistentVolumeClaim, body)


def volume(zone: str = "b", *, name: str = "v", size: str = "1Gi") -> PersistentVolume:
    """A volume of the driver."""
    needs = {"key": KEY, "operator": "In", "values": [zone]}
    body = {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "storageClassName": "zonal",
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [needs]}]}},
            "csi": {
                "driver": DRIVER,
                "volumeHandle": name,
                "volumeAttributes": {"pool": f"pool-{zone}"},
            },
        },
        "status": {"phase": "Bound"},
    }
    return convert(PersistentVolume, body)


def cluster(pvc: PersistentVolumeClaim, *volumes: PersistentVolume, **more: Any) -> VolumeCluster:
    """Two zones with a pool each."""
    nodes = {
        f"n-{zone}": convert(Node, {"metadata": {"name": f"n-{zone}", "labels": {KEY: zone}}})
        for zone in "ab"
    }
    drivers = [{"name": DRIVER, "nodeID": "n", "topologyKeys": [KEY]}]
    csi_nodes = tuple(
        convert(CSINode, {"metadata": {"name": name}, "spec": {"drivers": drivers}})
        for name in nodes
    )
    settings: dict[str, Any] = {
        "claims": {pvc.key: pvc},
        "volumes": {each.metadata.name: each for each in volumes},
        "classes": {"zonal": storage_class()},
        "nodes": nodes,
        "csi_nodes": csi_nodes,
        "configuration": parse_configuration(POOLS, DomainLabels(DRIVER, ("zone",))),
        **more,
    }
    return VolumeCluster(**settings)


def explain_pvc(
    pvc: PersistentVolumeClaim, *volumes: PersistentVolume, **more: Any
) -> VolumeReport:
    """The report of a claim."""
    return explain_claim(cluster(pvc, *volumes, **more), pvc)


def test_a_volume_is_reported_with_its_pool_domain_and_why() -> None:
    """The decision is repeated, with the volume's own bytes counted as free."""
    pvc = claim(node="n-b", volume="v")
    source = cluster(pvc, volume())
    report = explain_claim(source, pvc)
    assert report == explain_volume(source, volume())
    assert (report.pool, report.access.terms, report.node) == ("pool-b", ({KEY: "b"},), "n-b")
    assert report.reason.code == "DomainMatched"
    assert report.to_dict()["tried"][-1]["pool"] == "pool-b"
    assert "can be used from zone b" in render_volume(report)


def test_a_full_zone_says_what_was_tried_and_what_helps() -> None:
    """The chosen node's pool has no room; the next one is taken, and both are listed."""
    other = volume(name="other")
    report = explain_pvc(claim(node="n-b"), other)
    assert report.reason.code == "NotYetMade"
    assert "pool-a" in report.reason.message
    assert [tried.pool for tried in report.tried] == ["pool-b", "pool-a"]
    nowhere = explain_pvc(claim("8Gi", node="n-b"), other)
    assert nowhere.reason.message.startswith("claim data has no volume")
    assert nowhere.reason.fix
    assert {tried.pool for tried in nowhere.tried} == {"pool-a", "pool-b"}


def test_a_volume_that_would_be_elsewhere_today_says_so() -> None:
    """A volume stays where it is when pools change, and its report names the pool it would get
    today.
    """
    report = explain_pvc(claim(node="n-a", volume="v"), volume("b"))
    assert report.reason.code == "PlacedBefore"
    assert "today it would get pool pool-a" in report.reason.message


def copied(pvc: PersistentVolumeClaim, kind: str, name: str) -> PersistentVolumeClaim:
    """The same claim, to be filled from something."""
    source = TypedReference(kind=kind, name=name)
    return structs.replace(pvc, spec=structs.replace(pvc.spec, data_source=source))


def test_a_copy_is_explained_by_its_source() -> None:
    """A copy stays with its source, whichever node was chosen, so nothing has changed since."""
    for kind in ("VolumeSnapshot", "PersistentVolumeClaim"):
        report = explain_pvc(copied(claim(node="n-a", volume="v"), kind, "old"), volume("b"))
        assert report.reason.code == "Copied"
        assert f"in pool pool-b and can be used from zone b: it is a copy of {kind} old" in (
            report.reason.message
        )


def test_a_waiting_copy_is_explained_by_its_source() -> None:
    """A copy that waits would get the pool of its source; a source that is not known is not
    guessed.
    """
    old = structs.replace(claim(volume="v"), metadata=ObjectMeta(name="old", namespace="shop"))
    new = copied(claim("64Mi", node="n-a"), "PersistentVolumeClaim", "old")
    claims = {pvc.key: pvc for pvc in (old, new)}
    report = explain_pvc(new, volume("b", size="64Mi"), claims=claims)
    assert report.reason.code == "NotYetMade"
    assert "would take pool pool-b" in report.reason.message
    snapshot = copied(claim(node="n-a"), "VolumeSnapshot", "old")
    assert explain_pvc(snapshot).reason.code == "SourceUnknown"


def test_a_waiting_claim_says_what_is_missing() -> None:
    """The report of a waiting claim names what is missing: a class, a pod, a node, the pools, or
    the volume that the claim names.
    """
    assert explain_pvc(claim()).reason.code == "WaitsForPod"
    body = {
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes."}]
        },
    }
    report = explain_pvc(claim(), pods=(convert(Pod, body),))
    assert report.reason.code == "WaitsForNode"
    assert report.reason.message.endswith("for pod p: 0/2 nodes")
    assert render_volume(report).splitlines()[0].endswith("for pod p: 0/2 nodes.")
    assert explain_pvc(claim(), classes={}).reason.code == "ClassMissing"
    missing = explain_pvc(claim(volume="gone"), volume(name="other")).reason
    assert missing.code == "VolumeMissing" and "its data is lost" in missing.fix
    unread = explain_pvc(claim(volume="gone")).reason
    assert unread.code == "VolumeMissing" and "Give the PersistentVolumes too" in unread.fix
    assert explain_pvc(claim(node="n-a"), configuration=None).reason.code == "PoolsUnknown"
    bad = {"zonal": storage_class(parameters={"colour": "blue"})}
    report = explain_pvc(claim(node="n-a"), classes=bad)
    assert report.reason.message.startswith("class zonal cannot be used: colour: unknown parameter")


def test_a_class_that_names_an_unknown_pool_is_the_first_answer() -> None:
    """A claim says that its class names a pool which does not exist before it has a pod, before its
    pod has a node, after that, and where it binds at once: no pod and no space would help.
    """
    pools = json.dumps([{"poolName": "pool-x", "domainSegments": SEGMENTS}])
    body = {
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
    }
    wrong: dict[str, Any] = {"parameters": {"topologyConstrainedPools": pools}}
    late = {"zonal": storage_class(**wrong)}
    at_once = {"zonal": storage_class("Immediate", **wrong)}
    reasons = {
        explain_pvc(claim(), classes=late).reason,
        explain_pvc(claim(), classes=late, pods=(convert(Pod, body),)).reason,
        explain_pvc(claim(node="n-a"), classes=late).reason,
        explain_pvc(claim(), classes=at_once).reason,
    }
    (reason,) = reasons
    assert reason.message.startswith("class zonal cannot be used: ")
    assert "there is no pool 'pool-x'" in reason.message and "pool-a" in reason.message
    assert reason.fix
    another = structs.replace(late["zonal"], provisioner="csi.example.com")
    assert explain_pvc(claim(), classes={"zonal": another}).reason.code == "WaitsForPod"


def test_a_zone_without_a_pool_is_named() -> None:
    """A claim whose pod is in a zone without a pool says so, with or without its volume; with
    placement: preferred the claim that waits names the zones where no pod can use it.
    """
    nodes = dict(cluster(claim()).nodes)
    nodes["n-c"] = convert(Node, {"metadata": {"name": "n-c", "labels": {KEY: "c"}}})
    drivers = [{"name": DRIVER, "nodeID": "n", "topologyKeys": [KEY]}]
    settings: dict[str, Any] = {
        "nodes": nodes,
        "csi_nodes": tuple(
            convert(CSINode, {"metadata": {"name": name}, "spec": {"drivers": drivers}})
            for name in nodes
        ),
    }
    waiting = explain_pvc(claim(node="n-c"), **settings)
    assert waiting.reason.code == "NotYetMade"
    assert "class zonal has no pool in zone c" in waiting.reason.message
    unpinned = structs.replace(
        volume("a"), spec=structs.replace(volume("a").spec, node_affinity=None)
    )
    report = explain_pvc(claim(node="n-c", volume="v"), unpinned, **settings)
    assert report.reason.code == "UnknownDomain"
    assert "from everywhere: class zonal has no pool in zone c" in report.reason.message
    elsewhere = structs.replace(
        volume("b"), spec=structs.replace(volume("b").spec, node_affinity=None)
    )
    report = explain_pvc(claim(node="n-c", volume="v"), elsewhere, **settings)
    assert report.reason.code == "NoPoolInDomain"
    assert "from everywhere: class zonal has no pool in zone c" in report.reason.message
    assert report.reason.message.endswith("; today it would get pool pool-a")
    copy = claim(node="n-c", volume="v")
    origin = TypedReference(kind="PersistentVolumeClaim", name="old")
    copy = structs.replace(copy, spec=structs.replace(copy.spec, data_source=origin))
    copied = explain_pvc(copy, elsewhere, **settings).reason
    assert copied.code == "Copied" and "; class zonal has no pool in zone c" in copied.message
    body = {
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
    }
    strict = {"zonal": storage_class(parameters={"placement": "preferred"})}
    pods = (convert(Pod, body),)
    report = explain_pvc(claim(), pods=pods, classes=strict, **settings)
    assert report.reason.code == "WaitsForNode"
    assert "class zonal has no pool in zone c" in report.reason.message
    assert "remove placement: preferred" in report.reason.fix
    report = explain_pvc(claim(), pods=pods, **settings)
    assert "no pool" not in report.reason.message


def test_a_class_that_takes_pools_by_labels_is_explained() -> None:
    """By the domains that the configuration declares; labels in Ceph cannot be read here, and the
    report says where they are.
    """
    labelled = {"zonal": storage_class(parameters={"poolLabels": "all"})}
    report = explain_pvc(claim(node="n-b"), classes=labelled)
    assert "would take pool pool-b: pool pool-b is in zone b" in report.reason.message
    clusters = [{"clusterID": "c", "monitors": ["m"], "user": "u", "keyFile": "/k"}]
    text = json.dumps({"version": 2, "clusters": clusters})
    configuration = parse_configuration(text, DomainLabels(DRIVER, ("zone",)))
    given: dict[str, Any] = {"classes": labelled, "configuration": configuration}
    report = explain_pvc(claim(node="n-b"), **given)
    assert report.reason.code == "PoolsUnknown"
    assert "takes pools by their own labels, which are in Ceph" in report.reason.message
    assert "ceph osd pool application get" in report.reason.fix
    placed = explain_pvc(claim(node="n-b", volume="v"), volume(), **given)
    assert placed.reason.message == "volume v is in pool pool-b and can be used from zone b"


def test_on_ceph_a_class_that_lacks_the_zone_is_named() -> None:
    """The list of a class is known without asking Ceph, the state of its pools is not: a claim for
    a zone without a pool says so, and others say who decides.
    """
    segments = [{"domainLabel": "zone", "value": "a"}]
    listed = json.dumps([{"poolName": "rbd-a", "domainSegments": segments}])
    parameters = {"topologyConstrainedPools": listed, "pool": "journal", "mounter": "krbd"}
    clusters = [{"clusterID": "c", "monitors": ["m"], "user": "u", "keyFile": "/k"}]
    text = json.dumps({"version": 2, "clusters": clusters})
    given: dict[str, Any] = {
        "classes": {"zonal": storage_class(parameters=parameters)},
        "configuration": parse_configuration(text, DomainLabels(DRIVER, ("zone",))),
    }
    waiting = explain_pvc(claim(node="n-b"), **given).reason
    assert waiting.code == "NoPoolInDomain"
    start = "claim data has no volume yet; class zonal has no pool in zone b: "
    assert waiting.message.startswith(start)
    assert explain_pvc(claim(node="n-a"), **given).reason.code == "PoolsUnknown"
    placed = explain_pvc(claim(node="n-b", volume="v"), volume("a"), **given).reason
    assert ": class zonal has no pool in zone b: " in placed.message
    assert explain_pvc(claim(node="n-a", volume="v"), volume("a"), **given).reason.code == "Placed"


def test_a_claim_that_binds_at_once_is_explained_as_balanced() -> None:
    """The provisioner gives such claims no domain, and so does the report."""
    at_once = {"zonal": storage_class("Immediate")}
    report = explain_pvc(claim(), classes=at_once)
    assert "would take pool pool-a: no domain is required" in report.reason.message


def test_a_volume_of_another_driver() -> None:
    """A volume without a pool has no decision to repeat; one without a claim has its domain."""
    body = {"metadata": {"name": "nfs"}, "spec": {"capacity": {"storage": "1Gi"}}}
    foreign = convert(PersistentVolume, body)
    report = explain_volume(cluster(claim(), foreign), foreign)
    assert report.reason.code == "NoPool" and "everywhere" in report.reason.message
    lonely = explain_volume(VolumeCluster(), volume())
    assert lonely.reason.code == "Placed" and lonely.to_dict()["claim"] is None


def takeable() -> PersistentVolume:
    """A volume of zone a that can be taken over."""
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        for key, value in ((KEY, "a"), (TAKEOVER, "true"))
    ]
    attributes = {"pool": "pool-a"}
    body = {
        "metadata": {"name": "v"},
        "spec": {
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            "csi": {"driver": DRIVER, "volumeHandle": "v", "volumeAttributes": attributes},
        },
    }
    return convert(PersistentVolume, body)


def takeover_cluster(*taking: str) -> VolumeCluster:
    """Zones a, b and c; nodes of some stand in for a."""
    nodes = {}
    for zone in "abc":
        labels: Any = {KEY: zone} | ({TAKEOVER: "true"} if zone in taking else {})
        nodes[zone] = convert(Node, {"metadata": {"name": zone, "labels": labels}})
    return VolumeCluster(nodes=nodes)


def test_home_and_takeover_are_reported() -> None:
    """JSON has both terms; text says which domains stand in now: some, none, or unknown."""
    report = explain_volume(takeover_cluster("b"), takeable())
    assert report.to_dict()["domains"] == [{KEY: "a"}, {TAKEOVER: "true"}]
    words = "can be used from zone a, and from nodes that stand in for it"
    assert f"{words} (now: zone b)" in render_volume(report)
    assert f"{words} (now: zone b or zone c)" in render_volume(
        explain_volume(takeover_cluster("b", "c"), takeable())
    )
    assert f"{words} (now: none)" in render_volume(explain_volume(takeover_cluster(), takeable()))
    assert f"{words}." in render_volume(explain_volume(VolumeCluster(), takeable()))


def test_a_takeover_that_waits_is_told_with_the_volumes_of_its_domain() -> None:
    """The reason of a domain's takeover is shown for its volumes, and not for those of others."""
    about = [
        Reason(code="TakeoverPending", message=f"{zone} has failed", object=f"Domain/{zone}")
        for zone in "ab"
    ]
    cluster = replace(takeover_cluster(), takeover=tuple(about))
    report = explain_volume(cluster, takeable())
    assert [reason["code"] for reason in report.to_dict()["takeover"]] == ["TakeoverPending"]
    assert "a has failed" in render_volume(report)
    assert "b has failed" not in render_volume(report)
