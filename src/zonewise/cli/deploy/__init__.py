"""What it takes to run on a real cluster, as manifests.

Everything is rendered from one ``Wanted``, so that the objects agree with each other: the rights
with the mode, the webhook's name with its certificate, the ports with the probes. The order is
that in which they can be applied.
"""

from __future__ import annotations

from zonewise.cli.deploy.alerts import alerts
from zonewise.cli.deploy.dashboard import dashboard
from zonewise.cli.deploy.hooks import configurations
from zonewise.cli.deploy.rights import rights
from zonewise.cli.deploy.wanted import Obj, Wanted
from zonewise.cli.deploy.workload import namespace, workload

__all__ = ["Obj", "Wanted", "manifests"]


def manifests(wanted: Wanted) -> list[Obj]:
    """All objects."""
    return [
        namespace(wanted),
        *rights(wanted),
        *workload(wanted),
        *configurations(wanted),
        *alerts(wanted),
        *dashboard(wanted),
    ]
