"""The configuration of Ceph's client programs: monitors, key file, and location.

Programs on librbd (rbd-fuse, rbd-nbd) read a file; the kernel's client gets options. Where the
cluster has ``readAffinity``, both get the node's domain, and read from the replica that is nearest
to it: a label's name is the type of a CRUSH bucket, its value the bucket's name, as in ``check``.
Names that CRUSH does not have match nothing and do no harm. Writes go to the primary, as always.
ceph-fuse has no such setting (16.2).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from zonewise.storage.configuration import CephCluster

NO_DOMAIN: Mapping[str, str] = {}


def mon_host(cluster: CephCluster) -> str:
    """The monitors in Ceph's syntax.

    Where an address does not name its protocol both are tried, and a wrong key is tried until the
    timeout, as if no monitor answered. Port 3300 is that of the second protocol.
    """
    return ",".join(_with_protocol(monitor) for monitor in cluster.monitors)


def render_conf(cluster: CephCluster, read_domain: Mapping[str, str] = NO_DOMAIN) -> str:
    """A configuration for a client; the key stays in its own file."""
    settings = {
        "mon_host": mon_host(cluster),
        "keyfile": cluster.key_file,
        "log_file": "/dev/null",
        "log_to_stderr": "false",
    }
    if read_domain:
        settings["crush_location"] = " ".join(
            f"{kind}={name}" for kind, name in read_domain.items()
        )
        settings["rbd_read_from_replica_policy"] = "localize"
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())


def conf_path(folder: Path, cluster: CephCluster) -> Path:
    """Where it is: each cluster has one of its own, because clients start at the same time."""
    return folder / f"ceph.{quote(cluster.cluster_id, safe='')}.conf"


def write_conf(
    folder: Path, cluster: CephCluster, read_domain: Mapping[str, str] = NO_DOMAIN
) -> Path:
    """Write it atomically: a concurrent reader sees the old file or the new one."""
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    target = conf_path(folder, cluster)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(render_conf(cluster, read_domain))
    return temporary.rename(target)


def kernel_options(cluster: CephCluster, read_domain: Mapping[str, str] = NO_DOMAIN) -> list[str]:
    """Options for ``rbd device map`` by the kernel.

    ``noshare``: each image has a client of its own, so that fencing one leaves the node's others
    alone. ``noudev``: a container gets no udev events, and we need none of its links. ``rbd``
    leaves monitors of the second protocol out unless it is requested.
    """
    options = ["noshare", "noudev"]
    monitors = [_with_protocol(monitor) for monitor in cluster.monitors]
    if all("v2:" in monitor and "v1:" not in monitor for monitor in monitors):
        options.append("ms_mode=prefer-crc")
    if read_domain:
        options.append("read_from_replica=localize")
        location = "|".join(f"{kind}:{name}" for kind, name in read_domain.items())
        options.append(f"crush_location={location}")
    return options


def _with_protocol(monitor: str) -> str:
    is_second_protocol = monitor.endswith(":3300") and monitor[0] != "[" and monitor.count(":") == 1
    return f"v2:{monitor}" if is_second_protocol else monitor
