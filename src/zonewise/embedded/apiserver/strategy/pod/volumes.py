"""The volumes of a pod: one source each, and what each source requires."""

from __future__ import annotations

from collections.abc import Callable

from zonewise.api.field_cursor import NOTHING, Field
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy.base import Obj, words
from zonewise.embedded.apiserver.strategy.metadata import validate_annotations, validate_labels
from zonewise.embedded.apiserver.strategy.pod.references import (
    validate_local_descending_path,
    validate_local_non_reserved_path,
    validate_object_field_selector,
    validate_path_no_backsteps,
    validate_resource_field_selector,
)
from zonewise.embedded.apiserver.strategy.selectors import validate_label_selector

HOST_PATH_TYPES = (
    "",
    *words("BlockDevice CharDevice Directory DirectoryOrCreate File FileOrCreate Socket"),
)
ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
DRIVER_NAME_LIMIT = 63
MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 1 << 32
TOKEN_SECONDS = 3607
DOWNWARD_FIELDS = frozenset(
    f"metadata.{key}" for key in ("name", "namespace", "labels", "annotations", "uid")
)
TOO_MANY_SOURCES = "may not specify more than 1 volume type"


def token_projection() -> Obj:
    """The volume with a token that admission gives to nearly every pod."""
    token = {"expirationSeconds": TOKEN_SECONDS, "path": "token"}
    ca = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    namespace = {"items": [{"path": "namespace", "fieldRef": field}]}
    sources = [{"serviceAccountToken": token}, {"configMap": ca}, {"downwardAPI": namespace}]
    return {"defaultMode": 420, "sources": sources}


TOKEN_PROJECTION = token_projection()
"""It is known to be valid."""


def validate_volumes(volumes: Field, pod_meta: Obj | None) -> dict[str, Obj]:
    """The volumes of a pod; returns the valid ones by name, since only these can be mounted.

    ``pod_meta`` is None in a template: only a pod's own name makes names of claims.
    """
    errors = volumes.errors
    pod_name = pod_meta.get("name", "") if pod_meta else ""
    claims = {
        f"{pod_name}-{volume.get('name', '')}"
        for volume in volumes.value
        if volume.get("ephemeral")
    }
    valid: dict[str, Obj] = {}
    seen_names: set[str] = set()
    for volume in volumes.each():
        before = len(errors)
        fields, name = volume.value, volume["name"]
        if len(fields) != 2 or fields.get("projected") != TOKEN_PROJECTION:
            _validate_source(volume, pod_name, pod_meta is not None)
        name.required().dns_label()
        if name.value in seen_names:
            name.duplicate()
        if len(errors) == before:
            seen_names.add(name.value)
        claim_name = volume["persistentVolumeClaim"]["claimName"] if claims else NOTHING
        if pod_name and claim_name.value in claims:
            claim_name.invalid("must not reference a PVC that gets created for an ephemeral volume")
        if len(errors) == before:
            valid[name.value] = fields
    return valid


def _validate_source(volume: Field, pod_name: str, in_pod: bool) -> None:
    fields = volume.value
    chosen = [key for key in _SOURCES if fields.get(key) is not None]
    if not chosen:
        volume.missing("must specify a volume type")
        return
    key, name = chosen[0], fields.get("name", "")
    _SOURCES[key](volume[key])
    if key == "ephemeral" and pod_name and name:
        claim_name = f"{pod_name}-{name}"
        for detail in names.subdomain_errors(claim_name):
            volume["name"].invalid(f'PVC name "{claim_name}": {detail}')
    elif key == "image" and in_pod:
        volume["image"]["reference"].required()
    for key in chosen[1:]:
        volume[_REPORTED_NAMES.get(key, key)].forbid(TOO_MANY_SOURCES)


def _requires(*keys: str) -> Callable[[Field], None]:
    return lambda source: source.require(*keys)


def _validate_empty_dir(source: Field) -> None:
    limit = source["sizeLimit"]
    if limit.value is not None and quantity.value(limit.value) < 0:
        limit.forbid("SizeLimit field must be a valid resource quantity")


