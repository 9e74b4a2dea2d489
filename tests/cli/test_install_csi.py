"""``zonewise install --csi``: the driver, the official sidecars with their flags, few rights."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.cli.run_program import here
from tests.embedded.virtual_cluster import until, virtual_cluster
from tests.install.accounts import create
from tests.install.enforced import enforce

from zonewise.api.errors import Forbidden
from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.request.call import User
from zonewise.embedded.csi_sidecars.snapshot_definitions import definitions
from zonewise.embedded.seed.seeder import Seeder
from zonewise.install.csi import RESTORING
from zonewise.runtime.client.client import Client
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects by kind and name."""
    result = here(capsys, "install", "--csi", *arguments)
    assert (result.code, result.err) == (0, "")
    assert "&id" not in result.out
    objects = list(yaml.safe_load_all(result.out))
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def arguments(workload: dict[str, Any]) -> dict[str, list[str]]:
    """The arguments of the containers of a workload."""
    pod = workload["spec"]["template"]["spec"]
    return {container["name"]: container["args"] for container in pod["containers"]}


def test_sidecars_have_the_flags_that_the_driver_needs(capsys: Capture) -> None:
    """Immediate claims get no topology, capacity is published, one of several controllers leads."""
    objects = printed(capsys, "--image", "me:1", "-n", "volumes")
    controller = arguments(objects["Deployment", "zonewise-csi"])
    assert {"--immediate-topology=false", "--enable-capacity", "--leader-election"} < set(
        controller["csi-provisioner"]
    )
    assert {*controller} == {"driver", "csi-provisioner", "csi-resizer", "csi-snapshotter"}
    assert "--leader-election-namespace=volumes" in controller["csi-resizer"]
    node = arguments(objects["DaemonSet", "zonewise-csi-node"])
    path = "/var/lib/kubelet/plugins/csi.zonewise.io/csi.sock"
    assert f"--kubelet-registration-path={path}" in node["node-driver-registrar"]
    leads = {"--takeover-controller", "--metrics-listen=:9464"}
    assert set(controller["driver"]) - set(node["driver"]) == leads
    driver = objects["CSIDriver", "csi.zonewise.io"]["spec"]
    assert (driver["attachRequired"], driver["storageCapacity"]) == (False, True)


def test_domains_are_named_by_the_given_labels(capsys: Capture) -> None:
    """Both programs of the driver read the labels from nodes, the largest domain first."""
    labels = "topology.kubernetes.io/region, example.com/rack"
    objects = printed(capsys, "--domain-labels", labels)
    for kind, name in (("Deployment", "zonewise-csi"), ("DaemonSet", "zonewise-csi-node")):
        driver = arguments(objects[kind, name])["driver"]
        (given,) = [item for item in driver if item.startswith("--domain-labels=")]
        text = given.partition("=")[2]
        assert parse_domain_labels(text, "csi.zonewise.io").names == ("region", "rack")
    assert (
        "--domain-labels=topology.kubernetes.io/zone"
        in arguments(printed(capsys)["DaemonSet", "zonewise-csi-node"])["driver"]
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--csi", "--domain-labels", ""), "label ''"),
        (("--csi", "--domain-labels", "a/zone,b/zone"), "names after the '/' differ"),
        (("--csi", "--domain-labels", "a/zone,"), "label ''"),
        (("--csi", "--domain-labels", "a/takeover.b"), "reserved"),
        (("--csi", "--domain-labels", "a zone"), "label 'a zone'"),
        (("--domain-labels", "a/zone"), "for --csi"),
        (("--proxy", "--domain-labels", "a/zone"), "--domain-labels is not for --proxy"),
    ],
)
def test_labels_that_cannot_name_domains(
    capsys: Capture, arguments: tuple[str, ...], error: str
) -> None:
    """Labels are checked before anything is printed, as the driver would check them."""
    result = here(capsys, "install", *arguments)
    assert (result.code, result.out) == (2, "")
    assert error in result.err


