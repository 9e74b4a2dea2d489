"""What a class says to the provisioner itself: keys that begin with ``csi.storage.k8s.io/``.

The driver never sees them. They name the file system and the Secrets of each call; names of Secrets
may have ``${pv.name}``, ``${pvc.name}``, ``${pvc.namespace}`` and ``${pvc.annotations['key']}`` in
them, as far as they are known in each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from zonewise.api.errors import ZonewiseError
from zonewise.api.objects.storage import PersistentVolumeClaim, SecretReference

PREFIX = "csi.storage.k8s.io/"
FS_TYPE = f"{PREFIX}fstype"
SECRETS = {
    "provisioner": "provisioner",
    "controller-publish": "controller-publish",
    "node-stage": "node-stage",
    "node-publish": "node-publish",
    "controller-expand": "controller-expand",
    "node-expand": "node-expand",
}
_ANY = re.compile(r"\$\{([^}]*)\}")
_ANNOTATION = re.compile(r"pvc\.annotations\['([^']*)'\]\Z")


class ParameterError(ZonewiseError):
    """A class has a provisioner parameter that is not valid."""


def for_driver(parameters: Mapping[str, str]) -> dict[str, str]:
    """What of a class's parameters is the driver's; unknown keys of ours are refused."""
    known = {FS_TYPE} | {
        f"{PREFIX}{name}-secret-{part}" for name in SECRETS for part in ("name", "namespace")
    }
    for key in parameters:
        if key.startswith(PREFIX) and key not in known:
            raise ParameterError(f"the class has the parameter {key}, which means nothing here")
    return {key: value for key, value in parameters.items() if not key.startswith(PREFIX)}


def secret(
    parameters: Mapping[str, str], call: str, volume: str, claim: PersistentVolumeClaim
) -> SecretReference | None:
    """The Secret of a call, if the class names one."""
    name = parameters.get(f"{PREFIX}{call}-secret-name", "")
    namespace = parameters.get(f"{PREFIX}{call}-secret-namespace", "")
    if not name and not namespace:
        return None
    if not name or not namespace:
        raise ParameterError(f"the class names only half of its {call} secret")
    return SecretReference(
        name=_filled(name, volume, claim), namespace=_filled(namespace, volume, claim)
    )


def _filled(template: str, volume: str, claim: PersistentVolumeClaim) -> str:
    values = {
        "pv.name": volume,
        "pvc.name": claim.metadata.name,
        "pvc.namespace": claim.metadata.namespace,
    }

    def value(found: re.Match[str]) -> str:
        known = values.get(found[1])
        if known is not None:
            return known
        annotation = _ANNOTATION.match(found[1])
        if annotation is None or annotation[1] not in claim.metadata.annotations:
            raise ParameterError(f"{found[0]} in the name of a secret is not known")
        return claim.metadata.annotations[annotation[1]]

    return _ANY.sub(value, template)
