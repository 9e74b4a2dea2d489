"""Which rules hold for which kind.

Kinds with rules by hand have a class in a module of their own; the others get the shared rules with
the facts below, which were read off a real API server (and are checked against one by the contract
tests).
"""

from __future__ import annotations

from zonewise.embedded.apiserver.auth.authorization import Authorizer
from zonewise.embedded.apiserver.strategy.base import Rules
from zonewise.embedded.apiserver.strategy.cluster.configs import (
    ConfigMapRules,
    SecretRules,
    ServiceAccountRules,
)
from zonewise.embedded.apiserver.strategy.cluster.custom_resources import DefinitionRules
from zonewise.embedded.apiserver.strategy.cluster.events import EventRules, NewEventRules
from zonewise.embedded.apiserver.strategy.cluster.nodes import LeaseRules, NamespaceRules, NodeRules
from zonewise.embedded.apiserver.strategy.cluster.quotas import LimitRangeRules, QuotaRules
from zonewise.embedded.apiserver.strategy.cluster.roles import BindingRules, RoleRules
from zonewise.embedded.apiserver.strategy.cluster.signing_requests import SigningRules
from zonewise.embedded.apiserver.strategy.cluster.webhooks import WebhookRules
from zonewise.embedded.apiserver.strategy.network.allocation import Allocation
from zonewise.embedded.apiserver.strategy.network.ingresses import (
    IngressClassRules,
    IngressRules,
    IPAddressRules,
    NetworkPolicyRules,
)
from zonewise.embedded.apiserver.strategy.network.services import ServiceRules
from zonewise.embedded.apiserver.strategy.network.slices import EndpointSliceRules, EndpointsRules
from zonewise.embedded.apiserver.strategy.pod.pods import PodRules
from zonewise.embedded.apiserver.strategy.storage.drivers import (
    CSIDriverRules,
    CSINodeRules,
    CSIStorageCapacityRules,
    StorageClassRules,
    VolumeAttachmentRules,
)
from zonewise.embedded.apiserver.strategy.storage.volumes import (
    PersistentVolumeClaimRules,
    PersistentVolumeRules,
)
from zonewise.embedded.apiserver.strategy.workload.autoscalers import HorizontalPodAutoscalerRules
from zonewise.embedded.apiserver.strategy.workload.budgets import (
    PodDisruptionBudgetRules,
    PriorityClassRules,
)
from zonewise.embedded.apiserver.strategy.workload.deployments import (
    ControllerRevisionRules,
    DeploymentRules,
    PodTemplateRules,
    ReplicaSetRules,
    ReplicationControllerRules,
)
from zonewise.embedded.apiserver.strategy.workload.jobs import CronJobRules, JobRules
from zonewise.embedded.apiserver.strategy.workload.sets import DaemonSetRules, StatefulSetRules
from zonewise.embedded.machinery.fields.reset_fields import STATUS_WITHOUT_METADATA

ADMISSION = "admissionregistration.k8s.io"
RBAC = "rbac.authorization.k8s.io"
POLICIES = (
    "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations"
    " validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations"
)


def _storage_keys(by_group: dict[str, str]) -> frozenset[str]:
    return frozenset(
        f"{group}/{plural}" for group, plurals in by_group.items() for plural in plurals.split()
    )


COUNTED = _storage_keys(
    {
        "": "pods podtemplates replicationcontrollers",
        ADMISSION: POLICIES,
        "apiextensions.k8s.io": "customresourcedefinitions",
        "apps": "daemonsets deployments replicasets statefulsets",
        "batch": "cronjobs jobs",
        "discovery.k8s.io": "endpointslices",
        "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
        "networking.k8s.io": "ingressclasses ingresses networkpolicies",
        "policy": "poddisruptionbudgets",
        "resource.k8s.io": "deviceclasses resourceslices",
        "scheduling.k8s.io": "priorityclasses",
        "storage.k8s.io": "csidrivers",
    }
)
"""Kinds with a generation."""

ANSWERS_DELETED = _storage_keys(
    {
        "": "namespaces persistentvolumeclaims persistentvolumes pods podtemplates resourcequotas"
        " serviceaccounts services",
        "apiextensions.k8s.io": "customresourcedefinitions",
        "resource.k8s.io": "deviceclasses resourceclaims resourceclaimtemplates resourceslices",
        "storage.k8s.io": "csidrivers csinodes storageclasses volumeattachments"
        " volumeattributesclasses",
    }
)
"""Kinds whose deletion answers the object."""

