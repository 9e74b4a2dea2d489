"""Controllers that bring a cluster to what the decisions say: shells around pure functions."""

from zonewise.controllers.hints import HintsController, HintsSettings, Role

__all__ = ["HintsController", "HintsSettings", "Role"]
