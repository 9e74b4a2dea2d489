"""The environment of a container: variables, and where their values come from."""

from __future__ import annotations

import re

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.downward import field_faults, resource_field_faults
from zonewise.embedded.apiserver.strategy.pod.volumes import no_backsteps

ENV_FIELDS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    }
)
_KEY = re.compile(r"[-._a-zA-Z0-9]+\Z")
_ENV_NAME = re.compile(r"[ -<>-~]+\Z")
_KEY_TEXT = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
_ENV_TEXT = "environment variable names must be printable ASCII characters other than '='"


def env_faults(variables: list[Obj], path: str, spec: Obj) -> Faults:
    """What is wrong with the variables of a container."""
    found: Faults = []
    for index, one in enumerate(variables):
        name = one.get("name", "")
        if not name:
            found.append(field_errors.required(f"{path}[{index}].name"))
        elif not _ENV_NAME.match(name):
            found.append(field_errors.invalid(f"{path}[{index}].name", name, _ENV_TEXT))
        source = one.get("valueFrom")
        if source is not None:
            at = f"{path}[{index}].valueFrom"
            found += _value_from(source, at, one.get("value", ""), spec)
    return found


def env_from_faults(sources: list[Obj], path: str) -> Faults:
    """What is wrong with the sources of whole sets of variables."""
    found: Faults = []
    for index, one in enumerate(sources):
        at = f"{path}[{index}]"
        prefix = one.get("prefix", "")
        if prefix and not _ENV_NAME.match(prefix):
            found.append(field_errors.invalid(f"{at}.prefix", prefix, _ENV_TEXT))
        count = 0
        for kind in ("configMapRef", "secretRef"):
            reference = one.get(kind)
            if reference is None:
                continue
            count += 1
            name = reference.get("name", "")
            if not name:
                found.append(field_errors.required(f"{at}.{kind}.name"))
            else:
                # The name is judged as the start of a longer one, which may end with a dash.
                judged = f"{name[:-1]}a" if name.endswith("-") else name
                found += [
                    field_errors.invalid(f"{at}.{kind}.name", name, text)
                    for text in names.subdomain(judged)
                ]
        if count == 0:
            text = "must specify one of: `configMapRef` or `secretRef`"
            found.append(field_errors.invalid(path, "", text))
        elif count > 1:
            text = "may not have more than one field specified at a time"
            found.append(field_errors.invalid(path, "", text))
    return found


def _value_from(source: Obj, path: str, value: str, spec: Obj) -> Faults:
    found: Faults = []
    count = 0
    if source.get("fieldRef") is not None:
        count += 1
        found += field_faults(source["fieldRef"], ENV_FIELDS, f"{path}.fieldRef")
    if source.get("resourceFieldRef") is not None:
        count += 1
        found += resource_field_faults(source["resourceFieldRef"], f"{path}.resourceFieldRef")
    for kind in ("configMapKeyRef", "secretKeyRef"):
        reference = source.get(kind)
        if reference is not None:
            count += 1
            found += _key_reference(reference, f"{path}.{kind}")
    if source.get("fileKeyRef") is not None:
        count += 1
        found += _file_reference(source["fileKeyRef"], f"{path}.fileKeyRef", spec)
    if count == 0:
        text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`,"
        found.append(field_errors.invalid(path, "", f"{text} `secretKeyRef` or `fileKeyRef`"))
    elif value:
        found.append(
            field_errors.invalid(path, "", "may not be specified when `value` is not empty")
        )
    elif count > 1:
        text = "may not have more than one field specified at a time"
        found.append(field_errors.invalid(path, "", text))
    return found


def _key_reference(reference: Obj, path: str) -> Faults:
    name, key = reference.get("name", ""), reference.get("key", "")
    found = [field_errors.invalid(f"{path}.name", name, text) for text in names.subdomain(name)]
    if not key:
        found.append(field_errors.required(f"{path}.key"))
    else:
        found += [field_errors.invalid(f"{path}.key", key, text) for text in key_sentences(key)]
    return found


def key_sentences(key: str) -> list[str]:
    """Why a text is no key of a ConfigMap or Secret."""
    found = []
    if len(key) > 253:
        found.append("must be no more than 253 bytes")
    if not _KEY.match(key):
        found.append(_KEY_TEXT)
    elif key in {".", ".."}:
        found.append(f"must not be '{key}'")
    elif key.startswith(".."):
        found.append("must not start with '..'")
    return found


def _file_reference(reference: Obj, path: str, spec: Obj) -> Faults:
    found: Faults = []
    key, target = reference.get("key", ""), reference.get("path", "")
    if not key:
        found.append(field_errors.required(f"{path}.key"))
    elif not _ENV_NAME.match(key):
        found.append(field_errors.invalid(f"{path}.key", key, _ENV_TEXT))
    if not target:
        found.append(field_errors.required(f"{path}.path"))
    else:
        found += no_backsteps(target, f"{path}.path")
    volume = reference.get("volumeName", "")
    at = f"{path}.volumeName"
    if not volume:
        found.append(field_errors.required(at))
    else:
        found += [field_errors.invalid(at, volume, text) for text in names.label(volume)]
    source = next((one for one in spec.get("volumes") or () if one.get("name") == volume), None)
    if source is None:
        found.append(field_errors.not_found(at, volume))
    elif source.get("emptyDir") is None:
        found.append(field_errors.invalid(at, volume, "referenced volume must be of type emptyDir"))
    return found
