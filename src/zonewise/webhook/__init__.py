"""Asked before something is written: hints on EndpointSlices, validation of Services."""

from zonewise.webhook.hints import HintInjection, InjectionSettings
from zonewise.webhook.services import validate_service

__all__ = ["HintInjection", "InjectionSettings", "validate_service"]
