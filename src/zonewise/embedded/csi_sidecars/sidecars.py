"""The sidecars of one driver: they start when it is ready, and end together."""

from __future__ import annotations

import asyncio

from zonewise.csi.transport.client import CsiClient
from zonewise.embedded.csi_sidecars.capacity import CapacityPublisher
from zonewise.embedded.csi_sidecars.driver import RPC, connect_driver
from zonewise.embedded.csi_sidecars.provisioner import TopologyOptions, VolumeProvisioner
from zonewise.embedded.csi_sidecars.resizer import Resizer
from zonewise.embedded.csi_sidecars.snapshotter import Snapshotter
from zonewise.runtime.controller.controller import run_all
from zonewise.runtime.program.context import ControllerContext


class DriverSidecars:
    """Creates, expands, snapshots and deletes the volumes of one driver.

    ``namespace`` is where the driver's CSIStorageCapacities are. Sidecars that the driver has no
    capability for do not run; ``snapshots`` also needs the snapshot kinds to be defined.
    """

    def __init__(
        self,
        context: ControllerContext,
        options: TopologyOptions | None = None,
        *,
        client: CsiClient,
        namespace: str,
        snapshots: bool = False,
    ) -> None:
        self._context = context
        self._client = client
        self._namespace = namespace
        self._options = options
        self._snapshots = snapshots
        self._changed = asyncio.Event()

    def capacity_changed(self) -> None:
        """Publish the driver's capacity soon, because its pools changed."""
        self._changed.set()

    async def run(self) -> None:
        """Wait for the driver, then work until cancelled."""
        driver = await connect_driver(self._client)
        provisioner = VolumeProvisioner(
            self._context, self._options, driver=driver, changed=self._changed
        )
        runs = [provisioner.run()]
        if driver.can(RPC.EXPAND_VOLUME):
            runs.append(Resizer(self._context, driver=driver).run())
        if driver.can(RPC.GET_CAPACITY) and driver.topology:
            publisher = CapacityPublisher(
                self._context, driver=driver, namespace=self._namespace, changed=self._changed
            )
            runs.append(publisher.run())
        if self._snapshots and driver.can(RPC.CREATE_DELETE_SNAPSHOT):
            runs.append(Snapshotter(self._context, driver=driver).run())
        await run_all(*runs)
