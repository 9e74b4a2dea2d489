"""Why a Service has the hints it has, or none.

The report repeats the controller's decision: the same function, with the same objects. Beside it
is the state of the slices, so that the two are never confused. All traffic is computed through the
routes of a proxy, over every endpoint a proxy sees, also those in slices of other controllers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.reason import Reason
from zonewise.explain.cluster import ReportedCluster, key_of
from zonewise.explain.endpoints import ServiceEndpoints, collect_endpoints, split_slices
from zonewise.explain.keys import KeysReport, report_keys
from zonewise.explain.service_report import Effect, FamilyReport, ServiceReport
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
    TOPOLOGY_KEYS,
    HintRequest,
    Mode,
    ShareNodes,
    hint_request_of,
)
from zonewise.traffic.routes.choice import ServicePolicy, is_usable
from zonewise.traffic.routes.flow import Flow, compute_flow, compute_flow_from
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL, MANAGER, families_of
from zonewise.traffic.topology_keys import ignored_keys_reason
from zonewise.traffic.weights import parse_weights

API_SERVERS = ("default", "kubernetes")
"""The Service whose slices the API servers write; no controller decides its hints."""

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
    ours, foreign = split_slices(slices)
    pods = cluster.pods(service)
    hint_request = hint_request_of(service, cluster.gates(service))
    refusal = _check_controller(service, slices, requested=hint_request.mode is not Mode.OFF)
    if refusal is not None:
        hint_request, pods = HintRequest(reason=refusal), None
        ours, foreign = ours + foreign, []
    tolerated = hint_request.share_nodes is ShareNodes.TOLERATED
    shares = cluster.shares(eligible_nodes_of(pods or ()) if tolerated else EligibleNodes())
    if service.spec.type == "ExternalName":
        shares = Shares()  # Traffic to an ExternalName does not go to endpoints.
    policy = _policy_of(cluster, service)
    mode = hint_request.mode
    free = mode is Mode.OFF and not (policy.keys or refusal)
    limited = (mode in LIMITED_MODES or free) and not policy.internal_local
    families = []
    for family in families_of(service, slices):
        endpoints = collect_endpoints(cluster, service, ours, foreign, pods, family)
        keys = report_keys(cluster, service, policy, family)
        flows = _Flows(cluster, policy, shares, keys)
        families.append(_report_family(family, hint_request, flows, endpoints, limited=limited))
    namespace, name = key_of(service)
    notes = [_ALL_NODES] if tolerated and pods is None else []
    if ignored := ignored_keys_reason(service, cluster.gates(service)):
        notes.append(_capitalize(str(ignored)))
    ignored_slices = families[0].keys.ignored if families[0].keys is not None else ()
    notes += [_capitalize(f"{reason.object}: {reason}") for reason in ignored_slices]
    if service.spec.cluster_ip == "None":
        notes.append(_HEADLESS)
    limits = hint_request.limits
    return ServiceReport(name, namespace, mode, limits, tuple(families), tuple(notes), limited)


def _policy_of(cluster: ReportedCluster, service: Service) -> ServicePolicy:
    """The policy of proxies; a headless Service has none of them: only keys and hints count."""
    policy = ServicePolicy.of(service, cluster.gates(service))
    return replace(policy, internal_local=False) if service.spec.cluster_ip == "None" else policy


@dataclass(frozen=True, slots=True)
class _Flows:
    """What proxies do with endpoints of a Service, whatever hints and weights these carry."""

    cluster: ReportedCluster
    policy: ServicePolicy
    shares: Shares
    keys: KeysReport | None

    def compute(self, targets: tuple[TrafficEndpoint, ...], weights: str = "") -> Flow:
        """Where the traffic goes.

        Zones stand for their nodes as long as all nodes of a zone do the same.
        """
        policy, rows = self.policy, parse_weights(weights)
        if not (policy.keys or policy.internal_local or _has_node_hints(targets)):
            if not policy.zone_hints:
                targets = _without_hints(targets)
            return compute_flow(targets, self.shares, rows if policy.weights else None)
        labels = self.cluster.labels
        flow = compute_flow_from(
            targets,
            self.cluster.senders,
            lambda known, location: policy.choose_for_cluster_ip(known, location, labels, rows),
        )
        if self.keys is None:
            return flow
        # Ports may have endpoints of their own, which the report on the keys distinguishes.
        return replace(
            flow,
            in_zone=self.keys.in_zone_of_answered,
            unanswered=self.keys.rejected,
            unanswered_senders=self.keys.silent,
        )

    def obeys(self, targets: Iterable[TrafficEndpoint]) -> bool:
        """Whether proxies obey the hints: every ready endpoint has one of the same kind."""
        hints = [target.hint for target in targets if target.ready]
        zones = self.policy.zone_hints and all(hint.zones for hint in hints)
        return bool(hints) and (zones or all(hint.nodes for hint in hints))

    def effect(self, targets: tuple[TrafficEndpoint, ...], weights: str, *, hinted: bool) -> Effect:
        """What becomes of the traffic."""
        flow = self.compute(targets, weights)
        overload = max(flow.overload, Fraction(0))
        in_zone = _in_zone_of(targets, flow)
        return Effect(hinted, in_zone, overload, flow.unanswered, flow.unanswered_senders)


def _in_zone_of(targets: tuple[TrafficEndpoint, ...], flow: Flow) -> Fraction | None:
    """The part of the answered traffic that stays in its zone, if it and a zone are known."""
    answered = flow.loads and flow.unanswered < 1
    return flow.in_zone if answered and _is_located(targets) else None


def _is_located(targets: Iterable[TrafficEndpoint]) -> bool:
    """Whether some endpoint that proxies use is in a zone."""
    return any(target.zone and is_usable(target) for target in targets)


def _without_hints(targets: tuple[TrafficEndpoint, ...]) -> tuple[TrafficEndpoint, ...]:
    return tuple(replace(each, hint=NO_HINT) if each.hint else each for each in targets)


def _has_node_hints(targets: tuple[TrafficEndpoint, ...]) -> bool:
    return any(target.hint.nodes for target in targets if target.ready)


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _check_controller(
    service: Service, slices: Iterable[LeanEndpointSlice], *, requested: bool
) -> Reason | None:
    """Why no controller decides hints of a Service, whatever it requests; None if one does.

    A dump that was cut down may not say who writes its slices; then a request for hints is enough.
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
    elsewhere = MANAGER not in writers and (not requested or writers - {""})
    if writers and elsewhere and not service.spec.selector:
        return Reason(
            code="NoSelector",
            message="the Service has no selector, so its slices and hints are written elsewhere",
            object=about,
            fix=f"Give it a selector, or hints where its slices come from ({MANAGED_BY_LABEL}).",
        )
    return None


