"""A whole cluster in this process: the API server and all its components.

``start`` serves (or, without a port, only callers in this process), ``run`` runs the components,
``close`` ends both. A cluster needs no order between its parts: each waits for its own stores and
finds its work in objects. Options are in ``ClusterSettings``; what the layers above add
(controllers of their own, a dashboard) is passed as further parts.

Time and randomness are arguments: with a virtual clock, and ``inline`` so that no thread is waited
for, a cluster runs an hour in seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zonewise.api.objects.apps import (
    DaemonSet,
    Deployment,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
)
from zonewise.api.objects.budgets import DisruptionLedger, DomainRollout, TopologyDisruptionBudget
from zonewise.controllers.budgets import BudgetsController, BudgetsSettings
from zonewise.controllers.rollouts import RolloutsController, RolloutsSettings
from zonewise.disruption import BudgetsCache
from zonewise.disruption.definitions import definitions
from zonewise.embedded import built_in
from zonewise.embedded.apiserver import server
from zonewise.embedded.components import kubelet
from zonewise.embedded.components.disruption.budgets import Budgets
from zonewise.embedded.components.endpointslices.mirroring import Mirroring
from zonewise.embedded.components.nodelifecycle import NodeLifecycle, PodCollector, TaintEviction
from zonewise.embedded.components.scheduler.scheduler import Scheduler
from zonewise.embedded.components.serviceaccount.tokens import AccountTokens
from zonewise.embedded.components.volumes import (
    AttachDetach,
    Binder,
    Ephemeral,
    Protection,
    Provisioner,
)
from zonewise.embedded.components.workloads.cronjobs.controller import CronJobs
from zonewise.embedded.components.workloads.daemonsets.controller import DaemonSets
from zonewise.embedded.components.workloads.deployments.controller import Deployments
from zonewise.embedded.components.workloads.jobs.controller import Jobs
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.replicasets.controller import ReplicaSets
from zonewise.embedded.components.workloads.statefulsets.controller import StatefulSets
from zonewise.embedded.domain_guard import DomainGuard
from zonewise.embedded.seed.seeder import Obj, Seeder
from zonewise.embedded.simulated_traffic import SimulatedTraffic
from zonewise.runtime.controller.components import Component, ComponentContext, ComponentGroup
from zonewise.webhook import Granting

OWNERS = (Deployment, ReplicaSet, ReplicationController, StatefulSet, DaemonSet)
"""Owners of pods, of the types that all parts share."""

Parts = Mapping[str, Callable[[ComponentContext], Component]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What may be chosen about a cluster; ``removal`` is how workloads take running pods down."""

    api: server.ServerSettings = field(
        default_factory=lambda: server.ServerSettings(service_networks=server.DUAL_STACK)
    )
    kubelets: kubelet.KubeletSettings = kubelet.DUAL_STACK
    removal: RemovalMode = "evict"