def test_rights_are_the_least(capsys: Capture) -> None:
    """No Secret is read; volumes and claims are written, nodes labelled, pods deleted, no more."""
    objects = printed(capsys)
    rules = [
        (resource, set(rule["verbs"]))
        for (kind, _), role in objects.items()
        if kind == "ClusterRole"
        for rule in role["rules"]
        for resource in rule["resources"]
    ]
    assert not any(resource == "secrets" or "*" in verbs for resource, verbs in rules)
    written = {resource for resource, verbs in rules if verbs - {"get", "list", "watch"}}
    assert written == {
        "events",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "persistentvolumes",
        "pods",
        "volumesnapshotcontents",
        "volumesnapshotcontents/status",
        "volumesnapshots",
    }
    verbs: dict[str, set[str]] = {}
    for resource, some in rules:
        verbs[resource] = verbs.get(resource, set()) | some
    assert verbs["pods"] == {"get", "list", "watch", "delete"}
    assert verbs["nodes"] == {"get", "list", "watch", "patch"}
    assert verbs["volumesnapshots"] == {"get", "list", "watch", "update"}
    node = objects["ClusterRole", "zonewise-csi-node"]["rules"]
    assert [rule["resources"] for rule in node] == [["nodes"]]
    pod = objects["Deployment", "zonewise-csi"]["spec"]["template"]["spec"]
    assert not any(item["securityContext"].get("privileged") for item in pod["containers"])


def test_pools_and_takeovers_survive_a_second_installation(capsys: Capture) -> None:
    """The ConfigMap is printed without data: applied again, it overwrites nothing."""
    config_map = printed(capsys)["ConfigMap", "csi"]
    assert not config_map.keys() & {"data", "binaryData"}


@pytest.mark.parametrize("backend", ["ceph-rbd", "ceph-fs"])
def test_on_ceph(capsys: Capture, backend: str) -> None:
    """The cluster is in the configuration, the key in a Secret that is mounted and not printed."""
    objects = printed(
        capsys, "--backend", backend, "--ceph-monitors", "10.0.0.1:3300,10.0.0.2:3300"
    )
    assert not any(kind == "Secret" for kind, _ in objects)
    labels = parse_domain_labels("topology.kubernetes.io/zone", "csi.zonewise.io")
    (cluster,) = parse_configuration(
        objects["ConfigMap", "csi"]["data"]["config.json"], labels
    ).clusters
    assert (cluster.monitors, cluster.user) == (("10.0.0.1:3300", "10.0.0.2:3300"), "zonewise")
    for kind, name in (("Deployment", "zonewise-csi"), ("DaemonSet", "zonewise-csi-node")):
        base = objects[kind, name]["metadata"]["annotations"]["zonewise.io/image-base"]
        assert "Python 3.11" in base
        pod = objects[kind, name]["spec"]["template"]["spec"]
        (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "ceph"]
        driver = pod["containers"][0]
        (mount,) = [item for item in driver["volumeMounts"] if item["name"] == "ceph"]
        assert secret["secretName"] == "csi-ceph"
        assert cluster.key_file == mount["mountPath"] + "/key"
        assert f"--backend={backend}" in driver["args"]


@pytest.mark.parametrize("backend", ["ceph-rbd", "ceph-fs"])
def test_nodes_that_map_images_reach_the_kernel(capsys: Capture, backend: str) -> None:
    """krbd and rbd-nbd need sysfs, modules, network and processes of the node; others do not."""
    objects = printed(capsys, "--backend", backend, "--ceph-monitors", "10.0.0.1:3300")
    pod = objects["DaemonSet", "zonewise-csi-node"]["spec"]["template"]["spec"]
    driver = pod["containers"][0]
    assert driver["securityContext"]["privileged"]
    mount_paths = {item["mountPath"] for item in driver["volumeMounts"]}
    assert "/dev" in mount_paths
    maps = backend == "ceph-rbd"
    assert ({"/sys", "/lib/modules"} <= mount_paths) is maps
    assert {"hostNetwork", "hostPID"} <= pod.keys() if maps else "hostNetwork" not in pod
    host_volumes = {item["name"] for item in pod["volumes"] if "hostPath" in item}
    mounted = {item["name"] for item in driver["volumeMounts"]}
    assert host_volumes - {"registration"} <= mounted
    controller = objects["Deployment", "zonewise-csi"]["spec"]["template"]["spec"]
    assert not controller.keys() & {"hostNetwork", "hostPID"}


def test_monitors_are_for_ceph_alone(capsys: Capture) -> None:
    """A backend on Ceph without monitors, or monitors without one, prints nothing."""
    for wrong in (["--csi", "--backend", "ceph-fs"], ["--csi", "--ceph-monitors", "a:1"]):
        assert here(capsys, "install", *wrong).code == 2
    assert here(capsys, "install", "--backend", "ceph-fs").code == 2


