"""What a Service requests: the mode of its hints, its limits, and why it gets none.

A mode can be requested in several ways. The first of these that is set decides:

1. annotation ``service.kubernetes.io/topology-aware-hints`` or, if that is absent,
   ``service.kubernetes.io/topology-mode``: ``Auto`` or ``auto``, ``zonewise.io/shared``,
   ``zonewise.io/weighted``;
2. ``spec.trafficPolicy: PreferZone``;
3. ``spec.trafficDistribution``: ``PreferClose``, ``PreferSameZone`` or ``PreferSameNode``.

The gate TopologyAwareHints is the switch for 1 and 2, whoever asks: while it is off they count as
not set, and a Service that has no ``trafficDistribution`` either is told that the gate is off. Zone
hints that its slices still carry, from before or from another controller, are then ignored too
(``counts_zone_hints``).

An annotation that is empty or ``Disabled`` counts as not set; so does an unknown value, which is
reported unless a field decides. Nothing is guessed: ``AUTO`` is not ``Auto``.

Topology keys are another way to choose endpoints, so a Service with keys gets no hints. Neither
does a Service all of whose paths are Local; with one path that is not, the proxy decides per path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from zonewise.api.errors import ParseError
from zonewise.api.gates import SERVICE_TOPOLOGY, TOPOLOGY_AWARE_HINTS, FeatureGates
from zonewise.api.meta import find_condition
from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.traffic.host_key import is_reachable_from_outside
from zonewise.traffic.limits import DEFAULT_LIMITS, OVERLOAD_ANNOTATION, OverloadLimits
from zonewise.traffic.topology_keys import names_topology_keys

HINTS_ANNOTATION = "service.kubernetes.io/topology-aware-hints"
MODE_ANNOTATION = "service.kubernetes.io/topology-mode"
SHARE_NODES_ANNOTATION = "zonewise.io/share-nodes"

HINTS_CONDITION = "zonewise.io/Hints"
"""The condition of a Service that says whether it has the hints it requests."""

AUTO_VALUES = ("Auto", "auto")
DISABLED_VALUES = ("", "Disabled", "disabled")

NOT_REQUESTED = "NotAsked"
"""The code of the reason of a Service that does not request hints."""
GATE_OFF = "GateOff"
"""The code of the reason of a Service that requests a mode whose gate is off."""
TOPOLOGY_KEYS = "TopologyKeys"
"""The code of the reason of a Service that requests hints, and has topology keys."""


class Mode(Enum):
    """How endpoints are hinted."""

    OFF = "Off"
    AUTO = "Auto"
    SHARED = "zonewise.io/shared"
    WEIGHTED = "zonewise.io/weighted"
    SAME_ZONE = "PreferSameZone"
    SAME_NODE = "PreferSameNode"


ANNOTATION_MODES = dict.fromkeys(AUTO_VALUES, Mode.AUTO) | {
    mode.value: mode for mode in (Mode.SHARED, Mode.WEIGHTED)
}
"""The modes by the values of the annotations that request them."""

LIMITED_MODES = frozenset(ANNOTATION_MODES.values())
"""The modes that use shares and limits."""


class ShareNodes(Enum):
    """Which nodes the shares of a Service are made of."""

    ALL = "all"
    TOLERATED = "tolerated"


_DISTRIBUTIONS = {
    "PreferClose": Mode.SAME_ZONE,
    "PreferSameZone": Mode.SAME_ZONE,
    "PreferSameNode": Mode.SAME_NODE,
}


@dataclass(frozen=True, slots=True)
class HintRequest:
    """What a Service requests; ``reason`` says why it is OFF, and is None otherwise."""

    mode: Mode = Mode.OFF
    limits: OverloadLimits = DEFAULT_LIMITS
    reason: Reason | None = None
    share_nodes: ShareNodes = ShareNodes.ALL


def reported_gates(service: Service) -> FeatureGates:
    """The gates of the cluster, as far as a Service and the controller's condition on it show them.

    An API server whose gate ``ServiceTopology`` is off stores no ``spec.topologyKeys``. Where there
    are some, the gate is on, unless the controller decided hints: the gates exclude each other.
    """
    condition = find_condition(service.status.conditions, HINTS_CONDITION)
    off = condition is not None and condition.reason == GATE_OFF
    if service.spec.topology_keys and (off or condition is None):
        return FeatureGates({TOPOLOGY_AWARE_HINTS: False, SERVICE_TOPOLOGY: True})
    return FeatureGates({TOPOLOGY_AWARE_HINTS: False} if off else None)


def counts_zone_hints(service: Service, gates: Mapping[str, bool]) -> bool:
    """Whether zone hints on the slices of a Service count for those who choose endpoints.

    With the gate off only those that ``trafficDistribution`` asks for; a value that is new here may
    be known to the controller that writes the slices.
    """
    return gates[TOPOLOGY_AWARE_HINTS] or bool(service.spec.traffic_distribution)


def hint_request_of(service: Service, gates: Mapping[str, bool]) -> HintRequest:
    """What a Service requests."""
    requested = _read_mode(service, gates)
    refusal = _refusal(service, gates)
    if requested.reason is not None:
        return HintRequest(reason=_add_refusal(requested.reason, refusal))
    if refusal is not None:
        return HintRequest(reason=refusal)
    annotations = service.metadata.annotations
    limits, nodes = requested.limits, requested.share_nodes
    if OVERLOAD_ANNOTATION in annotations:
        try:
            limits = OverloadLimits.parse(annotations[OVERLOAD_ANNOTATION])
        except ParseError as error:
            return HintRequest(
                reason=Reason(
                    code="InvalidOverload",
                    message=f"annotation {OVERLOAD_ANNOTATION}: {error}",
                    object=_object_text(service),
                    fix='Write for example "20%/30%", or remove the annotation.',
                )
            )
    if SHARE_NODES_ANNOTATION in annotations:
        value = annotations[SHARE_NODES_ANNOTATION]
        try:
            nodes = ShareNodes(value)
        except ValueError:
            return HintRequest(
                reason=Reason(
                    code="InvalidShareNodes",
                    message=f"annotation {SHARE_NODES_ANNOTATION} has a value that is not known"
                    f" here: {value[:64]!r}",
                    object=_object_text(service),
                    fix="Write all or tolerated, or remove the annotation.",
                )
            )
    return HintRequest(requested.mode, limits, share_nodes=nodes)


def _add_refusal(reason: Reason, refusal: Reason | None) -> Reason:
    """The reason without its advice to request hints, if these would be refused."""
    if reason.code != NOT_REQUESTED or refusal is None:
        return reason
    text = f"{reason.message}, and could not have any: {refusal.message}"
    if refusal.code == TOPOLOGY_KEYS:
        text = f"{refusal.message}, and it does not ask for any"
    return Reason(code=reason.code, message=text, object=reason.object)


def _read_mode(service: Service, gates: Mapping[str, bool]) -> HintRequest:
    spec, annotations = service.spec, service.metadata.annotations
    key = HINTS_ANNOTATION if HINTS_ANNOTATION in annotations else MODE_ANNOTATION
    value, gate_is_on = annotations.get(key, ""), gates[TOPOLOGY_AWARE_HINTS]
    if gate_is_on and value in ANNOTATION_MODES:
        return HintRequest(ANNOTATION_MODES[value])
    if gate_is_on and spec.traffic_policy == "PreferZone":
        return HintRequest(Mode.AUTO)
    distribution = spec.traffic_distribution or ""
    if distribution in _DISTRIBUTIONS:
        return HintRequest(_DISTRIBUTIONS[distribution])
    if value in ANNOTATION_MODES:
        return HintRequest(reason=_gate_off(service, f"annotation {key}: {value}"))
    if value not in DISABLED_VALUES:
        return HintRequest(reason=_unknown_mode(service, f"annotation {key}", value))
    if distribution:
        return HintRequest(reason=_unknown_mode(service, "spec.trafficDistribution", distribution))
    if spec.traffic_policy == "PreferZone":
        return HintRequest(reason=_gate_off(service, "spec.trafficPolicy: PreferZone"))
    return HintRequest(
        reason=Reason(
            code=NOT_REQUESTED,
            message="the Service does not ask for hints",
            object=_object_text(service),
            fix=f"Set annotation {MODE_ANNOTATION} to Auto, or spec.trafficDistribution.",
        )
    )


def _refusal(service: Service, gates: Mapping[str, bool]) -> Reason | None:
    if names_topology_keys(service, gates):
        return Reason(
            code=TOPOLOGY_KEYS,
            message="the Service has topology keys, which exclude hints",
            object=_object_text(service),
            fix="Choose one of the two.",
        )
    if is_all_local(service):
        return Reason(
            code="LocalPolicy",
            message="every path to the Service stays on the client's node",
            object=_object_text(service),
            fix="Set a traffic policy other than Local on one path.",
        )
    return None


def is_all_local(service: Service) -> bool:
    """Whether no path to the Service leaves the node that a packet is on."""
    spec = service.spec
    if spec.traffic_policy == "Local":
        return True
    if spec.internal_traffic_policy != "Local":
        return False
    return spec.external_traffic_policy == "Local" or not is_reachable_from_outside(service)


def _gate_off(service: Service, setting: str) -> Reason:
    return Reason(
        code=GATE_OFF,
        message=f"{setting} has no effect while the feature gate {TOPOLOGY_AWARE_HINTS} is off",
        object=_object_text(service),
        fix="Start Zonewise without --feature-gates"
        f" {TOPOLOGY_AWARE_HINTS}=false, or set spec.trafficDistribution.",
    )


def _unknown_mode(service: Service, setting: str, value: str) -> Reason:
    return Reason(
        code="UnknownMode",
        message=f"{setting} has a value that is not known here: {value[:64]!r}",
        object=_object_text(service),
        fix=f"Known are Auto, {Mode.SHARED.value} and {Mode.WEIGHTED.value} in the annotation;"
        " PreferClose, PreferSameZone and PreferSameNode in spec.trafficDistribution.",
    )


def _object_text(service: Service) -> str:
    return f"Service/{service.metadata.namespace}/{service.metadata.name}"
