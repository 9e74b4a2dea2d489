"""The resource request of a pod, in whole numbers: millicores, bytes, pieces.

Containers that run together are added; init containers run one after the other, beside the sidecars
among them, and the most that is needed at once counts. Requests of the pod itself replace the sum,
and its overhead is added.

A container without a request still uses something. For the scores, and only for them, it counts as
``DEFAULT_CPU`` and ``DEFAULT_MEMORY`` (Kubernetes' "non-zero request"); else any number of such
pods would be put on the same node. Requests of the pod itself count in both scores here; Kubernetes
1.36 leaves them out of one of the two, for the pod that is being scheduled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from zonewise.api.meta import QuantityText
from zonewise.api.objects.pod import Container, PodSpec
from zonewise.api.values import quantity

DEFAULT_CPU = Fraction(1, 10)
DEFAULT_MEMORY = Fraction(200 * 1024 * 1024)

_DEFAULTS = {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY}
_NO_DEFAULTS: Mapping[str, Fraction] = {}
_Amounts = dict[str, Fraction]


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What a pod requests; scores use ``nonzero_*``."""

    cpu: int = 0
    memory: int = 0
    storage: int = 0
    scalars: tuple[tuple[str, int], ...] = ()
    nonzero_cpu: int = 0
    nonzero_memory: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no resource is requested."""
        return not (self.cpu or self.memory or self.storage or self.scalars)


def resource_request_of(spec: PodSpec) -> ResourceRequest:
    """The request of a pod."""
    stated, nonzero = _sum_request(spec, _NO_DEFAULTS), _sum_request(spec, _DEFAULTS)
    scalars = {
        name: amount
        for name, amount in stated.items()
        if name not in ("cpu", "memory", "ephemeral-storage", "pods")
    }
    return ResourceRequest(
        cpu=round_up_millis(stated.get("cpu", Fraction(0))),
        memory=round_up(stated.get("memory", Fraction(0))),
        storage=round_up(stated.get("ephemeral-storage", Fraction(0))),
        scalars=tuple(sorted((name, round_up(amount)) for name, amount in scalars.items())),
        nonzero_cpu=round_up_millis(nonzero.get("cpu", Fraction(0))),
        nonzero_memory=round_up(nonzero.get("memory", Fraction(0))),
    )


def round_up_millis(amount: Fraction) -> int:
    """An amount in thousandths, rounded up."""
    return -(-amount.numerator * 1000 // amount.denominator)


def round_up(amount: Fraction) -> int:
    """An amount, rounded up to a whole number."""
    return -(-amount.numerator // amount.denominator)


def parse_amounts(stated: Mapping[str, QuantityText]) -> _Amounts:
    """Parse quantities."""
    return {name: quantity.value(text) for name, text in stated.items()}


def _sum_request(spec: PodSpec, defaults: Mapping[str, Fraction]) -> _Amounts:
    total = _sum_containers(spec.containers or (), spec.init_containers, defaults)
    if spec.resources is not None:
        for name, amount in parse_amounts(spec.resources.requests).items():
            if name in ("cpu", "memory") or name.startswith("hugepages-"):
                total[name] = amount
    _add_amounts(total, parse_amounts(spec.overhead))
    return total


def _sum_containers(
    containers: Iterable[Container], initial: Iterable[Container], defaults: Mapping[str, Fraction]
) -> _Amounts:
    running: _Amounts = {}
    for container in containers:
        _add_amounts(running, {**defaults, **parse_amounts(container.resources.requests)})
    sidecars: _Amounts = {}
    peak: _Amounts = {}
    for container in initial:
        request = {**defaults, **parse_amounts(container.resources.requests)}
        if container.restart_policy == "Always":
            _add_amounts(running, request)
            _add_amounts(sidecars, request)
            request = sidecars
        else:
            _add_amounts(request, sidecars)
        for name, amount in request.items():
            peak[name] = max(amount, peak.get(name, amount))
    for name, amount in peak.items():
        running[name] = max(amount, running.get(name, amount))
    return running


def _add_amounts(total: _Amounts, more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount
