"""A whole cluster in this process: the API server and everyone who works in it.

``start`` serves (or, without a port, lives for callers in this process alone), ``run`` lets the
crew work, ``close`` ends both. A cluster needs no order between its parts: each waits for its own
stores and finds its work in objects. What may differ is in ``Settings``; what the layers above add
(controllers of their own, a dashboard) comes as further parts.

Time and chance come from outside: with a virtual clock, and ``inline`` so that no thread is waited
for, a cluster lives through an hour in seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zonewise.embedded import kubelets, server
from zonewise.embedded.accounttokens import AccountTokens
from zonewise.embedded.budgets import Budgets
from zonewise.embedded.clients import Clients
from zonewise.embedded.crew import Crew, Means, Part
from zonewise.embedded.manifests import Planter
from zonewise.embedded.mirroring import Mirroring
from zonewise.embedded.nodes import NodeLifecycle, PodCollector, TaintEviction
from zonewise.embedded.scheduler import Scheduler
from zonewise.embedded.volumes import Binder, Ephemeral, Protection, Provisioner
from zonewise.embedded.workloads.cronjobs import CronJobs
from zonewise.embedded.workloads.daemonsets import DaemonSets
from zonewise.embedded.workloads.deployments import Deployments
from zonewise.embedded.workloads.jobs import Jobs
from zonewise.embedded.workloads.removal import Mode
from zonewise.embedded.workloads.replicasets import ReplicaSets
from zonewise.embedded.workloads.statefulsets import StatefulSets
from zonewise.embedded.workloads.views import ReplicationController

SERVICE_NETWORKS = ("10.96.0.0/16", "fd00:10:96::/112")
"""Both families: with the kubelets' ``DUAL_STACK``, every kind of Service can live here."""

Parts = Mapping[str, Callable[[Means], Part]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may be chosen about a cluster; ``removal`` is how workloads take running pods down."""

    api: server.Settings = field(
        default_factory=lambda: server.Settings(service_networks=SERVICE_NETWORKS)
    )
    kubelets: kubelets.Settings = kubelets.DUAL_STACK
    removal: Mode = "evict"


class Cluster:
    """The API server and its crew.

    ``rng`` is what parts draw with. ``identities`` draws uids and generated names, which must never
    come again on a folder that is kept: give one without a seed there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Settings | None = None,
        host: str = "127.0.0.1",
        clock: Callable[[], float],
        rng: random.Random,
        identities: random.Random | None = None,
        inline: bool = False,
        parts: Parts | None = None,
    ) -> None:
        settings = settings or Settings()
        self.server = server.ApiServer(
            folder,
            host=host,
            settings=settings.api,
            clock=clock,
            rng=identities or rng,
            inline=inline,
        )
        self.crew = Crew(self.server.connect, clock=clock, rng=rng)
        self.client = self.server.connect("zonewise")
        self.planter = Planter(self.client, self.server.registry)
        self.clients = Clients(self.crew.means("clients"), gates=settings.api.gates)
        for name, make in {**_parts(settings), **(parts or {})}.items():
            self.crew.add(name, make)
        self.crew.add("resourcequota-controller", lambda _: self.server.quota_status)
        self.crew.add("simulated clients", lambda _: self.clients)

    async def run(self) -> None:
        """Let the crew work until cancelled; raises what ended it."""
        try:
            await self.crew.run()
        except ExceptionGroup as group:
            first: Exception = group
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            raise first from first.__cause__

    async def close(self) -> None:
        """Stop serving."""
        await self.server.close()


def _parts(settings: Settings) -> Parts:
    """Everyone who works in an embedded cluster, under the names their users know."""
    removal = settings.removal
    return {
        "default-scheduler": Scheduler,
        "kubelet": lambda means: kubelets.Kubelets(means, settings.kubelets),
        "node-controller": NodeLifecycle,
        "taint-eviction-controller": TaintEviction,
        "pod-garbage-collector": PodCollector,
        "deployment-controller": lambda means: Deployments(means, removal=removal),
        "replicaset-controller": lambda means: ReplicaSets(means, removal=removal),
        "replication-controller": lambda means: ReplicaSets(
            means, removal=removal, kind=ReplicationController
        ),
        "statefulset-controller": lambda means: StatefulSets(means, removal=removal),
        "daemonset-controller": lambda means: DaemonSets(means, removal=removal),
        "job-controller": Jobs,
        "cronjob-controller": CronJobs,
        "disruption-controller": Budgets,
        "tokens-controller": AccountTokens,
        "endpointslicemirroring-controller": Mirroring,
        "persistentvolume-binder": Binder,
        "volume-protection-controller": Protection,
        "ephemeral-volume-controller": Ephemeral,
        "volume-provisioner": Provisioner,
    }
