"""A whole cluster in this process: the API server and all its components.

``server.start`` serves (without a port, only callers in this process), ``run`` runs components,
``close`` ends both. A cluster needs no order between its parts: each waits for its own stores and
finds its work in objects. Options are in ``ClusterSettings``; what the layers above add (a name
server, a network) they add to ``program``.

Time and randomness are arguments: with a virtual clock, and ``inline`` so that no thread is waited
for, a cluster runs an hour in seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zonewise.api.objects.apps import (
    DaemonSet,
    Deployment,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
)
from zonewise.api.objects.budgets import DisruptionLedger, DomainRollout, TopologyDisruptionBudget
from zonewise.api.objects.locator import PodLocator
from zonewise.controllers.budgets.controller import BudgetsController, BudgetsSettings
from zonewise.controllers.hints.controller import HintsController, HintsSettings
from zonewise.controllers.locators.controller import LocatorsController, LocatorsSettings
from zonewise.controllers.locators.definition import definition
from zonewise.controllers.rollouts.controller import RolloutsController, RolloutsSettings
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.embedded import built_in
from zonewise.embedded.apiserver import server
from zonewise.embedded.components.disruption.budgets import DisruptionController
from zonewise.embedded.components.disruption.stale_targets import StaleTargets
from zonewise.embedded.components.endpointslices.mirroring import EndpointSliceMirroringController
from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK, Kubelets, KubeletSettings
from zonewise.embedded.components.nodelifecycle.controller import NodeLifecycleController
from zonewise.embedded.components.nodelifecycle.pod_gc import PodGCController
from zonewise.embedded.components.nodelifecycle.taint_eviction import TaintEvictionController
from zonewise.embedded.components.scheduler.scheduler import Scheduler
from zonewise.embedded.components.serviceaccount.tokens import TokensController
from zonewise.embedded.components.volumes.attachment import AttachDetachController
from zonewise.embedded.components.volumes.binder import PersistentVolumeController
from zonewise.embedded.components.volumes.ephemeral import EphemeralVolumeController
from zonewise.embedded.components.volumes.protection import VolumeProtectionController
from zonewise.embedded.components.volumes.provisioner import SimulatedProvisioner
from zonewise.embedded.components.workloads.cronjobs.controller import CronJobController
from zonewise.embedded.components.workloads.daemonsets.controller import DaemonSetController
from zonewise.embedded.components.workloads.deployments.controller import DeploymentController
from zonewise.embedded.components.workloads.jobs.controller import JobController
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.replicasets.controller import ReplicaSetController
from zonewise.embedded.components.workloads.statefulsets.controller import StatefulSetController
from zonewise.embedded.held_replacements import HeldReplacements
from zonewise.embedded.seed.seed_marker import NAMESPACE
from zonewise.embedded.seed.seeder import Obj, Seeder
from zonewise.embedded.simulated_traffic import SimulatedTraffic
from zonewise.embedded.stored_budgets import StoredBudgets
from zonewise.runtime.controller.recorder import RecorderLimits
from zonewise.runtime.program.program import Program
from zonewise.webhook.gate import DisruptionGate
from zonewise.webhook.replacements import ReplacementHold

if TYPE_CHECKING:
    from zonewise.embedded.csi_driver import EmbeddedDriver
    from zonewise.runtime.monitoring.metrics import Metrics

EVENTS = RecorderLimits(queue=20_000)
"""A cluster that starts has many events at once."""

OWNERS = (Deployment, ReplicaSet, ReplicationController, StatefulSet, DaemonSet)
"""Owners of pods, of the types that all parts share."""

BATCH = 0.1
"""Many pods become ready at once on one machine: seconds that their slices and locators wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What may be chosen about a cluster.

    ``removal`` is how workloads take running pods down, and with it who counts plain
    PodDisruptionBudgets: with ``delete`` Kubernetes' own controller, as on a real cluster. Then
    nothing holds what workloads replace by themselves, so no rollout by domain can order it.
    """

    api: server.ServerSettings = field(
        default_factory=lambda: server.ServerSettings(service_networks=server.DUAL_STACK)
    )
    kubelets: KubeletSettings = DUAL_STACK
    removal: RemovalMode = "evict"


class EmbeddedCluster:
    """The API server and its components.

    ``rng`` is what parts draw with. ``identities`` draws uids and generated names, which must never
    repeat on a folder that is kept: give one without a seed there. With ``metrics`` controllers are
    counted there, under the names that they have on a real cluster.
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
        driver: EmbeddedDriver | None = None,
        metrics: Metrics | None = None,
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
        self.program = Program(
            self.server.connect, clock=clock, rng=rng, events=EVENTS, metrics=metrics
        )
        self.client = self.server.connect("zonewise")
        self.seeder = Seeder(self.client, self.server.registry)
        budgets = BudgetsCache(counts_plain=settings.removal == "evict")
        self._gate_evictions(clock, budgets)
        if settings.removal == "evict":
            hold = ReplacementHold(self.program.cache, budgets)
            plugin = HeldReplacements(hold, self.program.cache, self.server.state)
            self.server.admission.add_mutating(plugin)
        self.simulated_traffic = SimulatedTraffic(
            self.program.context("clients"), gates=settings.api.gates
        )
        self._add_kubernetes(settings, budgets, driver)
        self._add_zonewise(settings, budgets)
        if driver is not None:
            self.server.admission.add(built_in.keep_driver(driver.name, NAMESPACE))
            driver.add_controllers(self.program)
        self.program.run_beside("simulated clients", self.simulated_traffic)

    def _add_kubernetes(
        self, settings: ClusterSettings, budgets: BudgetsCache, driver: EmbeddedDriver | None
    ) -> None:
        """Kubernetes' own controllers, under its names for them."""
        add, removal = self.program.add, settings.removal
        add("default-scheduler", Scheduler)
        volumes = driver.pod_volumes if driver is not None else None
        add("kubelet", Kubelets, settings.kubelets, volumes=volumes)
        add("node-controller", NodeLifecycleController)
        add("taint-eviction-controller", TaintEvictionController)
        add("pod-garbage-collector", PodGCController)
        add("deployment-controller", DeploymentController, removal=removal, budgets_cache=budgets)
        add("replicaset-controller", ReplicaSetController, removal=removal, budgets_cache=budgets)
        add(
            "replication-controller",
            ReplicaSetController,
            kind=ReplicationController,
            removal=removal,
            budgets_cache=budgets,
        )
        add("statefulset-controller", StatefulSetController, removal=removal, budgets_cache=budgets)
        add("daemonset-controller", DaemonSetController, removal=removal, budgets_cache=budgets)
        add("job-controller", JobController, removal=removal, budgets_cache=budgets)
        add("cronjob-controller", CronJobController)
        # Where workloads evict, budgets of all kinds are counted together, by "zonewise-budgets".
        add("disruption-controller", StaleTargets if budgets.counts_plain else DisruptionController)
        add("tokens-controller", TokensController)
        add("endpointslicemirroring-controller", EndpointSliceMirroringController)
        add("persistentvolume-binder", PersistentVolumeController)
        add("attachdetach-controller", AttachDetachController)
        add("volume-protection-controller", VolumeProtectionController)
        add("ephemeral-volume-controller", EphemeralVolumeController)
        add("volume-provisioner", SimulatedProvisioner)
        self.program.run_beside("resourcequota-controller", self.server.quota_status)

    def _add_zonewise(self, settings: ClusterSettings, budgets_cache: BudgetsCache) -> None:
        """Our own controllers: what ``zonewise controller`` runs on a real cluster."""
        add = self.program.add
        hints = HintsSettings(gates=settings.api.gates, batch=BATCH)
        add("endpointslice-controller", HintsController, hints)
        add("podlocator-controller", LocatorsController, LocatorsSettings(batch=BATCH))
        budgets = BudgetsSettings(labelled=False, steer=False, owners=OWNERS)
        add("zonewise-budgets", BudgetsController, budgets, budgets_cache=budgets_cache)
        rollouts = RolloutsSettings(owners=OWNERS, budgets_hold=settings.removal == "evict")
        add("zonewise-rollouts", RolloutsController, rollouts, budgets_cache=budgets_cache)

    def _gate_evictions(self, clock: Callable[[], float], budgets: BudgetsCache) -> None:
        """Connect evictions to the gate that is a webhook on a real cluster."""
        cache = self.program.cache
        for cls, listener in budgets.listeners(OWNERS).items():
            cache.store(cls).on_change(listener)
        self.server.evictions.gate = DisruptionGate(
            cache,
            self.server.connect("disruption-guard"),
            clock,
            budgets_cache=budgets,
            plain=False,
            refresh=StoredBudgets(self.server.state, budgets).refresh,
        )

    async def plant_classes(self, objects: Iterable[Obj]) -> None:
        """Write the storage classes among objects that are planted later.

        Before ``run``: the provisioner then sees them, and creates no default class of its own.
        """
        await self.seeder.create(obj for obj in objects if obj["kind"] == "StorageClass")

    async def run(self) -> None:
        """Run the components until cancelled; raises the error of one that fails."""
        await self.seeder.create([*resource_definitions(), definition()])
        await self._wait_served()
        self.server.running = True
        try:
            await self.program.run()
        finally:
            self.server.running = False

    async def _wait_served(self) -> None:
        """Wait until our own kinds are served, a moment after their definitions were written."""
        registry, served = self.server.registry, asyncio.Event()
        kinds = (TopologyDisruptionBudget, DisruptionLedger, DomainRollout, PodLocator)
        resources = [kind.resource for kind in kinds]

        def check() -> None:
            if all(registry.by_kind(resource.api_version, resource.kind) for resource in resources):
                served.set()

        registry.on_change(check)
        check()
        await served.wait()

    async def close(self) -> None:
        """Stop serving."""
        await self.server.close()