VERSIONED_UPDATES = _storage_keys(
    {
        ADMISSION: POLICIES,
        "apiextensions.k8s.io": "customresourcedefinitions",
        "coordination.k8s.io": "leases",
        "node.k8s.io": "runtimeclasses",
        "policy": "poddisruptionbudgets",
        "storage.k8s.io": "csidrivers csinodes csistoragecapacities volumeattachments",
    }
)
"""Kinds whose PUT must carry a resourceVersion."""

CREATED_BY_UPDATE = _storage_keys(
    {
        "": "endpoints events limitranges services",
        "coordination.k8s.io": "leases",
        "events.k8s.io": "events",
        "node.k8s.io": "runtimeclasses",
        RBAC: "clusterrolebindings clusterroles rolebindings roles",
    }
)
"""Kinds whose PUT creates what is missing."""


class Catalog:
    """Makes the rules of each stored kind, once."""

    def __init__(self, *, allocation: Allocation, authorizer: Authorizer) -> None:
        self._rules: dict[str, Rules] = {
            "/configmaps": ConfigMapRules(),
            "/endpoints": EndpointsRules(),
            "/events": EventRules(),
            "/limitranges": LimitRangeRules(),
            "/namespaces": NamespaceRules(),
            "/nodes": NodeRules(),
            "/pods": PodRules(),
            "/podtemplates": PodTemplateRules(),
            "/replicationcontrollers": ReplicationControllerRules(),
            "/persistentvolumeclaims": PersistentVolumeClaimRules(),
            "/persistentvolumes": PersistentVolumeRules(),
            "/resourcequotas": QuotaRules(),
            "/secrets": SecretRules(),
            "/serviceaccounts": ServiceAccountRules(),
            "/services": ServiceRules(allocation),
            f"{ADMISSION}/mutatingwebhookconfigurations": WebhookRules(),
            f"{ADMISSION}/validatingwebhookconfigurations": WebhookRules(),
            "apiextensions.k8s.io/customresourcedefinitions": DefinitionRules(),
            "apps/controllerrevisions": ControllerRevisionRules(),
            "apps/daemonsets": DaemonSetRules(),
            "apps/deployments": DeploymentRules(),
            "apps/replicasets": ReplicaSetRules(),
            "apps/statefulsets": StatefulSetRules(),
            "autoscaling/horizontalpodautoscalers": HorizontalPodAutoscalerRules(),
            "batch/cronjobs": CronJobRules(),
            "batch/jobs": JobRules(),
            "certificates.k8s.io/certificatesigningrequests": SigningRules(),
            "coordination.k8s.io/leases": LeaseRules(),
            "discovery.k8s.io/endpointslices": EndpointSliceRules(),
            "events.k8s.io/events": NewEventRules(),
            "networking.k8s.io/ingressclasses": IngressClassRules(),
            "networking.k8s.io/ipaddresses": IPAddressRules(),
            "networking.k8s.io/ingresses": IngressRules(),
            "networking.k8s.io/networkpolicies": NetworkPolicyRules(),
            "storage.k8s.io/csidrivers": CSIDriverRules(),
            "storage.k8s.io/csinodes": CSINodeRules(),
            "storage.k8s.io/csistoragecapacities": CSIStorageCapacityRules(),
            "storage.k8s.io/storageclasses": StorageClassRules(),
            "storage.k8s.io/volumeattachments": VolumeAttachmentRules(),
            "policy/poddisruptionbudgets": PodDisruptionBudgetRules(),
            "scheduling.k8s.io/priorityclasses": PriorityClassRules(),
        }
        for kind in ("Role", "ClusterRole"):
            roles, bindings = f"{kind.lower()}s", f"{kind.lower()}bindings"
            self._rules[f"{RBAC}/{roles}"] = RoleRules(authorizer, kind, roles)
            self._rules[f"{RBAC}/{bindings}"] = BindingRules(authorizer, f"{kind}Binding", bindings)

    def allocating(self) -> dict[str, Rules]:
        """The rules that take what must be unique in the cluster, by stored kind."""
        return {storage: rules for storage, rules in self._rules.items() if rules.allocates}

    def of(self, storage: str) -> Rules:
        """The rules of a stored kind."""
        rules = self._rules.setdefault(storage, Rules())
        rules.generation = storage in COUNTED
        rules.answers_deleted = storage in ANSWERS_DELETED
        rules.blind_update = storage not in VERSIONED_UPDATES
        rules.creates_on_update = storage in CREATED_BY_UPDATE
        rules.status_keeps_metadata = storage in STATUS_WITHOUT_METADATA
        return rules
