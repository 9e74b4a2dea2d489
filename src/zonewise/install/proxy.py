"""The proxy on every Linux node: a DaemonSet, and the permissions that it needs.

On the node it may change packet rules (NET_ADMIN in the node's network) and nothing else: no other
capability, no privilege, no file of the node. It runs as root, because Kubernetes gives a
capability to root only. In the cluster it may read Services, slices, PodLocators, nodes and the
networks of ClusterIPs, and create events.

It has a namespace of its own, because it needs more than the namespace of the controller allows. It
must not depend on itself to reach the API server: unless another proxy serves ClusterIPs, an
address that works without a proxy has to be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zonewise.api.objects.locator import PodLocator
from zonewise.install.installation import NAME, Bundle, Obj, selector
from zonewise.install.objects import (
    READ,
    allow,
    confine,
    render_account,
    render_daemon_set,
    render_namespace,
    render_probes,
)

PROXY = f"{NAME}-proxy"
HEALTH = 10256


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyInstallation(Bundle):
    """The installation options of the proxy; ``api_server`` is ``host:port`` or ""."""

    app: ClassVar[str] = PROXY
    namespace: str = PROXY
    api_server: str = ""
    arguments: tuple[str, ...] = ()


def render_proxy(installation: ProxyInstallation) -> list[Obj]:
    """All objects, in the order in which they can be applied."""
    locators = PodLocator.resource
    rules = [
        allow("", ["services", "nodes"], READ),
        allow("discovery.k8s.io", ["endpointslices"], READ),
        allow(locators.group, [locators.plural], READ),
        allow("networking.k8s.io", ["servicecidrs"], READ),
        allow("events.k8s.io", ["events"], ["create"]),
    ]
    pod: Obj = {
        "serviceAccountName": PROXY,
        "priorityClassName": "system-node-critical",
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 10,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_render_container(installation)],
    }
    return [
        render_namespace(installation, "privileged"),
        *render_account(installation, PROXY, rules),
        render_daemon_set(installation.metadata(PROXY), selector(PROXY), pod),
    ]


def _render_container(installation: ProxyInstallation) -> Obj:
    node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    environment: list[Obj] = [{"name": "NODE_NAME", "valueFrom": node}]
    if installation.api_server:
        host, _, port = installation.api_server.rpartition(":")
        environment += [
            {"name": "KUBERNETES_SERVICE_HOST", "value": host.strip("[]")},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        ]
    return {
        "name": "proxy",
        "image": installation.image,
        "args": ["proxy", "--node-name=$(NODE_NAME)", *installation.arguments],
        "env": environment,
        "ports": [{"name": "health", "containerPort": HEALTH, "hostPort": HEALTH}],
        **render_probes("health", ready="/livez", period=5),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": confine("NET_ADMIN", root=True),
    }
