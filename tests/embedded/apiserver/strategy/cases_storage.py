"""Valid and invalid volumes, claims, storage classes and objects of drivers."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.case_runner import Case, Obj, Step
from tests.embedded.apiserver.strategy.cases_core import patch, put, status

VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/namespaces/{ns}/persistentvolumeclaims"
PREFIX = "/apis/storage.k8s.io/v1"
CLASSES = f"{PREFIX}/storageclasses"
CSI_NODES = f"{PREFIX}/csinodes"
DRIVERS = f"{PREFIX}/csidrivers"
CAPACITIES = PREFIX + "/namespaces/{ns}/csistoragecapacities"
ATTACHMENTS = f"{PREFIX}/volumeattachments"

HOST = {"hostPath": {"path": "/data"}}
CSI = {"csi": {"driver": "d.example.com", "volumeHandle": "h"}}
AFFINITY = {
    "required": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
        ]
    }
}
ONE_GIB: Obj = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
CLAIM: Obj = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1Gi"}},
    "storageClassName": "",
}


def _volume(label: str, spec: Obj, *steps: Step) -> Case:
    spec = {key: value for key, value in (ONE_GIB | spec).items() if value is not ...}
    return Case(f"pv {label}", VOLUMES, {"metadata": {"name": "zw-a"}, "spec": spec}, steps)


def _claim(label: str, spec: Obj, *steps: Step, **meta: Any) -> Case:
    spec = {key: value for key, value in (CLAIM | spec).items() if value is not ...}
    return Case(f"pvc {label}", CLAIMS, {"metadata": {"name": "zw-a", **meta}, "spec": spec}, steps)


def _class(label: str, fields: Obj, *steps: Step) -> Case:
    body = {"metadata": {"name": "zw-a"}, "provisioner": "example.com/p", **fields}
    return Case(f"class {label}", CLASSES, body, steps)


def _csinode(label: str, *drivers: Obj, steps: tuple[Step, ...] = ()) -> Case:
    body = {"metadata": {"name": "zw-a"}, "spec": {"drivers": list(drivers)}}
    return Case(f"csinode {label}", CSI_NODES, body, steps)


def _driver(label: str, spec: Obj, *steps: Step, name: str = "d.example.com") -> Case:
    return Case(f"driver {label}", DRIVERS, {"metadata": {"name": name}, "spec": spec}, steps)


def _attachment(label: str, spec: Obj, *steps: Step) -> Case:
    base = {"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "p"}}
    body = {"metadata": {"name": "zw-a"}, "spec": base | spec}
    return Case(f"attachment {label}", ATTACHMENTS, body, steps)


def _capacity(label: str, fields: Obj, *steps: Step) -> Case:
    body = {"metadata": {"name": "zw-a"}, "storageClassName": "c", **fields}
    return Case(f"capacity {label}", CAPACITIES, body, steps)


D1 = {"name": "a.example.com", "nodeID": "1"}
CLAIM_REF = {"kind": "PersistentVolumeClaim", "namespace": "n", "name": "c"}

CASES: tuple[Case, ...] = (
    _volume(
        "plain",
        HOST,
        put({"spec": {"capacity": {"storage": "2Gi"}}}),
        put({"spec": {"hostPath": {"path": "/other"}}}),
        put({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
        put({"spec": {"storageClassName": "x"}}),
        put({"spec": {"claimRef": CLAIM_REF}}),
        put({"spec": {"volumeMode": "Block"}}),
        put({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        put({"spec": {"mountOptions": ["ro"]}}),
        put({"spec": {"nodeAffinity": AFFINITY}}),
        put({"spec": {"nodeAffinity": None}}),
        status({"status": {"phase": "Bound"}}),
        status({"status": {"phase": "Released"}}),
        status({"spec": {"capacity": {"storage": "9Gi"}}}),
        put({"status": {"phase": "Failed"}}),
    ),
    _volume(
        "csi",
        CSI,
        put({"spec": {"csi": {"volumeHandle": "i"}}}),
        put({"spec": {"csi": {"controllerExpandSecretRef": {"name": "s", "namespace": "n"}}}}),
        put({"spec": {"csi": {"controllerExpandSecretRef": None}}}),
        put({"spec": {"csi": None, "hostPath": {"path": "/x"}}}),
    ),
    _volume("no source", {}),
    _volume("two sources", HOST | CSI),
    _volume("no capacity", HOST | {"capacity": ...}),
    _volume("no storage", HOST | {"capacity": {"cpu": "1"}}),
    _volume("zero storage", HOST | {"capacity": {"storage": "0"}}),
    _volume("negative storage", HOST | {"capacity": {"storage": "-1"}}),
    _volume("more capacity", HOST | {"capacity": {"storage": "1", "cpu": "1"}}),
    _volume("no modes", HOST | {"accessModes": ...}),
    _volume("odd mode", HOST | {"accessModes": ["Odd"]}),
    _volume("pod mode", CSI | {"accessModes": ["ReadWriteOncePod"]}),
    _volume("pod mode and more", CSI | {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
    _volume("odd volume mode", HOST | {"volumeMode": "Odd"}),
    _volume("odd policy", HOST | {"persistentVolumeReclaimPolicy": "Odd"}),
    _volume("recycle", HOST | {"persistentVolumeReclaimPolicy": "Recycle"}),
    _volume(
        "recycle root", {"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"}
    ),
    _volume("bad class", HOST | {"storageClassName": "A b"}),
    _volume("no path", {"hostPath": {"path": ""}}),
    _volume("path back", {"hostPath": {"path": "/a/../b"}}),
    _volume("path type", {"hostPath": {"path": "/a", "type": "Odd"}}),
    _volume("nfs", {"nfs": {"server": "s", "path": "/a"}}),
    _volume("nfs empty", {"nfs": {"server": "", "path": ""}}),
    _volume("nfs relative", {"nfs": {"server": "s", "path": "a"}}),
    _volume("csi empty", {"csi": {"driver": "", "volumeHandle": ""}}),
    _volume("csi bad driver", {"csi": {"driver": "a b", "volumeHandle": "h"}}),
    _volume(
        "csi secret",
        {
            "csi": {
                "driver": "d",
                "volumeHandle": "h",
                "nodeStageSecretRef": {"name": "", "namespace": ""},
            }
        },
    ),
    _volume("local", {"local": {"path": "/a"}, "nodeAffinity": AFFINITY}),
    _volume("local no affinity", {"local": {"path": "/a"}}),
    _volume("local empty", {"local": {"path": ""}, "nodeAffinity": AFFINITY}),
    _volume("local back", {"local": {"path": "/a/.."}, "nodeAffinity": AFFINITY}),
    _volume(
        "iscsi",
        {"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:x", "lun": 0}},
    ),
    _volume("iscsi empty", {"iscsi": {"targetPortal": "", "iqn": "", "lun": 300}}),
    _volume("rbd empty", {"rbd": {"monitors": [], "image": ""}}),
    _volume("affinity empty", HOST | {"nodeAffinity": {}}),
    _volume("affinity no terms", HOST | {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}),
    _volume(
        "affinity odd",
        HOST
        | {
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a b", "operator": "Odd"}]}]
                }
            }
        },
    ),
    _volume("claim ref", HOST | {"claimRef": CLAIM_REF}),
    _volume(
        "phase",
        HOST,
        Step("get", "?fieldSelector=metadata.name=zw-a"),
        Step("get", "?fieldSelector=status.phase=Pending"),
        Step("get", "?fieldSelector=name=zw-a"),
    ),
    _volume("mount options", HOST | {"mountOptions": ["a", "b"]}),
    Case("pv bad name", VOLUMES, {"metadata": {"name": "A_b"}, "spec": ONE_GIB | HOST}),
    Case("pv no spec", VOLUMES, {"metadata": {"name": "zw-a"}}),
    _claim(
        "plain",
        {},
        put({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
        put({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        put({"spec": {"volumeName": "v"}}),
        put({"spec": {"storageClassName": "x"}}),
        put({"spec": {"volumeMode": "Block"}}),
        put({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
        put({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}}),
        put({"metadata": {"labels": {"a": "b"}}}),
        status(
            {
                "status": {
                    "phase": "Bound",
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                }
            }
        ),
        put({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
        put({"spec": {"volumeName": "w"}}),
        put({"spec": {"volumeName": None}}),
        status({"status": {"capacity": {"storage": "-1"}}}),
        status({"status": {"phase": "Lost"}}),
        status({"status": {"conditions": [{"type": "Resizing", "status": "True"}]}}),
    ),
    _claim(
        "bind then",
        {"volumeName": "v"},
        put({"spec": {"volumeName": "w"}}),
        patch({"spec": {"volumeName": None}}),
    ),
    _claim("no modes", {"accessModes": ...}),
    _claim("empty modes", {"accessModes": []}),
    _claim("odd mode", {"accessModes": ["Odd"]}),
    _claim("pod mode and more", {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
    _claim("pod mode", {"accessModes": ["ReadWriteOncePod"]}),
    _claim("no resources", {"resources": ...}),
    _claim("no storage", {"resources": {"requests": {"cpu": "1"}}}),
    _claim("zero", {"resources": {"requests": {"storage": "0"}}}),
    _claim("negative", {"resources": {"requests": {"storage": "-1Gi"}}}),
    _claim("fraction", {"resources": {"requests": {"storage": "1500m"}}}),
    _claim("bad class", {"storageClassName": "A b"}),
    _claim("no class", {"storageClassName": ...}, put({"spec": {"storageClassName": "x"}})),
    _claim("odd volume mode", {"volumeMode": "Odd"}),
    _claim("block", {"volumeMode": "Block"}),
    _claim(
        "selector odd",
        {
            "selector": {
                "matchLabels": {"a b": "c"},
                "matchExpressions": [{"key": "a", "operator": "Odd"}],
            }
        },
    ),
    _claim(
        "source",
        {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}},
        put({"spec": {"dataSource": {"name": "y"}, "dataSourceRef": {"name": "y"}}}),
    ),
    _claim(
        "source snapshot",
        {
            "dataSource": {
                "kind": "VolumeSnapshot",
                "name": "x",
                "apiGroup": "snapshot.storage.k8s.io",
            }
        },
    ),
    _claim("source other", {"dataSource": {"kind": "Odd", "name": "x", "apiGroup": "x.io"}}),
    _claim("source empty", {"dataSource": {"kind": "", "name": ""}}),
    _claim("source ref", {"dataSourceRef": {"kind": "Odd", "name": "x", "apiGroup": "x.io"}}),
    _claim("source core", {"dataSourceRef": {"kind": "Pod", "name": "x"}}),
    _claim(
        "sources differ",
        {
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "x"},
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "y"},
        },
    ),
    _claim(
        "source elsewhere",
        {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "y", "namespace": "z"}},
    ),
    _claim(
        "attributes class",
        {"volumeAttributesClassName": "gold"},
        put({"spec": {"volumeAttributesClassName": "silver"}}),
    ),
    _claim(
        "status on create",
        {},
        status(
            {
                "status": {
                    "allocatedResources": {"storage": "1Gi"},
                    "allocatedResourceStatuses": {"storage": "Odd"},
                }
            }
        ),
        status({"status": {"allocatedResources": {"storage": "-1"}}}),
    ),
    Case("pvc bad name", CLAIMS, {"metadata": {"name": "A_b"}, "spec": CLAIM}),
    Case("pvc no spec", CLAIMS, {"metadata": {"name": "zw-a"}}),
    _class(
        "plain",
        {"parameters": {"a": "b"}},
        put({"parameters": {"a": "c"}}),
        put({"provisioner": "example.com/q"}),
        put({"reclaimPolicy": "Retain"}),
        put({"volumeBindingMode": "WaitForFirstConsumer"}),
        put({"allowVolumeExpansion": True}),
        put({"mountOptions": ["ro"]}),
        put(
            {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "false"}}}
        ),
        put({"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["b"]}]}]}),
    ),
    _class("no provisioner", {"provisioner": ""}),
    _class("bad provisioner", {"provisioner": "a b"}),
    _class("upper provisioner", {"provisioner": "Example.com/P"}),
    _class("odd policy", {"reclaimPolicy": "Odd"}),
    _class("recycle", {"reclaimPolicy": "Recycle"}),
    _class("odd binding", {"volumeBindingMode": "Odd"}),
    _class("empty key", {"parameters": {"": "a"}}),
    _class("many parameters", {"parameters": {f"k{i}": "v" for i in range(513)}}),
    _class("large parameters", {"parameters": {"k": "v" * 300000}}),
    _class(
        "topologies",
        {"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["b", "c"]}]}]},
    ),
    _class(
        "topologies odd",
        {
            "allowedTopologies": [
                {
                    "matchLabelExpressions": [
                        {"key": "a b", "values": []},
                        {"key": "x", "values": ["v", "v"]},
                        {"key": "x", "values": ["w"]},
                    ]
                },
                {"matchLabelExpressions": [{"key": "y", "values": ["w"]}]},
                {"matchLabelExpressions": [{"key": "y", "values": ["w"]}]},
            ]
        },
    ),
    _class("empty topology", {"allowedTopologies": [{}]}),
    Case("class bad name", CLASSES, {"metadata": {"name": "A_b"}, "provisioner": "x"}),
    _csinode(
        "plain",
        D1,
        steps=(
            put({"spec": {"drivers": [D1 | {"nodeID": "2"}]}}),
            put({"spec": {"drivers": [D1, {"name": "b.example.com", "nodeID": "2"}]}}),
            put({"spec": {"drivers": []}}),
        ),
    ),
    _csinode("none"),
    _csinode("twice", D1, D1),
    _csinode("empty", {"name": "", "nodeID": ""}),
    _csinode("bad name of driver", {"name": "A b", "nodeID": "1"}),
    _csinode("long id", {"name": "a", "nodeID": "x" * 257}),
    _csinode("middle id", {"name": "a", "nodeID": "x" * 192}),
    _csinode("negative", D1 | {"allocatable": {"count": -1}}),
    _csinode(
        "count",
        D1 | {"allocatable": {"count": 3}},
        steps=(put({"spec": {"drivers": [D1 | {"allocatable": {"count": 4}}]}}),),
    ),
    _csinode(
        "keys",
        D1 | {"topologyKeys": ["a", "b"]},
        steps=(put({"spec": {"drivers": [D1 | {"topologyKeys": ["a"]}]}}),),
    ),
    _csinode("keys odd", D1 | {"topologyKeys": ["", "a b", "c", "c"]}),
    _driver(
        "plain",
        {},
        put({"spec": {"attachRequired": False}}),
        put({"spec": {"podInfoOnMount": True}}),
        put({"spec": {"fsGroupPolicy": "File"}}),
        put({"spec": {"storageCapacity": True}}),
        put({"spec": {"volumeLifecycleModes": ["Ephemeral"]}}),
        put({"spec": {"tokenRequests": [{"audience": "a"}]}}),
        put({"spec": {"requiresRepublish": True}}),
        put({"spec": {"seLinuxMount": True}}),
        put({"spec": {"nodeAllocatableUpdatePeriodSeconds": 20}}),
    ),
    _driver("odd policy", {"fsGroupPolicy": "Odd"}),
    _driver("odd lifecycle", {"volumeLifecycleModes": ["Odd"]}),
    _driver("lifecycle twice", {"volumeLifecycleModes": ["Persistent", "Persistent"]}),
    _driver(
        "tokens",
        {"tokenRequests": [{"audience": "a", "expirationSeconds": 600}, {"audience": "b"}]},
    ),
    _driver("tokens twice", {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}),
    _driver("tokens short", {"tokenRequests": [{"audience": "a", "expirationSeconds": 599}]}),
    _driver("tokens long", {"tokenRequests": [{"audience": "a", "expirationSeconds": 4294967297}]}),
    _driver("period", {"nodeAllocatableUpdatePeriodSeconds": 5}),
    _driver("bad name", {}, name="a_b"),
    _driver("long name", {}, name="a" * 64),
    _driver("capital name", {}, name="A.Example.com"),
    _attachment(
        "plain",
        {},
        put({"spec": {"nodeName": "m"}}),
        put({"spec": {"attacher": "e"}}),
        status({"status": {"attached": True, "attachmentMetadata": {"a": "b"}}}),
        status(
            {
                "status": {
                    "attached": False,
                    "attachError": {"message": "x", "time": "2026-01-02T03:04:05Z"},
                }
            }
        ),
        put({"status": {"attached": True}}),
        status({"status": {"attachError": {"message": "x" * 262145}}}),
        status({"metadata": {"labels": {"via": "status"}}}),
    ),
    _attachment("empty", {"attacher": "", "nodeName": "", "source": {}}),
    _attachment("bad attacher", {"attacher": "a b"}),
    _attachment("bad node", {"nodeName": "A b"}),
    _attachment("bad volume", {"source": {"persistentVolumeName": ""}}),
    _attachment("inline", {"source": {"inlineVolumeSpec": ONE_GIB | CSI}}),
    _attachment("inline host", {"source": {"inlineVolumeSpec": ONE_GIB | HOST}}),
    _attachment(
        "both", {"source": {"persistentVolumeName": "p", "inlineVolumeSpec": ONE_GIB | CSI}}
    ),
    _capacity(
        "plain",
        {"capacity": "1Gi", "nodeTopology": {"matchLabels": {"a": "b"}}},
        put({"capacity": "2Gi"}),
        put({"storageClassName": "d"}),
        put({"nodeTopology": None}),
        put({"maximumVolumeSize": "1Gi"}),
    ),
    _capacity("no class", {"storageClassName": ""}),
    _capacity("bad class", {"storageClassName": "A b"}),
    _capacity("negative", {"capacity": "-1", "maximumVolumeSize": "-1"}),
    _capacity("topology odd", {"nodeTopology": {"matchLabels": {"a b": "c"}}}),
)
