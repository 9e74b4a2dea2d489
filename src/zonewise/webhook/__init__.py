"""Answers to API servers before they write: hints on slices, Services, who may be disrupted."""

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
