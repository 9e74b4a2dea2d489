"""The proxy on every Linux node: a DaemonSet, and the least it has to be allowed.

On the node it may change packet rules (NET_ADMIN in the node's network) and nothing else: no other
capability, no privilege, no file of the node. As root, because Kubernetes gives a capability to
root only. In the cluster it may read Services, slices, nodes and the networks of ClusterIPs, and
create events.

It has a namespace of its own, because what it needs is more than the one of the controller allows.
It must not need itself to reach the API server: unless another proxy serves ClusterIPs, an address
that works without one has to be given.
"""

from __future__ import annotations

from dataclasses import dataclass

from zonewise.install.wanted import NAME, Obj

PROXY = f"{NAME}-proxy"
HEALTH = 10256

_GROUP = "rbac.authorization.k8s.io"
_SELECTED = {"app.kubernetes.io/name": PROXY}
_READ = (
    ("", ["services", "nodes"]),
    ("discovery.k8s.io", ["endpointslices"]),
    ("networking.k8s.io", ["servicecidrs"]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedProxy:
    """The installation options of the proxy; ``api_server`` is ``host:port`` or ""."""

    image: str
    version: str = ""
    namespace: str = PROXY
    api_server: str = ""
    arguments: tuple[str, ...] = ()

    def metadata(self, *, inside: bool = True, name: str = PROXY, **labels: str) -> Obj:
        """The metadata of an object of the proxy."""
        place = {"namespace": self.namespace} if inside else {}
        own = {**_SELECTED, "app.kubernetes.io/managed-by": NAME}
        if self.version:
            own["app.kubernetes.io/version"] = self.version
        return {"name": name, **place, "labels": own | labels}


def proxy_manifests(wanted: WantedProxy) -> list[Obj]:
    """All objects, in the order in which they can be applied."""
    level = {"pod-security.kubernetes.io/enforce": "privileged"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": wanted.metadata(inside=False, name=wanted.namespace, **level),
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": wanted.metadata()},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRole",
            "metadata": wanted.metadata(inside=False),
            "rules": [
                *(
                    {"apiGroups": [group], "resources": names, "verbs": ["list", "watch"]}
                    for group, names in _READ
                ),
                {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
            ],
        },
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": wanted.metadata(inside=False),
            "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": PROXY},
            "subjects": [{"kind": "ServiceAccount", "name": PROXY, "namespace": wanted.namespace}],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": wanted.metadata(),
            "spec": {
                "selector": {"matchLabels": dict(_SELECTED)},
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
                "template": {"metadata": {"labels": dict(_SELECTED)}, "spec": _pod(wanted)},
            },
        },
    ]


def _pod(wanted: WantedProxy) -> Obj:
    return {
        "serviceAccountName": PROXY,
        "priorityClassName": "system-node-critical",
        "hostNetwork": True,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 10,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(wanted)],
    }


def _container(wanted: WantedProxy) -> Obj:
    node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    environment: list[Obj] = [{"name": "NODE_NAME", "valueFrom": node}]
    if wanted.api_server:
        host, _, port = wanted.api_server.rpartition(":")
        environment += [
            {"name": "KUBERNETES_SERVICE_HOST", "value": host.strip("[]")},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        ]
    alive = {"path": "/livez", "port": "health"}
    return {
        "name": "proxy",
        "image": wanted.image,
        "args": ["proxy", "--node-name=$(NODE_NAME)", *wanted.arguments],
        "env": environment,
        "ports": [{"name": "health", "containerPort": HEALTH, "hostPort": HEALTH}],
        "livenessProbe": {
            "httpGet": dict(alive),
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": alive, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
    }
