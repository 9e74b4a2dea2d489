"""What is to be installed, and the names that several objects share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Obj = dict[str, Any]
Role = Literal["own", "adopt", "observe"]
"""What writes EndpointSlices: we, the built-in controller with our hints, or it alone."""

BudgetsMode = Literal["off", "observe", "enforce"]
"""Whether budgets per domain are kept: not at all, counted and reported, or enforced."""

Alerts = Literal["none", "prometheusrule", "configmap"]

NAME = "zonewise"
"""All of it; and the controller: its Deployment, its Service, its account."""

WEBHOOK = "zonewise-webhook"
"""The webhook: its Deployment, its Service, its account, and the Secret with its certificate."""

LEASE = "zonewise-hints"
"""What the replicas of the controller hold to lead."""

WEBHOOK_PORT = 9443
DNS = "zonewise-dns"
"""The name server: its Deployment, its Service, its account."""

DNS_PORT = 8053
CONTROLLER_METRICS = 9464
WEBHOOK_METRICS = 9465
DNS_METRICS = 9466

CLIENT_CA = "zonewise-webhook-client-ca"
"""The ConfigMap that is printed for the authority of API servers."""

CLIENT_CA_KEY = "ca.crt"


def selector(name: str) -> dict[str, str]:
    """What the pods of one program are labelled and selected by."""
    return {"app.kubernetes.io/name": name}


@dataclass(frozen=True, slots=True)
class ClientAuthority:
    """Who signs the certificates that the webhook requires of API servers.

    It is read from a ConfigMap; without ``certificates`` that is one that exists.
    """

    config_map: str = CLIENT_CA
    certificates: str | None = None


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
    webhook_from: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] = ()
    """Who may connect to a port: networks, and namespaces; nobody named is everybody."""

    client_authority: ClientAuthority | None = None

    def metadata(self, name: str, *, inside: bool = True, **labels: str) -> Obj:
        """The metadata of an object of ours, in our namespace or of the whole cluster."""
        place = {"namespace": self.namespace} if inside else {}
        own = {**selector(NAME), "app.kubernetes.io/managed-by": NAME}
        if self.version:
            own["app.kubernetes.io/version"] = self.version
        return {"name": name, **place, "labels": own | labels}