def _validate_host_path(source: Field) -> None:
    path = source["path"]
    if path.required():
        validate_path_no_backsteps(path)
        source["type"].enum(HOST_PATH_TYPES)


def _validate_git_repo(source: Field) -> None:
    source.require("repository")
    validate_local_descending_path(source["directory"])


def _validate_secret(source: Field) -> None:
    source.require("secretName")
    _validate_files(source)


def _validate_config_map(source: Field) -> None:
    source.require("name")
    _validate_files(source)


def _validate_files(source: Field) -> None:
    _validate_file_mode(source["defaultMode"])
    for item in source["items"].each():
        _validate_key_to_path(item)


def _validate_key_to_path(item: Field) -> None:
    item.require("key", "path")
    validate_local_non_reserved_path(item["path"])
    _validate_file_mode(item["mode"])


def _validate_file_mode(mode: Field) -> None:
    mode.between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")


def _validate_nfs(source: Field) -> None:
    source.require("server", "path")
    validate_absolute_path(source.get("path", ""))


def validate_absolute_path(path: Field) -> None:
    """A path that starts with a slash."""
    if not path.value.startswith("/"):
        path.invalid("must be an absolute path")


def _validate_downward_api(source: Field) -> None:
    _validate_file_mode(source["defaultMode"])
    for item in source.value.get("items") or ():
        _validate_downward_api_file(source.holding(item))


def _validate_downward_api_file(item: Field) -> None:
    """A file with a field of the pod; ``item`` is reported as its source, without an index."""
    item.require("path")
    validate_local_non_reserved_path(item["path"])
    field, resource = item["fieldRef"], item["resourceFieldRef"]
    if field.value is not None:
        validate_object_field_selector(field, DOWNWARD_FIELDS)
        if resource.value is not None:
            item.invalid(
                "fieldRef and resourceFieldRef can not be specified simultaneously", "resource"
            )
    elif resource.value is not None:
        validate_resource_field_selector(resource, volume=True)
    else:
        item.missing("one of fieldRef and resourceFieldRef is required")
    _validate_file_mode(item["mode"])


def _validate_projected(projected: Field) -> None:
    _validate_file_mode(projected["defaultMode"])
    paths: set[str] = set()

    def take(path: str, reported: str) -> None:
        if path in paths:
            projected.invalid("conflicting duplicate paths", reported)
        paths.add(path)

    for source in projected["sources"].each():
        fields = source.value
        for key in ("secret", "configMap"):
            if fields.get(key) is None:
                continue
            part = source[key]
            part.require("name")
            for item in part["items"].each():
                _validate_key_to_path(item)
                if item.value.get("path"):
                    take(item.value["path"], part.value.get("name", ""))
        if fields.get("downwardAPI") is not None:
            part = source["downwardAPI"]
            for value in part.value.get("items") or ():
                _validate_downward_api_file(part.holding(value))
                if value.get("path"):
                    take(value["path"], value["path"])
        if fields.get("serviceAccountToken") is not None:
            _validate_service_account_token(source["serviceAccountToken"], projected)
        if fields.get("clusterTrustBundle") is not None:
            bundle = source["clusterTrustBundle"]
            _validate_cluster_trust_bundle(bundle)
            path = bundle.value.get("path", "")
            take(path, path)
        if sum(part is not None for part in fields.values()) > 1:
            source.forbid("may not specify more than 1 volume type per source")


def _validate_service_account_token(token: Field, projected: Field) -> None:
    seconds = token.get("expirationSeconds", 3600)
    seconds.minimum(MIN_TOKEN_SECONDS, "may not specify a duration less than 10 minutes")
    seconds.maximum(MAX_TOKEN_SECONDS, "may not specify a duration larger than 2^32 seconds")
    path = projected.child("path", token.value.get("path"))
    validate_local_non_reserved_path(path.required())


def _validate_cluster_trust_bundle(bundle: Field) -> None:
    name, signer, selector = bundle["name"], bundle["signerName"], bundle["labelSelector"]
    if name.value is not None and signer.value is not None:
        bundle.invalid("only one of name and signerName may be used")
    elif name.value is not None:
        name.required("must be a valid object name")
        selector.invalid_set("labelSelector must be unset if name is specified")
    elif signer.value is not None:
        signer.required("must be a valid signer name")
        validate_label_selector(selector)
    else:
        bundle.missing("either name or signerName must be specified")
    bundle.require("path")
    validate_local_non_reserved_path(bundle["path"])


