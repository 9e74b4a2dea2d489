"""The programs: two pods of each, apart from each other, hard to evict, easy to replace.

Controller and webhook have a Deployment each, because a pod has one account, and each of them its
own. Of the controllers one leads; all webhooks answer. A pod is ready when its stores are complete
and its certificate is served, so a rollout never leaves the API server with a webhook that would
decide on half of the cluster.

Memory is limited to what a cluster of 5,000 nodes needs twice over. For the webhook that includes
the most that strangers can make it hold: connections, headers and bodies, which it bounds itself.
"""

from __future__ import annotations

from zonewise.install.network import network_policy
from zonewise.install.wanted import (
    CLIENT_CA_KEY,
    CONTROLLER_METRICS,
    NAME,
    WEBHOOK,
    WEBHOOK_METRICS,
    WEBHOOK_PORT,
    Installation,
    Obj,
    selector,
)
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL

CONTROLLER_MEMORY = ("256Mi", "1Gi")
WEBHOOK_MEMORY = ("128Mi", "384Mi")
GATE_MEMORY = ("256Mi", "1Gi")
"""What is requested, and the limit; the webhook that enforces budgets caches every pod."""
PRIORITY = 1_000_000
CLIENT_CA_FOLDER = "/client-ca"
USER = 65532


def namespace(wanted: Installation) -> Obj:
    """Where everything of ours is; pods in it may do nothing special."""
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": wanted.metadata(wanted.namespace, inside=False, **level),
    }


def workload(wanted: Installation) -> list[Obj]:
    """Priority, and of each program a budget, a Service, a NetworkPolicy and a Deployment."""
    priority: Obj = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": wanted.metadata(NAME, inside=False),
        "value": PRIORITY,
        "description": "Zonewise: others can wait, EndpointSlices cannot.",
    }
    controller = _container(
        wanted,
        "controller",
        [f"--metrics-listen=:{CONTROLLER_METRICS}"],
        {"metrics": CONTROLLER_METRICS},
        health="metrics",
        memory=CONTROLLER_MEMORY,
    )
    return [
        priority,
        *client_authority(wanted),
        *_program(wanted, NAME, controller, {"metrics": CONTROLLER_METRICS}),
        *_program(wanted, WEBHOOK, _webhook(wanted), {"webhook": 443, "metrics": WEBHOOK_METRICS}),
    ]


def _webhook(wanted: Installation) -> Obj:
    flags = [f"--listen=:{WEBHOOK_PORT}", f"--metrics-listen=:{WEBHOOK_METRICS}"]
    trusted = wanted.client_authority is not None
    if trusted:
        flags.append(f"--client-ca={CLIENT_CA_FOLDER}/{CLIENT_CA_KEY}")
    container = _container(
        wanted,
        "webhook",
        flags,
        {"webhook": WEBHOOK_PORT, "metrics": WEBHOOK_METRICS},
        health="metrics",
        memory=WEBHOOK_MEMORY if wanted.budgets == "off" else GATE_MEMORY,
    )
    mount = {"name": "client-ca", "mountPath": CLIENT_CA_FOLDER, "readOnly": True}
    return container | ({"volumeMounts": [mount]} if trusted else {})


def _program(wanted: Installation, name: str, container: Obj, ports: dict[str, int]) -> list[Obj]:
    budget: Obj = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": wanted.metadata(name),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(name)}},
    }
    service: Obj = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": wanted.metadata(name),
        "spec": {
            "selector": selector(name),
            "ports": [
                {"name": port, "port": number, "targetPort": port} for port, number in ports.items()
            ],
        },
    }
    pod: Obj = {
        "serviceAccountName": name,
        "priorityClassName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            _apart(ZONE_LABEL, name),
            _apart(HOSTNAME_LABEL, name),
        ],
        "containers": [container],
    }
    if "volumeMounts" in container and wanted.client_authority is not None:
        pod["volumes"] = [
            {"name": "client-ca", "configMap": {"name": wanted.client_authority.config_map}}
        ]
    deployment: Obj = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": wanted.metadata(name),
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": selector(name)},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": selector(name)}, "spec": pod},
        },
    }
    return [budget, service, network_policy(wanted, name), deployment]


def _apart(key: str, name: str) -> Obj:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(name)},
    }


def _container(
    wanted: Installation,
    command: str,
    flags: list[str],
    ports: dict[str, int],
    *,
    health: str,
    memory: tuple[str, str],
) -> Obj:
    probe = {"port": health}
    requested, limit = memory
    return {
        "name": command,
        "image": wanted.image,
        "args": [
            command,
            f"--endpointslices={wanted.role}",
            *_budgets(wanted),
            *flags,
            *wanted.arguments,
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "livenessProbe": {
            "httpGet": {"path": "/livez", **probe},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", **probe}, "periodSeconds": 2},
        "resources": {
            "requests": {"cpu": "50m", "memory": requested},
            "limits": {"memory": limit},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def client_authority(wanted: Installation) -> list[Obj]:
    """The ConfigMap with the authority of API servers, unless it is one that exists."""
    authority = wanted.client_authority
    if authority is None or authority.certificates is None:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": wanted.metadata(authority.config_map),
            "data": {CLIENT_CA_KEY: authority.certificates},
        }
    ]


def _budgets(wanted: Installation) -> list[str]:
    return [] if wanted.budgets == "off" else [f"--budgets={wanted.budgets}"]
