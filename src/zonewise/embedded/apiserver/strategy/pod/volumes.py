"""The volumes of a pod: one source each, and what each source needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zonewise.api import field_errors
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.downward import field_faults, resource_field_faults
from zonewise.embedded.apiserver.strategy.selectors import selector_faults

FILE_MODE = "must be a number between 0 and 0777 (octal), both inclusive"
HOST_TYPES = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
SHORTEST_TOKEN = 600
LONGEST_TOKEN = 1 << 32
TOKEN_SECONDS = 3607
DOWNWARD_FIELDS = frozenset(
    f"metadata.{key}" for key in ("name", "namespace", "labels", "annotations", "uid")
)


def token_projection() -> Obj:
    """The volume with a token that admission gives to nearly every pod."""
    return {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {
                "downwardAPI": {
                    "items": [
                        {
                            "path": "namespace",
                            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                        }
                    ]
                }
            },
        ],
    }


TOKEN_PROJECTION = token_projection()
"""It is known to be valid."""


def volume_faults(volumes: list[Obj], path: str, pod_name: str, *, pod: bool) -> Faults:
    """What is wrong with a pod's volumes.

    ``pod_name`` is empty in a template: only a pod's own name makes names of claims.
    """
    found: Faults = []
    seen: set[str] = set()
    claims = {f"{pod_name}-{one.get('name', '')}" for one in volumes if one.get("ephemeral")}
    for index, volume in enumerate(volumes):
        at = f"{path}[{index}]"
        name = volume.get("name", "")
        mine = (
            []
            if volume.get("projected") == TOKEN_PROJECTION and len(volume) == 2
            else _source_faults(volume, at, name, pod_name, pod)
        )
        if not name:
            mine.append(field_errors.required(f"{at}.name"))
        else:
            mine += [field_errors.invalid(f"{at}.name", name, text) for text in names.label(name)]
        if name in seen:
            mine.append(field_errors.duplicate(f"{at}.name", name))
        if mine:
            found += mine
        else:
            seen.add(name)
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if pod_name and claim in claims:
            text = "must not reference a PVC that gets created for an ephemeral volume"
            found.append(field_errors.invalid(f"{at}.persistentVolumeClaim.claimName", claim, text))
    return found


def usable(volumes: list[Obj], found: Faults, path: str) -> dict[str, Obj]:
    """The volumes that have no fault of their own, by name; only these can be mounted."""
    if not found:
        return {one.get("name", ""): one for one in volumes}
    good: dict[str, Obj] = {}
    for index, one in enumerate(volumes):
        start = f"{path}[{index}]"
        if not any(
            fault.field == start or (fault.field or "").startswith(f"{start}.") for fault in found
        ):
            good[one.get("name", "")] = one
    return good


def _source_faults(volume: Obj, path: str, name: str, pod_name: str, pod: bool) -> Faults:
    found: Faults = []
    chosen = False
    for key, check in _SOURCES:
        source = volume.get(key)
        if source is None:
            continue
        if chosen:
            field = _ODD_FIELDS.get(key, key)
            text = "may not specify more than 1 volume type"
            found.append(field_errors.forbidden(f"{path}.{field}", text))
            continue
        chosen = True
        found += check(source, f"{path}.{key}")
        if key == "ephemeral" and pod_name and name:
            claim = f"{pod_name}-{name}"
            found += [
                field_errors.invalid(f"{path}.name", name, f'PVC name "{claim}": {text}')
                for text in names.subdomain(claim)
            ]
        elif key == "image" and pod and not source.get("reference"):
            found.append(field_errors.required(f"{path}.image.reference"))
    if not chosen:
        found.append(field_errors.required(path, "must specify a volume type"))
    return found


def _empty_dir(source: Obj, path: str) -> Faults:
    limit = source.get("sizeLimit")
    if limit is not None and quantity.parse(str(limit)).value < 0:
        text = "SizeLimit field must be a valid resource quantity"
        return [field_errors.forbidden(f"{path}.sizeLimit", text)]
    return []


def _host_path(source: Obj, path: str) -> Faults:
    target = source.get("path", "")
    if not target:
        return [field_errors.required(f"{path}.path")]
    found = no_backsteps(target, f"{path}.path")
    kind = source.get("type")
    if kind is not None and kind not in HOST_TYPES:
        found.append(field_errors.unsupported(f"{path}.type", kind, HOST_TYPES))
    return found


def _git_repo(source: Obj, path: str) -> Faults:
    found = _needs(source, path, "repository")
    return found + local_path(source.get("directory", ""), f"{path}.directory")


def _secret(source: Obj, path: str) -> Faults:
    return _needs(source, path, "secretName") + _files(source, path)


def _config_map(source: Obj, path: str) -> Faults:
    return _needs(source, path, "name") + _files(source, path)


def _files(source: Obj, path: str) -> Faults:
    found = _mode(source, path, "defaultMode")
    for index, item in enumerate(source.get("items") or ()):
        found += _key_to_path(item, f"{path}.items[{index}]")
    return found


def _key_to_path(item: Obj, path: str) -> Faults:
    found = _needs(item, path, "key", "path")
    found += unreserved_path(item.get("path", ""), f"{path}.path")
    return found + _mode(item, path, "mode")


def _claim(source: Obj, path: str) -> Faults:
    return _needs(source, path, "claimName")


def _nfs(source: Obj, path: str) -> Faults:
    found = _needs(source, path, "server", "path")
    target = source.get("path", "")
    if not target.startswith("/"):
        found.append(field_errors.invalid(f"{path}.path", target, "must be an absolute path"))
    return found


def _downward(source: Obj, path: str) -> Faults:
    found = _mode(source, path, "defaultMode")
    for item in source.get("items") or ():
        found += _downward_file(item, path)
    return found


def _downward_file(item: Obj, path: str) -> Faults:
    found = _needs(item, path, "path")
    found += unreserved_path(item.get("path", ""), f"{path}.path")
    if item.get("fieldRef") is not None:
        found += field_faults(item["fieldRef"], DOWNWARD_FIELDS, f"{path}.fieldRef")
        if item.get("resourceFieldRef") is not None:
            text = "fieldRef and resourceFieldRef can not be specified simultaneously"
            found.append(field_errors.invalid(path, "resource", text))
    elif item.get("resourceFieldRef") is not None:
        found += resource_field_faults(
            item["resourceFieldRef"], f"{path}.resourceFieldRef", volume=True
        )
    else:
        found.append(
            field_errors.required(path, "one of fieldRef and resourceFieldRef is required")
        )
    return found + _mode(item, path, "mode")


def _projected(source: Obj, path: str) -> Faults:
    found = _mode(source, path, "defaultMode")
    taken: set[str] = set()

    def take(target: str, shown: str) -> None:
        if target in taken:
            found.append(field_errors.invalid(path, shown, "conflicting duplicate paths"))
        taken.add(target)

    for index, one in enumerate(source.get("sources") or ()):
        at = f"{path}.sources[{index}]"
        for kind in ("secret", "configMap"):
            part = one.get(kind)
            if part is None:
                continue
            found += _needs(part, f"{at}.{kind}", "name")
            for number, item in enumerate(part.get("items") or ()):
                found += _key_to_path(item, f"{at}.{kind}.items[{number}]")
                if item.get("path"):
                    take(item["path"], part.get("name", ""))
        if one.get("downwardAPI") is not None:
            for item in one["downwardAPI"].get("items") or ():
                found += _downward_file(item, f"{at}.downwardAPI")
                if item.get("path"):
                    take(item["path"], item["path"])
        if one.get("serviceAccountToken") is not None:
            found += _token(one["serviceAccountToken"], at, path)
        if one.get("clusterTrustBundle") is not None:
            found += _trust_bundle(one["clusterTrustBundle"], f"{at}.clusterTrustBundle")
            target = one["clusterTrustBundle"].get("path", "")
            take(target, target)
        if sum(part is not None for part in one.values()) > 1:
            text = "may not specify more than 1 volume type per source"
            found.append(field_errors.forbidden(at, text))
    return found


def _token(token: Obj, at: str, path: str) -> Faults:
    found: Faults = []
    seconds = token.get("expirationSeconds", 3600)
    field = f"{at}.serviceAccountToken.expirationSeconds"
    if seconds < SHORTEST_TOKEN:
        text = "may not specify a duration less than 10 minutes"
        found.append(field_errors.invalid(field, seconds, text))
    if seconds > LONGEST_TOKEN:
        text = "may not specify a duration larger than 2^32 seconds"
        found.append(field_errors.invalid(field, seconds, text))
    if not token.get("path"):
        found.append(field_errors.required(f"{path}.path"))
    else:
        found += unreserved_path(token["path"], f"{path}.path")
    return found


def _trust_bundle(bundle: Obj, path: str) -> Faults:
    found: Faults = []
    name, signer = bundle.get("name"), bundle.get("signerName")
    if name is not None and signer is not None:
        text = "only one of name and signerName may be used"
        found.append(field_errors.invalid(path, bundle, text))
    elif name is not None:
        if not name:
            found.append(field_errors.required(f"{path}.name", "must be a valid object name"))
        if bundle.get("labelSelector") is not None:
            text = "labelSelector must be unset if name is specified"
            found.append(
                field_errors.invalid(f"{path}.labelSelector", bundle["labelSelector"], text)
            )
    elif signer is not None:
        if not signer:
            found.append(field_errors.required(f"{path}.signerName", "must be a valid signer name"))
        found += selector_faults(bundle.get("labelSelector"), f"{path}.labelSelector")
    else:
        found.append(field_errors.required(path, "either name or signerName must be specified"))
    found += _needs(bundle, path, "path")
    return found + unreserved_path(bundle.get("path", ""), f"{path}.path")


def _csi(source: Obj, path: str) -> Faults:
    found: Faults = []
    driver = source.get("driver", "")
    if not driver:
        found.append(field_errors.required(f"{path}.driver"))
    else:
        if len(driver) > 63:
            found.append(field_errors.too_long(f"{path}.driver", 63))
        found += [
            field_errors.invalid(f"{path}.driver", driver, text)
            for text in names.subdomain(driver.lower())
        ]
    secret = source.get("nodePublishSecretRef")
    if secret is not None:
        name = secret.get("name", "")
        if not name:
            found.append(field_errors.required(f"{path}.nodePublishSecretRef.name"))
        else:
            found += [
                field_errors.invalid(f"{path}.name", name, text) for text in names.subdomain(name)
            ]
    return found


def _ephemeral(source: Obj, path: str) -> Faults:
    template = source.get("volumeClaimTemplate")
    at = f"{path}.volumeClaimTemplate"
    if template is None:
        return [field_errors.required(at)]
    meta = template.get("metadata") or {}
    found: Faults = []
    if meta.get("annotations"):
        found += metadata.annotation_faults(f"{at}.metadata.annotations", meta["annotations"])
    if meta.get("labels"):
        found += metadata.label_faults(f"{at}.metadata.labels", meta["labels"])
    for key in meta.keys() - {"annotations", "labels", "creationTimestamp"}:
        found.append(field_errors.forbidden(f"{at}.metadata.{key}", "cannot be set"))
    return found + claim_spec_faults(template.get("spec") or {}, f"{at}.spec")


def claim_spec_faults(spec: Obj, path: str) -> Faults:
    """What is wrong with the spec of a claim that a pod or a set brings along."""
    found: Faults = []
    modes = spec.get("accessModes") or ()
    if not modes:
        text = "at least 1 access mode is required"
        found.append(field_errors.required(f"{path}.accessModes", text))
    found += selector_faults(spec.get("selector"), f"{path}.selector")
    for mode in modes:
        if mode not in ACCESS_MODES:
            found.append(field_errors.unsupported(f"{path}.accessModes", mode, ACCESS_MODES))
    if "ReadWriteOncePod" in modes and any(
        mode in ACCESS_MODES and mode != "ReadWriteOncePod" for mode in modes
    ):
        text = "may not use ReadWriteOncePod with other access modes"
        found.append(field_errors.forbidden(f"{path}.accessModes", text))
    requests = (spec.get("resources") or {}).get("requests") or {}
    size = f"{path}.resources[storage]"
    if "storage" not in requests:
        found.append(field_errors.required(size))
    elif quantity.parse(str(requests["storage"])).value <= 0:
        found.append(field_errors.invalid(size, requests["storage"], "must be greater than zero"))
    for key in ("storageClassName", "volumeAttributesClassName"):
        name = spec.get(key)
        if name:
            found += [
                field_errors.invalid(f"{path}.{key}", name, text) for text in names.subdomain(name)
            ]
    mode = spec.get("volumeMode")
    if mode is not None and mode not in VOLUME_MODES:
        found.append(field_errors.unsupported(f"{path}.volumeMode", mode, VOLUME_MODES))
    return found


def _image(source: Obj, path: str) -> Faults:
    policy = source.get("pullPolicy", "")
    if not policy:
        return [field_errors.required(f"{path}.pullPolicy")]
    if policy not in PULL_POLICIES:
        return [field_errors.unsupported(f"{path}.pullPolicy", policy, PULL_POLICIES)]
    return []


def _needing(*keys: str) -> Callable[[Obj, str], Faults]:
    def check(source: Obj, path: str) -> Faults:
        return _needs(source, path, *keys)

    return check


def _needs(source: Obj, path: str, *keys: str) -> Faults:
    return [field_errors.required(f"{path}.{key}") for key in keys if not source.get(key)]


def _mode(source: Obj, path: str, key: str) -> Faults:
    mode: Any = source.get(key)
    if mode is None or 0 <= mode <= 0o777:
        return []
    return [field_errors.invalid(f"{path}.{key}", mode, FILE_MODE)]


def local_path(target: str, path: str) -> Faults:
    """A path that goes down from where it starts."""
    found: Faults = []
    if target.startswith("/"):
        found.append(field_errors.invalid(path, target, "must be a relative path"))
    return found + no_backsteps(target, path)


def no_backsteps(target: str, path: str) -> Faults:
    """A path without ``..``."""
    if ".." in target and ".." in target.split("/"):
        return [field_errors.invalid(path, target, "must not contain '..'")]
    return []


def unreserved_path(target: str, path: str) -> Faults:
    """A local path whose first name is not reserved by the kubelet."""
    found = local_path(target, path)
    if target.startswith("..") and not target.startswith("../"):
        found.append(field_errors.invalid(path, target, "must not start with '..'"))
    return found


_SOURCES: tuple[tuple[str, Callable[[Obj, str], Faults]], ...] = (
    ("emptyDir", _empty_dir),
    ("hostPath", _host_path),
    ("gitRepo", _git_repo),
    ("gcePersistentDisk", _needing()),
    ("awsElasticBlockStore", _needing("volumeID")),
    ("secret", _secret),
    ("nfs", _nfs),
    ("iscsi", _needing("targetPortal", "iqn")),
    ("glusterfs", _needing("endpoints", "path")),
    ("flocker", _needing()),
    ("persistentVolumeClaim", _claim),
    ("rbd", _needing("monitors", "image")),
    ("cinder", _needing("volumeID")),
    ("cephfs", _needing("monitors")),
    ("quobyte", _needing("registry", "volume")),
    ("downwardAPI", _downward),
    ("fc", _needing()),
    ("flexVolume", _needing("driver")),
    ("configMap", _config_map),
    ("azureFile", _needing("secretName", "shareName")),
    ("vsphereVolume", _needing("volumePath")),
    ("photonPersistentDisk", _needing("pdID")),
    ("portworxVolume", _needing("volumeID")),
    ("azureDisk", _needing("diskName", "diskURI")),
    ("storageos", _needing("volumeName")),
    ("projected", _projected),
    ("scaleIO", _needing("gateway", "system", "volumeName")),
    ("csi", _csi),
    ("ephemeral", _ephemeral),
    ("image", _image),
)
"""The order in which a server looks at them: the first one there is the one that counts."""

_ODD_FIELDS = {"cephfs": "cephFS", "downwardAPI": "downwarAPI"}
"""Fields that a server's refusal of a second source calls by other names."""
