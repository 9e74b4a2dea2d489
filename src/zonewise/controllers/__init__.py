"""Controllers that bring a cluster to what the decisions say: shells around pure functions."""

from zonewise.controllers.hints.controller import HintsController, HintsSettings, SliceRole
from zonewise.controllers.locators import LocatorsController, LocatorsSettings

__all__ = [
    "HintsController",
    "HintsSettings",
    "LocatorsController",
    "LocatorsSettings",
    "SliceRole",
]
