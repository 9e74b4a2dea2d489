"""The admission webhooks as part of a program: which handler is at which path, and their server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter

from zonewise.api.field_errors import new_invalid
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.api.objects.core import Service
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.config.credentials import FileContent
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.webhook.admission import (
    AdmissionAnswer,
    AdmissionRequest,
    Allowed,
    Denied,
    Handler,
)
from zonewise.runtime.webhook.certificates import Certificates
from zonewise.runtime.webhook.server import AdmissionDispatcher, WebhookServer
from zonewise.runtime.webhook.server_context import ServerContext
from zonewise.traffic.validation import validate_service_traffic
from zonewise.webhook.clamp import Clamp
from zonewise.webhook.disruption_reviews import DisruptionReviews
from zonewise.webhook.gate import DisruptionGate
from zonewise.webhook.hints import HintInjection, InjectionSettings
from zonewise.webhook.replacements import ReplacementHold

CLAMP_PATH = "/replicasets"
DELETIONS_PATH = "/deletions"
EVICTIONS_PATH = "/evictions"
HINTS_PATH = "/hints"
PODS_PATH = "/pods"
SERVICES_PATH = "/services"

_log = logger("webhook")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """What is served, where, and who is to trust it.

    ``secret`` in ``namespace`` is where replicas share their certificate, for ``hosts``; the
    webhook configurations named ``configuration`` are made to trust it. Without ``injection`` no
    hints are put on slices.
    """

    listen: str
    namespace: str
    hosts: tuple[str, ...]
    secret: str
    configuration: str
    client_ca: Path | None = None
    injection: InjectionSettings | None = None
    budgets: Literal["off", "observe", "enforce"] = "off"


class AdmissionWebhooks:
    """Serves the webhooks; ``certificates`` is to run beside it."""

    def __init__(self, context: ControllerContext, settings: WebhookSettings) -> None:
        client, cache, metrics = context.client, context.cache, context.metrics
        self._listen = settings.listen
        self._stopping = asyncio.Event()
        authorities = (
            FileContent(settings.client_ca, purpose="authority of clients")
            if settings.client_ca
            else None
        )
        self._tls = ServerContext(authorities)
        self.handlers: dict[str, Handler] = {SERVICES_PATH: validate_service}
        instead: dict[str, AdmissionAnswer] = {}
        mutates = False
        if settings.injection is not None:
            injection = HintInjection(cache, settings.injection)
            self.handlers[HINTS_PATH] = _once_synced(cache, injection)
            mutates = True
        if settings.budgets != "off":
            gate = DisruptionGate(cache, client, client.clock.reliable_now)
            reviews = DisruptionReviews(
                gate,
                client,
                mode=settings.budgets,
                observe=verdict_counter(metrics.registry) if metrics else None,
            )
            self.handlers |= {EVICTIONS_PATH: reviews.eviction, DELETIONS_PATH: reviews.deletion}
            instead = dict.fromkeys((EVICTIONS_PATH, DELETIONS_PATH), reviews.busy_answer)
            if settings.budgets == "enforce":
                self.handlers[CLAMP_PATH] = _once_synced(
                    cache, Clamp(gate.budgets_cache, client.clock.reliable_now, gate.turns)
                )
                self.handlers[PODS_PATH] = ReplacementHold(
                    cache, gate.budgets_cache, registry=metrics.registry if metrics else None
                )
                mutates = True
        self._dispatcher = AdmissionDispatcher(
            self.handlers, instead=instead, observe=metrics.admission if metrics else None
        )
        kinds: list[type[ValidatingWebhookConfiguration] | type[MutatingWebhookConfiguration]]
        kinds = [ValidatingWebhookConfiguration]
        if mutates:
            kinds.append(MutatingWebhookConfiguration)
        self.certificates = Certificates(
            client,
            secret=settings.secret,
            namespace=settings.namespace,
            hosts=settings.hosts,
            configurations=[(kind, settings.configuration) for kind in kinds],
            serve=self._tls.use,
        )

    async def run(self) -> None:
        """Serve until stopped; calls that have begun are answered."""
        async with WebhookServer(self._dispatcher, tls=self._tls, listen=self._listen) as server:
            _log.info("webhooks are served", port=server.port, paths=sorted(self.handlers))
            await self._stopping.wait()

    def stop(self) -> None:
        """Take no more calls."""
        self._stopping.set()


def _once_synced(cache: Cache, handler: Handler) -> Handler:
    """A handler that waits for complete stores; without them a decision would drop hints."""

    async def answer(request: AdmissionRequest) -> AdmissionAnswer:
        await cache.synced()
        return await handler(request)

    return answer


def verdict_counter(registry: CollectorRegistry) -> Callable[[str, bool], None]:
    """Counts verdicts by code, and grants."""
    verdicts = Counter(
        "zonewise_budget_verdicts",
        "Decisions on evictions and deletions of pods.",
        ["code"],
        registry=registry,
    )
    grants = Counter(
        "zonewise_budget_grants", "Decisions that were charged to budgets.", registry=registry
    )

    def observe(code: str, charged: bool) -> None:
        verdicts.labels(code).inc()
        grants.inc(int(charged))

    return observe


async def validate_service(request: AdmissionRequest) -> AdmissionAnswer:
    """Refuse a Service whose hint mode or topology keys are not valid."""
    service = request.new(Service)
    if service is None or request.sub_resource:
        return Allowed()
    errors = validate_service_traffic(service, request.old(Service))
    if not errors:
        return Allowed()
    refusal = new_invalid(Service.resource, request.name, errors)
    return Denied(str(refusal), code=422, status="Invalid")
