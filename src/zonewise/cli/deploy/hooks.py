"""Whom API servers ask before they write, and what happens if nobody answers: the write.

Everything fails open, within two seconds: a cluster whose webhook is gone must go on as if it had
never been there. Our own namespace is left out, so that the slices of the webhook's own Service
never wait for it. The certificate's authority is not here: the programs put it in.
"""

from __future__ import annotations

from zonewise.cli.deploy.wanted import NAME, WEBHOOK, Obj, Wanted

TIMEOUT = 2


def configurations(wanted: Wanted) -> list[Obj]:
    """Services are validated in every mode; slices are changed where we adopt them."""
    services = _webhook(wanted, "services", "/services", "")
    made = [_configuration(wanted, "Validating", services)]
    if wanted.role == "adopt":
        slices = _webhook(wanted, "endpointslices", "/hints", "discovery.k8s.io")
        managed = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
        slices["objectSelector"] = {"matchLabels": managed}
        made.append(_configuration(wanted, "Mutating", slices))
    return made


def _configuration(wanted: Wanted, kind: str, webhook: Obj) -> Obj:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": wanted.metadata(NAME, inside=False),
        "webhooks": [webhook],
    }


def _webhook(wanted: Wanted, resource: str, path: str, group: str) -> Obj:
    ours = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [wanted.namespace]}
    return {
        "name": f"{resource}.zonewise.io",
        "clientConfig": {"service": {"namespace": wanted.namespace, "name": WEBHOOK, "path": path}},
        "rules": [
            {
                "operations": ["CREATE", "UPDATE"],
                "apiGroups": [group],
                "apiVersions": ["v1"],
                "resources": [resource],
            }
        ],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT,
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchExpressions": [ours]},
    }
