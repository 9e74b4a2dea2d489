"""Which rules hold for which kind.

Kinds with rules by hand have a class in a module of their own; the others get the shared rules with
the facts below, which were read off a real API server (and are checked against one by the contract
tests).
"""

from __future__ import annotations

from zonewise.embedded.allocation import Allocation
from zonewise.embedded.authorization import Authorizer
from zonewise.embedded.rules.autoscalers import AutoscalerRules
from zonewise.embedded.rules.base import Rules
from zonewise.embedded.rules.budgets import BudgetRules, PriorityRules
from zonewise.embedded.rules.cluster import NamespaceRules, NodeRules
from zonewise.embedded.rules.configs import AccountRules, ConfigMapRules, SecretRules
from zonewise.embedded.rules.customs import DefinitionRules
from zonewise.embedded.rules.drivers import (
    AttachmentRules,
    CapacityRules,
    DriverNodeRules,
    DriverRules,
    StorageClassRules,
)
from zonewise.embedded.rules.events import EventRules, NewEventRules
from zonewise.embedded.rules.hooks import HookRules
from zonewise.embedded.rules.jobs import CronJobRules, JobRules
from zonewise.embedded.rules.leases import LeaseRules
from zonewise.embedded.rules.network import (
    AddressRules,
    IngressClassRules,
    IngressRules,
    PolicyRules,
)
from zonewise.embedded.rules.pods import PodRules
from zonewise.embedded.rules.quotas import LimitRangeRules, QuotaRules
from zonewise.embedded.rules.roles import BindingRules, RoleRules
from zonewise.embedded.rules.services import ServiceRules
from zonewise.embedded.rules.sets import DaemonSetRules, StatefulSetRules
from zonewise.embedded.rules.signing import SigningRules
from zonewise.embedded.rules.slices import EndpointsRules, SliceRules
from zonewise.embedded.rules.storage import ClaimRules, VolumeRules
from zonewise.embedded.rules.workloads import (
    DeploymentRules,
    PodTemplateRules,
    ReplicaSetRules,
    ReplicationControllerRules,
    RevisionRules,
)

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
        "storage.k8s.io/csidrivers",
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
        "/resourcequotas",
        "/serviceaccounts",
        "/services",
        "apiextensions.k8s.io/customresourcedefinitions",
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
        "flowcontrol.apiserver.k8s.io/flowschemas",
        "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
        "networking.k8s.io/servicecidrs",
        "resource.k8s.io/resourceclaims",
        "storage.k8s.io/volumeattachments",
    }
)
"""Kinds whose status subresource leaves labels alone."""

RBAC = "rbac.authorization.k8s.io"


class Catalog:
    """Makes the rules of each stored kind, once."""

    def __init__(self, *, allocation: Allocation, authorizer: Authorizer) -> None:
        self._made: dict[str, Rules] = {
            "/configmaps": ConfigMapRules(),
            "/endpoints": EndpointsRules(),
            "/events": EventRules(),
            "/limitranges": LimitRangeRules(),
            "/namespaces": NamespaceRules(),
            "/nodes": NodeRules(),
            "/pods": PodRules(),
            "/podtemplates": PodTemplateRules(),
            "/replicationcontrollers": ReplicationControllerRules(),
            "/persistentvolumeclaims": ClaimRules(),
            "/persistentvolumes": VolumeRules(),
            "/resourcequotas": QuotaRules(),
            "/secrets": SecretRules(),
            "/serviceaccounts": AccountRules(),
            "/services": ServiceRules(allocation),
            "admissionregistration.k8s.io/mutatingwebhookconfigurations": HookRules(),
            "admissionregistration.k8s.io/validatingwebhookconfigurations": HookRules(),
            "apiextensions.k8s.io/customresourcedefinitions": DefinitionRules(),
            "apps/controllerrevisions": RevisionRules(),
            "apps/daemonsets": DaemonSetRules(),
            "apps/deployments": DeploymentRules(),
            "apps/replicasets": ReplicaSetRules(),
            "apps/statefulsets": StatefulSetRules(),
            "autoscaling/horizontalpodautoscalers": AutoscalerRules(),
            "batch/cronjobs": CronJobRules(),
            "batch/jobs": JobRules(),
            "certificates.k8s.io/certificatesigningrequests": SigningRules(),
            "coordination.k8s.io/leases": LeaseRules(),
            "discovery.k8s.io/endpointslices": SliceRules(),
            "events.k8s.io/events": NewEventRules(),
            "networking.k8s.io/ingressclasses": IngressClassRules(),
            "networking.k8s.io/ipaddresses": AddressRules(),
            "networking.k8s.io/ingresses": IngressRules(),
            "networking.k8s.io/networkpolicies": PolicyRules(),
            "storage.k8s.io/csidrivers": DriverRules(),
            "storage.k8s.io/csinodes": DriverNodeRules(),
            "storage.k8s.io/csistoragecapacities": CapacityRules(),
            "storage.k8s.io/storageclasses": StorageClassRules(),
            "storage.k8s.io/volumeattachments": AttachmentRules(),
            "policy/poddisruptionbudgets": BudgetRules(),
            "scheduling.k8s.io/priorityclasses": PriorityRules(),
        }
        for kind, plural in (("Role", "roles"), ("ClusterRole", "clusterroles")):
            self._made[f"{RBAC}/{plural}"] = RoleRules(authorizer, kind, plural)
        for kind, plural in (
            ("RoleBinding", "rolebindings"),
            ("ClusterRoleBinding", "clusterrolebindings"),
        ):
            self._made[f"{RBAC}/{plural}"] = BindingRules(authorizer, kind, plural)

    def of(self, storage: str) -> Rules:
        """The rules of a stored kind."""
        rules = self._made.get(storage)
        if rules is None:
            rules = self._made[storage] = Rules()
        rules.generation = storage in COUNTED
        rules.answers_deleted = storage in ANSWERS_DELETED
        rules.blind_update = storage not in VERSIONED_UPDATES
        rules.creates_on_update = storage in CREATED_BY_UPDATE
        rules.status_keeps_metadata = storage in STATUS_KEEPS_METADATA
        return rules
