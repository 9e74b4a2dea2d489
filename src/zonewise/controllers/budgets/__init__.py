"""Budgets on a cluster: their status and baseline, kept by the leader."""

from zonewise.controllers.budgets.controller import BudgetsController, BudgetsSettings

__all__ = ["BudgetsController", "BudgetsSettings"]
