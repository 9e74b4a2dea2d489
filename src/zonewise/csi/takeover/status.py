"""What people read about a takeover: which is in force, what is wrong, what is away from home.

It is in the ConfigMap ``csi-takeover`` beside the configuration, key ``status.json``, written by
the controller alone and only when it changes. A ConfigMap holds one MiB, and a lost zone may have
thousands of pods: the first of them are kept there, the rest are counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zonewise.api.reason import Reason

CONFIG = "csi"
"""The ConfigMap with the configuration."""
KEY = "config.json"
STATUS = "csi-takeover"
"""The ConfigMap with the status."""
STATUS_KEY = "status.json"
MARK = "csi.zonewise.io/automatic-takeover"
"""The annotation of the configuration with the domains that no person has taken over."""
MOST = 250
"""How many warnings, and how many pods away from home, are kept: each takes at most 1.6 KB."""


@dataclass(frozen=True, slots=True)
class TakeoverStatus:
    """What holds."""

    takeover: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""
    """Why a newer configuration does not count; empty if it does."""
    warnings: tuple[Reason, ...] = ()
    away: tuple[Reason, ...] = ()
    """What runs outside of its volume's domain."""
    further_warnings: int = 0
    further_away: int = 0
    """How many there are besides those above."""

    def plain(self) -> dict[str, Any]:
        """As JSON: warnings and what is away from home only where there are any."""
        found: dict[str, Any] = {
            "takeover": {source: list(by) for source, by in sorted(self.takeover.items())},
            "error": self.error,
        }
        if self.warnings:
            found["warnings"] = [_plain(one) for one in self.warnings]
        if self.further_warnings:
            found["furtherWarnings"] = self.further_warnings
        if self.away:
            found["awayFromHome"] = [_plain(one) for one in self.away]
        if self.further_away:
            found["furtherAwayFromHome"] = self.further_away
        return found

    def text(self) -> str:
        """As it is kept: no longer than a ConfigMap can hold."""
        kept = replace(
            self,
            warnings=self.warnings[:MOST],
            away=self.away[:MOST],
            further_warnings=self.further_warnings + len(self.warnings[MOST:]),
            further_away=self.further_away + len(self.away[MOST:]),
        )
        return json.dumps(kept.plain(), indent=2) + "\n"

    @classmethod
    def read(cls, text: str) -> TakeoverStatus:
        """What was kept; nothing if it cannot be read."""
        try:
            found = json.loads(text)
            return cls(
                {str(source): tuple(map(str, by)) for source, by in found["takeover"].items()},
                str(found["error"]),
                tuple(_reason(one) for one in found.get("warnings", ())),
                tuple(_reason(one) for one in found.get("awayFromHome", ())),
                int(found.get("furtherWarnings", 0)),
                int(found.get("furtherAwayFromHome", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls()


def automatic_marks(annotations: Mapping[str, str]) -> set[str]:
    """The domains that were taken over without a person."""
    return {one for one in annotations.get(MARK, "").split(",") if one}


def _plain(reason: Reason) -> dict[str, str]:
    found = {"reason": reason.code, "message": reason.message}
    if reason.object:
        found["object"] = reason.object
    if reason.fix:
        found["fix"] = reason.fix
    return found


def _reason(found: Mapping[str, str]) -> Reason:
    return Reason(
        code=found["reason"],
        message=found["message"],
        object=found.get("object", ""),
        fix=found.get("fix", ""),
    )
