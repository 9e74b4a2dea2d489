"""Fields of the source documents that Kubernetes does not have, on top of the generated table.

The embedded server knows them always, as a real server knows the fields of its disabled features;
the rules of the kind drop what its feature gate does not allow.
"""

from __future__ import annotations

from zonewise.api.definitions import Extension, Row

SERVICE_SPEC = "io.k8s.api.core.v1.ServiceSpec"
BUDGET_SPEC = "io.k8s.api.policy.v1.PodDisruptionBudgetSpec"

SOURCE_FIELDS = (
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
