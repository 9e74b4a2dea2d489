"""The slices of a Service: which endpoints, in which slice, with which hints. Pure."""

from zonewise.api.objects.discovery import SERVICE_LABEL, TRIGGER_ANNOTATION, service_of
from zonewise.traffic.slices.endpoint_pods import Members
from zonewise.traffic.slices.identity import (
    MANAGED_BY_LABEL,
    MANAGER,
    families_of,
    has_endpoints,
    is_managed,
    services_of,
)
from zonewise.traffic.slices.planning import (
    LIMIT,
    FamilyPlan,
    Memory,
    SlicePlan,
    SliceView,
    plan,
)
from zonewise.traffic.slices.reading import common_weights
from zonewise.traffic.slices.rehinting import asks, rehint, rehint_one

__all__ = [
    "LIMIT",
    "MANAGED_BY_LABEL",
    "MANAGER",
    "SERVICE_LABEL",
    "TRIGGER_ANNOTATION",
    "FamilyPlan",
    "Members",
    "Memory",
    "SlicePlan",
    "SliceView",
    "asks",
    "common_weights",
    "families_of",
    "has_endpoints",
    "is_managed",
    "plan",
    "rehint",
    "rehint_one",
    "service_of",
    "services_of",
]
