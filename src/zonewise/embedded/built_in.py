"""What ``zonewise install`` prints is built into this cluster: applied, it changes nothing here.

Applied to an embedded cluster, the manifests would name a webhook that no server answers, as no pod
here runs a program: evictions in a namespace that opted in would be refused forever. So our own
webhooks are stored and never called, and a warning tells why. They are not refused, so that a
folder of manifests for a real cluster can be tried here as it is.

Deleting the manifests would delete definitions that this cluster works with, and all budgets with
them. That is refused.
"""

from __future__ import annotations

from typing import Any

from zonewise.controllers.locators.definition import definition
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.embedded.apiserver.admission.webhook_match import MUTATING, VALIDATING, Hook
from zonewise.embedded.apiserver.controllers.custom_resources import DEFINITIONS
from zonewise.embedded.apiserver.request import status_errors

DOMAIN = ".zonewise.io"
NEEDED = frozenset(item["metadata"]["name"] for item in (*resource_definitions(), definition()))
NOT_CALLED = (
    "this cluster is zonewise up, which has hints and budgets built in: webhooks of zonewise"
    " install are stored and never called, so nothing has to be installed"
)
NOT_DELETED = "zonewise up has it built in and works with it, so it cannot be deleted"


def is_built_in(hook: Hook) -> bool:
    """Whether a webhook is our own, at a Service; at a URL there may be a server that answers."""
    return hook.name.endswith(DOMAIN) and hook.spec.client_config.service is not None


def admit(attributes: Attributes) -> None:
    """Refuse to delete the definitions; warn who writes webhooks of ours."""
    storage = attributes.served.storage
    if storage == DEFINITIONS and attributes.operation == "DELETE" and attributes.name in NEEDED:
        resource = attributes.served.kind.resource
        raise status_errors.forbidden(resource, attributes.name, NOT_DELETED)
    if storage in {MUTATING, VALIDATING} and attributes.obj is not None:
        webhooks: list[dict[str, Any]] = attributes.obj.get("webhooks") or []
        if any(_is_ours(webhook) for webhook in webhooks):
            attributes.warnings.append(NOT_CALLED)


def _is_ours(webhook: dict[str, Any]) -> bool:
    at_service = bool((webhook.get("clientConfig") or {}).get("service"))
    return at_service and str(webhook.get("name", "")).endswith(DOMAIN)
