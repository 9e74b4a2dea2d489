"""Fields that a real server does not have, or has switched off, on top of the generated table.

The embedded server always has those of the source documents, as a real server has the fields of its
disabled features; the strategy of the kind drops what its feature gate does not allow. It also
stores ``maxUnavailable`` of StatefulSets, which Kubernetes 1.36 has behind a gate that is off.
"""

from __future__ import annotations

from zonewise.embedded.machinery.schema.definitions import Definition, Extension, FieldRow

SERVICE_SPEC = "io.k8s.api.core.v1.ServiceSpec"
BUDGET_SPEC = "io.k8s.api.policy.v1.PodDisruptionBudgetSpec"
BUDGET_STATUS = "io.k8s.api.policy.v1.PodDisruptionBudgetStatus"
DOMAIN_STATUS = "io.zonewise.v1alpha1.DomainStatus"
STATEFUL_UPDATE = "io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy"

SOURCE_TYPES = {
    DOMAIN_STATUS: Definition(
        fields={
            "domain": FieldRow(of="string", always=True),
            "expectedPods": FieldRow(of="int32", always=True),
            "desiredHealthy": FieldRow(of="int32", always=True),
            "currentHealthy": FieldRow(of="int32", always=True),
            "disruptionsAllowed": FieldRow(of="int32", pointer=True),
        }
    )
}

SOURCE_FIELDS = (
    Extension(BUDGET_STATUS, "fingerprint", FieldRow(of="string")),
    Extension(
        BUDGET_STATUS,
        "domains",
        FieldRow(of=f"[]{DOMAIN_STATUS}", list="map", keys=("domain",), merge="domain"),
    ),
    Extension(
        STATEFUL_UPDATE,
        "maxUnavailable",
        FieldRow(of="io.k8s.apimachinery.pkg.util.intstr.IntOrString", pointer=True),
    ),
    Extension(SERVICE_SPEC, "topologyKeys", FieldRow(of="[]string")),
    Extension(
        SERVICE_SPEC,
        "trafficPolicy",
        FieldRow(
            of="string",
            pointer=True,
            enum=("Cluster", "Local", "PreferZone"),
            go="v1.ServiceTrafficPolicy",
        ),
    ),
    Extension(
        BUDGET_SPEC,
        "nodeSelectorTerm",
        FieldRow(of="io.k8s.api.core.v1.NodeSelectorTerm", pointer=True),
    ),
)
