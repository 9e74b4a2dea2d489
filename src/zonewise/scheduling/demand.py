"""What a pod takes of a node, in whole numbers: millicores, bytes, pieces.

Containers that run together are added; initial ones run one after the other, beside those of them
that stay, and the most that is needed at once counts. A pod that states requests of its own has
these instead, and its overhead is added.

A container that states no request at all still takes something. For the scores, and only for them,
it counts as ``ASSUMED_CPU`` and ``ASSUMED_MEMORY``; else any number of such pods would be drawn to
the same node. Here requests of the pod as a whole count in the scores too; Kubernetes 1.36 leaves
them out of one of the two, for the pod that is being placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from zonewise.api.meta import QuantityText
from zonewise.api.objects.pod import Container, PodSpec
from zonewise.api.values import quantity

ASSUMED_CPU = Fraction(1, 10)
ASSUMED_MEMORY = Fraction(200 * 1024 * 1024)

_ASSUMED = {"cpu": ASSUMED_CPU, "memory": ASSUMED_MEMORY}
_STATED: Mapping[str, Fraction] = {}
_Amounts = dict[str, Fraction]


@dataclass(frozen=True, slots=True)
class Demand:
    """What is taken; ``assumed_*`` is what the scores go by."""

    cpu: int = 0
    memory: int = 0
    storage: int = 0
    others: tuple[tuple[str, int], ...] = ()
    assumed_cpu: int = 0
    assumed_memory: int = 0

    @property
    def nothing(self) -> bool:
        """Whether nothing is requested but a place among the node's pods."""
        return not (self.cpu or self.memory or self.storage or self.others)


def demand_of(spec: PodSpec) -> Demand:
    """What a pod takes."""
    stated, assumed = _total(spec, _STATED), _total(spec, _ASSUMED)
    others = {
        name: amount
        for name, amount in stated.items()
        if name not in ("cpu", "memory", "ephemeral-storage", "pods")
    }
    return Demand(
        cpu=millis(stated.get("cpu", Fraction(0))),
        memory=whole(stated.get("memory", Fraction(0))),
        storage=whole(stated.get("ephemeral-storage", Fraction(0))),
        others=tuple(sorted((name, whole(amount)) for name, amount in others.items())),
        assumed_cpu=millis(assumed.get("cpu", Fraction(0))),
        assumed_memory=whole(assumed.get("memory", Fraction(0))),
    )


def millis(amount: Fraction) -> int:
    """Thousandths, rounded up."""
    return -(-amount.numerator * 1000 // amount.denominator)


def whole(amount: Fraction) -> int:
    """Rounded up."""
    return -(-amount.numerator // amount.denominator)


def amounts(stated: Mapping[str, QuantityText]) -> _Amounts:
    """Quantities as numbers."""
    return {name: quantity.value(text) for name, text in stated.items()}


def _total(spec: PodSpec, missing: Mapping[str, Fraction]) -> _Amounts:
    total = _containers(spec.containers or (), spec.init_containers, missing)
    if spec.resources is not None:
        for name, amount in amounts(spec.resources.requests).items():
            if name in ("cpu", "memory") or name.startswith("hugepages-"):
                total[name] = amount
    _add(total, amounts(spec.overhead))
    return total


def _containers(
    containers: Iterable[Container], initial: Iterable[Container], missing: Mapping[str, Fraction]
) -> _Amounts:
    running: _Amounts = {}
    for container in containers:
        _add(running, {**missing, **amounts(container.resources.requests)})
    staying: _Amounts = {}
    peak: _Amounts = {}
    for container in initial:
        own = {**missing, **amounts(container.resources.requests)}
        if container.restart_policy == "Always":
            _add(running, own)
            _add(staying, own)
            own = staying
        else:
            _add(own, staying)
        for name, amount in own.items():
            peak[name] = max(amount, peak.get(name, amount))
    for name, amount in peak.items():
        running[name] = max(amount, running.get(name, amount))
    return running


def _add(total: _Amounts, more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount
