"""Requests that follow from limits, in a pod and in its containers.

Only pods have them: a template keeps what its author wrote, so that nothing changes when the rule
does. Of a container, each limit without a request is requested as a whole. A pod that states limits
of its own requests what its containers together request, and its limits where they request nothing.
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
    initial = spec.get("initContainers") or []
    for container in (*containers, *initial):
        resources = container.get("resources")
        if resources and resources.get("limits"):
            requests = resources.setdefault("requests", {})
            for name, amount in resources["limits"].items():
                requests.setdefault(name, amount)
    whole = spec.get("resources")
    if not whole:
        return
    if whole.get("limits") or whole.get("requests"):
        _default_huge_pages(whole, containers, initial)
    if whole.get("limits"):
        _default_pod_requests(whole, containers, initial)


def needed(spec: Obj, which: str) -> Amounts:
    """The requests or limits of a whole pod: its own, else those of its containers."""
    total = _effective(which, spec.get("containers") or (), spec.get("initContainers") or ())
    for name, amount in ((spec.get("resources") or {}).get(which) or {}).items():
        total[name] = parse(amount)
    for name, text in (spec.get("overhead") or {}).items():
        if which == "requests" or name in total:
            _add(total, {name: parse(text)})
    return total


def _default_huge_pages(whole: Obj, containers: Iterable[Obj], initial: Iterable[Obj]) -> None:
    requested = whole.get("requests") or {}
    for name, amount in _effective("limits", containers, initial).items():
        if _huge(name) and name not in requested:
            whole.setdefault("limits", {}).setdefault(name, str(amount))


def _default_pod_requests(whole: Obj, containers: Iterable[Obj], initial: Iterable[Obj]) -> None:
    requests = whole.get("requests") or {}
    for name, amount in _effective("requests", containers, initial).items():
        if name in ("cpu", "memory"):
            requests.setdefault(name, str(amount))
    for name, amount in whole["limits"].items():
        if name in ("cpu", "memory") or _huge(name):
            requests.setdefault(name, amount)
    if requests:
        whole["requests"] = requests


def _huge(name: str) -> bool:
    return name.startswith("hugepages-")


def _effective(which: str, containers: Iterable[Obj], initial: Iterable[Obj]) -> Amounts:
    """What the containers need at once: those that run together are added, the initial ones run one
    after the other, beside those of them that stay.
    """
    running: Amounts = {}
    for container in containers:
        _add(running, _amounts(container, which))
    staying: Amounts = {}
    peak: Amounts = {}
    for container in initial:
        own = _amounts(container, which)
        if container.get("restartPolicy") == "Always":
            _add(running, own)
            _add(staying, own)
            own = dict(staying)
        else:
            _add(own, staying)
        _raise(peak, own)
    _raise(running, peak)
    return running


def _amounts(container: Obj, which: str) -> Amounts:
    given = (container.get("resources") or {}).get(which) or {}
    return {name: parse(amount) for name, amount in given.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        have = total.get(name, Quantity(Fraction(0), amount.family))
        total[name] = Quantity(have.value + amount.value, _family(have, amount))


def _family(have: Quantity, amount: Quantity) -> Family:
    return have.family if have.value else amount.family


def _raise(total: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        if name not in total or amount.value > total[name].value:
            total[name] = amount
