"""Objects, and parts of pods, that are rendered alike for every program."""

from __future__ import annotations

from collections.abc import Sequence

from zonewise.install.installation import Bundle, Obj

READ = ("list", "watch")
_RBAC = "rbac.authorization.k8s.io"


def render_namespace(bundle: Bundle, level: str) -> Obj:
    """The namespace of a bundle; ``level`` is how far its pods are restricted."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    metadata = bundle.metadata(bundle.namespace, labels, inside=False)
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def allow(
    group: str, resources: Sequence[str], verbs: Sequence[str], *, names: list[str] | None = None
) -> Obj:
    """A rule of a role."""
    rule: Obj = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return rule if names is None else rule | {"resourceNames": names}


def render_account(
    bundle: Bundle,
    name: str,
    rules: list[Obj],
    own_rules: Sequence[Obj] = (),
    labels: dict[str, str] | None = None,
) -> list[Obj]:
    """A service account, with rules for the whole cluster, and for the namespace of the bundle."""
    metadata = bundle.metadata(name, labels)
    objects: list[Obj] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}]
    for kind, granted in (("ClusterRole", rules), ("Role", own_rules)):
        if granted:
            header = {"apiVersion": f"{_RBAC}/v1", "kind": kind}
            metadata = bundle.metadata(name, labels, inside=kind == "Role")
            subject = {"kind": "ServiceAccount", "name": name, "namespace": bundle.namespace}
            objects += [
                {**header, "metadata": metadata, "rules": list(granted)},
                {
                    **header,
                    "kind": f"{kind}Binding",
                    "metadata": metadata,
                    "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
                    "subjects": [subject],
                },
            ]
    return objects


def render_daemon_set(metadata: Obj, labels: dict[str, str], pod: Obj) -> Obj:
    """A DaemonSet of a pod, on every Linux node."""
    pod = {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
    } | pod
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def confine(*capabilities: str, root: bool = False) -> Obj:
    """The security context of a container: no privilege but these capabilities."""
    added = {"add": list(capabilities)} if capabilities else {}
    return {
        **({"runAsUser": 0} if root else {}),
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **added},
    }


def render_probes(port: str, *, ready: str = "/readyz", period: int = 2) -> Obj:
    """The probes of a container; a busy one has a minute to answer before it is restarted."""
    return {
        "livenessProbe": {
            "httpGet": {"path": "/livez", "port": port},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": {"path": ready, "port": port}, "periodSeconds": period},
    }
