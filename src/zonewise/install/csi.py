"""The CSI driver on a real cluster: its program beside the official sidecars of Kubernetes.

A Deployment has the controller's side (provisioner, resizer, snapshotter; they elect a leader), a
DaemonSet the nodes' (registrar). The program is the same in both. Pools are in the ConfigMap
``csi``, which the driver reads again when it changes; it is printed without content where none is
given, so that applying it again leaves pools and takeovers as they are.

*Permissions.* The controller's account may do what its sidecars do to volumes, claims and
snapshots, and may write leases and capacities in its own namespace only; it may not read Secrets,
because a class that needs none must not cost that permission. For takeover it labels nodes, deletes
pods of dead ones, and writes the three ConfigMaps of the driver. The provisioner, since its version
6.0.1, holds a snapshot by a finalizer while it is restored, and so may update it. Policies limit
all this to these labels, this finalizer and volumes of this driver: otherwise the account could
remove a taint from any node, and make a volume of any of its folders. The nodes' account may read
nodes, for their domain. Mounting for other pods needs a privileged container on the node; no other
container is privileged.

*Flags.* ``--immediate-topology=false``: claims that bind immediately get no domain, so that the
driver balances them and their volumes can be used from everywhere. ``--enable-capacity``: the
scheduler gets the free capacity. ``--extra-create-metadata``: images on Ceph carry the claim's
names.

*krbd and rbd-nbd* need more of the node: its devices in sysfs, its kernel's modules, its network,
because connections of the kernel's client are in the network namespace of the mapping process, and
end with it, and its process ids, by which rbd-nbd is found again. Only ``ceph-rbd`` has these.

*On Ceph* the ConfigMap names the cluster, and the key of the driver's user is in a Secret that the
administrator creates: printed here, every installation would overwrite it. Pods wait for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from zonewise.install.expressions import SERVER_KEYS, quote, require_unchanged
from zonewise.install.installation import NAME, Bundle, Obj, selector
from zonewise.install.objects import (
    allow,
    confine,
    render_account,
    render_daemon_set,
    render_namespace,
)
from zonewise.install.policies import FieldLimit, render_limit
from zonewise.storage.domains import KEY_PREFIX, TAKEOVER_PREFIX
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
FENCES = "csi-fences"
SNAPSHOT_GROUP = "snapshot.storage.k8s.io"
RESTORING = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
NAMESPACE = "zonewise-system"
DATA = "/var/lib/zonewise/csi"
KUBELET = "/var/lib/kubelet"
SOCKET = "/csi/csi.sock"
CALL_TIMEOUT = "60s"
# The newest that were to be had as Go modules: the tests run the versions that are printed.
_IMAGES = "registry.k8s.io/sig-storage"
PROVISIONER = f"{_IMAGES}/csi-provisioner:v5.3.0"
RESIZER = f"{_IMAGES}/csi-resizer:v1.14.0"
SNAPSHOTTER = f"{_IMAGES}/csi-snapshotter:v8.6.0"
REGISTRAR = f"{_IMAGES}/csi-node-driver-registrar:v2.17.0"

_READ = ("get", "list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiInstallation(Bundle):
    """The installation options of the driver."""

    app: ClassVar[str] = CSI
    namespace: str = NAMESPACE
    replicas: int = 2
    backend: str = EMBEDDED
    monitors: tuple[str, ...] = ()
    """Of the Ceph cluster, for a backend that is on one."""
    domain_labels: tuple[str, ...] = (ZONE_LABEL,)
    """The node labels that are the segments of the driver's topology, the largest domain first."""

    @property
    def on_ceph(self) -> bool:
        """Whether volumes are on a Ceph cluster."""
        return self.backend != EMBEDDED

    @property
    def maps_images(self) -> bool:
        """Whether nodes may have to make devices of RBD images."""
        return self.backend == CEPH_RBD


def render_csi(installation: CsiInstallation) -> list[Obj]:
    """All objects, in the order in which they can be applied."""
    return [
        render_namespace(installation, "privileged"),
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": installation.metadata(DRIVER, inside=False),
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
            "metadata": installation.metadata(CONFIG),
            **_render_data(installation),
        },
        *(
            item
            for limit in _limit_controller(installation)
            for item in render_limit(installation, limit)
        ),
        *render_account(installation, CSI, _controller_rules(), _own_rules()),
        *render_account(installation, NODE, [allow("", ["nodes"], _READ)]),
        _render_deployment(installation),
        _render_daemon_set(installation),
    ]


