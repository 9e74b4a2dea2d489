"""What Zonewise adds to an embedded cluster: its own controllers, as further components.

And a name server, which reads the components' stores and is reachable from this machine only; a CSI
driver, if what it needs is installed; and, if requested and possible on this machine, a network.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from zonewise.api.errors import ConfigError
from zonewise.api.gates import FeatureGates
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.extensions import CustomResourceDefinition
from zonewise.cli.local.packets import ABSENT, Trial, packet_lines
from zonewise.controllers import (
    HintsController,
    HintsSettings,
    LocatorsController,
    LocatorsSettings,
)
from zonewise.controllers.locators import definition
from zonewise.embedded.cluster import EmbeddedCluster, Parts
from zonewise.runtime.controller.components import ComponentContext

if TYPE_CHECKING:
    from zonewise.dns import DnsServer
    from zonewise.embedded.components.kubelet import KubeletSettings
    from zonewise.embedded.csi_driver import EmbeddedDriver
    from zonewise.embedded.network import ClusterNetwork, Instance

BATCH = 0.1
"""Many pods get ready at once on one machine; so long their slices wait for more of them."""

POLL = 0.1
"""How long a new definition takes to be served, at most."""


_CSI = find_spec("grpc") and find_spec("google") and find_spec("google.protobuf")
CSI_CLASS = "zonal" if _CSI else None
"""The class of the demo's volumes: the driver's, if there is one here, else the default."""


def name_server(cluster: EmbeddedCluster, host: str) -> DnsServer:
    """A name server for the cluster, on a free port; it trusts client subnets from loopback."""
    from zonewise.dns import DnsServer, DnsSettings

    loopback = tuple(map(ip_network, ("127.0.0.0/8", "::1/128")))
    settings = DnsSettings(host=host, port=0, trusted=loopback)
    return DnsServer(settings, cluster.components.cache, slices=EndpointSlice)


def controllers(gates: FeatureGates) -> Parts:
    """Zonewise's controllers by name."""

    def hints(context: ComponentContext) -> HintsController:
        return HintsController(
            context,
            settings=HintsSettings(gates=gates, batch=BATCH),
        )

    return {"endpointslice-controller": hints, "podlocator-controller": LocatorsComponent}


class Packets:
    """The network of a cluster, or what to say instead."""

    def __init__(self, instance: Instance | None, absent: str) -> None:
        self._instance = instance
        self._absent = absent
        self._network: ClusterNetwork | None = None

    @classmethod
    def claim(cls, *, wanted: bool) -> Packets:
        """A network if requested and possible; what a killed program left behind is removed."""
        from zonewise.embedded.network import Instance, remove_stale

        if not wanted:
            if os.geteuid() == 0:
                with suppress(ConfigError, OSError):
                    remove_stale()
            return cls(None, ABSENT)
        try:
            return cls(Instance.claim(), "")
        except ConfigError as error:
            return cls(None, f"--network is left out, no packets are sent: {error}")

    def parts(self, gates: FeatureGates) -> Parts:
        """The component that makes it."""
        instance = self._instance
        if instance is None:
            return {}
        from zonewise.embedded.network import ClusterNetwork

        def make(context: ComponentContext) -> ClusterNetwork:
            self._network = ClusterNetwork(context, instance, gates)
            return self._network

        return {"network": make}

    async def lines(self, found: Callable[[], list[Trial]]) -> list[str]:
        """What to try with it, once it works; or why there is none."""
        if self._network is None:
            return [self._absent]
        await self._network.settled()
        return packet_lines(found(), self._network.command)

    def close(self) -> None:
        """Leave nothing behind."""
        if self._instance is not None:
            self._instance.close()


def folder_driver(folder: Path) -> EmbeddedDriver:
    """A driver for plays: its volumes are folders, nothing is mounted, and no thread is used."""
    if CSI_CLASS is None:
        raise ConfigError(
            "this scenario has volumes and needs the CSI driver; install it with:"
            " pip install 'zonewise[csi]'"
        )
    from zonewise.csi.transport.calls import inline
    from zonewise.embedded.csi_driver import EmbeddedDriver

    return EmbeddedDriver(folder, worker=inline, privileged=False)


class LocalDriver:
    """The CSI driver of a cluster that this program runs; none where gRPC is not installed."""

    def __init__(self, folder: Path) -> None:
        self._driver: EmbeddedDriver | None = None
        if CSI_CLASS is None:
            return
        from zonewise.csi.driver import Threads
        from zonewise.embedded.csi_driver import EmbeddedDriver

        self._threads = Threads()
        self._driver = EmbeddedDriver(folder, worker=self._threads)

    def parts(self, kubelets: KubeletSettings) -> Parts:
        """The components of the driver."""
        return self._driver.parts(kubelets) if self._driver is not None else {}

    @property
    def note(self) -> str:
        """What volumes are not here, in one line; empty if they are all they can be."""
        if self._driver is None:
            return "No CSI driver here: pip install 'zonewise[csi]' brings it."
        if not self._driver.privileged:
            return "Volumes are folders here: block devices and file systems need root."
        return ""

    async def unmount(self) -> None:
        """Take every volume off its pod's path; the next start brings them back."""
        if self._driver is not None:
            await self._driver.unmount()

    def close(self) -> None:
        """Release the folder."""
        if self._driver is not None:
            self._threads.close()
            self._driver.close()


class LocatorsComponent:
    """PodLocators, with the definition that a cluster of our own always has."""

    def __init__(self, context: ComponentContext) -> None:
        self._client = context.client
        self._controller = LocatorsController(
            client=context.client,
            cache=context.cache,
            rng=context.rng,
            settings=LocatorsSettings(batch=BATCH, poll=POLL),
        )

    async def run(self) -> None:
        """Define the kind, then work until cancelled."""
        wanted = definition()
        name = wanted["metadata"]["name"]
        await self._client.apply(CustomResourceDefinition, name, None, wanted, force=True)
        await self._controller.run()
