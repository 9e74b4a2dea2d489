"""Feature gates of the sources' spec fields.

A gate guards a *field* of the embedded API server; annotations work without gates. Gates depend on
each other (``needs``) and exclude each other (``excludes``); a combination that cannot work is
refused before anything starts, with one sentence that names both gates and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zonewise.api.errors import ConfigError

TOPOLOGY_AWARE_HINTS = "TopologyAwareHints"
SERVICE_TOPOLOGY = "ServiceTopology"
SERVICE_TRAFFIC_POLICY = "ServiceTrafficPolicy"


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate: its default, the gates it needs and the gates it cannot be on with."""

    default: bool
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    meaning: str = ""


KNOWN: Mapping[str, Gate] = MappingProxyType(
    {
        TOPOLOGY_AWARE_HINTS: Gate(
            default=True,
            needs=(SERVICE_TRAFFIC_POLICY,),
            excludes=(SERVICE_TOPOLOGY,),
            meaning="spec.trafficPolicy: PreferZone asks for hints",
        ),
        SERVICE_TOPOLOGY: Gate(
            default=False,
            excludes=(TOPOLOGY_AWARE_HINTS,),
            meaning="spec.topologyKeys orders endpoints by topology key",
        ),
        SERVICE_TRAFFIC_POLICY: Gate(
            default=True,
            meaning="spec.trafficPolicy exists",
        ),
    }
)


class FeatureGates(Mapping[str, bool]):
    """Which gates are on: a mapping over all known gates."""

    __slots__ = ("_on",)

    def __init__(self, settings: Mapping[str, bool] | None = None) -> None:
        settings = settings or {}
        for name in settings:
            if name not in KNOWN:
                raise ConfigError(
                    f"unknown feature gate {name!r}: known are {', '.join(sorted(KNOWN))}"
                )
        self._on = {name: settings.get(name, gate.default) for name, gate in KNOWN.items()}
        for name, gate in KNOWN.items():
            if self._on[name]:
                self._check(name, gate)

    @classmethod
    def parse(cls, text: str) -> FeatureGates:
        """The gates of a flag's value, ``A=true,B=false``; what is not named has its default."""
        settings: dict[str, bool] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            on = {"true": True, "false": False}.get(value.lower())
            if not equals or not name or on is None:
                raise ConfigError(f"feature gate {part!r} is not NAME=true or NAME=false")
            if settings.get(name, on) is not on:
                raise ConfigError(f"feature gate {name} is given both as true and as false")
            settings[name] = on
        return cls(settings)

    def _check(self, name: str, gate: Gate) -> None:
        for needed in gate.needs:
            if not self._on[needed]:
                raise ConfigError(
                    f"feature gate {name} needs {needed}:"
                    f" set {needed}=true, or {name}=false as well"
                )
        for excluded in gate.excludes:
            if self._on[excluded]:
                raise ConfigError(
                    f"feature gates {name} and {excluded} exclude each other:"
                    f" set {name}=false or {excluded}=false"
                )

    def __getitem__(self, name: str) -> bool:
        return self._on[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._on)

    def __len__(self) -> int:
        return len(self._on)

    def __hash__(self) -> int:
        return hash(frozenset(self._on.items()))

    def __str__(self) -> str:
        """The form ``parse`` reads."""
        return ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self._on.items()))

    def __repr__(self) -> str:
        return f"FeatureGates.parse({str(self)!r})"
