"""The slices of a Service: which endpoints, in which slice, for whom. Pure."""

from zonewise.traffic.slices.candidates import Members
from zonewise.traffic.slices.identity import (
    MANAGED_BY_LABEL,
    MANAGER,
    SERVICE_LABEL,
    TRIGGER_ANNOTATION,
    families_of,
    has_endpoints,
    is_managed,
    service_of,
    services_of,
)
from zonewise.traffic.slices.planning import (
    LIMIT,
    Family,
    Memory,
    Plan,
    View,
    plan,
)
from zonewise.traffic.slices.rehinting import asks, rehint, rehint_one

__all__ = [
    "LIMIT",
    "MANAGED_BY_LABEL",
    "MANAGER",
    "SERVICE_LABEL",
    "TRIGGER_ANNOTATION",
    "Family",
    "Members",
    "Memory",
    "Plan",
    "View",
    "asks",
    "families_of",
    "has_endpoints",
    "is_managed",
    "plan",
    "rehint",
    "rehint_one",
    "service_of",
    "services_of",
]
