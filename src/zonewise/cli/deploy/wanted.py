"""What is to be installed, and the names that several objects share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zonewise.cli.hintoptions import Role

Obj = dict[str, Any]
Alerts = Literal["none", "prometheusrule", "configmap"]

NAME = "zonewise"
WEBHOOK = "zonewise-webhook"
"""The webhook's Service, and the Secret that holds its certificate."""

WEBHOOK_PORT = 9443
CONTROLLER_METRICS = 9464
WEBHOOK_METRICS = 9465

SELECTED: Mapping[str, str] = {"app.kubernetes.io/name": NAME}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The choices of whoever installs; ``arguments`` go to every program."""

    role: Role = "observe"
    image: str = NAME
    version: str = ""
    namespace: str = NAME
    replicas: int = 2
    arguments: tuple[str, ...] = ()
    namespaces_are_selected: bool = False
    alerts: Alerts = "none"
    dashboard: bool = False

    def metadata(self, name: str, *, inside: bool = True, **labels: str) -> Obj:
        """The metadata of an object of ours, in our namespace or of the whole cluster."""
        place = {"namespace": self.namespace} if inside else {}
        own = {**SELECTED, "app.kubernetes.io/managed-by": NAME}
        if self.version:
            own["app.kubernetes.io/version"] = self.version
        return {"name": name, **place, "labels": own | labels}
