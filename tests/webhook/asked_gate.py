"""A gate over a cluster in virtual time, and the requests an API server sends to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
from tests.controllers.budgets.budgeted import NS, Field
from tests.embedded.virtual_cluster import EPOCH

from zonewise.api import DisruptionLedger
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, decode
from zonewise.webhook.disruption_reviews import DisruptionReviews, GateMode
from zonewise.webhook.gate import DisruptionGate


class Asked:
    """A gate over the field's server, and what it counted."""

    def __init__(
        self, town: Field, mode: GateMode = "enforce", gate: DisruptionGate | None = None
    ) -> None:
        self.verdicts: Counter[tuple[str, bool]] = Counter()
        loop = asyncio.get_running_loop()
        self.town = town
        self.gate = gate or DisruptionGate(
            town.cluster.program.cache, town.client, lambda: EPOCH + loop.time()
        )
        self.reviews = DisruptionReviews(
            self.gate,
            town.client,
            mode=mode,
            observe=lambda code, charged: self.verdicts.update([(code, charged)]),
        )

    async def evict(self, name: str, *, dry_run: str = "") -> AdmissionAnswer:
        """Somebody wants to evict a pod; a dry run is said in the query or in the body."""
        eviction: dict[str, Any] = {"metadata": {"name": name, "namespace": NS}}
        if dry_run in ("All", "all"):
            eviction["deleteOptions"] = {"dryRun": [dry_run]}
        said = {"name": name, "operation": "CREATE", "object": eviction}
        return await self.reviews.eviction(request(**said, dryRun=dry_run == "query"))

    async def delete(self, name: str, user: str) -> AdmissionAnswer:
        """A controller wants to delete a pod."""
        path = f"/api/v1/namespaces/{NS}/pods/{name}"
        pod = (await self.town.client.raw("GET", path)).json()
        said = {"name": name, "operation": "DELETE", "oldObject": pod}
        return await self.reviews.deletion(request(**said, userInfo={"username": user}))

    async def ledger(self) -> list[str]:
        """The pods that were granted."""
        found = await self.town.client.list(DisruptionLedger, NS)
        return [grant.pod for ledger in found for grant in ledger.spec.grants]


def request(**said: Any) -> AdmissionRequest:
    """What an API server sends."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "1", "namespace": NS, **said},
    }
    return decode(msgspec.json.encode(review))
