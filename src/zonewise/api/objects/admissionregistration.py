"""Webhook configurations: which webhooks admission calls."""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import LabelSelector, Object
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct


class ServiceReference(Struct):
    """The Service a webhook is behind."""

    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: int | None = None


class WebhookClientConfig(Struct):
    """Where a webhook is and which CA its certificate comes from (base64)."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str | None = None


class RuleWithOperations(Struct):
    """Which requests a webhook is called for."""

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str | None = None


class MatchCondition(Struct):
    """A CEL expression that must hold for a webhook to be called."""

    name: str = ""
    expression: str = ""


class ValidatingWebhook(Struct):
    """A webhook that may refuse."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    rules: tuple[RuleWithOperations, ...] = ()
    failure_policy: str | None = None
    match_policy: str | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    side_effects: str | None = None
    timeout_seconds: int | None = None
    admission_review_versions: tuple[str, ...] | None = ()
    match_conditions: tuple[MatchCondition, ...] = ()


class MutatingWebhook(ValidatingWebhook):
    """A webhook that may change what is written, and refuse."""

    reinvocation_policy: str | None = None


class ValidatingWebhookConfiguration(Object):
    """Webhooks that may refuse."""

    resource: ClassVar = Resource(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        namespaced=False,
    )

    webhooks: tuple[ValidatingWebhook, ...] = ()


class MutatingWebhookConfiguration(Object):
    """Webhooks that may change what is written."""

    resource: ClassVar = Resource(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        namespaced=False,
    )

    webhooks: tuple[MutatingWebhook, ...] = ()
