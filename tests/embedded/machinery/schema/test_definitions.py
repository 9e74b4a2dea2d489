"""The graph of built-in types: facts of the table, shared definitions, extensions, cycles."""

from __future__ import annotations

import pytest
from tests.embedded.machinery.schema.by_path import by_path

from zonewise.embedded.machinery.patch.strategic import PatchSchema
from zonewise.embedded.machinery.patch.strategic import apply as strategic
from zonewise.embedded.machinery.schema.definitions import (
    JSON_SCHEMA,
    Definitions,
    Extension,
    FieldRow,
    go_name,
    types_table,
)
from zonewise.embedded.machinery.schema.kinds import builtin_kinds, kind_table, served_kinds
from zonewise.embedded.machinery.schema.schema import UNSET, Schema

DEFINITIONS = Definitions()
CORE = "io.k8s.api.core.v1."


def core(name: str, *path: str) -> Schema:
    """The type of a field of a core definition."""
    kind = DEFINITIONS.schema(CORE + name)
    for step in path:
        below = kind.child(step)
        assert below is not None
        kind = below
        while kind.items is not None and step != path[-1]:
            kind = kind.items
    return kind


def test_lists_know_how_they_are_merged() -> None:
    """List types, keys and merge keys are those of a real server."""
    ports = core("Pod", "spec", "containers", "ports")
    assert (ports.list_type, ports.keys) == ("map", ("containerPort", "protocol"))
    assert (ports.merge, ports.merge_key) == (True, "containerPort")
    taints = core("NodeSpec", "taints")
    assert (taints.list_type, taints.merge) == ("atomic", False)
    finalizers = DEFINITIONS.schema("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").fields[
        "finalizers"
    ]
    assert (finalizers.list_type, finalizers.merge, finalizers.merge_key) == ("set", True, "")
    volumes = core("PodSpec", "volumes")
    assert (volumes.merge_key, volumes.retain_keys) == ("name", True)
    budget = DEFINITIONS.schema("io.k8s.api.policy.v1.PodDisruptionBudgetSpec")
    assert budget.fields["selector"].replace


def test_atomic_objects_may_be_granular_in_one_place() -> None:
    """Whether an object is atomic is defined by its type, unless a field overrides it."""
    assert core("ObjectReference").atomic
    assert not core("PersistentVolumeSpec", "claimRef").atomic
    assert core("EndpointAddress", "targetRef").atomic


def test_enums_required_and_formats_are_known() -> None:
    """Enums, required fields and formats are those of a real server."""
    assert core("ServicePort", "protocol").enum == ("SCTP", "TCP", "UDP")
    assert core("PodSpec").required == ("containers",)
    assert core("Secret", "data").values is not None
    values = core("Secret", "data").values
    assert values is not None
    assert values.format == "byte"
    assert core("ContainerPort", "containerPort").format == "int32"
    assert core("ServicePort", "targetPort").shape == "int-or-string"
    assert core("PodSpec", "containers").enforce_required
    assert not core("Sysctl", "value").enforce_required


def test_encoding_is_that_of_go() -> None:
    """A pointer keeps an explicit zero, a plain value drops it, without omitempty it is encoded."""
    grace = core("PodSpec", "terminationGracePeriodSeconds")
    assert (grace.omit_empty, grace.absent_value) == (False, UNSET)
    network = core("PodSpec", "hostNetwork")
    assert (network.omit_empty, network.absent_value) == (True, UNSET)
    name = core("Container", "name")
    assert (name.omit_empty, name.absent_value) == (False, "")
    assert core("PodSpec", "containers").absent_value is None
    assert core("Container", "resources").absent_value == {}
    assert core("Event", "firstTimestamp").absent_value is None


def test_uses_share_the_content_of_a_definition() -> None:
    """A field is a copy with its own facts that refers to its definition."""
    spec = core("Pod", "spec")
    assert spec is not DEFINITIONS.schema(CORE + "PodSpec")
    assert spec.definition is DEFINITIONS.schema(CORE + "PodSpec")
    assert spec.fields is DEFINITIONS.schema(CORE + "PodSpec").fields


def test_a_schema_of_schemas_ends_in_itself() -> None:
    """The graph has cycles and is finite."""
    schema = DEFINITIONS.schema(JSON_SCHEMA)
    properties = schema.fields["properties"].values
    assert properties is not None
    assert properties.definition is schema
    items = schema.fields["items"]
    assert items.items is not None
    assert items.items.definition is schema