def validate_csi_driver_name(driver: Field) -> None:
    """The name of a CSI driver, which may have capital letters."""
    if driver.required():
        driver.max_length(DRIVER_NAME_LIMIT)
        driver.without_errors(names.subdomain_errors(driver.value.lower()))


def _validate_csi(source: Field) -> None:
    validate_csi_driver_name(source["driver"])
    secret = source["nodePublishSecretRef"]
    if secret.value is not None:
        name = secret["name"].required()
        source.child("name", name.value).dns_subdomain()


def _validate_ephemeral(source: Field) -> None:
    template = source["volumeClaimTemplate"]
    if not template.present():
        return
    meta = template["metadata"]
    validate_annotations(meta["annotations"])
    validate_labels(meta["labels"])
    for key in (meta.value or {}).keys() - {"annotations", "labels", "creationTimestamp"}:
        meta[key].forbid("cannot be set")
    validate_claim_spec(template["spec"])


def validate_claim_spec(spec: Field) -> None:
    """The spec of a PersistentVolumeClaim, on its own or in a pod or a StatefulSet."""
    modes = spec["accessModes"]
    modes.required("at least 1 access mode is required")
    validate_label_selector(spec["selector"])
    validate_access_modes(modes)
    resources = spec["resources"]
    size = resources.entry("storage").holding(resources["requests"]["storage"].value)
    if size.present() and quantity.value(size.value) <= 0:
        size.invalid("must be greater than zero")
    for key in ("storageClassName", "volumeAttributesClassName"):
        spec[key].optional().dns_subdomain()
    spec["volumeMode"].enum(VOLUME_MODES)


def validate_access_modes(modes: Field) -> None:
    """How a volume may be mounted."""
    for mode in modes.value or ():
        modes.holding(mode).enum(ACCESS_MODES)
    supported = {mode for mode in modes.value or () if mode in ACCESS_MODES}
    if "ReadWriteOncePod" in supported and len(supported) > 1:
        modes.forbid("may not use ReadWriteOncePod with other access modes")


def _validate_image(source: Field) -> None:
    source["pullPolicy"].required().enum(PULL_POLICIES)


_SOURCES: dict[str, Callable[[Field], None]] = {
    "emptyDir": _validate_empty_dir,
    "hostPath": _validate_host_path,
    "gitRepo": _validate_git_repo,
    "gcePersistentDisk": _requires(),
    "awsElasticBlockStore": _requires("volumeID"),
    "secret": _validate_secret,
    "nfs": _validate_nfs,
    "iscsi": _requires("targetPortal", "iqn"),
    "glusterfs": _requires("endpoints", "path"),
    "flocker": _requires(),
    "persistentVolumeClaim": _requires("claimName"),
    "rbd": _requires("monitors", "image"),
    "cinder": _requires("volumeID"),
    "cephfs": _requires("monitors"),
    "quobyte": _requires("registry", "volume"),
    "downwardAPI": _validate_downward_api,
    "fc": _requires(),
    "flexVolume": _requires("driver"),
    "configMap": _validate_config_map,
    "azureFile": _requires("secretName", "shareName"),
    "vsphereVolume": _requires("volumePath"),
    "photonPersistentDisk": _requires("pdID"),
    "portworxVolume": _requires("volumeID"),
    "azureDisk": _requires("diskName", "diskURI"),
    "storageos": _requires("volumeName"),
    "projected": _validate_projected,
    "scaleIO": _requires("gateway", "system", "volumeName"),
    "csi": _validate_csi,
    "ephemeral": _validate_ephemeral,
    "image": _validate_image,
}
"""In the order in which a server looks for them: the first that is set counts."""

_REPORTED_NAMES = {"cephfs": "cephFS", "downwardAPI": "downwarAPI"}
"""Fields that a server's refusal of a second source calls by other names."""
