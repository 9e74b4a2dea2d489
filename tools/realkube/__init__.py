"""A real Kubernetes control plane for tests and benchmarks, built from source, on loopback.

    with realkube.start(realkube.Settings(fsync=False)) as cluster:
        cluster.kubectl("get", "nodes")
        config = load_config(kubeconfig=cluster.kubeconfig)

In the order things happen: `toolchain` finds a Go, `binaries` builds and caches the programs,
`certificates` makes an authority, `component` runs one program, `controlplane` all of them,
`guard` ends what is left of them. `kubelet` simulates nodes.

By hand: `python -m tools.realkube build`, `up DIR`, `path`.
"""

from __future__ import annotations

from tools.realkube.binaries import ETCD_VERSION, VERSION, Binaries, build, find
from tools.realkube.controlplane import FULL, LIGHT, ControlPlane, Settings, Token, start
from tools.realkube.errors import RealKubeError

__all__ = [
    "ETCD_VERSION",
    "FULL",
    "LIGHT",
    "VERSION",
    "Binaries",
    "ControlPlane",
    "RealKubeError",
    "Settings",
    "Token",
    "build",
    "find",
    "start",
]
