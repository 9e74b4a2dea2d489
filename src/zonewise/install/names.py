"""The name server: its account, two pods, and its Service.

It listens on a port above 1024, which needs no capability, and the Service gives it port 53. Its
account may read Services, namespaces, EndpointSlices and PodLocators: neither pods nor nodes. Other
names are forwarded to the node's own servers (``dnsPolicy: Default``), never to the cluster's.
"""

from __future__ import annotations

from zonewise.api.objects.locator import PodLocator
from zonewise.install.wanted import DNS, DNS_METRICS, DNS_PORT, NAME, Installation, Obj
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL

LAMEDUCK = 5
_GRACE = 30
_USER = 65532
_SELECTED = {"app.kubernetes.io/name": DNS}
_RBAC = "rbac.authorization.k8s.io"


def name_server(wanted: Installation) -> list[Obj]:
    """Everything of the name server, if it is wanted."""
    if not wanted.dns:
        return []
    return [*_rights(wanted), _budget(wanted), _service(wanted), _deployment(wanted)]


def _metadata(wanted: Installation, *, inside: bool = True) -> Obj:
    return wanted.metadata(DNS, inside=inside, **_SELECTED)


def _rights(wanted: Installation) -> list[Obj]:
    def reads(group: str, *resources: str) -> Obj:
        return {"apiGroups": [group], "resources": list(resources), "verbs": ["list", "watch"]}

    locators = PodLocator.resource
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(wanted)},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": _metadata(wanted, inside=False),
            "rules": [
                reads("", "namespaces", "services"),
                reads("discovery.k8s.io", "endpointslices"),
                reads(locators.group, locators.plural),
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": _metadata(wanted, inside=False),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": DNS},
            "subjects": [{"kind": "ServiceAccount", "name": DNS, "namespace": wanted.namespace}],
        },
    ]


def _budget(wanted: Installation) -> Obj:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(wanted),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _SELECTED}},
    }


def _service(wanted: Installation) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(wanted),
        "spec": {
            "selector": _SELECTED,
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "dns"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": "dns-tcp"},
                {"name": "metrics", "port": DNS_METRICS, "targetPort": "metrics"},
            ],
        },
    }


def _deployment(wanted: Installation) -> Obj:
    health = {"port": "metrics"}
    container: Obj = {
        "name": "dns",
        "image": wanted.image,
        "args": [
            "dns",
            f"--listen=:{DNS_PORT}",
            f"--metrics-listen=:{DNS_METRICS}",
            f"--lameduck={LAMEDUCK}s",
        ],
        "ports": [
            {"name": "dns", "containerPort": DNS_PORT, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": DNS_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": DNS_METRICS},
        ],
        "livenessProbe": {
            "httpGet": {"path": "/livez", **health},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", **health}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod: Obj = {
        "serviceAccountName": DNS,
        "priorityClassName": NAME,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": _GRACE,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _SELECTED},
            }
            for key in (ZONE_LABEL, HOSTNAME_LABEL)
        ],
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(wanted),
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": _SELECTED},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": _SELECTED}, "spec": pod},
        },
    }
