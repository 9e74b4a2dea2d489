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
from zonewise.traffic.modes import Mode

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

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        lost = {"unanswered": number(self.unanswered)} if self.unanswered else {}
        return {
            "hinted": self.hinted,
            "inZone": number_or_zero(self.in_zone),
            "overload": number(self.overload),
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
    kept: bool = False
    """Whether it has hints only because it had some: they would not be added anew."""
    in_zone_limit_to_keep: Fraction | None = None
    """As ``in_zone_limit``, at the limit above which hints are dropped."""
    senders: int = 0
    """On how many nodes traffic starts."""

    def plain(self, *, limited: bool) -> dict[str, Any]:
        """As JSON has it: without endpoints nothing is in zone, and a limit is null only where
        none applies, so that numbers can be added up.
        """
        more: dict[str, Any] = {}
        if self.keys is not None:
            more["topologyKeys"] = self.keys.plain()
        if self.decided.unanswered:
            more["unanswered"] = number(self.decided.unanswered)
        return {
            "hinted": self.decided.hinted,
            "reason": {
                "code": self.reason.code,
                "message": self.reason.message,
                "fix": self.reason.fix,
            },
            "zones": [self._zone(row) for row in self.zones],
            "endpoints": [_endpoint(target) for target in self.endpoints],
            "inZone": number_or_zero(self.decided.in_zone),
            "inZoneWithoutHints": number_or_zero(self.in_zone_without_hints),
            "inZoneLimit": number_or_zero(self.in_zone_limit) if limited else None,
            "overload": number(self.decided.overload),
            "applied": self.applied.plain(),
            **more,
        } | self._weighted()

    def _weighted(self) -> dict[str, Any]:
        if self.stock is None:
            return {}
        stock = {key: value for key, value in self.stock.plain().items() if key != "hinted"}
        return {
            "zoneWeights": msgspec.json.decode(self.weights) if self.weights else None,
            "stock": stock,
        }

    def _zone(self, row: ZoneRow) -> dict[str, Any]:
        overload = row.overload if self.decided.hinted else Fraction(0)
        return {
            "zone": row.zone,
            "nodes": row.nodes,
            "cpuMilli": row.cpu_milli,
            "share": number(row.share),
            "endpoints": row.endpoints,
            "minimum": row.minimum,
            "assigned": row.assigned,
            "overload": number_or_none(overload),
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
        part = self.primary
        got = "has hints" if part.decided.hinted else "has no hints"
        mode = "" if self.mode is Mode.OFF else f" (mode {self.mode.value})"
        return f"Service {self.namespace}/{self.service} {got}{mode}: {part.reason.message}."

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        families = [
            {"family": part.family, **part.plain(limited=self.limited)} for part in self.families
        ]
        primary = {key: value for key, value in families[0].items() if key != "family"}
        return {
            "service": self.service,
            "namespace": self.namespace,
            "mode": self.mode.value,
            **primary,
            "families": families,
        }


def _endpoint(target: TrafficEndpoint) -> dict[str, Any]:
    return {
        "address": target.name,
        "zone": target.zone,
        "ready": target.ready,
        "forZones": list(target.hint.zones),
        "forNodes": list(target.hint.nodes),
    }


def number(exact: Fraction) -> float:
    """A fraction as printed: rounded once, from the exact value."""
    return float(round(exact, DECIMALS))


def number_or_none(exact: Fraction | None) -> float | None:
    """A fraction as printed, if there is one."""
    return None if exact is None else number(exact)


def number_or_zero(exact: Fraction | None) -> float:
    """A fraction as printed, 0 if there is none."""
    return number(exact or Fraction(0))
