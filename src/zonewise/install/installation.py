"""What is to be installed, and the names that several objects share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Obj = dict[str, Any]
Role = Literal["own", "adopt", "observe"]
"""What writes EndpointSlices: we, the built-in controller with our hints, or it alone."""

BudgetsMode = Literal["off", "observe", "enforce"]
"""Budgets per domain: not at all, counted and reported, or enforced."""

Alerts = Literal["none", "prometheusrule", "configmap"]

NAME = "zonewise"
"""All of it; and the controller: its Deployment, its Service, its account."""

WEBHOOK = "zonewise-webhook"
"""The webhook: its Deployment, its Service, its account, and the Secret with its certificate."""

LEASE = "zonewise-hints"
"""The Lease of the leading controller."""

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
    """The labels by which the pods of a program are selected."""
    return {"app.kubernetes.io/name": name}


@dataclass(frozen=True, slots=True)
class ClientAuthority:
    """Who signs the certificates that the webhook requires of API servers.

    It is read from a ConfigMap, which exists already if there are no ``certificates``.
    """

    config_map: str = CLIENT_CA
    certificates: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Objects that are installed together; ``app`` is their name in labels."""

    app: ClassVar[str] = NAME
    image: str
    version: str = ""
    namespace: str = NAME

    def metadata(
        self, name: str, labels: dict[str, str] | None = None, *, inside: bool = True
    ) -> Obj:
        """The metadata of an object, in the namespace of the bundle or of the whole cluster."""
        namespace = {"namespace": self.namespace} if inside else {}
        own = {**selector(self.app), "app.kubernetes.io/managed-by": NAME}
        if self.version:
            own["app.kubernetes.io/version"] = self.version
        return {"name": name, **namespace, "labels": own | (labels or {})}

    def username(self, account: str) -> str:
        """The user that a service account of the bundle is to the API server."""
        return f"system:serviceaccount:{self.namespace}:{account}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation(Bundle):
    """The installation options.

    ``arguments`` go to the controller and the webhook, ``gate_flags`` to the name server.
    """

    image: str = NAME
    role: Role = "observe"
    replicas: int = 2
    arguments: tuple[str, ...] = ()
    gate_flags: tuple[str, ...] = ()
    namespaces_are_selected: bool = False
    alerts: Alerts = "none"
    dashboard: bool = False
    budgets: BudgetsMode = "off"
    gated_users: tuple[str, ...] = ()
    dns: bool = False
    webhook_from: tuple[str, ...] = ()
    metrics_from: tuple[str, ...] = ()
    """Who may connect to a port: networks, and namespaces; empty is everybody."""

    client_authority: ClientAuthority | None = None
