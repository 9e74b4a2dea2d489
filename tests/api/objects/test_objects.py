"""The Structs compared with a real API server's OpenAPI: names, types, nulls, completeness."""

from __future__ import annotations

from functools import cache

import msgspec.inspect as shapes
import pytest

from zonewise import api
from zonewise.api.objects.coordination import LeaseSpec
from zonewise.api.objects.discovery import (
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    ForNode,
    ForZone,
)
from zonewise.api.objects.events import EventSeries
from zonewise.embedded.machinery.schema.definitions import Definition, FieldRow, types_table

TYPES = types_table().types

# Fields of the sources, which only the embedded cluster has, and members that one shared Struct
# has for some of the kinds that use it.
OURS = {
    "io.k8s.api.core.v1.ServiceSpec.trafficPolicy",
    "io.k8s.api.core.v1.ServiceSpec.topologyKeys",
    "io.k8s.api.policy.v1.PodDisruptionBudgetSpec.nodeSelectorTerm",
    "io.k8s.api.policy.v1.PodDisruptionBudgetSpec.expectedPods",
    "io.k8s.api.policy.v1.PodDisruptionBudgetStatus.domains",
    "io.k8s.api.policy.v1.PodDisruptionBudgetStatus.fingerprint",
    "io.k8s.api.core.v1.NamespaceCondition.observedGeneration",
    "io.k8s.api.core.v1.PersistentVolumeClaimCondition.observedGeneration",
    "io.k8s.api.core.v1.TypedLocalObjectReference.namespace",
    "io.k8s.api.apps.v1.DeploymentCondition.observedGeneration",
    "io.k8s.api.apps.v1.ReplicaSetCondition.observedGeneration",
    "io.k8s.api.apps.v1.StatefulSetCondition.observedGeneration",
    "io.k8s.api.apps.v1.DaemonSetCondition.observedGeneration",
    "io.k8s.api.core.v1.ReplicationControllerCondition.observedGeneration",
    "io.k8s.api.core.v1.ReplicationControllerSpec.",
    "io.k8s.api.core.v1.ReplicationControllerStatus.terminatingReplicas",
}
NEVER_NULL = {
    f"io.k8s.api.apps.v1.{kind}Spec.selector"
    for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
}
"""Go would print null, but no server stores an object without these."""

FULL = {
    api.EndpointSlice,
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    ForNode,
    ForZone,
    api.ObjectReference,
    api.Event,
    EventSeries,
    api.Lease,
    LeaseSpec,
}


CUSTOM = {"zonewise.io", "snapshot.storage.k8s.io"}
"""Groups of custom resources, which a server has only when they are defined."""


def kinds() -> list[type[api.Object]]:
    """All typed kinds of a real server."""
    return [
        kind
        for kind in vars(api).values()
        if isinstance(kind, type)
        and issubclass(kind, api.Object)
        and kind is not api.Object
        and kind.resource.group not in CUSTOM
    ]


def definition(kind: type[api.Object]) -> str:
    """The name of a kind in OpenAPI."""
    gvk = (kind.resource.group, kind.resource.version, kind.resource.kind)
    return next(name for name, known in TYPES.items() if gvk in known.gvk)


@cache
def walk(kind: type[api.Object]) -> list[tuple[shapes.StructType, str, Definition]]:
    """All Structs of a kind, each with its OpenAPI name; each pair once."""
    seen: dict[tuple[type, str], tuple[shapes.StructType, str, Definition]] = {}
    top = shapes.type_info(kind)
    assert isinstance(top, shapes.StructType)
    waiting = [(top, definition(kind))]
    while waiting:
        struct, name = waiting.pop()
        if (struct.cls, name) in seen:
            continue
        seen[struct.cls, name] = (struct, name, TYPES[name])
        for field in struct.fields:
            row = TYPES[name].fields.get(field.encode_name)
            inner = item(field.type)
            if row is not None and isinstance(inner, shapes.StructType):
                waiting.append((inner, row.of.lstrip("[]{}")))
    return list(seen.values())


def options(shape: shapes.Type) -> list[shapes.Type]:
    """The types that a field may have."""
    return list(shape.types) if isinstance(shape, shapes.UnionType) else [shape]


def item(shape: shapes.Type) -> shapes.Type:
    """The type of a field, or of its items if it is a list or a map."""
    for option in options(shape):
        if isinstance(option, shapes.VarTupleType):
            return option.item_type
        if isinstance(option, shapes.DictType):
            return option.value_type
        if not isinstance(option, shapes.NoneType):
            return option
    raise AssertionError(shape)


