"""ConfigMaps, Secrets, ServiceAccounts: keys, sizes, and what may not change once frozen."""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

from zonewise.api import field_errors
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext

LARGEST = 1024 * 1024
LONGEST_KEY = 253
ACCOUNT_NAME = "kubernetes.io/service-account.name"
TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type's name
DOCKER_KEYS = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}

_KEY = re.compile(r"[-._a-zA-Z0-9]+\Z")


class ConfigMapRules(LegacyRules):
    """The rules of ConfigMaps."""

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """Keys are file names, none is duplicate, and all together fit."""
        found: Faults = []
        data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
        size = 0
        for key, value in data.items():
            found += _key_faults("data", key)
            if key in binary:
                text = "duplicate of key present in binaryData"
                found.append(field_errors.invalid(f"data[{key}]", value, text))
            size += len(value.encode())
        for key, value in binary.items():
            found += _key_faults("binaryData", key)
            size += _decoded_length(value)
        if size > LARGEST:
            found.append(field_errors.too_long("[]", LARGEST))
        return found

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is frozen stays as it is, and stays frozen."""
        return _frozen(obj, old, ("data", "binaryData")) + self.find(obj, context)


class AccountRules(LegacyRules):
    """The rules of ServiceAccounts: of a secret they keep no more than its name."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Secrets are in the account's own namespace."""
        if obj.get("secrets"):
            obj["secrets"] = [
                {"name": one["name"]} if one.get("name") else {} for one in obj["secrets"]
            ]

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """The same."""
        self.prepare_create(obj, context)


class SecretRules(LegacyRules):
    """The rules of Secrets."""

    selectable = frozenset({"type"})

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields."""
        return {"type": obj.get("type", "")}

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """An update without a type keeps it."""
        if not obj.get("type"):
            obj["type"] = old.get("type", "")

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """Keys are file names, all together fit, and the type has what it needs."""
        found: Faults = []
        data = obj.get("data") or {}
        size = 0
        for key, value in data.items():
            found += _key_faults("data", key)
            size += _decoded_length(value)
        if size > LARGEST:
            found.append(field_errors.too_long("data", LARGEST))
        return found + _type_faults(obj, data)

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """The type never changes; what is frozen stays as it is, and stays frozen."""
        found: Faults = []
        if obj.get("type") != old.get("type"):
            found.append(field_errors.invalid("type", obj.get("type"), "field is immutable"))
        return found + _frozen(obj, old, ("data",)) + self.find(obj, context)


def key_faults(key: str) -> list[str]:
    """Why a text is no key of a ConfigMap or a Secret."""
    found = []
    if len(key) > LONGEST_KEY:
        found.append(f"must be no more than {LONGEST_KEY} characters")
    if not _KEY.match(key):
        found.append("a valid config key must consist of alphanumeric characters, '-', '_' or '.'")
    if key in {".", ".."}:
        found.append(f"must not be '{key}'")
    elif key.startswith(".."):
        found.append("must not start with '..'")
    return found


def _key_faults(field: str, key: str) -> Faults:
    return [field_errors.invalid(f"{field}[{key}]", key, text) for text in key_faults(key)]


def _frozen(obj: Obj, old: Obj, fields: tuple[str, ...]) -> Faults:
    if not old.get("immutable"):
        return []
    text = "field is immutable when `immutable` is set"
    found: Faults = []
    if not obj.get("immutable"):
        found.append(field_errors.forbidden("immutable", text))
    found += [
        field_errors.forbidden(field, text)
        for field in fields
        if (obj.get(field) or {}) != (old.get(field) or {})
    ]
    return found


def _decoded_length(value: str) -> int:
    return len(value) * 3 // 4 - value[-2:].count("=")


def _type_faults(obj: Obj, data: Obj) -> Faults:
    kind = obj.get("type", "")
    if kind == TOKEN_TYPE:
        annotations = obj["metadata"].get("annotations") or {}
        if not annotations.get(ACCOUNT_NAME):
            return [field_errors.required(f"metadata.annotations[{ACCOUNT_NAME}]")]
    elif kind in DOCKER_KEYS:
        key = DOCKER_KEYS[kind]
        if key not in data:
            return [field_errors.required(f"data[{key}]")]
        if not _is_json_object(data[key]):
            text = "must be the JSON text of an object"
            return [field_errors.invalid(f"data[{key}]", "<secret contents redacted>", text)]
    elif kind == "kubernetes.io/basic-auth":
        if "username" not in data and "password" not in data:
            return [
                field_errors.required("data[username]"),
                field_errors.required("data[password]"),
            ]
    elif kind == "kubernetes.io/ssh-auth":
        if not data.get("ssh-privatekey"):
            return [field_errors.required("data[ssh-privatekey]")]
    elif kind == "kubernetes.io/tls":
        return [
            field_errors.required(f"data[{key}]")
            for key in ("tls.crt", "tls.key")
            if key not in data
        ]
    return []


def _is_json_object(encoded: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(base64.b64decode(encoded)), dict)
    except (binascii.Error, msgspec.DecodeError):
        return False
