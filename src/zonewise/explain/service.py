"""Why a Service has the hints it has, or none.

The report is the controller's own decision, made again: the same function, fed with the same
objects. Beside it is what the slices carry at this moment, so that the decision and the present
state are never confused. All traffic is computed through the routes of a proxy, over every endpoint
a proxy sees, also those in slices of other controllers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.reason import Reason
from zonewise.explain.cluster import ReportedCluster, key_of
from zonewise.explain.endpoints import (
    ServiceEndpoints,
    endpoints_of,
    ours_and_foreign,
)
from zonewise.explain.keys import KeysReport, keys_report
from zonewise.explain.report import Effect, FamilyReport, ServiceReport
from zonewise.topology.eligible_nodes import EligibleNodes, eligible_nodes_of
from zonewise.topology.shares import Shares
from zonewise.traffic.endpoint import NO_HINT, Hint, TrafficEndpoint
from zonewise.traffic.hints import (
    HintDecision,
    PreviousHints,
    ServiceSnapshot,
    decide_hints,
    in_zone_limit,
    zone_rows,
)
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import (
    LIMITED_MODES,
    SHARE_NODES_ANNOTATION,
    HintRequest,
    Mode,
    ShareNodes,
    hint_request_of,
)
from zonewise.traffic.routes.choice import ServicePolicy, is_usable
from zonewise.traffic.routes.flow import Flow, compute_flow, compute_flow_from
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL, MANAGER, families_of
from zonewise.traffic.topology_keys import invalid_keys_reason
from zonewise.traffic.weights import parse_weights

API_SERVERS = ("default", "kubernetes")
"""The Service by which API servers make themselves known; nobody else decides about it."""

_ALL_NODES = (
    f"The shares are those of all nodes: without pods it is unknown what"
    f" {SHARE_NODES_ANNOTATION}: tolerated means. Read pods as well."
)

_HEADLESS = (
    "The Service is headless: clients find its endpoints by name and choose themselves. With"
    " zonewise dns they get those that hints or topology keys name for their location (explain"
    " name shows which); other name servers return all of them to every client."
)


def explain_service(cluster: ReportedCluster, service: Service) -> ServiceReport:
    """The report on one Service."""
    slices = cluster.slices(service)
    ours, foreign = ours_and_foreign(slices)
    pods = cluster.pods(service)
    hint_request = hint_request_of(service, cluster.settings.gates)
    refusal = _nobody_decides(service, slices, asked=hint_request.mode is not Mode.OFF)
    if refusal is not None:
        hint_request, ours, foreign, pods = (
            HintRequest(reason=refusal),
            ours + foreign,
            [],
            None,
        )
    tolerated = hint_request.share_nodes is ShareNodes.TOLERATED
    shares = cluster.shares(eligible_nodes_of(pods or ()) if tolerated else EligibleNodes())
    if service.spec.type == "ExternalName":
        shares = Shares()  # A name sends nobody to endpoints: no zone has traffic of it.
    policy = _policy(cluster, service)
    mode = hint_request.mode
    free = mode is Mode.OFF and not (policy.keys or refusal)
    limited = (mode in LIMITED_MODES or free) and not policy.internal_local
    families = []
    for family in families_of(service, slices):
        known = endpoints_of(cluster, service, ours, foreign, pods, family)
        keys = keys_report(cluster, service, policy, family)
        flows = _Flows(cluster, policy, shares, keys)
        families.append(_family(family, hint_request, flows, known, limited=limited))
    namespace, name = key_of(service)
    notes = [_ALL_NODES] if tolerated and pods is None else []
    if ignored := invalid_keys_reason(service):
        notes.append(_sentence(str(ignored)))
    ignored_slices = families[0].keys.ignored if families[0].keys is not None else ()
    notes += [_sentence(f"{one.object}: {one}") for one in ignored_slices]
    if service.spec.cluster_ip == "None":
        notes.append(_HEADLESS)
    return ServiceReport(
        name,
        namespace,
        mode,
        hint_request.limits,
        tuple(families),
        tuple(notes),
        limited=limited,
    )


def _policy(cluster: ReportedCluster, service: Service) -> ServicePolicy:
    """What proxies go by; with a headless Service there are none, and only keys and hints count."""
    policy = ServicePolicy.of(service, cluster.settings.gates)
    return replace(policy, internal_local=False) if service.spec.cluster_ip == "None" else policy


@dataclass(frozen=True, slots=True)
class _Flows:
    """What proxies do with endpoints of a Service, whatever hints and weights these carry."""

    cluster: ReportedCluster
    policy: ServicePolicy
    shares: Shares
    keys: KeysReport | None

    def of(self, targets: tuple[TrafficEndpoint, ...], weights: str = "") -> Flow:
        """Where the traffic goes.

        Zones stand for their nodes as long as all nodes of a zone do the same.
        """
        policy, rows = self.policy, parse_weights(weights)
        if not (policy.keys or policy.internal_local or _for_nodes(targets)):
            return compute_flow(
                _as_obeyed(policy, targets), self.shares, rows if policy.hints else None
            )
        labels = self.cluster.labels
        found = compute_flow_from(
            targets,
            self.cluster.senders,
            lambda known, place: policy.choose_for_cluster_ip(known, place, labels, rows),
        )
        if self.keys is None:
            return found
        # Ports may have endpoints of their own, which the report on the keys distinguishes.
        return replace(
            found,
            in_zone=self.keys.in_zone_of_answered,
            unanswered=self.keys.rejected,
            unanswered_senders=self.keys.silent,
        )

    def effect(self, targets: tuple[TrafficEndpoint, ...], weights: str, *, hinted: bool) -> Effect:
        """What becomes of the traffic."""
        result = self.of(targets, weights)
        return Effect(
            hinted,
            _in_zone(targets, result),
            max(result.overload, Fraction(0)),
            result.unanswered,
            result.unanswered_senders,
        )


def _in_zone(targets: tuple[TrafficEndpoint, ...], result: Flow) -> Fraction | None:
    """What of the answered traffic stays in its zone; None if none is, or no zone is known."""
    answered = result.loads and result.unanswered < 1
    return result.in_zone if answered and _located(targets) else None


def _located(targets: Iterable[TrafficEndpoint]) -> bool:
    """Whether some endpoint that proxies use is in a zone."""
    return any(target.zone and is_usable(target) for target in targets)


def _as_obeyed(
    policy: ServicePolicy, targets: tuple[TrafficEndpoint, ...]
) -> tuple[TrafficEndpoint, ...]:
    return targets if policy.hints else _bare(targets)


def _bare(targets: tuple[TrafficEndpoint, ...]) -> tuple[TrafficEndpoint, ...]:
    """The same endpoints without hints."""
    return tuple(replace(one, hint=NO_HINT) if one.hint else one for one in targets)


def _for_nodes(targets: tuple[TrafficEndpoint, ...]) -> bool:
    return any(target.hint.nodes for target in targets if target.ready)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _nobody_decides(
    service: Service, slices: Iterable[LeanEndpointSlice], *, asked: bool
) -> Reason | None:
    """Why no controller decides hints of a Service, whatever it asks for.

    A dump that was cut down does not say who writes a slice; then a Service that asks is believed.
    """
    namespace, name = key_of(service)
    about = f"Service/{namespace}/{name}"
    if service.spec.type == "ExternalName":
        return Reason(
            code="ExternalName",
            message="the Service is a name for something outside of the cluster",
            object=about,
        )
    if (namespace, name) == API_SERVERS:
        return Reason(
            code="NoSelector",
            message="the API servers write its slices themselves, without hints",
            object=about,
        )
    writers = {part.metadata.labels.get(MANAGED_BY_LABEL, "") for part in slices}
    elsewhere = MANAGER not in writers and (not asked or writers - {""})
    if writers and elsewhere and not service.spec.selector:
        return Reason(
            code="NoSelector",
            message="the Service has no selector, so its slices and hints are written elsewhere",
            object=about,
            fix=f"Give it a selector, or hints where its slices come from ({MANAGED_BY_LABEL}).",
        )
    return None


def _family(
    family: str,
    hint_request: HintRequest,
    flows: _Flows,
    endpoints: ServiceEndpoints,
    *,
    limited: bool,
) -> FamilyReport:
    snapshot = ServiceSnapshot(hint_request, flows.shares, endpoints.ours, endpoints.foreign)
    decision = decide_hints(snapshot, endpoints.previous)
    decided = decision.apply(endpoints.ours)
    everyone = (*decided, *endpoints.foreign)
    there = (*endpoints.written, *endpoints.foreign)
    # A slice of another controller carries no weights, and then proxies obey none.
    weighed = not any(target.ready for target in endpoints.foreign)
    decided_weights = decision.weights if weighed else ""
    written_weights = endpoints.previous.weights if weighed else ""
    bare = _bare(everyone)
    limited = limited and _located(everyone)
    return FamilyReport(
        family=family,
        reason=(*decision.warnings, decision.reason)[0],
        zones=zone_rows(snapshot, decision, flows.of(everyone, decided_weights).loads),
        endpoints=tuple(sorted(everyone, key=lambda target: target.name)),
        decided=flows.effect(everyone, decided_weights, hinted=decision.hinted),
        applied=flows.effect(there, written_weights, hinted=_obeyed(there)),
        in_zone_without_hints=_in_zone(bare, flows.of(bare)),
        in_zone_limit=in_zone_limit(replace(snapshot, endpoints=everyone)) if limited else None,
        up_to_date=_hints(decided) == _hints(endpoints.written)
        and decision.weights == endpoints.previous.weights,
        weights=decision.weights,
        stock=(
            flows.effect(everyone, "", hinted=bool(decision.hints))
            if hint_request.mode is Mode.WEIGHTED
            else None
        ),
        keys=flows.keys,
        kept=_kept(snapshot, decision, endpoints.previous),
        in_zone_limit_to_keep=(
            in_zone_limit(
                replace(snapshot, endpoints=everyone, hint_request=_at_most(hint_request))
            )
            if limited
            else None
        ),
        senders=len(flows.cluster.senders),
    )


def _at_most(hint_request: HintRequest) -> HintRequest:
    """The same request if hints were added up to where they are dropped."""
    highest = hint_request.limits.drop
    return replace(hint_request, limits=OverloadLimits(highest, highest))


def _kept(snapshot: ServiceSnapshot, decision: HintDecision, previous: PreviousHints) -> bool:
    """Whether there are hints only because there were some."""
    if not (decision.hinted and previous.hinted and decision.mode is Mode.AUTO):
        return False
    return not decide_hints(snapshot, PreviousHints()).hinted


def _hints(targets: Iterable[TrafficEndpoint]) -> dict[str, Hint]:
    return {target.name: target.hint for target in targets if target.ready}


def _obeyed(targets: Iterable[TrafficEndpoint]) -> bool:
    """Whether proxies obey the hints: every ready endpoint has one of the same kind."""
    ready = [target for target in targets if target.ready]
    return bool(ready) and (
        all(target.hint.zones for target in ready) or all(target.hint.nodes for target in ready)
    )
