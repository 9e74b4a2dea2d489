"""Requests that follow from limits, in a pod and in its containers.

Only pods have them: a template keeps what its author wrote, so that it stays the same if the rule
changes. A container requests each limit for which it states no request. A pod with limits of its
own requests the total of its containers, and its limits for what they do not request.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from zonewise.api.values.quantity import Family, Quantity, parse

Obj = dict[str, Any]
Amounts = dict[str, Quantity]


def default_requests(spec: Obj) -> None:
    """Fill the requests of every container, then those of the pod."""
    containers = spec.get("containers") or []
    init_containers = spec.get("initContainers") or []
    for container in (*containers, *init_containers):
        resources = container.get("resources")
        if resources and resources.get("limits"):
            requests = resources.setdefault("requests", {})
            for name, amount in resources["limits"].items():
                requests.setdefault(name, amount)
    pod_resources = spec.get("resources")
    if not pod_resources:
        return
    if pod_resources.get("limits") or pod_resources.get("requests"):
        _default_huge_page_limits(pod_resources, containers, init_containers)
    if pod_resources.get("limits"):
        _default_pod_requests(pod_resources, containers, init_containers)


def effective_resources(spec: Obj, which: str) -> Amounts:
    """The requests or limits of a whole pod: its own, else those of its containers."""
    containers, init_containers = spec.get("containers"), spec.get("initContainers")
    amounts = _total_of_containers(which, containers or (), init_containers or ())
    for name, amount in ((spec.get("resources") or {}).get(which) or {}).items():
        amounts[name] = parse(amount)
    for name, text in (spec.get("overhead") or {}).items():
        if which == "requests" or name in amounts:
            _add(amounts, {name: parse(text)})
    return amounts


def _default_huge_page_limits(
    pod_resources: Obj, containers: Iterable[Obj], init_containers: Iterable[Obj]
) -> None:
    requested = pod_resources.get("requests") or {}
    for name, amount in _total_of_containers("limits", containers, init_containers).items():
        if _is_huge_page(name) and name not in requested:
            pod_resources.setdefault("limits", {}).setdefault(name, str(amount))


def _default_pod_requests(
    pod_resources: Obj, containers: Iterable[Obj], init_containers: Iterable[Obj]
) -> None:
    requests = pod_resources.get("requests") or {}
    for name, amount in _total_of_containers("requests", containers, init_containers).items():
        if name in ("cpu", "memory"):
            requests.setdefault(name, str(amount))
    for name, amount in pod_resources["limits"].items():
        if name in ("cpu", "memory") or _is_huge_page(name):
            requests.setdefault(name, amount)
    if requests:
        pod_resources["requests"] = requests


def _is_huge_page(name: str) -> bool:
    return name.startswith("hugepages-")


def _total_of_containers(
    which: str, containers: Iterable[Obj], init_containers: Iterable[Obj]
) -> Amounts:
    """The peak of all containers: those that run together are added; init containers run one after
    the other, together with the sidecars started before.
    """
    running: Amounts = {}
    for container in containers:
        _add(running, _amounts_of(container, which))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in init_containers:
        amounts = _amounts_of(container, which)
        if container.get("restartPolicy") == "Always":
            _add(running, amounts)
            _add(sidecars, amounts)
            amounts = dict(sidecars)
        else:
            _add(amounts, sidecars)
        _take_maximum(peak, amounts)
    _take_maximum(running, peak)
    return running


def _amounts_of(container: Obj, which: str) -> Amounts:
    amounts = (container.get("resources") or {}).get(which) or {}
    return {name: parse(amount) for name, amount in amounts.items()}


def _add(total: Amounts, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        current = total.get(name, Quantity(Fraction(0), amount.family))
        total[name] = Quantity(current.value + amount.value, _family_of_sum(current, amount))


def _family_of_sum(current: Quantity, amount: Quantity) -> Family:
    return current.family if current.value else amount.family


def _take_maximum(total: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        if name not in total or amount.value > total[name].value:
            total[name] = amount
