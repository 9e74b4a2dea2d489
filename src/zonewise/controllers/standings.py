"""How each Service stood when it was last decided, and which of them a node event concerns.

A node event changes shares, and shares concern only Services in mode Auto. Of each the number of
ready endpoints, the number of hints per zone and its limits are kept; that is enough to tell, with
a few multiplications, whether it crosses a limit in either direction. Only those that do are
decided again, so a node that comes or goes rewrites the slices of few Services or none, and a
Service that had lost its hints gets them back with no event of its own.

A Service whose reason was a property of the nodes is looked at again when that reason changes, so
that nobody reads about a label that was mended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from zonewise.api.core import Service
from zonewise.api.meta import Key
from zonewise.topology import Reach, Shares
from zonewise.traffic import Mode, Wish
from zonewise.traffic.slices import Family, Plan


@dataclass(frozen=True, slots=True)
class Standing:
    """A Service after its last decision."""

    uid: str
    wish: Wish
    families: Mapping[str, Family]
    reach: Reach | None
    distribution: str
    node_reason: str
    """The reason why nodes let nobody decide then, "" if they did."""

    @classmethod
    def of(
        cls, service: Service, wish: Wish, plan: Plan, shares: Shares, reach: Reach | None
    ) -> Standing:
        """How a Service stands with a plan."""
        return cls(
            uid=service.metadata.uid,
            wish=wish,
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
        return self.wish.mode.value, "unhinted", "NoEndpoints"


def concerned(
    standings: Mapping[Key, Standing], shares: Callable[[Reach | None], Shares]
) -> Iterator[Key]:
    """The Services that new shares ask to decide again."""
    general = shares(None)
    code = _code(general)
    for key, standing in standings.items():
        wish = standing.wish
        if wish.mode is not Mode.AUTO:
            continue
        reach = standing.reach
        known = general if reach is None else shares(reach)
        if standing.node_reason != (code if reach is None else _code(known)):
            yield key
            continue
        crosses = wish.limits.crosses
        for family in standing.families.values():
            if crosses(known, family.ready, family.per_zone, hinted=family.decision.hinted):
                yield key
                break


def _code(shares: Shares) -> str:
    return "" if shares.reason is None else shares.reason.code
