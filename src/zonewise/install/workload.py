"""The programs: two pods of each on different nodes, one of which at most is evicted at a time.

Controller and webhook have a Deployment each, because they have different accounts. Of the
controllers one leads; all webhooks answer. A pod is ready when its stores are complete and its
certificate is served, so a rollout never leaves the API server with a webhook that would decide on
half of the cluster.

Memory is limited to twice what a cluster of 5,000 nodes needs. For the webhook that includes what
unauthenticated clients can make it use: connections, headers and bodies, which it bounds itself.

*Who may connect.* API servers call the webhook, scrapers read metrics. API servers are not pods: on
most clusters they are on the networks of nodes or of the provider, so they are named by networks;
where a tunnel calls for them (konnectivity), its agents are pods, named by their namespace. Only
the administrator knows either. A port whose callers are not named is open: closed, every eviction
in a namespace that has opted in would be refused, and every alert about metrics would fire. An
annotation says which ports are open to everybody, and with which flag to restrict them. Kubelets
reach the pods of their own node whatever a policy says, so probes need no rule.
"""

from __future__ import annotations

from ipaddress import ip_network

from zonewise.install.installation import (
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
from zonewise.install.objects import confine, render_probes
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL

CONTROLLER_MEMORY = ("256Mi", "1Gi")
WEBHOOK_MEMORY = ("128Mi", "384Mi")
GATE_MEMORY = ("256Mi", "1Gi")
"""What is requested, and the limit; the webhook that enforces budgets caches every pod."""
PRIORITY = 1_000_000
CLIENT_CA_FOLDER = "/client-ca"
USER = 65532
OPEN_PORTS = "zonewise.io/open-ports"


def render_workload(installation: Installation) -> list[Obj]:
    """Priority, and of each program a budget, a Service, a NetworkPolicy and a Deployment."""
    priority: Obj = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": installation.metadata(NAME, inside=False),
        "value": PRIORITY,
        "description": "Zonewise: others can wait, EndpointSlices cannot.",
    }
    ports = {"metrics": CONTROLLER_METRICS}
    flags = [f"--metrics-listen=:{CONTROLLER_METRICS}"]
    controller = _render_container(installation, "controller", flags, ports, CONTROLLER_MEMORY)
    return [
        priority,
        *_render_client_authority(installation),
        *_render_guarded(installation, NAME, controller, ports),
        *_render_guarded(
            installation,
            WEBHOOK,
            _render_webhook(installation),
            {"webhook": 443, "metrics": WEBHOOK_METRICS},
        ),
    ]


def _render_webhook(installation: Installation) -> Obj:
    flags = [f"--listen=:{WEBHOOK_PORT}", f"--metrics-listen=:{WEBHOOK_METRICS}"]
    if installation.client_authority is not None:
        flags.append(f"--client-ca={CLIENT_CA_FOLDER}/{CLIENT_CA_KEY}")
    ports = {"webhook": WEBHOOK_PORT, "metrics": WEBHOOK_METRICS}
    memory = WEBHOOK_MEMORY if installation.budgets == "off" else GATE_MEMORY
    container = _render_container(installation, "webhook", flags, ports, memory)
    if installation.client_authority is not None:
        mount = {"name": "client-ca", "mountPath": CLIENT_CA_FOLDER, "readOnly": True}
        container["volumeMounts"] = [mount]
    return container


def _render_guarded(
    installation: Installation, name: str, container: Obj, ports: dict[str, int]
) -> list[Obj]:
    """The objects of a program, with a NetworkPolicy."""
    named = [{"name": port, "port": number, "targetPort": port} for port, number in ports.items()]
    pod: Obj = {}
    if "volumeMounts" in container and installation.client_authority is not None:
        config_map = {"name": installation.client_authority.config_map}
        pod["volumes"] = [{"name": "client-ca", "configMap": config_map}]
    budget, service, deployment = render_program(installation, name, container, named, pod)
    return [budget, service, _render_network_policy(installation, name), deployment]


def render_program(
    installation: Installation,
    name: str,
    container: Obj,
    ports: list[Obj],
    pod: Obj,
    labels: dict[str, str] | None = None,
) -> tuple[Obj, Obj, Obj]:
    """The PodDisruptionBudget, the Service and the Deployment of a program."""
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": installation.metadata(name, labels),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(name)}},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": installation.metadata(name, labels),
        "spec": {"selector": selector(name), "ports": ports},
    }
    pod = {
        "serviceAccountName": name,
        "priorityClassName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(name)},
            }
            for key in (ZONE_LABEL, HOSTNAME_LABEL)
        ],
        "containers": [container],
        **pod,
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": installation.metadata(name, labels),
        "spec": {
            "replicas": installation.replicas,
            "selector": {"matchLabels": selector(name)},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": selector(name)}, "spec": pod},
        },
    }
    return budget, service, deployment


def _render_container(
    installation: Installation,
    command: str,
    flags: list[str],
    ports: dict[str, int],
    memory: tuple[str, str],
) -> Obj:
    budgets = [] if installation.budgets == "off" else [f"--budgets={installation.budgets}"]
    mode = [f"--endpointslices={installation.role}", *budgets]
    requested, limit = memory
    return {
        "name": command,
        "image": installation.image,
        "args": [command, *mode, *flags, *installation.arguments],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        **render_probes("metrics"),
        "resources": {
            "requests": {"cpu": "50m", "memory": requested},
            "limits": {"memory": limit},
        },
        "securityContext": confine(),
    }


def _render_client_authority(installation: Installation) -> list[Obj]:
    """The ConfigMap with the authority of API servers, unless it exists already."""
    authority = installation.client_authority
    if authority is None or authority.certificates is None:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": installation.metadata(authority.config_map),
            "data": {CLIENT_CA_KEY: authority.certificates},
        }
    ]


def _render_network_policy(installation: Installation, name: str) -> Obj:
    """On which ports the pods of a program may be reached, and from where."""
    callers = {"metrics": ("--metrics-from", installation.metrics_from)}
    if name == WEBHOOK:
        callers = {"webhook": ("--webhook-from", installation.webhook_from), **callers}
    metadata = installation.metadata(name)
    unnamed = {port: flag for port, (flag, peers) in callers.items() if not peers}
    if unnamed:
        flags = " and ".join(unnamed.values())
        note = f"{' and '.join(unnamed)}: open to everybody; name who may connect with {flags}"
        metadata["annotations"] = {OPEN_PORTS: note}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": [_render_ingress(port, peers) for port, (_, peers) in callers.items()],
        },
    }


def _render_ingress(port: str, peers: tuple[str, ...]) -> Obj:
    rule: Obj = {"ports": [{"port": port, "protocol": "TCP"}]}
    return rule | ({"from": [_render_peer(peer) for peer in peers]} if peers else {})


def _render_peer(peer: str) -> Obj:
    if is_network(peer):
        return {"ipBlock": {"cidr": str(ip_network(peer))}}
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": peer}}}


def is_network(peer: str) -> bool:
    """Whether a caller is named by its network; otherwise it is by its namespace."""
    try:
        ip_network(peer)
    except ValueError:
        return False
    return True
