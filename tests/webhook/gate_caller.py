"""A gate over a cluster in virtual time, and the requests an API server sends to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
from tests.controllers.budgets.budget_scene import NS, BudgetScene
from tests.embedded.virtual_cluster import EPOCH

from zonewise.api import DisruptionLedger
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, decode
from zonewise.webhook.disruption_reviews import DisruptionReviews, GateMode
from zonewise.webhook.gate import DisruptionGate


class GateCaller:
    """Calls a gate over the scene's server, and counts its verdicts."""

    def __init__(
        self, scene: BudgetScene, mode: GateMode = "enforce", gate: DisruptionGate | None = None
    ) -> None:
        self.verdicts: Counter[tuple[str, bool]] = Counter()
        loop = asyncio.get_running_loop()
        self.scene = scene
        self.gate = gate or DisruptionGate(
            scene.cluster.program.cache, scene.client, lambda: EPOCH + loop.time()
        )
        self.reviews = DisruptionReviews(
            self.gate,
            scene.client,
            mode=mode,
            observe=lambda code, charged: self.verdicts.update([(code, charged)]),
        )

    async def evict(self, name: str, *, dry_run: str = "") -> AdmissionAnswer:
        """Review the eviction of a pod; a dry run is requested in the query or in the body."""
        eviction: dict[str, Any] = {"metadata": {"name": name, "namespace": NS}}
        if dry_run in ("All", "all"):
            eviction["deleteOptions"] = {"dryRun": [dry_run]}
        fields = {"name": name, "operation": "CREATE", "object": eviction}
        return await self.reviews.eviction(request(**fields, dryRun=dry_run == "query"))

    async def delete(self, name: str, user: str) -> AdmissionAnswer:
        """Review the deletion of a pod by a controller."""
        path = f"/api/v1/namespaces/{NS}/pods/{name}"
        pod = (await self.scene.client.raw("GET", path)).json()
        fields = {"name": name, "operation": "DELETE", "oldObject": pod}
        return await self.reviews.deletion(request(**fields, userInfo={"username": user}))

    async def granted(self) -> list[str]:
        """The pods that were granted."""
        ledgers = await self.scene.client.list(DisruptionLedger, NS)
        return [grant.pod for ledger in ledgers for grant in ledger.spec.grants]


def request(**fields: Any) -> AdmissionRequest:
    """What an API server sends."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "1", "namespace": NS, **fields},
    }
    return decode(msgspec.json.encode(review))
