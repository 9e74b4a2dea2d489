"""What people read about a takeover: which is in force, what is wrong, what is away from home.

It is in the ConfigMap ``csi-takeover`` beside the configuration, key ``status.json``, written by
the controller alone and only when it changes. A ConfigMap holds one MiB, and a lost zone may have
thousands of pods: the first of them are kept there, the rest are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.reason import Reason
from zonewise.api.values import times

CONFIG_MAP = "csi"
"""The ConfigMap with the configuration."""
CONFIG_KEY = "config.json"
STATUS_MAP = "csi-takeover"
"""The ConfigMap with the status."""
STATUS_KEY = "status.json"
AUTOMATIC_ANNOTATION = "csi.zonewise.io/automatic-takeover"
"""The annotation of the configuration with the domains that no person has taken over."""
GIVEN_BACK_ANNOTATION = "csi.zonewise.io/given-back"
"""The annotation of the configuration that says when a person gave a domain back: ``a=<time>,…``"""
ITEM_LIMIT = 250
"""How many warnings, and how many pods away from home, are kept: each takes at most 1.6 KB."""


@dataclass(frozen=True, slots=True)
class TakeoverStatus:
    """What holds."""

    takeover: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""
    """Why a newer configuration does not count; empty if it does."""
    warnings: tuple[Reason, ...] = ()
    away_from_home: tuple[Reason, ...] = ()
    """What runs outside of its volume's domain."""
    further_warnings: int = 0
    further_away_from_home: int = 0
    """How many there are besides those above."""
    automatic: tuple[Reason, ...] = ()
    """Why automatic takeover waits, or does nothing."""
    out_of_service: tuple[Reason, ...] = ()
    """Nodes that are out of service, and how far they are fenced."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON: warnings and what is away from home only where there are any."""
        fields: dict[str, Any] = {
            "takeover": {source: list(by) for source, by in sorted(self.takeover.items())},
            "error": self.error,
        }
        if self.warnings:
            fields["warnings"] = [_reason_to_dict(warning) for warning in self.warnings]
        if self.further_warnings:
            fields["furtherWarnings"] = self.further_warnings
        if self.away_from_home:
            fields["awayFromHome"] = [_reason_to_dict(use) for use in self.away_from_home]
        if self.further_away_from_home:
            fields["furtherAwayFromHome"] = self.further_away_from_home
        if self.automatic:
            fields["automatic"] = [_reason_to_dict(hold) for hold in self.automatic]
        if self.out_of_service:
            fields["outOfService"] = [_reason_to_dict(fence) for fence in self.out_of_service]
        return fields

    def to_text(self) -> str:
        """As it is stored: no longer than a ConfigMap can hold."""
        shortened = replace(
            self,
            warnings=self.warnings[:ITEM_LIMIT],
            away_from_home=self.away_from_home[:ITEM_LIMIT],
            further_warnings=self.further_warnings + len(self.warnings[ITEM_LIMIT:]),
            further_away_from_home=self.further_away_from_home
            + len(self.away_from_home[ITEM_LIMIT:]),
            automatic=self.automatic[:ITEM_LIMIT],
            out_of_service=self.out_of_service[:ITEM_LIMIT],
        )
        return json.dumps(shortened.to_dict(), indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> TakeoverStatus:
        """The stored status; an empty one if it cannot be read."""
        try:
            fields = json.loads(text)
            return cls(
                {str(source): tuple(map(str, by)) for source, by in fields["takeover"].items()},
                str(fields["error"]),
                tuple(_parse_reason(warning) for warning in fields.get("warnings", ())),
                tuple(_parse_reason(use) for use in fields.get("awayFromHome", ())),
                int(fields.get("furtherWarnings", 0)),
                int(fields.get("furtherAwayFromHome", 0)),
                tuple(_parse_reason(hold) for hold in fields.get("automatic", ())),
                tuple(_parse_reason(fence) for fence in fields.get("outOfService", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls()


def parse_automatic_domains(annotations: Mapping[str, str]) -> set[str]:
    """The domains that were taken over without a person."""
    return {name for name in annotations.get(AUTOMATIC_ANNOTATION, "").split(",") if name}


def parse_given_back(annotations: Mapping[str, str]) -> dict[str, float]:
    """When persons gave domains back, in seconds since the epoch; what cannot be read is left."""
    moments = {}
    for item in annotations.get(GIVEN_BACK_ANNOTATION, "").split(","):
        name, _, text = item.partition("=")
        with suppress(ParseError):
            moments[name] = times.parse(text).timestamp()
    return moments


def format_given_back(moments: Mapping[str, float]) -> str | None:
    """The annotation's value; None, which removes it, if there is nothing to say."""
    return (
        ",".join(
            f"{name}={times.format_time(times.from_epoch(at))}"
            for name, at in sorted(moments.items())
        )
        or None
    )


class StatusReasons:
    """What another loop reports, and the status has: why automatic takeover waits, fences."""

    def __init__(self) -> None:
        self.current: tuple[Reason, ...] = ()
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call it whenever they change, until what is returned is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def replace(self, reasons: tuple[Reason, ...]) -> None:
        """From now on these are the reasons."""
        if reasons != self.current:
            self.current = reasons
            for listener in tuple(self._listeners):
                listener()


def _reason_to_dict(reason: Reason) -> dict[str, str]:
    fields = {"reason": reason.code, "message": reason.message}
    if reason.object:
        fields["object"] = reason.object
    if reason.fix:
        fields["fix"] = reason.fix
    return fields


def _parse_reason(fields: Mapping[str, str]) -> Reason:
    return Reason(
        code=fields["reason"],
        message=fields["message"],
        object=fields.get("object", ""),
        fix=fields.get("fix", ""),
    )
