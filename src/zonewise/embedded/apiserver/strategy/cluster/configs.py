"""ConfigMaps, Secrets, ServiceAccounts: keys, sizes, and what may not change once frozen."""

from __future__ import annotations

import base64
import binascii

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.cluster.nodes import is_json_object

SIZE_LIMIT = 1024 * 1024
ACCOUNT_NAME = "kubernetes.io/service-account.name"
TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type's name
DOCKER_KEYS = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}


class ConfigMapRules(Rules):
    """The rules of ConfigMaps."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        """Keys are file names, none is duplicate, and all together fit."""
        binary, size = obj["binaryData"], 0
        for key, text in obj["data"].entries():
            _validate_key(text, key)
            if key in (binary.value or ()):
                text.invalid("duplicate of key present in binaryData")
            size += len(text.value.encode())
        if size + _validate_bytes(binary) > SIZE_LIMIT:
            obj["[]"].too_long(SIZE_LIMIT)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What is frozen stays as it is, and stays frozen."""
        _validate_frozen(obj, old, "data", "binaryData")
        self.validate(obj, context)


class ServiceAccountRules(Rules):
    """The rules of ServiceAccounts: of a secret they keep no more than its name."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Secrets are in the account's own namespace."""
        if obj.get("secrets"):
            references = (secret.get("name") for secret in obj["secrets"])
            obj["secrets"] = [{"name": name} if name else {} for name in references]

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        self.prepare_create(obj, context)


class SecretRules(Rules):
    """The rules of Secrets."""

    selectable = frozenset({"type"})

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """An update without a type keeps it."""
        if not obj.get("type"):
            obj["type"] = old.get("type", "")

    def validate(self, obj: Field, context: StrategyContext) -> None:
        """Keys are file names, all together fit, and the type has what it needs."""
        if _validate_bytes(obj["data"]) > SIZE_LIMIT:
            obj["data"].too_long(SIZE_LIMIT)
        _validate_type(obj)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """The type never changes; what is frozen stays as it is, and stays frozen."""
        obj["type"].immutable(old.get("type"))
        _validate_frozen(obj, old, "data")
        self.validate(obj, context)


def _validate_key(entry: Field, key: str) -> None:
    entry.holding(key).name(names.config_map_key_errors)


def _validate_bytes(data: Field) -> int:
    """The keys of a map of bytes; the size of its values."""
    size = 0
    for key, encoded in data.entries():
        _validate_key(encoded, key)
        size += len(encoded.value) * 3 // 4 - encoded.value[-2:].count("=")
    return size


def _validate_frozen(obj: Field, old: Obj, *keys: str) -> None:
    if not old.get("immutable"):
        return
    detail = "field is immutable when `immutable` is set"
    if not obj["immutable"].value:
        obj["immutable"].forbid(detail)
    for key in keys:
        if (obj[key].value or {}) != (old.get(key) or {}):
            obj[key].forbid(detail)


def _validate_type(secret: Field) -> None:
    data = secret["data"]
    match secret["type"].value:
        case "kubernetes.io/service-account-token":
            secret["metadata"]["annotations"].entry(ACCOUNT_NAME).required()
        case "kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson" as kind:
            config = data.entry(DOCKER_KEYS[kind])
            if config.present() and not _is_encoded_object(config.value):
                config.invalid("must be the JSON text of an object", "<secret contents redacted>")
        case "kubernetes.io/basic-auth":
            if not {"username", "password"} & (data.value or {}).keys():
                data.entry("username").missing()
                data.entry("password").missing()
        case "kubernetes.io/ssh-auth":
            data.entry("ssh-privatekey").required()
        case "kubernetes.io/tls":
            for key in ("tls.crt", "tls.key"):
                data.entry(key).present()


def _is_encoded_object(encoded: str) -> bool:
    try:
        return is_json_object(base64.b64decode(encoded))
    except binascii.Error:
        return False
