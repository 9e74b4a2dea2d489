"""A second implementation of the rules on budgets: on numbers only, rule by rule, and slow.

It shares no code with ``zonewise.disruption`` and knows no objects: a case is a number of replicas,
pods as (domain, ready, outdated, granted) and a limit. Both must agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil


@dataclass
class Pods:
    """Equal pods of one domain."""

    domain: str
    count: int
    ready: bool = True
    outdated: bool = False
    granted: bool = False


@dataclass
class Case:
    """A budget and its pods; ``domains`` are those of nodes, ``open`` those it does not guard."""

    replicas: int
    pods: list[Pods]
    domains: set[str]
    limit: str
    at_least: bool = False
    baseline: dict[str, int] | None = None
    open: set[str] = field(default_factory=set)
    exclusive: bool = False
    per_domain: bool = False


def whole(limit: str, of: int) -> int:
    """A limit as a number of pods."""
    if limit.endswith("%"):
        return ceil(Fraction(int(limit[:-1]) * of, 100))
    return int(limit)


def split(replicas: int, known: dict[str, int], names: list[str]) -> dict[str, int]:
    """Even shares; the remainder one each to those that have most."""
    out = dict.fromkeys(names, replicas // len(names)) if names else {}
    rest = replicas - sum(out.values())
    order = sorted(names)
    order.sort(key=lambda name: known.get(name, 0), reverse=True)
    for name in order[:rest]:
        out[name] += 1
    return out


def fit(replicas: int, known: dict[str, int], names: list[str]) -> dict[str, int]:
    """Known numbers, changed by one pod at a time until they add up to the replicas."""
    share = split(replicas, known, names)
    fitted = {name: known.get(name, 0) for name in names}
    while sum(fitted.values()) < replicas:
        fitted[max(sorted(names), key=lambda name: share[name] - fitted[name])] += 1
    while sum(fitted.values()) > replicas:
        fitted[max(sorted(names), key=lambda name: fitted[name] - share[name])] -= 1
    return fitted


def numbers(case: Case) -> dict[str, dict[str, int | None]]:
    """Present, expected, desired, healthy and allowed of each domain."""
    present: dict[str, int] = {}
    healthy: dict[str, int] = {}
    for some in case.pods:
        present[some.domain] = present.get(some.domain, 0) + some.count
        if some.ready and not some.granted:
            healthy[some.domain] = healthy.get(some.domain, 0) + some.count
    known = dict(present) if case.baseline is None else dict(case.baseline)
    names = sorted(
        case.domains
        | {name for name, count in present.items() if count}
        | {name for name, count in known.items() if count}
    )
    fitted = fit(case.replicas, known, names)
    surplus = max(0, sum(present.values()) - case.replicas)
    expected = {name: max(fitted[name], present.get(name, 0) - surplus) for name in names}
    if case.per_domain:
        expected = split(case.replicas, known, names)
    short = {name for name in names if healthy.get(name, 0) < expected[name]}
    out: dict[str, dict[str, int | None]] = {}
    for name in names:
        amount = whole(case.limit, expected[name])
        desired = amount if case.at_least else max(0, expected[name] - amount)
        spare = healthy.get(name, 0) - min(desired, expected[name])
        if case.exclusive and short - {name}:
            surplus = min(
                healthy.get(name, 0) - expected[name], sum(healthy.values()) - case.replicas
            )
            spare = min(spare, surplus if case.per_domain else 0)
        out[name] = {
            "present": present.get(name, 0),
            "expected": expected[name],
            "desired": desired,
            "healthy": healthy.get(name, 0),
            "allowed": None if name in case.open else max(0, spare),
        }
    return out


def goes(case: Case, pod: Pods, *, evicting: bool = True, always_allow: bool = False) -> str:
    """The verdict about taking down a pod."""
    here = numbers(case)[pod.domain]
    if pod.granted:
        return "Granted"
    if here["allowed"] is None:
        return "Uncovered"
    # Without expected pods any percentage is 0; that blocks evictions, but no repairs.
    expected = here["expected"] or 0
    closed = (
        not case.at_least and whole(case.limit, expected if evicting else max(1, expected)) == 0
    )
    if closed and pod.outdated:
        old = sum(
            some.count
            for some in case.pods
            if some.domain == pod.domain and some.outdated and some.ready and not some.granted
        )
        if old <= expected:
            return "Blocked"
    if pod.ready:
        return "Allowed" if here["allowed"] else "Blocked"
    if (
        not evicting
        or always_allow
        or (here["healthy"] or 0) >= min(here["desired"] or 0, here["expected"] or 0)
    ):
        return "Unready"
    return "Blocked"
