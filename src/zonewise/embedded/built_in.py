"""What ``zonewise install`` prints is built into this cluster: applied, it changes nothing here.

Applied to an embedded cluster, the manifests would name a webhook that no server answers, as no pod
here runs a program: evictions in a namespace that opted in would be refused forever. So our own
webhooks are stored and never called, and a warning tells why. They are not refused, so that a
folder of manifests for a real cluster can be tried here as it is.

Pods of our programs are simulated as all others, and the warning says so.

Deleting the manifests would delete definitions that this cluster works with, and all budgets with
them; or the CSIDriver and the driver's namespace, and no volume could be made. That is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zonewise.controllers.locators.definition import definition
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.embedded.apiserver.admission.webhook_match import MUTATING, VALIDATING, Hook
from zonewise.embedded.apiserver.controllers.custom_resources import DEFINITIONS
from zonewise.embedded.apiserver.request import status_errors

DOMAIN = ".zonewise.io"
NEEDED = frozenset(item["metadata"]["name"] for item in (*resource_definitions(), definition()))
WORKLOADS = frozenset({"apps/deployments", "apps/daemonsets"})
DRIVERS = "storage.k8s.io/csidrivers"
NAMESPACES = "/namespaces"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "zonewise"
NOT_CALLED = (
    "this cluster is zonewise up, which has hints and budgets built in: webhooks of zonewise"
    " install are stored and never called, so nothing has to be installed"
)
NOT_RUN = (
    "this cluster is zonewise up, which has hints, budgets, DNS and the driver of volumes built in:"
    " pods of zonewise install run no program here, so nothing has to be installed"
)
NOT_DELETED = "zonewise up has it built in and works with it, so it cannot be deleted"


def is_built_in(hook: Hook) -> bool:
    """Whether a webhook is our own, at a Service; at a URL there may be a server that answers."""
    return hook.name.endswith(DOMAIN) and hook.spec.client_config.service is not None


def admit(attributes: Attributes) -> None:
    """Refuse to delete the definitions; warn who writes webhooks or programs of ours."""
    storage = attributes.served.storage
    if storage == DEFINITIONS and attributes.operation == "DELETE" and attributes.name in NEEDED:
        resource = attributes.served.kind.resource
        raise status_errors.forbidden(resource, attributes.name, NOT_DELETED)
    if storage in {MUTATING, VALIDATING} and attributes.obj is not None:
        webhooks: list[dict[str, Any]] = attributes.obj.get("webhooks") or []
        if any(_is_ours(webhook) for webhook in webhooks):
            attributes.warnings.append(NOT_CALLED)
    if storage in WORKLOADS and attributes.obj is not None and not attributes.subresource:
        labels = attributes.obj["metadata"].get("labels") or {}
        if labels.get(MANAGED_BY_LABEL) == MANAGER:
            attributes.warnings.append(NOT_RUN)


def keep_driver(name: str, namespace: str) -> Callable[[Attributes], None]:
    """Refuse to delete the CSIDriver of the driver that is built in, and the namespace with its
    configuration: nobody would restore them.
    """
    objects = {(DRIVERS, name), (NAMESPACES, namespace)}

    def refuse(attributes: Attributes) -> None:
        target = (attributes.served.storage, attributes.name)
        if attributes.operation == "DELETE" and target in objects:
            resource = attributes.served.kind.resource
            raise status_errors.forbidden(resource, attributes.name, NOT_DELETED)

    return refuse


def _is_ours(webhook: dict[str, Any]) -> bool:
    at_service = bool((webhook.get("clientConfig") or {}).get("service"))
    return at_service and str(webhook.get("name", "")).endswith(DOMAIN)
