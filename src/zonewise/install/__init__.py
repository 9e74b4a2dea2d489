"""What it takes to run on a real cluster, as manifests.

Everything is rendered from one ``Installation``, so that the objects agree with each other: the
rights with the mode, the webhook's name with its certificate, the ports with the probes. The order
is that in which they can be applied.
"""

from __future__ import annotations

from zonewise.controllers.locators import definition
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.install.alerts import alerts
from zonewise.install.dashboard import dashboard
from zonewise.install.hooks import configurations
from zonewise.install.names import name_server
from zonewise.install.policies import policies
from zonewise.install.rights import rights
from zonewise.install.wanted import Installation, Obj
from zonewise.install.workload import namespace, workload

__all__ = ["Installation", "Obj", "manifests"]


def manifests(wanted: Installation) -> list[Obj]:
    """All objects."""
    return [
        namespace(wanted),
        *(resource_definitions() if wanted.budgets != "off" else ()),
        definition(),
        *policies(wanted),
        *rights(wanted),
        *workload(wanted),
        *name_server(wanted),
        *configurations(wanted),
        *alerts(wanted),
        *dashboard(wanted),
    ]