def test_all_definitions_can_be_made() -> None:
    """Every definition of the table can be built, and every kind has one."""
    fresh = Definitions()
    assert all(fresh.schema(name).name == name for name in fresh)
    assert {row.type for row in kind_table().kinds} <= set(types_table().types)


def test_extensions_stay_in_their_own_graph() -> None:
    """A field of our own is only in the server that adds it."""
    mine = Definitions([Extension(CORE + "ServiceSpec", "extra", FieldRow(of="[]string"))])
    assert mine.schema(CORE + "Service").fields["spec"].fields["extra"].shape == "list"
    assert "extra" not in core("ServiceSpec").fields


def test_go_names_follow_from_expressions() -> None:
    """The Go name of a type in errors is derived from its expression if possible."""
    assert go_name("[]" + CORE + "Container") == "[]v1.Container"
    assert go_name("{}string") == "map[string]string"
    assert go_name("io.k8s.apimachinery.pkg.api.resource.Quantity") == "resource.Quantity"
    assert core("PodSpec", "restartPolicy").go_type == "v1.RestartPolicy"


def test_a_type_is_a_schema_for_strategic_merges() -> None:
    """Containers merge by name through the real types, tolerations are replaced."""
    schema: PatchSchema = DEFINITIONS.schema(CORE + "Pod")
    pod = {
        "spec": {
            "containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}],
            "tolerations": [{"key": "a"}],
        }
    }
    patch = {"spec": {"containers": [{"name": "b", "image": "2"}], "tolerations": [{"key": "b"}]}}
    assert strategic(pod, patch, schema)["spec"] == {
        "containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}],
        "tolerations": [{"key": "b"}],
    }


def test_kinds_have_the_names_and_subresources_clients_ask_for() -> None:
    """Kinds have the names and subresources that clients read from discovery."""
    kinds = by_path(builtin_kinds(DEFINITIONS))
    pods = kinds["", "v1", "pods"]
    assert (pods.singular, pods.short_names, pods.categories) == ("pod", ("po",), ("all",))
    assert pods.list_kind == "PodList"
    eviction = pods.subresources["eviction"]
    assert (eviction.group, eviction.version, eviction.kind) == ("policy", "v1", "Eviction")
    scale = kinds["apps", "v1", "deployments"].subresources["scale"]
    assert (scale.group, scale.version, scale.kind) == ("autoscaling", "v1", "Scale")
    assert kinds["apps", "v1", "deployments"].subresources["status"].group == "apps"
    assert [column.name for column in pods.columns][:3] == ["Name", "Ready", "Status"]


def test_kinds_of_one_storage_are_kept_together() -> None:
    """Events of both groups, and autoscalers of both versions, have one storage."""
    kinds = by_path(builtin_kinds(DEFINITIONS))
    assert kinds["", "v1", "events"].storage == "/events"
    assert kinds["events.k8s.io", "v1", "events"].storage == "/events"
    both = {
        kinds["autoscaling", version, "horizontalpodautoscalers"].storage
        for version in ("v1", "v2")
    }
    assert both == {"autoscaling/horizontalpodautoscalers"}
    assert kinds["apps", "v1", "deployments"].storage == "apps/deployments"


def test_the_embedded_server_has_the_fields_of_the_sources() -> None:
    """Services and budgets have the fields of the KEPs, budgets also in v1beta1."""
    kinds = by_path(served_kinds())
    spec = kinds["", "v1", "services"].schema.fields["spec"]
    assert spec.fields["trafficPolicy"].enum == ("Cluster", "Local", "PreferZone")
    assert spec.fields["topologyKeys"].shape == "list"
    old = kinds["policy", "v1beta1", "poddisruptionbudgets"]
    new = kinds["policy", "v1", "poddisruptionbudgets"]
    assert old.storage == new.storage
    assert old.schema.name == "io.k8s.api.policy.v1beta1.PodDisruptionBudget"
    assert old.schema.fields["spec"].name == "io.k8s.api.policy.v1beta1.PodDisruptionBudgetSpec"
    assert old.schema.fields["spec"].fields.keys() == new.schema.fields["spec"].fields.keys()
    term = old.schema.fields["spec"].fields["nodeSelectorTerm"]
    assert term.name == CORE + "NodeSelectorTerm"
    assert old.schema.fields["spec"].definition.name == old.schema.fields["spec"].name


@pytest.mark.parametrize("facts", [{"default": 1}, {"shape": "map"}])
def test_only_overrides_of_a_field_keep_the_link(facts: dict[str, object]) -> None:
    """A field that changes the content has a type of its own."""
    base = DEFINITIONS.schema(CORE + "PodSpec")
    assert (base.used_as(**facts).definition is base) == ("default" in facts)
