"""The report about a Service: one part per address family, exact until it is printed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from zonewise.api.reason import Reason
from zonewise.explain.keys import KeysReport
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.hints import ZoneRow
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import NOT_REQUESTED, TOPOLOGY_KEYS, Mode

DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Effect:
    """What becomes of the traffic under some hints.

    ``in_zone`` is the part of the answered traffic that stays in its zone, None if nothing is
    answered or no endpoint is in a zone; ``unanswered`` is the part of all that finds no endpoint,
    on ``silent`` nodes.
    """

    hinted: bool
    in_zone: Fraction | None
    overload: Fraction
    unanswered: Fraction = Fraction(0)
    silent: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        lost = {"unanswered": round_exact(self.unanswered)} if self.unanswered else {}
        return {
            "hinted": self.hinted,
            "inZone": round_exact(self.in_zone),
            "overload": round_exact(self.overload),
        } | lost


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """One address family of a Service. Endpoints carry the hints that were decided."""

    family: str
    reason: Reason
    zones: tuple[ZoneRow, ...]
    endpoints: tuple[TrafficEndpoint, ...]
    decided: Effect
    applied: Effect
    in_zone_without_hints: Fraction | None
    in_zone_limit: Fraction | None
    """The most that can stay in its zone; None if no limit applies, or there is no endpoint."""
    up_to_date: bool
    """Whether the slices carry the hints that were decided."""
    weights: str = ""
    """The text of the weights that were decided; then ``decided`` is what proxies do with them."""
    stock: Effect | None = None
    """In mode weighted, what proxies without support for weights do."""
    keys: KeysReport | None = None
    """What its topology keys mean, if it has some."""
    retained: bool = False
    """Whether it has hints only because it had some: they would not be added now."""
    in_zone_limit_to_keep: Fraction | None = None
    """As ``in_zone_limit``, at the limit above which hints are dropped."""
    senders: int = 0
    """On how many nodes traffic starts."""

    def state_result(self, mode: str = "") -> str:
        """The end of a sentence: hints or none, or what the topology keys do where they decide."""
        by_keys = self.keys is not None and self.reason.code in (NOT_REQUESTED, TOPOLOGY_KEYS)
        if self.keys is not None and by_keys and not self.keys.local:
            return f"has topology keys instead of hints: {self.keys.result}."
        got = "has hints" if self.decided.hinted else "has no hints"
        return f"{got}{mode}: {self.reason.message}."

    def to_dict(self, *, limited: bool) -> dict[str, Any]:
        """As JSON has it: without endpoints 0 is in zone, and a limit is null only where none
        applies, so that numbers can be added up.
        """
        more: dict[str, Any] = {}
        if self.keys is not None:
            more["topologyKeys"] = self.keys.to_dict()
        if self.decided.unanswered:
            more["unanswered"] = round_exact(self.decided.unanswered)
        return {
            "hinted": self.decided.hinted,
            "reason": self.reason.to_dict(),
            "zones": [self._zone_to_dict(row) for row in self.zones],
            "endpoints": [_endpoint_to_dict(target) for target in self.endpoints],
            "inZone": round_exact(self.decided.in_zone),
            "inZoneWithoutHints": round_exact(self.in_zone_without_hints),
            "inZoneLimit": round_exact(self.in_zone_limit) if limited else None,
            "overload": round_exact(self.decided.overload),
            "applied": self.applied.to_dict(),
            **more,
        } | self._weights_to_dict()

    def _weights_to_dict(self) -> dict[str, Any]:
        if self.stock is None:
            return {}
        stock = {key: value for key, value in self.stock.to_dict().items() if key != "hinted"}
        return {
            "zoneWeights": msgspec.json.decode(self.weights) if self.weights else None,
            "stock": stock,
        }

    def _zone_to_dict(self, row: ZoneRow) -> dict[str, Any]:
        overload = row.overload if self.decided.hinted else Fraction(0)
        return {
            "zone": row.zone,
            "nodes": row.nodes,
            "cpuMilli": row.cpu_milli,
            "share": round_exact(row.share),
            "endpoints": row.endpoints,
            "minimum": row.minimum,
            "assigned": row.assigned,
            "overload": None if overload is None else round_exact(overload),
        }


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """Everything about the hints of a Service; the first family is the primary one."""

    service: str
    namespace: str
    mode: Mode
    limits: OverloadLimits
    families: tuple[FamilyReport, ...]
    notes: tuple[str, ...] = ()
    """What the report could not take into account, a sentence each."""
    limited: bool = True
    """Whether limits of overload apply to traffic to the ClusterIP, or would with hints."""

    @property
    def primary(self) -> FamilyReport:
        """The family whose numbers stand for the Service."""
        return self.families[0]

    @property
    def verdict(self) -> str:
        """One sentence."""
        mode = "" if self.mode is Mode.OFF else f" (mode {self.mode.value})"
        return f"Service {self.namespace}/{self.service} {self.primary.state_result(mode)}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        families = [
            {"family": part.family, **part.to_dict(limited=self.limited)} for part in self.families
        ]
        primary = {key: value for key, value in families[0].items() if key != "family"}
        return {
            "service": self.service,
            "namespace": self.namespace,
            "mode": self.mode.value,
            **primary,
            "families": families,
        }


def _endpoint_to_dict(target: TrafficEndpoint) -> dict[str, Any]:
    return {
        "address": target.name,
        "zone": target.zone,
        "ready": target.ready,
        "forZones": list(target.hint.zones),
        "forNodes": list(target.hint.nodes),
    }


def round_exact(exact: Fraction | None) -> float:
    """A fraction as printed, 0 if there is none: rounded once, from the exact value."""
    return float(round(exact or Fraction(0), DECIMALS))
