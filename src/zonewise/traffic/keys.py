"""Topology keys: which labels of nodes order the endpoints of a Service (KEP-536).

A list of label keys, the nearest first, such as hostname, rack, zone. Traffic goes to the endpoints
whose nodes have the client's value of the first key for which there is one; ``*`` at the end stands
for every endpoint. Without it, a client with no match has no endpoint.

They are written as ``spec.topologyKeys`` on an embedded cluster, or anywhere as the annotation
``zonewise.io/topology-keys``, separated by commas. One list of rules validates both. Keys that were
stored although a rule forbids them are ignored as a whole: half of a list would send traffic where
its author did not intend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.api.values.labels import key_fault

ANY = "*"
KEYS_LIMIT = 16
TOPOLOGY_KEYS_ANNOTATION = "zonewise.io/topology-keys"
TOPOLOGY_KEYS_FIELD = "spec.topologyKeys"

_TOLD = 3
_ANNOTATION_FIELD = f"metadata.annotations[{TOPOLOGY_KEYS_ANNOTATION}]"


def topology_keys(service: Service) -> tuple[str, ...]:
    """The keys that count: none if the Service has none, or wrong ones."""
    keys = service.spec.topology_keys or _annotated(service)
    return keys if keys and not keys_faults(service) else ()


def invalid_keys(service: Service) -> Reason | None:
    """Why the keys of a stored Service are ignored, None if it has none or they count."""
    if not (service.spec.topology_keys or _annotated(service)):
        return None
    found = keys_faults(service)
    if not found:
        return None
    meta = service.metadata
    wrong = "; ".join(f"{fault.field}: {fault.message}" for fault in found[:_TOLD])
    more = f" (and {len(found) - _TOLD} more)" if len(found) > _TOLD else ""
    return Reason(
        code="InvalidTopologyKeys",
        message=f"the topology keys are ignored, all of them: {wrong}{more}",
        object=f"Service/{meta.namespace or 'default'}/{meta.name}",
        numbers={"faults": len(found)},
        fix="Correct the keys, or remove them.",
    )


def keys_faults(service: Service) -> list[StatusCause]:
    """What is wrong with the keys of a Service, in the field and in the annotation."""
    field, annotated = service.spec.topology_keys, _annotated(service)
    found: list[StatusCause] = []
    if field:
        places = [f"{TOPOLOGY_KEYS_FIELD}[{index}]" for index in range(len(field))]
        found += _faults(service, field, TOPOLOGY_KEYS_FIELD, places)
    if annotated:
        places = [_ANNOTATION_FIELD] * len(annotated)
        found += _faults(service, annotated, _ANNOTATION_FIELD, places)
    if field and annotated and field != annotated:
        text = f"must match {TOPOLOGY_KEYS_FIELD} when both are specified"
        found.append(field_errors.invalid(_ANNOTATION_FIELD, ",".join(annotated), text))
    return found


def _annotated(service: Service) -> tuple[str, ...]:
    """The keys of the annotation; blanks around them do not count, and a blank text has none."""
    text = service.metadata.annotations.get(TOPOLOGY_KEYS_ANNOTATION, "")
    return tuple(key.strip() for key in text.split(",")) if text.strip() else ()


def _faults(
    service: Service, keys: Sequence[str], where: str, places: Sequence[str]
) -> Iterator[StatusCause]:
    spec = service.spec
    if spec.external_traffic_policy == "Local":
        yield field_errors.forbidden(where, "may not be used with externalTrafficPolicy Local")
    if spec.traffic_policy == "PreferZone":
        text = "may not be used with trafficPolicy PreferZone: choose one of the two"
        yield field_errors.forbidden(where, text)
    if len(keys) > KEYS_LIMIT:
        yield field_errors.too_many(where, len(keys), KEYS_LIMIT)
    seen: set[str] = set()
    for index, (key, place) in enumerate(zip(keys, places, strict=True)):
        if key == ANY:
            if index != len(keys) - 1:
                yield field_errors.invalid(place, key, f"'{ANY}' must be the last key")
        elif fault := key_fault(key):
            yield field_errors.invalid(
                place, key, f"a topology key is the key of a label; this {fault}"
            )
        if key in seen:
            yield field_errors.duplicate(place, key)
        seen.add(key)
