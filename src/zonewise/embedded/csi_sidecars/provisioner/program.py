"""All loops of one driver together: they start when it is ready, and end together."""

from __future__ import annotations

import asyncio

from zonewise.csi.transport.client import CsiClient
from zonewise.embedded.csi_sidecars.provisioner.capacity import CapacityPublisher
from zonewise.embedded.csi_sidecars.provisioner.driver import RPC, found
from zonewise.embedded.csi_sidecars.provisioner.options import TopologyOptions
from zonewise.embedded.csi_sidecars.provisioner.provisioner import VolumeProvisioner
from zonewise.embedded.csi_sidecars.provisioner.resizer import Resizer
from zonewise.embedded.csi_sidecars.provisioner.snapshotter import Snapshotter
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import run_all


class DriverLoops:
    """A component: makes, grows, copies and removes volumes as objects request it.

    ``namespace`` is where the driver's CSIStorageCapacities are. Loops that the driver has no
    capability for do not run; ``snapshots`` also needs the snapshot kinds to be defined.
    """

    def __init__(
        self,
        context: ComponentContext,
        client: CsiClient,
        *,
        namespace: str,
        options: TopologyOptions | None = None,
        snapshots: bool = False,
    ) -> None:
        self._context = context
        self._client = client
        self._namespace = namespace
        self._options = options
        self._snapshots = snapshots
        self._changed = asyncio.Event()

    def capacity_changed(self) -> None:
        """Publish the driver's capacity soon: its pools are not what they were."""
        self._changed.set()

    async def run(self) -> None:
        """Wait for the driver, then work until cancelled."""
        driver = await found(self._client)
        provisioner = VolumeProvisioner(self._context, driver, self._changed, self._options)
        runs = [provisioner.run()]
        if driver.can(RPC.EXPAND_VOLUME):
            runs.append(Resizer(self._context, driver).run())
        if driver.can(RPC.GET_CAPACITY) and driver.topology:
            publisher = CapacityPublisher(self._context, driver, self._namespace, self._changed)
            runs.append(publisher.run())
        if self._snapshots and driver.can(RPC.CREATE_DELETE_SNAPSHOT):
            runs.append(Snapshotter(self._context, driver).run())
        await run_all(*runs)
