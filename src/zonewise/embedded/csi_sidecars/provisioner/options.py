"""What may be chosen about the loops, and how patient they are."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_PAUSE = 300.0
"""Seconds between two attempts, at most."""


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The provisioner's flags ``--strict-topology`` and ``--immediate-topology``."""

    strict: bool = False
    immediate: bool = True
