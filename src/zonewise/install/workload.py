"""The programs: two pods, apart from each other, hard to evict, easy to replace.

One Deployment runs controller and webhook side by side. Of the controllers one leads; all webhooks
answer. A pod is ready when its stores are complete and its certificate is served, so a rollout
never leaves the API server with a webhook that would decide on half of the cluster.

Memory is limited to what a cluster of 5,000 nodes needs twice over. For the webhook that includes
the most that strangers can make it hold: connections, headers and bodies, which it bounds itself.
"""

from __future__ import annotations

from zonewise.install.wanted import (
    CONTROLLER_METRICS,
    NAME,
    SELECTED,
    WEBHOOK,
    WEBHOOK_METRICS,
    WEBHOOK_PORT,
    Installation,
    Obj,
)
from zonewise.topology import HOSTNAME_LABEL, ZONE_LABEL

CONTROLLER_MEMORY = ("256Mi", "1Gi")
WEBHOOK_MEMORY = ("128Mi", "384Mi")
GATE_MEMORY = ("256Mi", "1Gi")
"""What is requested, and the limit; the webhook that enforces budgets caches every pod."""
PRIORITY = 1_000_000
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
    """Priority, budget, Service and Deployment."""
    priority: Obj = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": wanted.metadata(NAME, inside=False),
        "value": PRIORITY,
        "description": "Zonewise: others can wait, EndpointSlices cannot.",
    }
    budget: Obj = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": wanted.metadata(NAME),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(SELECTED)}},
    }
    service: Obj = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": wanted.metadata(WEBHOOK),
        "spec": {
            "selector": dict(SELECTED),
            "ports": [
                {"name": "webhook", "port": 443, "targetPort": "webhook"},
                _metrics_port("metrics", CONTROLLER_METRICS),
                _metrics_port("webhook-metrics", WEBHOOK_METRICS),
            ],
        },
    }
    return [priority, budget, service, _deployment(wanted)]


def _metrics_port(name: str, port: int) -> Obj:
    return {"name": name, "port": port, "targetPort": name}


def _deployment(wanted: Installation) -> Obj:
    pod: Obj = {
        "serviceAccountName": NAME,
        "priorityClassName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            _apart(ZONE_LABEL),
            _apart(HOSTNAME_LABEL),
        ],
        "containers": [
            _container(
                wanted,
                "controller",
                [f"--metrics-listen=:{CONTROLLER_METRICS}"],
                {"metrics": CONTROLLER_METRICS},
                health="metrics",
                memory=CONTROLLER_MEMORY,
            ),
            _container(
                wanted,
                "webhook",
                [f"--listen=:{WEBHOOK_PORT}", f"--metrics-listen=:{WEBHOOK_METRICS}"],
                {"webhook": WEBHOOK_PORT, "webhook-metrics": WEBHOOK_METRICS},
                health="webhook-metrics",
                memory=WEBHOOK_MEMORY if wanted.budgets == "off" else GATE_MEMORY,
            ),
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": wanted.metadata(NAME),
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": dict(SELECTED)},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": dict(SELECTED)}, "spec": pod},
        },
    }


def _apart(key: str) -> Obj:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(SELECTED)},
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


def _budgets(wanted: Installation) -> list[str]:
    return [] if wanted.budgets == "off" else [f"--budgets={wanted.budgets}"]
