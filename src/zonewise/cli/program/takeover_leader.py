"""The takeover controller inside ``zonewise csi``: of several drivers that have it, one leads.

A lease is needed: kubelets bring a changed ConfigMap to their nodes at different times, and two
controllers with two states of it would remove each other's labels. A driver that loses its lease
continues to serve volumes and follows.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonewise.cli.program.options import Options

if TYPE_CHECKING:
    from zonewise.csi.driver import DriverStorage
    from zonewise.csi.takeover.controller import StatesByCluster
    from zonewise.csi.takeover.source import TakeoverSource
    from zonewise.csi.transport.calls import CallWorker
    from zonewise.runtime.process.process import Process
    from zonewise.runtime.program.program import Program
    from zonewise.storage.configuration import StorageConfiguration
    from zonewise.storage.domains import DomainLabels

LEASE = "zonewise-csi-takeover"
FOLLOW_AGAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Where the lease is, and where metrics are served."""

    namespace: str | None = None
    metrics: str | None = None


@dataclass(frozen=True, slots=True)
class TakeoverLeader:
    """Follows, leads, and follows again, until the process is to stop."""

    process: Process
    options: Options
    source: TakeoverSource
    labels: DomainLabels
    storage: DriverStorage
    worker: CallWorker
    settings: LeaderSettings

    async def run(self) -> None:
        """Work until the process is to stop."""
        from functools import partial

        from zonewise.api.errors import LeadershipLost
        from zonewise.cli.program.connection import connect
        from zonewise.csi.answering import collect_answers
        from zonewise.csi.missing_pools import MissingPoolReporter
        from zonewise.csi.takeover.automatic import AutomaticLoop
        from zonewise.csi.takeover.controller import TakeoverController, TakeoverSettings
        from zonewise.csi.takeover.out_of_service import OutOfServiceController
        from zonewise.runtime.client.client import FIELD_MANAGER
        from zonewise.runtime.election.election import lease_namespace
        from zonewise.runtime.process.logs import logger
        from zonewise.runtime.program.serving import LeaseSettings, ProgramSettings, serve

        async def read_states(configuration: StorageConfiguration) -> StatesByCluster:
            def read_all() -> StatesByCluster:
                with self.storage.in_call():
                    clusters = self.storage.clusters().items()
                    return collect_answers(
                        {
                            name: partial(cluster.backend.pool_states, configuration)
                            for name, cluster in clusters
                        }
                    )

            return await self.worker(read_all)

        namespace = lease_namespace(self.settings.namespace)
        takeover = TakeoverSettings(
            source=self.source, labels=self.labels, namespace=namespace, read_states=read_states
        )

        def assemble(program: Program) -> None:
            program.add("takeover", TakeoverController, takeover)
            program.add(
                "automatic takeover",
                AutomaticLoop,
                takeover,
                storage=self.storage,
                worker=self.worker,
            )
            program.add(
                "out of service",
                OutOfServiceController,
                takeover,
                storage=self.storage,
                worker=self.worker,
            )
            program.add(
                "missing pools",
                MissingPoolReporter,
                source=self.source,
                labels=self.labels,
                read_states=read_states,
            )

        program_settings = ProgramSettings(
            name=LEASE,
            field_manager=FIELD_MANAGER,
            metrics_listen=self.settings.metrics,
            lease=LeaseSettings(name=LEASE, namespace=namespace, deadman=False),
        )
        async with connect(self.options) as client:
            while not self.process.stopping.is_set():
                try:
                    await serve(self.process, client.transport, program_settings, assemble)
                except LeadershipLost as error:
                    logger("csi").warning("another process leads takeovers now", why=str(error))
                    await asyncio.sleep(FOLLOW_AGAIN_SECONDS)
