"""Admission: hints on slices, validation of Services, and which pods may be disrupted."""

from zonewise.webhook.clamp import Clamp
from zonewise.webhook.gate import BUSY, DisruptionGate
from zonewise.webhook.granting import Granting
from zonewise.webhook.hints import HintInjection, InjectionSettings
from zonewise.webhook.services import validate_service

__all__ = [
    "BUSY",
    "Clamp",
    "DisruptionGate",
    "Granting",
    "HintInjection",
    "InjectionSettings",
    "validate_service",
]
