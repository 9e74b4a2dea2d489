"""Fields that a real server does not have, or has switched off, on top of the generated table.

Those of the source documents the embedded server knows always, as a real server knows the fields of
its disabled features; the rules of the kind drop what its feature gate does not allow. And it keeps
``maxUnavailable`` of StatefulSets, which Kubernetes 1.36 has behind a gate that is off.
"""

from __future__ import annotations

from zonewise.api.definitions import Extension, Row

SERVICE_SPEC = "io.k8s.api.core.v1.ServiceSpec"
BUDGET_SPEC = "io.k8s.api.policy.v1.PodDisruptionBudgetSpec"
STATEFUL_UPDATE = "io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy"

SOURCE_FIELDS = (
    Extension(
        STATEFUL_UPDATE,
        "maxUnavailable",
        Row(of="io.k8s.apimachinery.pkg.util.intstr.IntOrString", pointer=True),
    ),
    Extension(SERVICE_SPEC, "topologyKeys", Row(of="[]string")),
    Extension(
        SERVICE_SPEC,
        "trafficPolicy",
        Row(
            of="string",
            pointer=True,
            enum=("Cluster", "Local", "PreferZone"),
            go="v1.ServiceTrafficPolicy",
        ),
    ),
    Extension(
        BUDGET_SPEC,
        "nodeSelectorTerm",
        Row(of="io.k8s.api.core.v1.NodeSelectorTerm", pointer=True),
    ),
)
