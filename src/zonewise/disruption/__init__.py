"""Which pods may be disrupted now: what budgets allow. Pure."""

from zonewise.disruption.baseline import fitted, settled, shares
from zonewise.disruption.budget import (
    POD_BUDGET,
    TOPOLOGY_BUDGET,
    Budget,
    BudgetKey,
    budget_of,
    fingerprint,
)
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.grouping import ELSEWHERE, WHOLE, Grouping, grouping_of
from zonewise.disruption.ledger import GRANT_SECONDS, GRANTS_LIMIT, Ledger, ledger_of
from zonewise.disruption.namespace_budgets import BUDGETS_LIMIT, NamespaceBudgets, same_place
from zonewise.disruption.owners import Owners, Place, ScaleOwner, owner_of, place_of
from zonewise.disruption.pdb import (
    DELETION_SECONDS,
    Asked,
    BudgetCount,
    asked,
    counted_by_scale,
    counted_status,
    disruption_target,
    disruption_target_withdrawn,
    failed_status,
    stale_after,
    why_none,
)
from zonewise.disruption.standing import SUFFICIENT, BudgetStanding, Domain
from zonewise.disruption.verdict import Blocker, DisruptionVerdict, Round
from zonewise.disruption.views import OWNERS

__all__ = [
    "BUDGETS_LIMIT",
    "DELETION_SECONDS",
    "ELSEWHERE",
    "GRANTS_LIMIT",
    "GRANT_SECONDS",
    "OWNERS",
    "POD_BUDGET",
    "SUFFICIENT",
    "TOPOLOGY_BUDGET",
    "WHOLE",
    "Asked",
    "Blocker",
    "Budget",
    "BudgetCount",
    "BudgetKey",
    "BudgetStanding",
    "BudgetsCache",
    "DisruptionVerdict",
    "Domain",
    "Grouping",
    "Ledger",
    "NamespaceBudgets",
    "Owners",
    "Place",
    "Round",
    "ScaleOwner",
    "asked",
    "budget_of",
    "counted_by_scale",
    "counted_status",
    "disruption_target",
    "disruption_target_withdrawn",
    "failed_status",
    "fingerprint",
    "fitted",
    "grouping_of",
    "ledger_of",
    "owner_of",
    "place_of",
    "same_place",
    "settled",
    "shares",
    "stale_after",
    "why_none",
]
