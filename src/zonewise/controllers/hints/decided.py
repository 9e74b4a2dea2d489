"""The state of each Service at its last decision, and which of them a node event concerns.

A node event changes shares, and shares concern only Services in a mode with limits. Of each the
endpoints are counted (``HintCounts``) and its limits are kept; that is enough to tell, with a few
multiplications, whether it crosses a limit in either direction or two endpoints should swap. Only
those are decided again, so a node that is added or deleted rewrites the slices of few Services or
none, and a Service that had lost its hints gets them back with no event of its own.

A Service whose reason was a property of the nodes is decided again when that reason changes, so
that no condition reports a label that was fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from zonewise.api.meta import Key
from zonewise.api.objects.core import Service
from zonewise.topology.eligible_nodes import EligibleNodes
from zonewise.topology.shares import Shares
from zonewise.traffic.modes import LIMITED_MODES, HintRequest, Mode
from zonewise.traffic.slices.planning import FamilyPlan, SlicePlan
from zonewise.traffic.weights import weights_suffice


@dataclass(frozen=True, slots=True)
class DecidedService:
    """A Service after its last decision."""

    uid: str
    hint_request: HintRequest
    families: Mapping[str, FamilyPlan]
    reach: EligibleNodes | None
    distribution: str
    node_reason: str
    """The reason why nodes allowed no decision then, "" if they did."""

    @classmethod
    def of(
        cls,
        service: Service,
        request: HintRequest,
        plan: SlicePlan,
        shares: Shares,
        reach: EligibleNodes | None,
    ) -> DecidedService:
        """The state of a Service with a plan."""
        return cls(
            uid=service.metadata.uid,
            hint_request=request,
            families=plan.families,
            reach=reach,
            distribution=service.spec.traffic_distribution or "",
            node_reason=_code(shares),
        )

    @property
    def labels(self) -> tuple[str, str, str]:
        """Mode, state and reason, of the primary family, as they are counted."""
        for family in self.families.values():
            decision = family.decision
            state = "hinted" if decision.hinted else "unhinted"
            return decision.mode.value, state, decision.reason.code
        return self.hint_request.mode.value, "unhinted", "NoEndpoints"


def find_concerned(
    decided_services: Mapping[Key, DecidedService], shares: Callable[[EligibleNodes | None], Shares]
) -> Iterator[Key]:
    """The Services that new shares require to decide again."""
    general = shares(None)
    code = _code(general)
    for key, standing in decided_services.items():
        request = standing.hint_request
        if request.mode not in LIMITED_MODES:
            continue
        reach = standing.reach
        known = general if reach is None else shares(reach)
        if standing.node_reason != (code if reach is None else _code(known)):
            yield key
            continue
        for family in standing.families.values():
            if _crosses(request, known, family):
                yield key
                break


def _crosses(request: HintRequest, shares: Shares, family: FamilyPlan) -> bool:
    limits, decision, counts = request.limits, family.decision, family.counts
    if request.mode is Mode.AUTO:
        return limits.needs_decision(shares, counts, hinted=decision.hinted)
    if limits.shared_needs_decision(shares, counts, hinted=bool(decision.hints)):
        return True
    if request.mode is not Mode.WEIGHTED or shares.reason is not None:
        return False
    return not weights_suffice(decision.weights, counts.own, shares, limits)


def _code(shares: Shares) -> str:
    return "" if shares.reason is None else shares.reason.code
