"""Feature gates: which optional features are on.

``TopologyAwareHints`` switches hints by shares, in all programs and however they are requested. The
others guard a *field* of the embedded API server. Gates depend on each other (``needs``) and
exclude each other (``excludes``); a combination that cannot work is refused before anything starts,
with a message that names both gates and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zonewise.api.errors import ConfigError

TOPOLOGY_AWARE_HINTS = "TopologyAwareHints"
"""Modes Auto, shared and weighted give hints, requested by a field or by an annotation."""
SERVICE_TOPOLOGY = "ServiceTopology"
"""``spec.topologyKeys`` orders endpoints by topology key."""
SERVICE_TRAFFIC_POLICY = "ServiceTrafficPolicy"
"""``spec.trafficPolicy`` exists."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate: its default, the gates it needs and the gates it cannot be on with."""

    default: bool
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


GATES: Mapping[str, Gate] = MappingProxyType(
    {
        TOPOLOGY_AWARE_HINTS: Gate(
            default=True, needs=(SERVICE_TRAFFIC_POLICY,), excludes=(SERVICE_TOPOLOGY,)
        ),
        SERVICE_TOPOLOGY: Gate(default=False, excludes=(TOPOLOGY_AWARE_HINTS,)),
        SERVICE_TRAFFIC_POLICY: Gate(default=True),
    }
)


class FeatureGates(Mapping[str, bool]):
    """Which gates are on: a mapping over all known gates."""

    __slots__ = ("_enabled",)

    def __init__(self, settings: Mapping[str, bool] | None = None) -> None:
        settings = settings or {}
        for name in settings:
            if name not in GATES:
                known = ", ".join(sorted(GATES))
                raise ConfigError(f"unknown feature gate {name!r}: known are {known}")
        self._enabled = {name: settings.get(name, gate.default) for name, gate in GATES.items()}
        for name, gate in GATES.items():
            if self._enabled[name]:
                self._check(name, gate)

    @classmethod
    def parse(cls, text: str) -> FeatureGates:
        """The gates of a flag's value, ``A=true,B=false``; what is not named has its default."""
        settings: dict[str, bool] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (token.strip() for token in part.partition("="))
            enabled = {"true": True, "false": False}.get(value.lower())
            if not equals or not name or enabled is None:
                raise ConfigError(f"feature gate {part!r} is not NAME=true or NAME=false")
            if settings.get(name, enabled) is not enabled:
                raise ConfigError(f"feature gate {name} is given both as true and as false")
            settings[name] = enabled
        return cls(settings)

    def _check(self, name: str, gate: Gate) -> None:
        for needed in gate.needs:
            if not self._enabled[needed]:
                raise ConfigError(
                    f"feature gate {name} needs {needed}:"
                    f" set {needed}=true, or {name}=false as well"
                )
        for excluded in gate.excludes:
            if self._enabled[excluded]:
                raise ConfigError(
                    f"feature gates {name} and {excluded} exclude each other:"
                    f" set {name}=false or {excluded}=false; the annotation"
                    " zonewise.io/topology-keys gives Services topology keys without a gate"
                )

    def __getitem__(self, name: str) -> bool:
        return self._enabled[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._enabled)

    def __len__(self) -> int:
        return len(self._enabled)

    def __hash__(self) -> int:
        return hash(frozenset(self._enabled.items()))

    def __str__(self) -> str:
        """The form ``parse`` reads."""
        return ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self._enabled.items()))

    def __repr__(self) -> str:
        return f"FeatureGates.parse({str(self)!r})"
