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
    MANAGED_BY_LABEL,
    Endpoints,
    endpoints_of,
    families_of,
    ours_and_foreign,
)
from zonewise.explain.report import Effect, FamilyReport, ServiceReport
from zonewise.topology import Shares
from zonewise.traffic import (
    NO_HINT,
    Snapshot,
    Target,
    Wish,
    decide,
    flow,
    in_zone_limit,
    wish_of,
    zone_rows,
)


def explain_service(cluster: Cluster, service: Service) -> ServiceReport:
    """The report on one Service."""
    slices = cluster.slices(service)
    ours, foreign = ours_and_foreign(slices)
    wish = wish_of(service, cluster.settings.gates)
    refusal = _nobody_decides(service, ours, foreign)
    if refusal is not None:
        wish, ours, foreign = Wish(reason=wish.reason or refusal), ours + foreign, []
    families = tuple(
        _family(
            family,
            wish,
            cluster.shares,
            Endpoints(endpoints_of(cluster, ours, family), endpoints_of(cluster, foreign, family)),
        )
        for family in families_of(service, slices)
    )
    namespace, name = key_of(service)
    return ServiceReport(name, namespace, wish.mode, wish.limits, families)


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
    decided = decision.applied(endpoints.ours) + endpoints.foreign
    bare = tuple(replace(target, hint=NO_HINT) for target in decided)
    return FamilyReport(
        family=family,
        reason=(*decision.warnings, decision.reason)[0],
        zones=zone_rows(snapshot, decision),
        endpoints=tuple(sorted(decided, key=lambda target: target.name)),
        decided=_effect(decided, shares, hinted=decision.hinted),
        applied=_effect(endpoints.everyone, shares, hinted=_obeyed(endpoints.everyone)),
        in_zone_without_hints=flow(bare, shares).in_zone,
        in_zone_limit=in_zone_limit(replace(snapshot, targets=decided)),
        up_to_date=decided == endpoints.everyone,
    )


def _effect(targets: tuple[Target, ...], shares: Shares, *, hinted: bool) -> Effect:
    result = flow(targets, shares)
    return Effect(hinted, result.in_zone, max(result.overload, Fraction(0)))


def _obeyed(targets: Iterable[Target]) -> bool:
    """Whether proxies obey the hints: every ready endpoint has one of the same kind."""
    ready = [target for target in targets if target.ready]
    return bool(ready) and (
        all(target.hint.zones for target in ready) or all(target.hint.nodes for target in ready)
    )
