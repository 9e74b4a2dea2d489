"""The webhooks of a program: which paths are served, and which configurations trust them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.webhook.hints import InjectionSettings
from zonewise.webhook.program import AdmissionWebhooks, WebhookSettings

SERVED: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "namespace": "zonewise",
    "hosts": ("localhost",),
    "secret": "zonewise-webhook",
    "configuration": "zonewise",
}


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize(
    ("settings", "paths"),
    [
        ({}, {"/services"}),
        ({"injection": InjectionSettings()}, {"/services", "/hints"}),
        ({"budgets": "observe"}, {"/services", "/evictions", "/deletions"}),
        (
            {"budgets": "enforce"},
            {"/services", "/evictions", "/deletions", "/replicasets", "/pods"},
        ),
    ],
)
async def test_what_is_chosen_is_served(settings: dict[str, Any], paths: set[str]) -> None:
    """Each option adds its paths; nothing else is served."""
    async with virtual_cluster({}) as cluster:
        webhooks = AdmissionWebhooks(
            cluster.program.context("webhook"), WebhookSettings(**SERVED, **settings)
        )
        assert set(webhooks.handlers) == paths
        assert webhooks.certificates.problem() is not None
