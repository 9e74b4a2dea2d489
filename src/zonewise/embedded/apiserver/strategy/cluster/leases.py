"""Leases: a holder's claim on being the one, and until when."""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext


class LeaseRules(LegacyRules):
    """The rules of Leases."""

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a Lease."""
        found: Faults = []
        spec = obj.get("spec") or {}
        seconds = spec.get("leaseDurationSeconds")
        if seconds is not None and seconds <= 0:
            text = "must be greater than 0"
            found.append(field_errors.invalid("spec.leaseDurationSeconds", seconds, text))
        turns = spec.get("leaseTransitions")
        if turns is not None and turns < 0:
            text = "must be greater than or equal to 0"
            found.append(field_errors.invalid("spec.leaseTransitions", turns, text))
        return found
