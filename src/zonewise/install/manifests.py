"""The controller, the webhook, and what belongs to them, as manifests.

Everything is rendered from one ``Installation``, so that the objects agree with each other: the
rights with the mode, the webhook's name with its certificate, the ports with the probes. The order
is that in which they can be applied.
"""

from __future__ import annotations

from zonewise.controllers.locators.definition import definition
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.install.alerts import render_alerts
from zonewise.install.dashboard import render_dashboard
from zonewise.install.dns import render_dns
from zonewise.install.hooks import render_webhooks
from zonewise.install.installation import Installation, Obj
from zonewise.install.objects import render_namespace
from zonewise.install.policies import render_policies
from zonewise.install.rights import render_rights
from zonewise.install.workload import render_workload


def render_manifests(installation: Installation) -> list[Obj]:
    """All objects."""
    return [
        render_namespace(installation, "restricted"),
        *(resource_definitions() if installation.budgets != "off" else ()),
        definition(),
        *render_policies(installation),
        *render_rights(installation),
        *render_workload(installation),
        *render_dns(installation),
        *render_webhooks(installation),
        *render_alerts(installation),
        *render_dashboard(installation),
    ]