def _render_data(installation: CsiInstallation) -> Obj:
    """The given part of the configuration; what is not given is not overwritten when applied."""
    if not installation.on_ceph:
        return {}
    cluster = {
        "clusterID": CEPH_CLUSTER,
        "monitors": list(installation.monitors),
        "user": CEPH_USER,
        "keyFile": f"{CEPH_FOLDER}/key",
    }
    text = json.dumps({"version": 2, "clusters": [cluster]}, indent=2)
    return {"data": {"config.json": f"{text}\n"}}


def _limit_controller(installation: CsiInstallation) -> list[FieldLimit]:
    users = (installation.username(CSI),)
    begin = f"{KEY_PREFIX}{DRIVER}/{TAKEOVER_PREFIX}"
    after, before = (f"{item}.metadata.?labels.orValue({{}})" for item in ("object", "oldObject"))
    free = f"k.startsWith({quote(begin)}) || "
    finalizers, former_finalizers = (
        f"{item}.metadata.?finalizers.orValue([]).filter(f, f != {quote(RESTORING)})"
        for item in ("object", "oldObject")
    )
    return [
        FieldLimit(
            name=f"{CSI}-nodes",
            users=users,
            group="",
            resources=("nodes",),
            expressions=(
                "object.spec == oldObject.spec",
                require_unchanged("metadata", "labels", *SERVER_KEYS),
                f"{before}.all(k, {free}(k in {after} && {after}[k] == {before}[k]))",
                f"{after}.all(k, {free}k in {before})",
            ),
            message=f"Zonewise's CSI driver may change only labels {begin}* of nodes.",
        ),
        FieldLimit(
            name=f"{CSI}-persistentvolumes",
            users=users,
            operations=("CREATE", "UPDATE", "DELETE"),
            group="",
            resources=("persistentvolumes",),
            expressions=tuple(
                f"{item} == null || {item}.spec.?csi.?driver.orValue('') == {quote(DRIVER)}"
                for item in ("object", "oldObject")
            ),
            message=f"Zonewise's CSI driver may write only volumes of {DRIVER}.",
        ),
        FieldLimit(
            name=f"{CSI}-volumesnapshots",
            users=users,
            group=SNAPSHOT_GROUP,
            resources=("volumesnapshots",),
            expressions=(
                "object.spec == oldObject.spec",
                require_unchanged("metadata", "finalizers", *SERVER_KEYS),
                f"{finalizers} == {former_finalizers}",
            ),
            message="Zonewise's CSI driver may change only the finalizer"
            f" {RESTORING} of snapshots.",
        ),
    ]


def _controller_rules() -> list[Obj]:
    return [
        allow("", ["persistentvolumes"], (*_READ, "create", "patch", "delete")),
        allow("", ["persistentvolumeclaims"], (*_READ, "update", "patch")),
        allow("", ["persistentvolumeclaims/status"], ("patch",)),
        allow("", ["pods"], (*_READ, "delete")),
        allow("", ["nodes"], (*_READ, "patch")),
        allow("", ["events"], ("create", "patch")),
        allow("events.k8s.io", ["events"], ("create", "patch")),
        allow(
            "storage.k8s.io",
            ["storageclasses", "csinodes", "volumeattachments", "volumeattributesclasses"],
            _READ,
        ),
        allow(SNAPSHOT_GROUP, ["volumesnapshotclasses"], _READ),
        allow(SNAPSHOT_GROUP, ["volumesnapshots"], (*_READ, "update")),
        allow(SNAPSHOT_GROUP, ["volumesnapshotcontents"], (*_READ, "update", "patch")),
        allow(SNAPSHOT_GROUP, ["volumesnapshotcontents/status"], ("update", "patch")),
    ]


def _own_rules() -> list[Obj]:
    write = (*_READ, "create", "update", "patch", "delete")
    return [
        allow("coordination.k8s.io", ["leases"], write),
        allow("storage.k8s.io", ["csistoragecapacities"], write),
        allow("apps", ["replicasets"], ("get",)),
        allow("", ["configmaps"], ("get", "create")),
        allow("", ["configmaps"], ("patch",), names=[CONFIG, STATUS, FENCES]),
    ]


