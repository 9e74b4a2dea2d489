"""Why a Service has the hints it has, or none.

The report is the controller's own decision, made again: the same function, fed with the same
objects. Beside it stands what the slices carry at this moment, so that "it will be" and "it is" are
never mixed up. All traffic is computed through the routes of a proxy, over every endpoint a proxy
sees, also those in slices of somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from zonewise.api.core import Service
from zonewise.api.reason import Reason
from zonewise.explain.cluster import Cluster, key_of
from zonewise.explain.endpoints import (
    Endpoints,
    endpoints_of,
    families_of,
    ours_and_foreign,
)
from zonewise.explain.report import Effect, FamilyReport, ServiceReport
from zonewise.topology import Reach, Shares, reach_of
from zonewise.traffic import (
    NO_HINT,
    SHARE_NODES_ANNOTATION,
    Hint,
    ShareNodes,
    Snapshot,
    Target,
    Wish,
    decide,
    flow,
    in_zone_limit,
    wish_of,
    zone_rows,
)
from zonewise.traffic.slices import MANAGED_BY_LABEL

_ALL_NODES = (
    f"The shares are those of all nodes: without pods nobody can tell what"
    f" {SHARE_NODES_ANNOTATION}: tolerated means. Read pods as well."
)

_HEADLESS = (
    "The Service is headless: clients find its endpoints by DNS and choose themselves. Hints, and"
    " the numbers above, are about proxies."
)


def explain_service(cluster: Cluster, service: Service) -> ServiceReport:
    """The report on one Service."""
    slices = cluster.slices(service)
    ours, foreign = ours_and_foreign(slices)
    pods = cluster.pods(service)
    wish = wish_of(service, cluster.settings.gates)
    refusal = _nobody_decides(service, ours, foreign)
    if refusal is not None:
        wish, ours, foreign, pods = Wish(reason=wish.reason or refusal), ours + foreign, [], None
    tolerated = wish.share_nodes is ShareNodes.TOLERATED
    shares = cluster.shares(reach_of(pods or ()) if tolerated else Reach())
    families = tuple(
        _family(family, wish, shares, endpoints_of(cluster, service, ours, foreign, pods, family))
        for family in families_of(service, slices)
    )
    namespace, name = key_of(service)
    notes = [_ALL_NODES] if tolerated and pods is None else []
    if service.spec.cluster_ip == "None":
        notes.append(_HEADLESS)
    return ServiceReport(name, namespace, wish.mode, wish.limits, families, tuple(notes))


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
            message="the Service has no selector, so whoever writes its slices also hints them",
            object=about,
            fix=f"Give it a selector, or hints where its slices come from ({MANAGED_BY_LABEL}).",
        )
    return None


def _family(family: str, wish: Wish, shares: Shares, endpoints: Endpoints) -> FamilyReport:
    snapshot = Snapshot(wish, shares, endpoints.ours, endpoints.foreign)
    decision = decide(snapshot, endpoints.previous)
    decided = decision.applied(endpoints.ours)
    everyone = (*decided, *endpoints.foreign)
    there = (*endpoints.written, *endpoints.foreign)
    bare = tuple(replace(one, hint=NO_HINT) if one.hint else one for one in everyone)
    return FamilyReport(
        family=family,
        reason=(*decision.warnings, decision.reason)[0],
        zones=zone_rows(snapshot, decision),
        endpoints=tuple(sorted(everyone, key=lambda target: target.name)),
        decided=_effect(everyone, shares, hinted=decision.hinted),
        applied=_effect(there, shares, hinted=_obeyed(there)),
        in_zone_without_hints=flow(bare, shares).in_zone,
        in_zone_limit=in_zone_limit(replace(snapshot, targets=everyone)),
        up_to_date=_hints(decided) == _hints(endpoints.written),
    )


def _hints(targets: Iterable[Target]) -> dict[str, Hint]:
    return {target.name: target.hint for target in targets if target.ready}


def _effect(targets: tuple[Target, ...], shares: Shares, *, hinted: bool) -> Effect:
    result = flow(targets, shares)
    return Effect(hinted, result.in_zone, max(result.overload, Fraction(0)))


def _obeyed(targets: Iterable[Target]) -> bool:
    """Whether proxies obey the hints: every ready endpoint has one of the same kind."""
    ready = [target for target in targets if target.ready]
    return bool(ready) and (
        all(target.hint.zones for target in ready) or all(target.hint.nodes for target in ready)
    )
