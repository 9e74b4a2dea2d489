"""Why a Service has the hints it has, or none.

The report is the controller's own decision, made again: the same function, fed with the same
objects. Beside it is what the slices carry at this moment, so that the decision and the present
state are never confused. All traffic is computed through the routes of a proxy, over every endpoint
a proxy sees, also those in slices of other controllers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.explain.cluster import ReportedCluster, key_of
from zonewise.explain.endpoints import (
    ServiceEndpoints,
    endpoints_of,
    ours_and_foreign,
)
from zonewise.explain.keys import keys_report
from zonewise.explain.report import Effect, FamilyReport, ServiceReport
from zonewise.topology import EligibleNodes, Shares, reach_of
from zonewise.traffic import (
    NO_HINT,
    SHARE_NODES_ANNOTATION,
    Hint,
    HintRequest,
    Mode,
    ServiceSnapshot,
    ShareNodes,
    TrafficEndpoint,
    decide,
    flow,
    flow_under,
    hint_request_of,
    in_zone_limit,
    invalid_keys,
    zone_rows,
)
from zonewise.traffic.slices import MANAGED_BY_LABEL, families_of

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
    refusal = _nobody_decides(service, ours, foreign)
    if refusal is not None:
        hint_request, ours, foreign, pods = (
            HintRequest(reason=hint_request.reason or refusal),
            ours + foreign,
            [],
            None,
        )
    tolerated = hint_request.share_nodes is ShareNodes.TOLERATED
    shares = cluster.shares(reach_of(pods or ()) if tolerated else EligibleNodes())
    families = []
    for family in families_of(service, slices):
        known = endpoints_of(cluster, service, ours, foreign, pods, family)
        made = _family(family, hint_request, shares, known)
        families.append(replace(made, keys=keys_report(cluster, service, family)))
    namespace, name = key_of(service)
    notes = [_ALL_NODES] if tolerated and pods is None else []
    if ignored := invalid_keys(service):
        notes.append(_sentence(str(ignored)))
    ignored_slices = families[0].keys.ignored if families[0].keys is not None else ()
    notes += [_sentence(f"{one.object}: {one}") for one in ignored_slices]
    if service.spec.cluster_ip == "None":
        notes.append(_HEADLESS)
    return ServiceReport(
        name, namespace, hint_request.mode, hint_request.limits, tuple(families), tuple(notes)
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _nobody_decides(
    service: Service, ours: Sequence[object], foreign: Sequence[object]
) -> Reason | None:
    namespace, name = key_of(service)
    about = f"Service/{namespace}/{name}"
    if service.spec.type == "ExternalName":
        return Reason(
            code="ExternalName",
            message="the Service is a name for something outside of the cluster",
            object=about,
        )
    if foreign and not ours and not service.spec.selector:
        return Reason(
            code="NoSelector",
            message="the Service has no selector, so its slices and hints are written elsewhere",
            object=about,
            fix=f"Give it a selector, or hints where its slices come from ({MANAGED_BY_LABEL}).",
        )
    return None


def _family(
    family: str, hint_request: HintRequest, shares: Shares, endpoints: ServiceEndpoints
) -> FamilyReport:
    snapshot = ServiceSnapshot(hint_request, shares, endpoints.ours, endpoints.foreign)
    decision = decide(snapshot, endpoints.previous)
    decided = decision.applied(endpoints.ours)
    everyone = (*decided, *endpoints.foreign)
    there = (*endpoints.written, *endpoints.foreign)
    bare = tuple(replace(one, hint=NO_HINT) if one.hint else one for one in everyone)
    # A slice of another controller carries no weights, and then proxies obey none.
    weighed = not any(target.ready for target in endpoints.foreign)
    decided_weights = decision.weights if weighed else ""
    written_weights = endpoints.previous.weights if weighed else ""
    return FamilyReport(
        family=family,
        reason=(*decision.warnings, decision.reason)[0],
        zones=zone_rows(snapshot, decision),
        endpoints=tuple(sorted(everyone, key=lambda target: target.name)),
        decided=_effect(everyone, shares, decided_weights, hinted=decision.hinted),
        applied=_effect(there, shares, written_weights, hinted=_obeyed(there)),
        in_zone_without_hints=flow(bare, shares).in_zone,
        in_zone_limit=in_zone_limit(replace(snapshot, targets=everyone)),
        up_to_date=_hints(decided) == _hints(endpoints.written)
        and decision.weights == endpoints.previous.weights,
        weights=decision.weights,
        stock=(
            _effect(everyone, shares, "", hinted=bool(decision.hints))
            if hint_request.mode is Mode.WEIGHTED
            else None
        ),
    )


def _hints(targets: Iterable[TrafficEndpoint]) -> dict[str, Hint]:
    return {target.name: target.hint for target in targets if target.ready}


def _effect(
    targets: tuple[TrafficEndpoint, ...], shares: Shares, weights: str, *, hinted: bool
) -> Effect:
    result = flow_under(weights, targets, shares)
    return Effect(hinted, result.in_zone, max(result.overload, Fraction(0)))


def _obeyed(targets: Iterable[TrafficEndpoint]) -> bool:
    """Whether proxies obey the hints: every ready endpoint has one of the same kind."""
    ready = [target for target in targets if target.ready]
    return bool(ready) and (
        all(target.hint.zones for target in ready) or all(target.hint.nodes for target in ready)
    )