def fits(shape: shapes.Type, row: FieldRow) -> bool:
    """Whether a field's Python type can hold what the server sends."""
    names = {type(option) for option in options(shape)}
    if shapes.RawType in names:
        return True
    if row.of.startswith("[]"):
        return shapes.VarTupleType in names
    if row.of.startswith("{}"):
        return shapes.DictType in names
    match row.of:
        case "string" | "byte":
            return shapes.StrType in names
        case "int32" | "int64":
            return shapes.IntType in names
        case "boolean":
            return shapes.BoolType in names
    known = TYPES[row.of]
    if known.shape == "object":
        return bool(names & {shapes.StructType, shapes.DictType})
    return shapes.StrType in names


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_names_and_types_are_those_of_a_real_server(kind: type[api.Object]) -> None:
    """No Struct reads a misspelled field or expects another JSON type than a real server sends."""
    for struct, name, known in walk(kind):
        for field in struct.fields:
            where = f"{name}.{field.encode_name}"
            row = known.fields.get(field.encode_name)
            assert (row is None) == (where in OURS), where
            assert row is None or fits(field.type, row), where


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_nulls_that_a_real_server_sends_are_accepted(kind: type[api.Object]) -> None:
    """Where Go prints null for an empty list, map, pointer or time, the type allows it."""
    for struct, name, known in walk(kind):
        for field in struct.fields:
            row = known.fields.get(field.encode_name)
            if row is None or not row.always or f"{name}.{field.encode_name}" in NEVER_NULL:
                continue
            if row.pointer or row.of.startswith(("[]", "{}")) or row.of.endswith("Time"):
                nullable = any(isinstance(o, shapes.NoneType) for o in options(field.type))
                assert nullable, f"{name}.{field.encode_name}"


def test_what_is_written_whole_is_complete() -> None:
    """Structs that are written as whole lists or objects have every field of the API."""
    checked = set()
    for kind in (api.EndpointSlice, api.Event, api.Lease):
        for struct, name, known in walk(kind):
            if struct.cls in FULL:
                checked.add(struct.cls)
                ours = {field.encode_name for field in struct.fields}
                assert set(known.fields) - ours <= {"apiVersion", "kind"}, name
    assert checked == FULL


def test_kinds_of_the_plan_are_all_there() -> None:
    """Every kind that the project reads has a Struct with its resource."""
    assert {(kind.resource.api_version, kind.resource.kind) for kind in kinds()} == {
        ("v1", "Namespace"),
        ("v1", "Node"),
        ("v1", "PersistentVolume"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "Pod"),
        ("v1", "ReplicationController"),
        ("v1", "Service"),
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("apps/v1", "ControllerRevision"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "Deployment"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("coordination.k8s.io/v1", "Lease"),
        ("discovery.k8s.io/v1", "EndpointSlice"),
        ("events.k8s.io/v1", "Event"),
        ("policy/v1", "PodDisruptionBudget"),
        ("storage.k8s.io/v1", "CSIDriver"),
        ("storage.k8s.io/v1", "CSINode"),
        ("storage.k8s.io/v1", "CSIStorageCapacity"),
        ("storage.k8s.io/v1", "StorageClass"),
        ("storage.k8s.io/v1", "VolumeAttachment"),
    }


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_objects_stay_out_of_the_garbage_collector_and_cannot_be_changed(
    kind: type[api.Object],
) -> None:
    """Every Struct of a kind is frozen, untracked by the cyclic collector, and keyword only."""
    for struct, _, _ in walk(kind):
        config = struct.cls.__struct_config__
        assert config.frozen
        assert config.gc is False
        assert config.omit_defaults
        with pytest.raises(TypeError):
            struct.cls("positional")


def test_an_object_built_from_nothing_has_empty_parts() -> None:
    """Parts of an object that are not given have empty values, and reading them is no error."""
    pod = api.Pod()
    assert pod.key == ("", "")
    assert pod.metadata.labels == {}
    assert pod.spec.containers == ()
    assert pod.status.conditions == ()
    assert pod.metadata.controller is None


def test_the_controlling_owner_is_found_among_several() -> None:
    """An object's controller is the one owner that says so."""
    meta = api.ObjectMeta(
        owner_references=(
            api.OwnerReference(kind="Service", name="s"),
            api.OwnerReference(kind="ReplicaSet", name="r", controller=True),
        )
    )
    assert meta.controller is not None
    assert meta.controller.name == "r"


def test_an_endpoint_survives_decoding_and_encoding_unchanged() -> None:
    """Fields that another controller wrote in an endpoint are still there when we write it."""
    text = (
        b'{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",'
        b'"metadata":{"name":"web-abc","namespace":"shop"},"addressType":"IPv4",'
        b'"endpoints":[{"addresses":["10.0.0.1"],'
        b'"conditions":{"ready":true,"serving":true,"terminating":false},"hostname":"web-0",'
        b'"nodeName":"n1","zone":"a",'
        b'"hints":{"forZones":[{"name":"a"},{"name":"b"}],"forNodes":[{"name":"n1"}]},'
        b'"targetRef":{"kind":"Pod","namespace":"shop","name":"web-0","uid":"u",'
        b'"fieldPath":"spec"},"deprecatedTopology":{"rack":"r1"}}],'
        b'"ports":[{"name":"","protocol":"TCP","port":80,"appProtocol":"http"}]}'
    )
    slice_ = api.decode(api.EndpointSlice, text)
    assert api.encode(slice_) == text


def test_a_full_slice_can_be_used_as_a_lean_one() -> None:
    """A decision on lean slices accepts full ones, and both decode the same endpoints."""
    text = (
        b'{"endpoints":[{"addresses":["10.0.0.1"],"zone":"a","targetRef":{"name":"p"}}],'
        b'"ports":null}'
    )
    full = api.decode(api.EndpointSlice, text)
    lean = api.decode(api.LeanEndpointSlice, text)
    assert isinstance(full, api.LeanEndpointSlice)
    assert [e.zone for e in full.endpoints or ()] == [e.zone for e in lean.endpoints or ()]
    assert b"targetRef" not in api.encode(lean)
