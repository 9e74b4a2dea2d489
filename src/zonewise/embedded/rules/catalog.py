"""Which rules hold for which kind.

Kinds with rules by hand have a class in a module of their own; the others get the shared rules with
the facts below, which were read off a real API server (and are checked against one by the contract
tests).
"""

from __future__ import annotations

from zonewise.embedded.allocation import Allocation
from zonewise.embedded.rules import names
from zonewise.embedded.rules.base import Rules
from zonewise.embedded.rules.cluster import NamespaceRules, NodeRules
from zonewise.embedded.rules.configs import ConfigMapRules, SecretRules
from zonewise.embedded.rules.customs import DefinitionRules
from zonewise.embedded.rules.events import EventRules, NewEventRules
from zonewise.embedded.rules.leases import LeaseRules
from zonewise.embedded.rules.pods import PodRules
from zonewise.embedded.rules.quotas import LimitRangeRules, QuotaRules
from zonewise.embedded.rules.services import ServiceRules


class PathNamed(Rules):
    """Kinds whose names may be anything that fits between two slashes."""

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none."""
        return names.path_segment(name)


COUNTED = frozenset(
    {
        "/podtemplates",
        "/replicationcontrollers",
        "admissionregistration.k8s.io/mutatingadmissionpolicies",
        "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
        "admissionregistration.k8s.io/validatingadmissionpolicies",
        "admissionregistration.k8s.io/validatingadmissionpolicybindings",
        "admissionregistration.k8s.io/mutatingwebhookconfigurations",
        "admissionregistration.k8s.io/validatingwebhookconfigurations",
        "apiextensions.k8s.io/customresourcedefinitions",
        "apps/daemonsets",
        "apps/deployments",
        "apps/replicasets",
        "apps/statefulsets",
        "batch/cronjobs",
        "batch/jobs",
        "discovery.k8s.io/endpointslices",
        "flowcontrol.apiserver.k8s.io/flowschemas",
        "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
        "networking.k8s.io/ingressclasses",
        "networking.k8s.io/ingresses",
        "networking.k8s.io/networkpolicies",
        "/pods",
        "policy/poddisruptionbudgets",
        "resource.k8s.io/deviceclasses",
        "resource.k8s.io/resourceslices",
        "scheduling.k8s.io/priorityclasses",
    }
)
"""Kinds with a generation."""

ANSWERS_DELETED = frozenset(
    {
        "/namespaces",
        "/persistentvolumeclaims",
        "/persistentvolumes",
        "/pods",
        "/podtemplates",
        "/replicationcontrollers",
        "/resourcequotas",
        "/serviceaccounts",
        "/services",
        "apiextensions.k8s.io/customresourcedefinitions",
        "batch/jobs",
        "resource.k8s.io/deviceclasses",
        "resource.k8s.io/resourceclaims",
        "resource.k8s.io/resourceclaimtemplates",
        "resource.k8s.io/resourceslices",
        "storage.k8s.io/csidrivers",
        "storage.k8s.io/csinodes",
        "storage.k8s.io/storageclasses",
        "storage.k8s.io/volumeattachments",
        "storage.k8s.io/volumeattributesclasses",
    }
)
"""Kinds whose deletion answers the object."""

VERSIONED_UPDATES = frozenset(
    {
        "admissionregistration.k8s.io/mutatingadmissionpolicies",
        "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
        "admissionregistration.k8s.io/mutatingwebhookconfigurations",
        "admissionregistration.k8s.io/validatingadmissionpolicies",
        "admissionregistration.k8s.io/validatingadmissionpolicybindings",
        "admissionregistration.k8s.io/validatingwebhookconfigurations",
        "apiextensions.k8s.io/customresourcedefinitions",
        "coordination.k8s.io/leases",
        "node.k8s.io/runtimeclasses",
        "policy/poddisruptionbudgets",
        "storage.k8s.io/csidrivers",
        "storage.k8s.io/csinodes",
        "storage.k8s.io/csistoragecapacities",
        "storage.k8s.io/volumeattachments",
    }
)
"""Kinds whose PUT must carry a resourceVersion."""

CREATED_BY_UPDATE = frozenset(
    {
        "/endpoints",
        "/events",
        "/limitranges",
        "/services",
        "coordination.k8s.io/leases",
        "events.k8s.io/events",
        "node.k8s.io/runtimeclasses",
        "rbac.authorization.k8s.io/clusterrolebindings",
        "rbac.authorization.k8s.io/clusterroles",
        "rbac.authorization.k8s.io/rolebindings",
        "rbac.authorization.k8s.io/roles",
    }
)
"""Kinds whose PUT creates what is missing."""

STATUS_KEEPS_METADATA = frozenset(
    {
        "admissionregistration.k8s.io/validatingadmissionpolicies",
        "apiregistration.k8s.io/apiservices",
        "apps/deployments",
        "flowcontrol.apiserver.k8s.io/flowschemas",
        "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
        "networking.k8s.io/servicecidrs",
        "resource.k8s.io/resourceclaims",
        "storage.k8s.io/volumeattachments",
    }
)
"""Kinds whose status subresource leaves labels alone."""

PATH_NAMED = frozenset(
    f"rbac.authorization.k8s.io/{plural}"
    for plural in ("clusterrolebindings", "clusterroles", "rolebindings", "roles")
)


class Catalog:
    """Makes the rules of each stored kind, once."""

    def __init__(self, *, allocation: Allocation) -> None:
        self._made: dict[str, Rules] = {
            "/configmaps": ConfigMapRules(),
            "/events": EventRules(),
            "/limitranges": LimitRangeRules(),
            "/namespaces": NamespaceRules(),
            "/nodes": NodeRules(),
            "/pods": PodRules(),
            "/resourcequotas": QuotaRules(),
            "/secrets": SecretRules(),
            "/services": ServiceRules(allocation),
            "apiextensions.k8s.io/customresourcedefinitions": DefinitionRules(),
            "coordination.k8s.io/leases": LeaseRules(),
            "events.k8s.io/events": NewEventRules(),
        }

    def of(self, storage: str) -> Rules:
        """The rules of a stored kind."""
        rules = self._made.get(storage)
        if rules is None:
            rules = self._made[storage] = PathNamed() if storage in PATH_NAMED else Rules()
        rules.generation = storage in COUNTED
        rules.answers_deleted = storage in ANSWERS_DELETED
        rules.blind_update = storage not in VERSIONED_UPDATES
        rules.creates_on_update = storage in CREATED_BY_UPDATE
        rules.status_keeps_metadata = storage in STATUS_KEEPS_METADATA
        return rules
