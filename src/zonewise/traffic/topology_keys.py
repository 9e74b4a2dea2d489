"""Topology keys: which labels of nodes order the endpoints of a Service (KEP-536).

A list of label keys, the nearest first, such as hostname, rack, zone. Traffic goes to the endpoints
whose nodes have the client's value of the first key for which there is one; ``*`` at the end stands
for every endpoint. Without it, a client with no match has no endpoint.

They are written as ``spec.topologyKeys`` on an embedded cluster, or anywhere as the annotation
``zonewise.io/topology-keys``, separated by commas. One list of rules validates both. Keys that were
stored although a rule forbids them are ignored as a whole: half of a list would send traffic where
its author did not intend.

The gate ``ServiceTopology`` guards the field and not the annotation. For a program that is given no
gates the field counts: an API server whose gate is off stores none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from zonewise.api.errors import StatusCause
from zonewise.api.field_errors import duplicate, forbidden, invalid, too_many
from zonewise.api.gates import SERVICE_TOPOLOGY
from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.api.values.labels import label_key_error

ANY_ENDPOINT = "*"
KEYS_LIMIT = 16
TOPOLOGY_KEYS_ANNOTATION = "zonewise.io/topology-keys"
TOPOLOGY_KEYS_FIELD = "spec.topologyKeys"

_LISTED = 3
_ANNOTATION_FIELD = f"metadata.annotations[{TOPOLOGY_KEYS_ANNOTATION}]"


def topology_keys_of(service: Service, gates: Mapping[str, bool] | None = None) -> tuple[str, ...]:
    """The keys that count: none if the Service has none, or invalid ones."""
    keys = _field_keys(service, gates) or _annotation_keys(service)
    return keys if keys and not topology_key_errors(service, gates) else ()


def names_topology_keys(service: Service, gates: Mapping[str, bool] | None = None) -> bool:
    """Whether a Service has topology keys, even invalid ones."""
    return bool(_field_keys(service, gates) or _annotation_keys(service))


def ignored_keys_reason(service: Service, gates: Mapping[str, bool] | None = None) -> Reason | None:
    """Why the keys of a stored Service are ignored, None if it has none or they count."""
    meta, annotated = service.metadata, _annotation_keys(service)
    if service.spec.topology_keys not in (_field_keys(service, gates), annotated):
        return Reason(
            code="TopologyKeysOff",
            message=f"{TOPOLOGY_KEYS_FIELD} is ignored: the feature gate {SERVICE_TOPOLOGY} is off",
            object=f"Service/{meta.namespace or 'default'}/{meta.name}",
            fix=f"Use the annotation {TOPOLOGY_KEYS_ANNOTATION}, which needs no gate.",
        )
    errors = topology_key_errors(service, gates)
    if not errors:
        return None
    listed = "; ".join(f"{error.field}: {error.message}" for error in errors[:_LISTED])
    more = f" (and {len(errors) - _LISTED} more)" if len(errors) > _LISTED else ""
    return Reason(
        code="InvalidTopologyKeys",
        message=f"the topology keys are ignored, all of them: {listed}{more}",
        object=f"Service/{meta.namespace or 'default'}/{meta.name}",
        numbers={"faults": len(errors)},
        fix="Correct the keys, or remove them.",
    )


def topology_key_errors(
    service: Service, gates: Mapping[str, bool] | None = None
) -> list[StatusCause]:
    """The errors in the keys of a Service, in the field and in the annotation."""
    field, annotated = _field_keys(service, gates), _annotation_keys(service)
    errors: list[StatusCause] = []
    if field:
        paths = [f"{TOPOLOGY_KEYS_FIELD}[{index}]" for index in range(len(field))]
        errors += _key_errors(service, field, TOPOLOGY_KEYS_FIELD, paths)
    if annotated:
        paths = [_ANNOTATION_FIELD] * len(annotated)
        errors += _key_errors(service, annotated, _ANNOTATION_FIELD, paths)
    if field and annotated and field != annotated:
        text = f"must match {TOPOLOGY_KEYS_FIELD} when both are specified"
        errors.append(invalid(_ANNOTATION_FIELD, ",".join(annotated), text))
    return errors


def _field_keys(service: Service, gates: Mapping[str, bool] | None) -> tuple[str, ...]:
    """The keys of the field, if it has any effect."""
    return service.spec.topology_keys if gates is None or gates[SERVICE_TOPOLOGY] else ()


def _annotation_keys(service: Service) -> tuple[str, ...]:
    """The keys of the annotation; blanks around them do not count, and a blank text has none."""
    text = service.metadata.annotations.get(TOPOLOGY_KEYS_ANNOTATION, "")
    return tuple(key.strip() for key in text.split(",")) if text.strip() else ()


def _key_errors(
    service: Service, keys: Sequence[str], path: str, key_paths: Sequence[str]
) -> Iterator[StatusCause]:
    spec = service.spec
    if spec.external_traffic_policy == "Local":
        yield forbidden(path, "may not be used with externalTrafficPolicy Local")
    if spec.traffic_policy == "PreferZone":
        text = "may not be used with trafficPolicy PreferZone: choose one of the two"
        yield forbidden(path, text)
    if len(keys) > KEYS_LIMIT:
        yield too_many(path, len(keys), KEYS_LIMIT)
    seen: set[str] = set()
    for index, (key, key_path) in enumerate(zip(keys, key_paths, strict=True)):
        if key == ANY_ENDPOINT:
            if index != len(keys) - 1:
                yield invalid(key_path, key, f"'{ANY_ENDPOINT}' must be the last key")
        elif error := label_key_error(key):
            yield invalid(key_path, key, f"a topology key is the key of a label; this {error}")
        if key in seen:
            yield duplicate(key_path, key)
        seen.add(key)