def _report_family(
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
    present = (*endpoints.written, *endpoints.foreign)
    # A slice of another controller carries no weights, and then proxies obey none.
    weighed = not any(target.ready for target in endpoints.foreign)
    decided_weights = decision.weights if weighed else ""
    written_weights = endpoints.previous.weights if weighed else ""
    bare = _without_hints(everyone)
    limited = limited and _is_located(everyone)
    whole = replace(snapshot, endpoints=everyone)
    highest = hint_request.limits.drop
    keeping = replace(hint_request, limits=OverloadLimits(highest, highest))
    reason = (*decision.warnings, decision.reason)[0]
    return FamilyReport(
        family=family,
        reason=reason if flows.keys is None else _advise_keys(reason, flows.keys),
        zones=zone_rows(snapshot, decision, flows.compute(everyone, decided_weights).loads),
        endpoints=tuple(sorted(everyone, key=lambda target: target.name)),
        decided=flows.effect(everyone, decided_weights, hinted=decision.hinted),
        applied=flows.effect(present, written_weights, hinted=flows.obeys(present)),
        in_zone_without_hints=_in_zone_of(bare, flows.compute(bare)),
        in_zone_limit=in_zone_limit(whole) if limited else None,
        up_to_date=_ready_hints(decided) == _ready_hints(endpoints.written)
        and decision.weights == endpoints.previous.weights,
        weights=decision.weights,
        stock=flows.effect(everyone, "", hinted=bool(decision.hints))
        if hint_request.mode is Mode.WEIGHTED
        else None,
        keys=flows.keys,
        retained=_are_hints_retained(snapshot, decision, endpoints.previous),
        in_zone_limit_to_keep=in_zone_limit(replace(whole, hint_request=keeping))
        if limited
        else None,
        senders=len(flows.cluster.senders),
    )


def _advise_keys(reason: Reason, keys: KeysReport) -> Reason:
    """Why there are no hints, with what would help where keys decide instead of them."""
    fix = keys.advice
    if reason.code == TOPOLOGY_KEYS:
        fix = f"{fix} Remove the request for hints: the keys decide.".strip()
    return Reason(
        code=reason.code,
        message=reason.message,
        object=reason.object,
        numbers=reason.numbers,
        fix=fix,
    )


def _are_hints_retained(
    snapshot: ServiceSnapshot, decision: HintDecision, previous: PreviousHints
) -> bool:
    """Whether there are hints only because there were some."""
    if not (decision.hinted and previous.hinted and decision.mode is Mode.AUTO):
        return False
    return not decide_hints(snapshot, PreviousHints()).hinted


def _ready_hints(targets: Iterable[TrafficEndpoint]) -> dict[str, Hint]:
    return {target.name: target.hint for target in targets if target.ready}
