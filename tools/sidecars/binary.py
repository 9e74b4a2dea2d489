"""The official sidecars and the snapshot controller: built like the control plane, kept beside it.

All of them are in one module, so that they share what is compiled of Kubernetes' libraries, whose
version is that of the control plane. Each is stamped with its own version, as its image is. The
definitions of snapshots and the rights of their controller are files of the same modules.
"""

from __future__ import annotations

from pathlib import Path

from tools.realkube.binaries import Binaries, Module, Suite, Teller, build

HERE = Path(__file__).parent / "go"
GROUP = "github.com/kubernetes-csi"
SNAPSHOTTER = f"{GROUP}/external-snapshotter"
VERSIONS = {
    "csi-provisioner": "v5.3.0",
    "csi-resizer": "v1.14.0",
    "csi-snapshotter": "v8.6.0",
    "snapshot-controller": "v8.6.0",
}
PACKAGES = {
    "csi-provisioner": f"{GROUP}/external-provisioner/v5/cmd/csi-provisioner",
    "csi-resizer": f"{GROUP}/external-resizer/cmd/csi-resizer",
    "csi-snapshotter": f"{SNAPSHOTTER}/v8/cmd/csi-snapshotter",
    "snapshot-controller": f"{SNAPSHOTTER}/v8/cmd/snapshot-controller",
}
RIGHTS = "snapshot-controller.yaml"
DEFINITIONS = tuple(
    f"snapshot.storage.k8s.io_volumesnapshot{kind}.yaml" for kind in ("classes", "contents", "s")
)
FILES = {
    RIGHTS: f"{SNAPSHOTTER}/v8:deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml",
    **{name: f"{SNAPSHOTTER}/client/v8:config/crd/{name}" for name in DEFINITIONS},
}


SIDECARS = Suite(
    "sidecars",
    "-".join(dict.fromkeys(VERSIONS.values())),
    tuple(
        Module(
            HERE,
            {name: package},
            {"main.version": VERSIONS[name]},
            FILES if name == "snapshot-controller" else {},
        )
        for name, package in PACKAGES.items()
    ),
)


def sidecars(teller: Teller | None = None) -> Binaries:
    """The programs, built first if they are not there."""
    return build(SIDECARS, teller=teller)