def _render_driver(installation: CsiInstallation, *, privileged: bool) -> Obj:
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
        if installation.maps_images:
            mounts += [
                {"name": "sys", "mountPath": "/sys"},
                {"name": "modules", "mountPath": "/lib/modules", "readOnly": True},
            ]
        security: Obj = {"privileged": True, "runAsUser": 0}
    else:
        security = confine("DAC_OVERRIDE", "CHOWN", "FOWNER", root=True)
    if installation.on_ceph:
        mounts.append({"name": "ceph", "mountPath": CEPH_FOLDER, "readOnly": True})
    return {
        "name": "driver",
        "image": installation.image,
        "args": [
            "csi",
            f"--endpoint=unix://{SOCKET}",
            f"--drivername={DRIVER}",
            "--node-id=$(NODE_NAME)",
            f"--backend={installation.backend}",
            "--config=/config/config.json",
            f"--data={DATA}",
            f"--domain-labels={';'.join(installation.domain_labels)}",
            *(() if privileged else ("--takeover-controller", "--metrics-listen=:9464")),
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": node}],
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": security,
    }


def _render_sidecar(
    name: str, image: str, *arguments: str, environment: list[Obj] | None = None
) -> Obj:
    return {
        "name": name,
        "image": image,
        "args": [f"--csi-address={SOCKET}", *arguments],
        "volumeMounts": [{"name": "socket", "mountPath": "/csi"}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": confine(root=True),
        **({"env": environment} if environment is not None else {}),
    }


def _render_deployment(installation: CsiInstallation) -> Obj:
    labels = {**selector(CSI), "app.kubernetes.io/component": "controller"}
    leading = ("--leader-election", f"--leader-election-namespace={installation.namespace}")
    patient = (f"--timeout={CALL_TIMEOUT}", "--retry-interval-start=1s")
    owner = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
        for variable, field in (("NAMESPACE", "namespace"), ("POD_NAME", "name"))
    ]
    pod: Obj = {
        "serviceAccountName": CSI,
        "priorityClassName": "system-cluster-critical",
        "containers": [
            _render_driver(installation, privileged=False),
            _render_sidecar(
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
            _render_sidecar("csi-resizer", RESIZER, *leading, *patient),
            _render_sidecar("csi-snapshotter", SNAPSHOTTER, *leading, *patient),
        ],
        "volumes": [{"name": "socket", "emptyDir": {}}, *_render_volumes(installation)],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata_of(installation, CSI),
        "spec": {
            "replicas": installation.replicas,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def _render_daemon_set(installation: CsiInstallation) -> Obj:
    labels = {**selector(CSI), "app.kubernetes.io/component": "node"}
    plugin = f"{KUBELET}/plugins/{DRIVER}"
    registrar = _render_sidecar(
        "node-driver-registrar", REGISTRAR, f"--kubelet-registration-path={plugin}/csi.sock"
    )
    registrar["volumeMounts"].append({"name": "registration", "mountPath": "/registration"})
    pod: Obj = {
        "serviceAccountName": NODE,
        "priorityClassName": "system-node-critical",
        "containers": [_render_driver(installation, privileged=True), registrar],
        "volumes": [
            _render_host_path("socket", plugin, "DirectoryOrCreate"),
            _render_host_path("registration", f"{KUBELET}/plugins_registry", "Directory"),
            _render_host_path("kubelet", KUBELET, "Directory"),
            _render_host_path("dev", "/dev", "Directory"),
            *_render_volumes(installation),
        ],
    }
    if installation.maps_images:
        pod |= {"hostNetwork": True, "hostPID": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        pod["volumes"] += [
            _render_host_path("sys", "/sys", "Directory"),
            _render_host_path("modules", "/lib/modules", "Directory"),
        ]
    return render_daemon_set(_metadata_of(installation, NODE), labels, pod)


def _metadata_of(installation: CsiInstallation, name: str) -> Obj:
    """On Ceph it names the base of the image: not every Python loads Ceph's modules."""
    annotations = {"annotations": {IMAGE_BASE: CEPH_BASE}} if installation.on_ceph else {}
    return installation.metadata(name) | annotations


def _render_volumes(installation: CsiInstallation) -> list[Obj]:
    key: Obj = {"name": "ceph", "secret": {"secretName": CEPH_KEY_SECRET, "defaultMode": 0o400}}
    return [
        *([key] if installation.on_ceph else []),
        {"name": "config", "configMap": {"name": CONFIG}},
        _render_host_path("data", DATA, "DirectoryOrCreate"),
    ]


def _render_host_path(name: str, path: str, kind: str) -> Obj:
    return {"name": name, "hostPath": {"path": path, "type": kind}}
