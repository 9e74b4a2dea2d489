"""What is to be installed, and the names that several objects share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Obj = dict[str, Any]
Role = Literal["own", "adopt", "observe"]
"""What writes EndpointSlices: we, the built-in controller with our hints, or it alone."""

BudgetsMode = Literal["off", "observe", "enforce"]
"""Whether budgets per domain are kept: not at all, counted and reported, or enforced."""

Alerts = Literal["none", "prometheusrule", "configmap"]

NAME = "zonewise"
WEBHOOK = "zonewise-webhook"
"""The webhook's Service, and the Secret that holds its certificate."""

LEASE = "zonewise-hints"
"""What the replicas of the controller hold to lead."""

WEBHOOK_PORT = 9443
DNS = "zonewise-dns"
"""The name server: its Deployment, its Service, its account."""

DNS_PORT = 8053
CONTROLLER_METRICS = 9464
WEBHOOK_METRICS = 9465
DNS_METRICS = 9466

SELECTED: Mapping[str, str] = {"app.kubernetes.io/name": NAME}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The installation options; ``arguments`` go to every program."""

    role: Role = "observe"
    image: str = NAME
    version: str = ""
    namespace: str = NAME
    replicas: int = 2
    arguments: tuple[str, ...] = ()
    namespaces_are_selected: bool = False
    alerts: Alerts = "none"
    dashboard: bool = False
    budgets: BudgetsMode = "off"
    gated_users: tuple[str, ...] = ()
    dns: bool = False

    def metadata(self, name: str, *, inside: bool = True, **labels: str) -> Obj:
        """The metadata of an object of ours, in our namespace or of the whole cluster."""
        place = {"namespace": self.namespace} if inside else {}
        own = {**SELECTED, "app.kubernetes.io/managed-by": NAME}
        if self.version:
            own["app.kubernetes.io/version"] = self.version
        return {"name": name, **place, "labels": own | labels}
