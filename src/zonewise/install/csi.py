"""The CSI driver on a real cluster: the driver's own program beside Kubernetes' official sidecars.

A Deployment has the controller's side (provisioner, resizer, snapshotter; they elect a leader), a
DaemonSet the nodes' (registrar). The program is the same in both. Pools are in the ConfigMap
``csi``, which the driver reads again when it changes; it is printed without content where none is
given, so that applying it again leaves pools and takeovers as they are.

*Permissions.* The controller's account may do what its sidecars do to volumes, claims and
snapshots, and may write leases and capacities in its own namespace only; it may not read Secrets,
as a class that needs none must not cost that permission. For takeover it labels nodes, deletes pods
of dead ones, and writes the two ConfigMaps of the driver. Policies limit it to these labels, and to
volumes of this driver. The nodes' account may read nodes: where
each is. Mounting for other pods needs a privileged container on the node; no other container is
privileged.

*Flags.* ``--immediate-topology=false``: claims that bind immediately get no domain, so that the
driver balances them and their volumes can be used from everywhere. ``--enable-capacity``: the
scheduler gets the free capacity. ``--extra-create-metadata``: images on Ceph carry the claim's
names.

*krbd and rbd-nbd* need more of the node: its devices in sysfs, its kernel's modules, its network,
because connections of the kernel's client are in the network namespace of the mapping process, and
end with it, and its process ids, by which rbd-nbd is found again. Only ``ceph-rbd`` has these.

*On Ceph* the ConfigMap names the cluster, and the key of the driver's user is in a Secret that the
administrator makes: printed here it would be overwritten with every installation. Pods wait for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from zonewise.install.csi_policies import csi_limits
from zonewise.install.policies import policy
from zonewise.install.wanted import NAME, Obj
from zonewise.topology.nodes import ZONE_LABEL

CSI = f"{NAME}-csi"
NODE = f"{CSI}-node"
DRIVER = "csi.zonewise.io"
CONFIG = "csi"
EMBEDDED = "embedded"
CEPH_RBD = "ceph-rbd"
CEPH_CLUSTER = "ceph"
CEPH_USER = "zonewise"
CEPH_KEY_SECRET = "csi-ceph"  # noqa: S105
CEPH_FOLDER = "/ceph"
IMAGE_BASE = "zonewise.io/image-base"
CEPH_BASE = (
    "Debian 12 with Python 3.11, which loads Debian's python3-rados and python3-rbd:"
    " docker build --target ceph ."
)
STATUS = "csi-takeover"
NAMESPACE = "zonewise-system"
DATA = "/var/lib/zonewise/csi"
KUBELET = "/var/lib/kubelet"
SOCKET = "/csi/csi.sock"
CALL_TIMEOUT = "60s"
_IMAGES = "registry.k8s.io/sig-storage"
PROVISIONER = f"{_IMAGES}/csi-provisioner:v6.3.0"
RESIZER = f"{_IMAGES}/csi-resizer:v2.2.0"
SNAPSHOTTER = f"{_IMAGES}/csi-snapshotter:v8.6.0"
REGISTRAR = f"{_IMAGES}/csi-node-driver-registrar:v2.17.0"

_RBAC = "rbac.authorization.k8s.io"
_READ = ("get", "list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCsi:
    """The installation options of the driver."""

    image: str
    version: str = ""
    namespace: str = NAMESPACE
    replicas: int = 2
    backend: str = EMBEDDED
    monitors: tuple[str, ...] = ()
    """Of the Ceph cluster, for a backend that is on one."""

    @property
    def on_ceph(self) -> bool:
        """Whether volumes are on a Ceph cluster."""
        return self.backend != EMBEDDED

    @property
    def maps_images(self) -> bool:
        """Whether nodes may have to make devices of RBD images."""
        return self.backend == CEPH_RBD

    def metadata(self, name: str, *, inside: bool = True, **labels: str) -> Obj:
        """The metadata of an object of the driver."""
        place = {"namespace": self.namespace} if inside else {}
        own = {"app.kubernetes.io/name": CSI, "app.kubernetes.io/managed-by": NAME}
        if self.version:
            own["app.kubernetes.io/version"] = self.version
        return {"name": name, **place, "labels": own | labels}


def csi_manifests(wanted: WantedCsi) -> list[Obj]:
    """All objects, in the order in which they can be applied."""
    level = {"pod-security.kubernetes.io/enforce": "privileged"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": wanted.metadata(wanted.namespace, inside=False, **level),
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": wanted.metadata(DRIVER, inside=False),
            "spec": {
                "attachRequired": False,
                "podInfoOnMount": False,
                "storageCapacity": True,
                "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent"],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": wanted.metadata(CONFIG),
            **_data(wanted),
        },
        *_policies(wanted),
        *_account(wanted, CSI, _controller_rules(), _own_rules()),
        *_account(wanted, NODE, [_rule("", ["nodes"], _READ)], []),
        _deployment(wanted),
        _daemon_set(wanted),
    ]


def _data(wanted: WantedCsi) -> Obj:
    """The given part of the configuration; what is not given is not overwritten when applied."""
    if not wanted.on_ceph:
        return {}
    cluster = {
        "clusterID": CEPH_CLUSTER,
        "monitors": list(wanted.monitors),
        "user": CEPH_USER,
        "keyFile": f"{CEPH_FOLDER}/key",
    }
    text = json.dumps({"version": 2, "clusters": [cluster]}, indent=2)
    return {"data": {"config.json": f"{text}\n"}}


def _policies(wanted: WantedCsi) -> list[Obj]:
    limits = csi_limits(CSI, f"system:serviceaccount:{wanted.namespace}:{CSI}", DRIVER)
    return [
        item
        for limit in limits
        for item in policy(limit, wanted.metadata(limit.name, inside=False))
    ]


def _account(wanted: WantedCsi, name: str, wide: list[Obj], own: list[Obj]) -> list[Obj]:
    subject = {"kind": "ServiceAccount", "name": name, "namespace": wanted.namespace}
    found: list[Obj] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": wanted.metadata(name)}
    ]
    for kind, rules in (("ClusterRole", wide), ("Role", own)):
        if rules:
            inside = kind == "Role"
            found += [
                {
                    "apiVersion": f"{_RBAC}/v1",
                    "kind": kind,
                    "metadata": wanted.metadata(name, inside=inside),
                    "rules": rules,
                },
                {
                    "apiVersion": f"{_RBAC}/v1",
                    "kind": f"{kind}Binding",
                    "metadata": wanted.metadata(name, inside=inside),
                    "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
                    "subjects": [dict(subject)],
                },
            ]
    return found


def _rule(group: str, resources: list[str], verbs: tuple[str, ...]) -> Obj:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}


def _controller_rules() -> list[Obj]:
    snapshots = "snapshot.storage.k8s.io"
    return [
        _rule("", ["persistentvolumes"], (*_READ, "create", "patch", "delete")),
        _rule("", ["persistentvolumeclaims"], (*_READ, "update", "patch")),
        _rule("", ["persistentvolumeclaims/status"], ("patch",)),
        _rule("", ["pods"], (*_READ, "delete")),
        _rule("", ["nodes"], (*_READ, "patch")),
        _rule("", ["events"], ("create", "patch")),
        _rule("events.k8s.io", ["events"], ("create", "patch")),
        _rule(
            "storage.k8s.io",
            ["storageclasses", "csinodes", "volumeattachments", "volumeattributesclasses"],
            _READ,
        ),
        _rule(snapshots, ["volumesnapshotclasses", "volumesnapshots"], _READ),
        _rule(snapshots, ["volumesnapshotcontents"], (*_READ, "update", "patch")),
        _rule(snapshots, ["volumesnapshotcontents/status"], ("update", "patch")),
    ]


def _own_rules() -> list[Obj]:
    return [
        _rule("coordination.k8s.io", ["leases"], (*_READ, "create", "update", "patch", "delete")),
        _rule(
            "storage.k8s.io",
            ["csistoragecapacities"],
            (*_READ, "create", "update", "patch", "delete"),
        ),
        _rule("apps", ["replicasets"], ("get",)),
        _rule("", ["configmaps"], ("get", "create")),
        {**_rule("", ["configmaps"], ("patch",)), "resourceNames": [CONFIG, STATUS]},
    ]


def _driver(wanted: WantedCsi, *, privileged: bool) -> Obj:
    node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    mounts: list[Obj] = [
        {"name": "socket", "mountPath": "/csi"},
        {"name": "config", "mountPath": "/config", "readOnly": True},
        {"name": "data", "mountPath": DATA},
    ]
    if privileged:
        mounts[2]["mountPropagation"] = "Bidirectional"
        mounts += [
            {"name": "kubelet", "mountPath": KUBELET, "mountPropagation": "Bidirectional"},
            {"name": "dev", "mountPath": "/dev"},
        ]
        if wanted.maps_images:
            mounts += [
                {"name": "sys", "mountPath": "/sys"},
                {"name": "modules", "mountPath": "/lib/modules", "readOnly": True},
            ]
        security: Obj = {"privileged": True, "runAsUser": 0}
    else:
        security = {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "CHOWN", "FOWNER"]},
        }
    if wanted.on_ceph:
        mounts.append({"name": "ceph", "mountPath": CEPH_FOLDER, "readOnly": True})
    return {
        "name": "driver",
        "image": wanted.image,
        "args": [
            "csi",
            f"--endpoint=unix://{SOCKET}",
            f"--drivername={DRIVER}",
            "--node-id=$(NODE_NAME)",
            f"--backend={wanted.backend}",
            "--config=/config/config.json",
            f"--data={DATA}",
            f"--domain-labels={ZONE_LABEL}",
            *(() if privileged else ("--takeover-controller", "--metrics-listen=:9464")),
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": node}],
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": security,
    }


def _sidecar(name: str, image: str, *arguments: str, environment: list[Obj] | None = None) -> Obj:
    found: Obj = {
        "name": name,
        "image": image,
        "args": [f"--csi-address={SOCKET}", *arguments],
        "volumeMounts": [{"name": "socket", "mountPath": "/csi"}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if environment is not None:
        found["env"] = environment
    return found


def _deployment(wanted: WantedCsi) -> Obj:
    selected = {"app.kubernetes.io/name": CSI, "app.kubernetes.io/component": "controller"}
    leading = ("--leader-election", f"--leader-election-namespace={wanted.namespace}")
    patient = (f"--timeout={CALL_TIMEOUT}", "--retry-interval-start=1s")
    owner = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
        for variable, field in (("NAMESPACE", "namespace"), ("POD_NAME", "name"))
    ]
    pod: Obj = {
        "serviceAccountName": CSI,
        "priorityClassName": "system-cluster-critical",
        "containers": [
            _driver(wanted, privileged=False),
            _sidecar(
                "csi-provisioner",
                PROVISIONER,
                *leading,
                *patient,
                "--immediate-topology=false",
                "--enable-capacity",
                "--extra-create-metadata",
                "--capacity-ownerref-level=2",
                environment=owner,
            ),
            _sidecar("csi-resizer", RESIZER, *leading, *patient),
            _sidecar("csi-snapshotter", SNAPSHOTTER, *leading, *patient),
        ],
        "volumes": [{"name": "socket", "emptyDir": {}}, *_volumes(wanted)],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(wanted, CSI),
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": dict(selected)},
            "template": {"metadata": {"labels": dict(selected)}, "spec": pod},
        },
    }


def _daemon_set(wanted: WantedCsi) -> Obj:
    selected = {"app.kubernetes.io/name": CSI, "app.kubernetes.io/component": "node"}
    plugin = f"{KUBELET}/plugins/{DRIVER}"
    registrar = _sidecar(
        "node-driver-registrar", REGISTRAR, f"--kubelet-registration-path={plugin}/csi.sock"
    )
    registrar["volumeMounts"].append({"name": "registration", "mountPath": "/registration"})
    pod: Obj = {
        "serviceAccountName": NODE,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "containers": [_driver(wanted, privileged=True), registrar],
        "volumes": [
            _host("socket", plugin, "DirectoryOrCreate"),
            _host("registration", f"{KUBELET}/plugins_registry", "Directory"),
            _host("kubelet", KUBELET, "Directory"),
            _host("dev", "/dev", "Directory"),
            *_volumes(wanted),
        ],
    }
    if wanted.maps_images:
        pod |= {"hostNetwork": True, "hostPID": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        pod["volumes"] += [
            _host("sys", "/sys", "Directory"),
            _host("modules", "/lib/modules", "Directory"),
        ]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(wanted, NODE),
        "spec": {
            "selector": {"matchLabels": dict(selected)},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": dict(selected)}, "spec": pod},
        },
    }


def _metadata(wanted: WantedCsi, name: str) -> Obj:
    """On Ceph, with what the image must be built on: not every Python loads Ceph's modules."""
    found = wanted.metadata(name)
    return {**found, "annotations": {IMAGE_BASE: CEPH_BASE}} if wanted.on_ceph else found


def _volumes(wanted: WantedCsi) -> list[Obj]:
    key: Obj = {"name": "ceph", "secret": {"secretName": CEPH_KEY_SECRET, "defaultMode": 0o400}}
    return [
        *([key] if wanted.on_ceph else []),
        {"name": "config", "configMap": {"name": CONFIG}},
        _host("data", DATA, "DirectoryOrCreate"),
    ]


def _host(name: str, path: str, kind: str) -> Obj:
    return {"name": name, "hostPath": {"path": path, "type": kind}}
