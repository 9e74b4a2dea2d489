"""Further cases: several errors at once, growing claims, selections, nulls."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy import cases_core as core
from tests.embedded.apiserver.strategy import cases_network as network
from tests.embedded.apiserver.strategy import cases_roles as roles
from tests.embedded.apiserver.strategy import cases_slices as slices
from tests.embedded.apiserver.strategy import cases_storage as storage
from tests.embedded.apiserver.strategy import cases_webhooks as hooks
from tests.embedded.apiserver.strategy.case_runner import Case, Obj, Step
from tests.embedded.apiserver.strategy.cases_core import patch, put, status


def _get(query: str) -> Step:
    return Step("get", query)


def _case(label: str, path: str, fields: Obj, *steps: Step, **meta: Any) -> Case:
    return Case(f"more {label}", path, {"metadata": {"name": "zw-a", **meta}, **fields}, steps)


BOUND = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
ALLOWED = "!authorizer.group('').resource('pods').check('get').allowed()"
GROW = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
SHRINK = {"spec": {"resources": {"requests": {"storage": "512Mi"}}}}
LIMITED = {"spec": {"resources": {"limits": {"storage": "5Gi"}}}}

CASES: tuple[Case, ...] = (
    _case(
        "claim bound grows",
        storage.CLAIMS,
        {"spec": storage.CLAIM | {"storageClassName": "zw-none", "volumeName": "v"}},
        status(BOUND),
        put(GROW),
        put(SHRINK),
        put(LIMITED),
        put({"spec": {"volumeAttributesClassName": "x"}}),
        put({"spec": {"volumeAttributesClassName": None}}),
        put({"spec": {"storageClassName": "other"}}),
        put({"spec": {"volumeName": "other"}}),
    ),
    _case(
        "claim limits",
        storage.CLAIMS,
        {
            "spec": storage.CLAIM
            | {"resources": {"requests": {"storage": "2Gi"}, "limits": {"storage": "1Gi"}}}
        },
    ),
    _case(
        "claim by name",
        storage.CLAIMS,
        {"spec": storage.CLAIM},
        _get("?fieldSelector=name=zw-a"),
        _get("?fieldSelector=metadata.name=zw-a"),
        _get("?fieldSelector=status.phase=Pending"),
    ),
    _case(
        "claim legacy class",
        storage.CLAIMS,
        {"spec": storage.CLAIM | {"storageClassName": None}},
        put({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "b"}}}),
        annotations={"volume.beta.kubernetes.io/storage-class": "a"},
    ),
    _case(
        "claim ephemeral storage mode",
        storage.CLAIMS,
        {
            "spec": storage.CLAIM
            | {"accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]}
        },
    ),
    _case(
        "claim several",
        storage.CLAIMS,
        {
            "spec": {
                "accessModes": ["Odd"],
                "resources": {"requests": {"storage": "0"}},
                "storageClassName": "A b",
                "volumeMode": "Odd",
                "selector": {"matchLabels": {"a b": "c"}},
            }
        },
    ),
    _case(
        "claim labels through status",
        storage.CLAIMS,
        {"spec": storage.CLAIM},
        status({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Bound"}}),
        status({"status": {"phase": "Odd"}}),
    ),
    _case(
        "volume several",
        storage.VOLUMES,
        {
            "spec": {
                "capacity": {"storage": "0"},
                "accessModes": ["Odd"],
                "persistentVolumeReclaimPolicy": "Odd",
                "volumeMode": "Odd",
                "storageClassName": "A b",
                "hostPath": {"path": ""},
            }
        },
    ),
    _case(
        "volume claim ref",
        storage.VOLUMES,
        {
            "spec": storage.ONE_GIB
            | storage.HOST
            | {"claimRef": {"name": "c", "namespace": "n", "uid": "1"}}
        },
        put({"spec": {"claimRef": None}}),
        put({"spec": {"claimRef": {"name": "d"}}}),
    ),
    _case(
        "volume affinity set",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | storage.HOST | {"nodeAffinity": storage.AFFINITY}},
        put(
            {
                "spec": {
                    "nodeAffinity": {
                        "required": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "z", "operator": "Exists"}]}
                            ]
                        }
                    }
                }
            }
        ),
    ),
    _case(
        "volume source null",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | storage.HOST},
        put({"spec": {"hostPath": None}}),
        patch({"spec": {"hostPath": {"type": "Directory"}}}),
    ),
    _case("volume fc", storage.VOLUMES, {"spec": storage.ONE_GIB | {"fc": {}}}),
    _case(
        "volume flex", storage.VOLUMES, {"spec": storage.ONE_GIB | {"flexVolume": {"driver": ""}}}
    ),
    _case(
        "volume azure file",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | {"azureFile": {"secretName": "", "shareName": ""}}},
    ),
    _case(
        "volume azure disk",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | {"azureDisk": {"diskName": "", "diskURI": ""}}},
    ),
    _case(
        "volume cinder", storage.VOLUMES, {"spec": storage.ONE_GIB | {"cinder": {"volumeID": ""}}}
    ),
    _case(
        "volume gce",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | {"gcePersistentDisk": {"pdName": "", "partition": 300}}},
    ),
    _case(
        "volume aws",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | {"awsElasticBlockStore": {"volumeID": "", "partition": -1}}},
    ),
    _case("volume ceph", storage.VOLUMES, {"spec": storage.ONE_GIB | {"cephfs": {"monitors": []}}}),
    _case(
        "volume glusterfs",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | {"glusterfs": {"endpoints": "", "path": ""}}},
    ),
    _case(
        "volume vsphere",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | {"vsphereVolume": {"volumePath": ""}}},
    ),
    _case(
        "volume portworx",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | {"portworxVolume": {"volumeID": ""}}},
    ),
    _case(
        "volume attributes class",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | storage.CSI | {"volumeAttributesClassName": "gold"}},
        put({"spec": {"volumeAttributesClassName": "silver"}}),
    ),
    _case(
        "volume attributes class of host",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | storage.HOST | {"volumeAttributesClassName": "gold"}},
    ),
    _case(
        "volume csi secrets",
        storage.VOLUMES,
        {
            "spec": storage.ONE_GIB
            | {
                "csi": {
                    "driver": "d",
                    "volumeHandle": "h",
                    "controllerPublishSecretRef": {"name": "", "namespace": "n"},
                    "nodePublishSecretRef": {"name": "a b", "namespace": ""},
                    "controllerExpandSecretRef": {"name": "", "namespace": ""},
                    "nodeExpandSecretRef": {"name": ""},
                }
            }
        },
    ),
    _case(
        "volume bad annotation",
        storage.VOLUMES,
        {"spec": storage.ONE_GIB | storage.HOST},
        annotations={"volume.beta.kubernetes.io/mount-options": "a"},
    ),
    _case(
        "attachment long error",
        storage.ATTACHMENTS,
        {"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "p"}}},
        status({"status": {"attachError": {"message": "x" * 1024}}}),
        status({"status": {"attachError": {"message": "x" * 1025}}}),
        status({"status": {"detachError": {"message": "x" * 262144}}}),
        status({"status": {"attachmentMetadata": {"a b": "c"}}}),
        status({"status": {"attachmentMetadata": {"a": "c" * 300000}}}),
    ),
    _case(
        "attachment inline good",
        storage.ATTACHMENTS,
        {
            "spec": {
                "attacher": "d",
                "nodeName": "n",
                "source": {"inlineVolumeSpec": storage.CSI | {"accessModes": ["ReadWriteOnce"]}},
            }
        },
    ),
    _case(
        "attachment inline wrong",
        storage.ATTACHMENTS,
        {
            "spec": {
                "attacher": "d",
                "nodeName": "n",
                "source": {
                    "inlineVolumeSpec": storage.CSI
                    | {
                        "claimRef": {"name": "x"},
                        "persistentVolumeReclaimPolicy": "Delete",
                        "storageClassName": "c",
                        "nodeAffinity": storage.AFFINITY,
                        "volumeMode": "Block",
                    }
                },
            }
        },
    ),
    _case(
        "attachment status on create",
        storage.ATTACHMENTS,
        {
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "p"}},
            "status": {"attached": True},
        },
    ),
    _case(
        "attachment by node",
        storage.ATTACHMENTS,
        {"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "p"}}},
        _get("?fieldSelector=spec.nodeName=n"),
        _get("?fieldSelector=metadata.name=zw-a"),
    ),
    _case(
        "class default",
        storage.CLASSES,
        {"provisioner": "p"},
        patch({"allowVolumeExpansion": True}),
        patch({"allowVolumeExpansion": None}),
        patch({"parameters": {"a": "b"}}),
        patch({"mountOptions": ["a", "b"]}),
    ),
    _case(
        "class null parameters",
        storage.CLASSES,
        {"provisioner": "p", "parameters": None, "mountOptions": None},
        put({"parameters": {}}),
    ),
    _case(
        "csinode update",
        storage.CSI_NODES,
        {"spec": {"drivers": [storage.D1]}},
        put({"spec": {"drivers": [storage.D1 | {"topologyKeys": ["k"]}]}}),
        put({"spec": {"drivers": None}}),
        put({"spec": {"drivers": [storage.D1 | {"nodeID": "9"}]}}),
    ),
    Case("more csinode no spec", storage.CSI_NODES, {"metadata": {"name": "zw-a"}}),
    Case("more csidriver no spec", storage.DRIVERS, {"metadata": {"name": "zw-a"}}),
    Case("more storageclass nothing", storage.CLASSES, {"metadata": {"name": "zw-a"}}),
    _case(
        "driver labels",
        storage.DRIVERS,
        {"spec": {}},
        put({"metadata": {"labels": {"a": "b"}}}),
        put({"metadata": {"resourceVersion": ""}}),
    ),
    _case(
        "capacity by label",
        storage.CAPACITIES,
        {"storageClassName": "c", "capacity": "1Gi"},
        put({"metadata": {"labels": {"a": "b"}}}),
        put({"capacity": None}),
    ),
    _case("config null values", core.CONFIGS, {"data": {"a": None}}),
    _case("config numbers", core.CONFIGS, {"data": {"a": 1}}),
    _case("config immutable null", core.CONFIGS, {"immutable": None, "data": None}),
    _case("config unknown field", core.CONFIGS, {"unknown": 1}),
    _case(
        "config by name",
        core.CONFIGS,
        {"data": {}},
        _get("?fieldSelector=metadata.name=zw-a"),
        _get("?fieldSelector=metadata.name!=zw-a,metadata.namespace={ns}&limit=1"),
        _get("?fieldSelector=data=x"),
        _get("?labelSelector=a+b"),
        _get("?labelSelector=x=y"),
    ),
    _case("secret string null", core.SECRETS, {"stringData": {"a": ""}, "data": {"b": ""}}),
    _case("secret not base64", core.SECRETS, {"data": {"b": "*"}}),
    _case(
        "secret token",
        core.SECRETS,
        {"type": "kubernetes.io/service-account-token", "stringData": {"token": "x"}},
        annotations={"kubernetes.io/service-account.name": "default"},
    ),
    _case(
        "secret patch type",
        core.SECRETS,
        {"stringData": {"a": "b"}},
        patch({"type": "x"}),
        patch({"type": None}),
        patch({"stringData": {"c": "d"}}),
        patch({"data": None}),
    ),
    _case(
        "secret both large",
        core.SECRETS,
        {"stringData": {"a": "x" * core.MIB}},
        put({"stringData": {"b": "y"}}),
    ),
    _case(
        "account secrets",
        core.ACCOUNTS,
        {"secrets": [{"name": "s", "namespace": "x", "kind": "Secret"}]},
        patch({"imagePullSecrets": [{"name": "b"}]}),
        patch({"secrets": None}),
    ),
    _case(
        "namespace finalize",
        core.SPACES,
        {},
        patch({"metadata": {"finalizers": ["x.io/y"]}}),
        patch({"metadata": {"finalizers": ["bare"]}}),
        patch({"spec": {"finalizers": []}}),
        _get("?fieldSelector=metadata.name=zw-a"),
        _get("?fieldSelector=status.phase=Terminating,metadata.name=zw-a"),
        _get("?fieldSelector=name=zw-a"),
    ),
    _case(
        "node labels",
        core.NODES,
        {},
        patch({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}),
        patch({"metadata": {"labels": {"a": "b c"}}}),
        patch(
            {
                "spec": {
                    "taints": [
                        {"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}
                    ]
                }
            }
        ),
        patch({"spec": {"unschedulable": True}}),
        patch({"spec": {"podCIDRs": ["10.0.0.0/24"]}}),
        patch({"spec": {"podCIDRs": ["10.0.1.0/24"]}}),
        status(
            {
                "status": {
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "False",
                            "reason": "x",
                            "message": "y",
                            "lastHeartbeatTime": "2026-01-02T03:04:05Z",
                        }
                    ],
                    "nodeInfo": {"kubeletVersion": "v1.36.4"},
                }
            }
        ),
    ),
    _case(
        "node several",
        core.NODES,
        {
            "spec": {
                "taints": [
                    {"key": "", "effect": ""},
                    {"key": "a", "effect": "Odd", "value": "b c"},
                ],
                "podCIDRs": ["a", "b", "c"],
            }
        },
    ),
    _case(
        "node resources on create",
        core.NODES,
        {"status": {"capacity": {"cpu": "-1", "pods": "1.5"}, "allocatable": {"memory": "-1"}}},
    ),
    _case(
        "node extended",
        core.NODES,
        {},
        status({"status": {"capacity": {"example.com/gpu": "1.5"}}}),
        status(
            {
                "status": {
                    "capacity": {"example.com/gpu": "2"},
                    "allocatable": {
                        "example.com/gpu": "2",
                        "hugepages-2Mi": "1Gi",
                        "hugepages-1Gi": "1Gi",
                    },
                }
            }
        ),
    ),
    _case(
        "lease renew",
        core.LEASES,
        {"spec": {"holderIdentity": "a"}},
        patch({"spec": {"renewTime": "2026-01-02T03:04:05.000000Z"}}),
        patch({"spec": {"renewTime": "2026-01-02T03:04:05Z"}}),
        patch({"spec": {"renewTime": None}}),
        patch({"spec": None}),
        patch({"spec": {"leaseDurationSeconds": 1.5}}),
    ),
    Case("more lease no spec", core.LEASES, {"metadata": {"name": "zw-a"}}),
    _case(
        "event old shown new",
        core.EVENTS,
        core.OLD
        | {"source": {"component": "c"}, "count": 2, "firstTimestamp": "2026-01-02T03:04:05Z"},
        patch({"involvedObject": {"namespace": "other"}}),
        patch({"series": {"count": 3}}),
        patch({"eventTime": "2026-01-02T03:04:05.000006Z"}),
    ),
    _case(
        "event by reporter",
        core.EVENTS,
        core.OLD | {"reportingComponent": "c"},
        _get("?fieldSelector=reportingComponent=c"),
        _get("?fieldSelector=source=c"),
        _get("?fieldSelector=involvedObject.uid=x"),
        _get("?fieldSelector=type!=Normal"),
        _get("?fieldSelector=involvedObject.fieldPath="),
    ),
    _case("quota scopes null", core.QUOTAS, {"spec": {"hard": None, "scopes": []}}),
    _case(
        "quota counts",
        core.QUOTAS,
        {
            "spec": {
                "hard": {
                    "count/pods": "1.5",
                    "count/x.y.z": "2",
                    "services.loadbalancers": "1",
                    "persistentvolumeclaims": "0",
                    "hugepages-2Mi": "1Gi",
                    "requests.hugepages-2Mi": "1Gi",
                    "ephemeral-storage": "1",
                }
            }
        },
    ),
    _case(
        "quota storage class",
        core.QUOTAS,
        {
            "spec": {
                "hard": {
                    "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "2",
                    "A b/c": "1",
                }
            }
        },
    ),
    _case(
        "quota cross affinity",
        core.QUOTAS,
        {
            "spec": {
                "hard": {"pods": "1"},
                "scopeSelector": {
                    "matchExpressions": [
                        {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}
                    ]
                },
            }
        },
        put(
            {
                "spec": {
                    "scopeSelector": {
                        "matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]
                    }
                }
            }
        ),
        put({"spec": {"scopeSelector": None}}),
    ),
    _case(
        "quota attributes class",
        core.QUOTAS,
        {
            "spec": {
                "hard": {"requests.storage": "1Gi", "persistentvolumeclaims": "2"},
                "scopeSelector": {
                    "matchExpressions": [
                        {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}
                    ]
                },
            }
        },
    ),
    _case(
        "quota status fraction",
        core.QUOTAS,
        {"spec": {"hard": {"pods": "1"}}},
        status({"status": {"used": {"pods": "1.5"}}}),
        status({"status": {"used": {"pods": "1"}}, "metadata": {"labels": {"a": "b"}}}),
    ),
    _case("limits empty", core.RANGES, {"spec": {"limits": []}}),
    Case("more limits no spec", core.RANGES, {"metadata": {"name": "zw-a"}}),
    _case(
        "limits huge",
        core.RANGES,
        {
            "spec": {
                "limits": [
                    {
                        "type": "Container",
                        "default": {"hugepages-2Mi": "2Mi", "example.com/gpu": "2"},
                        "defaultRequest": {"hugepages-2Mi": "4Mi", "example.com/gpu": "1"},
                    }
                ]
            }
        },
    ),
    _case(
        "limits negative",
        core.RANGES,
        {"spec": {"limits": [{"type": "Container", "min": {"cpu": "-1"}, "max": {"cpu": "-2"}}]}},
    ),
    _case(
        "limits claim of cpu",
        core.RANGES,
        {"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}]}},
    ),
    _case(
        "limits update",
        core.RANGES,
        {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}},
        put({"spec": {"limits": [{"type": "Odd"}]}}),
        put({"spec": {"limits": [{"type": "Pod", "max": {"cpu": "2"}}]}}),
    ),
    _case(
        "slice several",
        slices.SLICES,
        {
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": ["x", "fd00::1"],
                    "nodeName": "A b",
                    "hostname": "a.b",
                    "zone": "a b",
                    "hints": {"forZones": [{"name": "a b"}]},
                }
            ],
            "ports": [{"name": "A", "protocol": "X", "appProtocol": " "}],
        },
    ),
    _case(
        "slice both hints",
        slices.SLICES,
        {"addressType": "IPv4"}
        | slices._endpoint(hints={"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]}),
    ),
    _case(
        "slice hints on fqdn",
        slices.SLICES,
        {
            "addressType": "FQDN",
            "endpoints": [{"addresses": ["a.b.c"], "hints": {"forZones": [{"name": "a"}]}}],
        },
    ),
    _case(
        "slice labels",
        slices.SLICES,
        {"addressType": "IPv4", "endpoints": []},
        patch({"metadata": {"labels": {"kubernetes.io/service-name": "s"}}}),
        patch({"endpoints": [{"addresses": ["10.0.0.1"]}]}),
        patch(
            {
                "metadata": {
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Service", "name": "s", "uid": "1"}
                    ]
                }
            }
        ),
        patch({"metadata": {"finalizers": ["a.io/b"]}}),
        patch({"addressType": None}),
        patch({"ports": None}),
        labels={"endpointslice.kubernetes.io/managed-by": "x"},
    ),
    _case(
        "slice port numbers",
        slices.SLICES,
        {
            "addressType": "IPv4",
            "endpoints": None,
            "ports": [{"name": "a", "port": 65536}, {"name": "", "protocol": ""}],
        },
    ),
    _case(
        "slice address update",
        slices.SLICES,
        {"addressType": "IPv4"} | slices._endpoint(),
        put({"endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.999"]}]}),
        put({"endpoints": [{"addresses": ["10.0.0.1"], "deprecatedTopology": {"a": "b"}}]}),
    ),
    _case(
        "slice capital v6",
        slices.SLICES,
        {"addressType": "IPv6", "endpoints": [{"addresses": ["FD00::1"]}]},
    ),
    _case(
        "slice zoned v6",
        slices.SLICES,
        {"addressType": "IPv6", "endpoints": [{"addresses": ["fe80::1%eth0"]}]},
    ),
    _case(
        "endpoints several",
        slices.ENDPOINTS,
        {
            "subsets": [
                {
                    "addresses": [{"ip": "010.0.0.1"}, {"ip": "FD00::1"}],
                    "ports": [{"port": 1, "protocol": ""}],
                },
                {},
            ]
        },
    ),
    _case(
        "role aggregated rules",
        roles.CLUSTER_ROLES,
        {"rules": [roles.READ], "aggregationRule": {"clusterRoleSelectors": [{}]}},
    ),
    _case(
        "role duplicates",
        roles.ROLES,
        {
            "rules": [
                {"apiGroups": ["", ""], "resources": ["pods", "pods"], "verbs": ["get", "get"]}
            ]
        },
    ),
    _case(
        "role empty verbs",
        roles.ROLES,
        {"rules": [{"apiGroups": [""], "resources": [""], "verbs": [""]}]},
    ),
    _case(
        "role urls in names",
        roles.CLUSTER_ROLES,
        {"rules": [{"nonResourceURLs": ["healthz", "/a*b"], "verbs": ["get"]}]},
    ),
    _case(
        "binding subjects default",
        roles.BINDINGS,
        {
            "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [
                {"kind": "ServiceAccount", "name": "default"},
                {"kind": "User", "name": "u"},
                {"kind": "Group", "name": "g"},
            ],
        },
        patch({"subjects": None}),
        patch({"roleRef": None}),
    ),
    _case(
        "hook several",
        hooks.VALIDATING,
        {
            "webhooks": [
                {
                    "name": "A",
                    "clientConfig": {},
                    "rules": [{}],
                    "timeoutSeconds": -1,
                    "failurePolicy": "",
                    "matchPolicy": "",
                    "sideEffects": "",
                    "admissionReviewVersions": [""],
                }
            ]
        },
    ),
    _case(
        "hook conditions update",
        hooks.VALIDATING,
        {"webhooks": [hooks.HOOK]},
        patch(
            {"webhooks": [hooks.HOOK | {"matchConditions": [{"name": "a", "expression": "1 +"}]}]}
        ),
        put({"metadata": {"resourceVersion": ""}}),
    ),
    _case(
        "hook authorizer",
        hooks.VALIDATING,
        {
            "webhooks": [
                hooks.HOOK
                | {
                    "matchConditions": [
                        {
                            "name": "a",
                            "expression": ALLOWED,
                        }
                    ]
                }
            ]
        },
    ),
    _case(
        "hook request",
        hooks.VALIDATING,
        {
            "webhooks": [
                hooks.HOOK
                | {
                    "matchConditions": [
                        {"name": "a", "expression": "request.nothing == 'x'"},
                        {"name": "b", "expression": "request.kind.kind == 'Pod' && request.dryRun"},
                        {
                            "name": "c",
                            "expression": "oldObject == null || 'x' in request.userInfo.groups",
                        },
                        {"name": "d", "expression": "object.spec.replicas > 3"},
                        {"name": "e", "expression": "namespaceObject.metadata.name == 'x'"},
                        {"name": "f", "expression": "request.userInfo.extra['a'][0] == 'b'"},
                    ]
                }
            ]
        },
    ),
    _case(
        "ingress several",
        network.INGRESSES,
        {
            "spec": {
                "rules": [
                    {
                        "host": "A",
                        "http": {"paths": [{"path": "a", "pathType": "Exact", "backend": {}}]},
                    }
                ],
                "tls": [{"hosts": ["*"]}],
            }
        },
    ),
    _case(
        "ingress host twice",
        network.INGRESSES,
        {"spec": {"rules": [{"host": "a.b", "http": {"paths": [network.GOOD, network.GOOD]}}]}},
        patch({"spec": {"rules": [{"host": "c.d"}]}}),
        patch({"metadata": {"annotations": {"a": "b"}}}),
    ),
    _case(
        "ingress wild only",
        network.INGRESSES,
        {"spec": {"rules": [{"host": "*", "http": {"paths": [network.GOOD]}}]}},
    ),
    _case(
        "policy several",
        network.POLICIES,
        {
            "spec": {
                "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]},
                "ingress": [{"ports": [{"port": 70000}], "from": [{}]}],
                "policyTypes": ["Odd"],
            }
        },
    ),
    Case("more policy no spec", network.POLICIES, {"metadata": {"name": "zw-a"}}),
    Case("more ingressclass no spec", network.CLASSES, {"metadata": {"name": "zw-a"}}),
)
