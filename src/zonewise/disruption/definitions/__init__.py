"""The definitions of TopologyDisruptionBudgets, DomainRollouts and DisruptionLedgers."""

from zonewise.disruption.definitions.descriptions import DESCRIPTIONS
from zonewise.disruption.definitions.schemas import definitions

__all__ = ["DESCRIPTIONS", "definitions"]
