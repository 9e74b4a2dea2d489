"""Why a Service has no hints: one function per reason, each with numbers and a remedy."""

from __future__ import annotations

from fractions import Fraction

from zonewise.api.reason import Reason
from zonewise.topology.nodes import ZONE_LABEL
from zonewise.topology.shares import Shares
from zonewise.traffic.allocation import neediest_zone
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import MODE_ANNOTATION, NOT_REQUESTED, Mode


def not_requested() -> Reason:
    """The Service does not request hints."""
    return Reason(code=NOT_REQUESTED, message="the Service does not ask for hints")


def no_endpoints() -> Reason:
    """No endpoint is ready."""
    return Reason(
        code="NoEndpoints",
        message="no endpoint is ready",
        numbers={"endpoints": 0},
        fix="Hints come with the first ready endpoints.",
    )


def endpoint_without_zone(endpoints: list[TrafficEndpoint]) -> Reason:
    """Some endpoints have no zone."""
    first = endpoints[0]
    others = f" (and {len(endpoints) - 1} more)" if len(endpoints) > 1 else ""
    if first.node:
        return Reason(
            code="EndpointWithoutZone",
            message=f"endpoint {first.name} has no zone: node {first.node} has no zone label"
            + others,
            object=f"Node/{first.node}",
            numbers={"endpoints": len(endpoints)},
            fix=f"Label the node with {ZONE_LABEL}.",
        )
    return Reason(
        code="EndpointWithoutZone",
        message=f"endpoint {first.name} has no zone: it is on no node{others}",
        object=f"Endpoint/{first.name}",
        numbers={"endpoints": len(endpoints)},
        fix="Remove it, or run it on a node that has a zone.",
    )


def foreign_endpoint(endpoints: list[TrafficEndpoint]) -> Reason:
    """Hints exist, and an endpoint of another controller makes proxies ignore them."""
    return Reason(
        code="ForeignEndpoint",
        message=f"endpoint {endpoints[0].name} is in a slice of another controller and has no"
        " hint, so proxies ignore all hints",
        object=f"Endpoint/{endpoints[0].name}",
        numbers={"endpoints": len(endpoints)},
        fix="Give it a zone hint, mark it not ready, or remove that slice.",
    )


def foreign_slice(endpoints: list[TrafficEndpoint]) -> Reason:
    """Weights exist, and a slice of another controller makes proxies ignore them."""
    return Reason(
        code="ForeignEndpoint",
        message=f"endpoint {endpoints[0].name} is in a slice of another controller; unless it"
        " carries the same weights, proxies obey hints alone",
        object=f"Endpoint/{endpoints[0].name}",
        numbers={"endpoints": len(endpoints)},
        fix="Mark it not ready, or remove that slice.",
    )


def too_few(
    shares: Shares, limits: OverloadLimits, endpoints: int, shared: Fraction | None
) -> Reason:
    """The endpoints cannot be divided so that every zone is within the limits.

    ``shared`` is what mode shared keeps in zone with the same endpoints, None if it hints nothing.
    """
    zones, enough = len(shares.weights), limits.next_sufficient_count(shares, endpoints)
    numbers: dict[str, int | float | str] = {
        "endpoints": endpoints,
        "zones": zones,
        "needed": enough,
    }
    fix = f"Scale to {enough} endpoints."
    if shared is not None:
        numbers["sharedInZone"] = str(shared)
        fix += (
            f" Or set annotation {MODE_ANNOTATION} to {Mode.SHARED.value}, which keeps"
            f" {_percentage(shared)} of the traffic in its zone with the same endpoints."
        )
    if endpoints < zones:
        count = f"{endpoints} endpoint{'s' * (endpoints != 1)}"
        text = f"fewer endpoints than zones ({count}, {zones} zones)"
        code = "TooFewEndpoints"
    else:
        overload, zone = best_overload(shares, endpoints)
        numbers |= {"overload": str(overload), "limitPercent": limits.add}
        code = "Overload"
        text = (
            f"{endpoints} endpoints cannot serve {zones} zones evenly: at best those of zone {zone}"
            f" get {_percentage_up(overload)} more traffic than the average, allowed is below"
            f" {limits.add} %"
        )
        fix += f" Or allow more overload with the annotation zonewise.io/overload, now {limits}."
    message = f"{text}: needs {enough}, has {endpoints}"
    return Reason(code=code, message=message, numbers=numbers, fix=fix)


def nothing_to_gain(best: Fraction, without: Fraction) -> Reason:
    """No hints keep more traffic in its zone than having none."""
    return Reason(
        code="NothingToGain",
        message=f"hints would keep {_percentage(best)} of the traffic in its zone, without them it"
        f" is {_percentage(without)}",
        numbers={"inZone": str(best), "inZoneWithoutHints": str(without)},
        fix="Run endpoints in more zones.",
    )


def weights_too_long(length: int, limit: int) -> Reason:
    """The weights are too long for an annotation."""
    return Reason(
        code="WeightsTooLong",
        message=f"the weights take {length} bytes, allowed are {limit}, so proxies get plain hints",
        numbers={"bytes": length, "limitBytes": limit},
        fix="Use fewer zones, or shorter names for them.",
    )


def _percentage(part: Fraction) -> str:
    return f"{round(part * 1000) / 10:g} %"


def best_overload(shares: Shares, endpoints: int) -> tuple[Fraction, str]:
    """The lowest worst overload any distribution has, and its zone; endpoints >= zones."""
    weights, count = shares.weights, dict.fromkeys(shares.weights, 1)
    for _ in range(endpoints - len(count)):
        count[neediest_zone(weights, weights, count)] += 1
    worst = neediest_zone(weights, weights, count)
    fair = count[worst] * shares.total
    return Fraction(weights[worst] * endpoints - fair, fair), worst


def _percentage_up(part: Fraction) -> str:
    """Rounded up, so that it never reads as if it were allowed."""
    return f"{-(-part.numerator * 100 // part.denominator)} %"