class EmbeddedCluster:
    """The API server and its components.

    ``rng`` is what parts draw with. ``identities`` draws uids and generated names, which must never
    repeat on a folder that is kept: give one without a seed there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: ClusterSettings | None = None,
        host: str = "127.0.0.1",
        clock: Callable[[], float],
        rng: random.Random,
        identities: random.Random | None = None,
        inline: bool = False,
        parts: Parts | None = None,
    ) -> None:
        settings = settings or ClusterSettings()
        self.server = server.ApiServer(
            folder,
            host=host,
            settings=settings.api,
            clock=clock,
            rng=identities or rng,
            inline=inline,
        )
        self.server.admission.add(built_in.admit)
        self.server.webhooks.skip = built_in.is_built_in
        self.components = ComponentGroup(self.server.connect, clock=clock, rng=rng)
        self.client = self.server.connect("zonewise")
        self.seeder = Seeder(self.client, self.server.registry)
        budgets_cache = self._guarded(clock)
        self.clients = SimulatedTraffic(
            self.components.context("clients"), gates=settings.api.gates
        )
        for name, make in {**_parts(settings, budgets_cache), **(parts or {})}.items():
            self.components.add(name, make)
        self.components.add("resourcequota-controller", lambda _: self.server.quota_status)
        self.components.add("simulated clients", lambda _: self.clients)

    def _guarded(self, clock: Callable[[], float]) -> BudgetsCache:
        """Have evictions check the budgets per domain."""
        budgets_cache = BudgetsCache()
        cache = self.components.cache
        for cls, listener in budgets_cache.listeners(OWNERS).items():
            cache.store(cls).on_change(listener)
        granting = Granting(
            self.server.connect("disruption-guard"), budgets_cache, clock, plain=False
        )
        self.server.evictions.guard = DomainGuard(self.server.state, cache, budgets_cache, granting)
        return budgets_cache

    async def plant_classes(self, objects: Iterable[Obj]) -> None:
        """Write the storage classes among objects that are planted later.

        Before ``run``: the provisioner then finds them, and makes no other default beside theirs.
        """
        await self.seeder.plant(one for one in objects if one["kind"] == "StorageClass")

    async def run(self) -> None:
        """Let the components work until cancelled; raises what ended it."""
        await self.seeder.plant(definitions())
        await self._serves_budgets()
        self.server.running = True
        try:
            await self.components.run()
        except ExceptionGroup as group:
            first: Exception = group
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            raise first from first.__cause__
        finally:
            self.server.running = False

    async def _serves_budgets(self) -> None:
        """Wait for the kinds of budgets per domain, served a moment after they were written."""
        registry, served = self.server.registry, asyncio.Event()
        kinds = [
            one.resource for one in (TopologyDisruptionBudget, DisruptionLedger, DomainRollout)
        ]

        def look() -> None:
            if all(registry.of(one.api_version, one.kind) for one in kinds):
                served.set()

        registry.on_change(look)
        look()
        await served.wait()

    async def close(self) -> None:
        """Stop serving."""
        await self.server.close()


def _budgets(context: ComponentContext, budgets_cache: BudgetsCache) -> BudgetsController:
    return BudgetsController(
        context,
        settings=BudgetsSettings(labelled=False, steer=False, owners=OWNERS),
        budgets_cache=budgets_cache,
    )


def _rollouts(context: ComponentContext, budgets_cache: BudgetsCache) -> RolloutsController:
    return RolloutsController(
        context, budgets_cache=budgets_cache, settings=RolloutsSettings(owners=OWNERS)
    )


def _parts(settings: ClusterSettings, budgets_cache: BudgetsCache) -> Parts:
    """All components of an embedded cluster, under their Kubernetes names."""
    removal = settings.removal
    return {
        "default-scheduler": Scheduler,
        "kubelet": lambda context: kubelet.Kubelets(context, settings.kubelets),
        "node-controller": NodeLifecycle,
        "taint-eviction-controller": TaintEviction,
        "pod-garbage-collector": PodCollector,
        "deployment-controller": lambda context: Deployments(context, removal=removal),
        "replicaset-controller": lambda context: ReplicaSets(
            context, removal=removal, budgets_cache=budgets_cache
        ),
        "replication-controller": lambda context: ReplicaSets(
            context, removal=removal, kind=ReplicationController, budgets_cache=budgets_cache
        ),
        "statefulset-controller": lambda context: StatefulSets(
            context, removal=removal, budgets_cache=budgets_cache
        ),
        "daemonset-controller": lambda context: DaemonSets(
            context, removal=removal, budgets_cache=budgets_cache
        ),
        "job-controller": Jobs,
        "cronjob-controller": CronJobs,
        "disruption-controller": Budgets,
        "zonewise-budgets": lambda context: _budgets(context, budgets_cache),
        "zonewise-rollouts": lambda context: _rollouts(context, budgets_cache),
        "tokens-controller": AccountTokens,
        "endpointslicemirroring-controller": Mirroring,
        "persistentvolume-binder": Binder,
        "attachdetach-controller": AttachDetach,
        "volume-protection-controller": Protection,
        "ephemeral-volume-controller": Ephemeral,
        "volume-provisioner": Provisioner,
    }