def test_two_installations_at_once_are_refused(capsys: Capture) -> None:
    """The proxy and the driver have namespaces of their own."""
    refused = here(capsys, "install", "--csi", "--proxy")
    assert refused.code == 2 and "run install once for each" in refused.err


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_everything_is_accepted_by_an_api_server(capsys: Capture) -> None:
    """The API server accepts the objects in the printed order."""
    objects = printed(capsys).values()
    async with virtual_cluster({}) as cluster:
        refused = await Seeder(cluster.client, cluster.server.registry).create(objects)
        assert not refused, refused


NODE = "/api/v1/nodes/n"
SNAPSHOT = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/s"
VOLUMES = "/api/v1/persistentvolumes"
TAKEOVER = {"metadata": {"labels": {"topology.csi.zonewise.io/takeover.zone": "b"}}}


def volume(**source: Any) -> dict[str, Any]:
    """A volume of some source."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Delete",
        **source,
    }
    meta = {"name": "v"}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}


def csi_volume(driver: str) -> dict[str, Any]:
    """A volume of a driver."""
    return volume(csi={"driver": driver, "volumeHandle": "v"})


@pytest.mark.parametrize(
    ("method", "path", "body", "allowed"),
    [
        ("PATCH", NODE, TAKEOVER, True),
        ("PATCH", NODE, {"metadata": {"labels": {"pool": "mine"}}}, False),
        ("PATCH", NODE, {"metadata": {"annotations": {"mine": "1"}}}, False),
        ("PATCH", NODE, {"spec": {"unschedulable": True}}, False),
        ("POST", VOLUMES, csi_volume("csi.zonewise.io"), True),
        ("POST", VOLUMES, csi_volume("csi.example.com"), False),
        ("POST", VOLUMES, volume(hostPath={"path": "/"}), False),
    ],
)
async def test_a_stolen_controller_account_cannot_change_nodes(
    capsys: Capture, method: str, path: str, body: dict[str, Any], allowed: bool
) -> None:
    """Of nodes only labels of takeovers may be changed; volumes are those of the driver."""
    objects = [*printed(capsys).values()]
    async with virtual_cluster({}) as cluster:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
        await create(cluster, [*objects, node])
        enforce(cluster.server, objects)
        user = User("system:serviceaccount:zonewise-system:zonewise-csi", ("system:authenticated",))
        client = Client(LocalTransport(cluster.server.handle, user))
        kind = "application/json" if method == "POST" else "application/merge-patch+json"
        content = json.dumps(body).encode()
        try:
            await client.raw(method, path, headers={"Content-Type": kind}, body=content)
        except Forbidden as error:
            assert not allowed
            assert "Zonewise's CSI driver may" in str(error)
        else:
            assert allowed


def snapshot(claim: str = "data", **metadata: Any) -> dict[str, Any]:
    """A snapshot of a claim."""
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": "s", "namespace": "default", "finalizers": ["mine/held"], **metadata},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    }


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        (snapshot(finalizers=["mine/held", RESTORING]), True),
        (snapshot(finalizers=[RESTORING]), False),
        (snapshot(labels={"mine": "1"}), False),
        (snapshot("other"), False),
    ],
)
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_stolen_controller_account_cannot_change_snapshots(
    capsys: Capture, body: dict[str, Any], allowed: bool
) -> None:
    """Of a snapshot it may change the finalizer that holds it while it is restored."""
    objects = [*printed(capsys).values()]
    async with virtual_cluster({}) as cluster:
        await create(cluster, [*objects, *definitions()])
        await until(
            lambda: cluster.server.registry.by_kind(body["apiVersion"], body["kind"]) is not None
        )
        await create(cluster, [snapshot()])
        enforce(cluster.server, objects)
        user = User("system:serviceaccount:zonewise-system:zonewise-csi", ("system:authenticated",))
        client = Client(LocalTransport(cluster.server.handle, user))
        current = (await cluster.client.raw("GET", SNAPSHOT)).json()
        body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        try:
            await client.raw("PUT", SNAPSHOT, headers=headers, body=content)
        except Forbidden as error:
            assert not allowed
            assert "Zonewise's CSI driver may" in str(error)
        else:
            assert allowed
