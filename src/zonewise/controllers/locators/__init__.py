"""PodLocators kept true: one for each pod, written only when something about its place changes."""

from zonewise.controllers.locators.controller import LocatorsController, LocatorsSettings
from zonewise.controllers.locators.definition import definition
from zonewise.controllers.locators.metrics import LocatorsMetrics

__all__ = ["LocatorsController", "LocatorsMetrics", "LocatorsSettings", "definition"]
