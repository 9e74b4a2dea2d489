"""What ``zonewise up`` adds to an embedded cluster.

A name server, which reads the controllers' stores and is reachable from this machine only; a CSI
driver, if gRPC is installed; metrics; and, if requested and possible on this machine, a network.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from zonewise.api.errors import ConfigError
from zonewise.api.gates import FeatureGates
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.cli.local.packets import ABSENT, Trial, format_trials
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.runtime.monitoring.health import Health
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.runtime.monitoring.monitor import Monitor

if TYPE_CHECKING:
    from zonewise.dns.server import NameServer
    from zonewise.embedded.csi_driver import EmbeddedDriver
    from zonewise.embedded.network.namespaces import ClusterNamespaces
    from zonewise.embedded.network.network import ClusterNetwork
    from zonewise.runtime.process.process import Process

METRICS_URL = "metrics.url"
"""The file of the data folder that says where metrics are served."""

_CSI = find_spec("grpc") and find_spec("google") and find_spec("google.protobuf")
CSI_CLASS = "zonal" if _CSI else None
"""The StorageClass of the demo's volumes: the driver's, or None for the default one."""


def add_name_server(cluster: EmbeddedCluster, host: str, gates: FeatureGates) -> NameServer:
    """Add a name server on a free port; it trusts client subnets from loopback."""
    from zonewise.dns.server import DnsSettings, NameServer
    from zonewise.dns.sources import Sources

    loopback = tuple(map(ip_network, ("127.0.0.0/8", "::1/128")))
    return cluster.program.add(
        "dns",
        NameServer,
        DnsSettings(host=host, port=0, trusted=loopback, gates=gates),
        slices=EndpointSlice,
        sources=Sources(locators=True, nodes=True),
    )


class Packets:
    """The network of a cluster, or the reason why it has none."""

    def __init__(self, instance: ClusterNamespaces | None, absent: str) -> None:
        self._instance = instance
        self._absent = absent
        self._network: ClusterNetwork | None = None

    @classmethod
    def claim(cls, *, requested: bool) -> Packets:
        """A network if requested and possible; what a killed program left behind is removed."""
        from zonewise.embedded.network.namespaces import ClusterNamespaces, remove_stale_namespaces

        if not requested:
            if os.geteuid() == 0:
                with suppress(ConfigError, OSError):
                    remove_stale_namespaces()
            return cls(None, ABSENT)
        try:
            return cls(ClusterNamespaces.claim(), "")
        except ConfigError as error:
            return cls(None, f"--network is left out, no packets are sent: {error}")

    def add_to(self, cluster: EmbeddedCluster, gates: FeatureGates) -> None:
        """Add the network to a cluster."""
        if self._instance is not None:
            from zonewise.embedded.network.network import ClusterNetwork

            self._network = cluster.program.add(
                "network", ClusterNetwork, instance=self._instance, gates=gates
            )

    async def suggest(self, list_trials: Callable[[], list[Trial]]) -> list[str]:
        """Commands to try once the network works; or why there is none."""
        if self._network is None:
            return [self._absent]
        await self._network.settled()
        return format_trials(list_trials(), self._network.curl_command)

    def close(self) -> None:
        """Remove the network."""
        if self._instance is not None:
            self._instance.close()


def open_folder_driver(folder: Path) -> EmbeddedDriver:
    """A driver for scenarios: volumes are folders, nothing is mounted, and no thread is used."""
    if CSI_CLASS is None:
        raise ConfigError(
            "this scenario has volumes and needs the CSI driver; install it with:"
            " pip install 'zonewise[csi]'"
        )
    from zonewise.csi.transport.calls import run_inline
    from zonewise.embedded.csi_driver import EmbeddedDriver

    return EmbeddedDriver(folder, worker=run_inline, privileged=False)


class LocalDriver:
    """The CSI driver of a cluster that this program runs; none where gRPC is not installed."""

    def __init__(self, folder: Path) -> None:
        self.driver: EmbeddedDriver | None = None
        if CSI_CLASS is None:
            return
        from zonewise.csi.driver import Threads
        from zonewise.embedded.csi_driver import EmbeddedDriver

        self._threads = Threads()
        self.driver = EmbeddedDriver(folder, worker=self._threads)

    @property
    def note(self) -> str:
        """What volumes lack here, in one line; empty if nothing."""
        if self.driver is None:
            return "There is no CSI driver; install it with: pip install 'zonewise[csi]'"
        if not self.driver.privileged:
            return "Volumes are folders here: block devices and file systems need root."
        return ""

    async def unmount(self) -> None:
        """Unmount the volumes of all pods; the next start mounts them again."""
        if self.driver is not None:
            await self.driver.unmount()

    def close(self) -> None:
        """Release the folder."""
        if self.driver is not None:
            self._threads.close()
            self.driver.close()


class LocalMetrics:
    """The metrics of a cluster that this program runs, served on loopback at a free port.

    The file ``metrics.url`` in the folder says where. They are never served to other machines,
    whatever the API server listens on: they need no authentication.
    """

    def __init__(self, folder: Path) -> None:
        self.metrics = Metrics()
        self._folder = folder

    @asynccontextmanager
    async def served(self, process: Process) -> AsyncIterator[None]:
        """Serve them, and write where."""
        health = Health()
        health.add_ready("program", process.problem)
        async with Monitor(self.metrics, health, listen="127.0.0.1:0") as monitor:
            url, fresh = self._folder / METRICS_URL, self._folder / f"{METRICS_URL}.new"
            fresh.write_text(f"http://127.0.0.1:{monitor.port}/metrics\n")
            fresh.replace(url)  # Who waits for the file never reads half of it.
            try:
                yield
            finally:
                remove_metrics_url(self._folder)


def remove_metrics_url(folder: Path) -> None:
    """Remove the address of metrics that are not served any more, also that of a killed program."""
    (folder / METRICS_URL).unlink(missing_ok=True)
