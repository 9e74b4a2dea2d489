"""The tokens controller: tokens of service accounts that are requested as a Secret.

A Secret of type ``kubernetes.io/service-account-token`` names its account by annotation and gets
the account's uid, a token, the namespace and the cluster's CA. The token is bound to the Secret: it
is valid until the Secret is deleted. A Secret whose account is deleted, or has another uid, is
deleted. Only Secrets of that type are read.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from zonewise.api.errors import NotFound
from zonewise.api.meta import Key, Object
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.program.context import ControllerContext

TYPE = "kubernetes.io/service-account-token"
ACCOUNT_NAME = "kubernetes.io/service-account.name"
ACCOUNT_UID = "kubernetes.io/service-account.uid"
ROOT_CA = "kube-root-ca.crt"
TOKEN_SECONDS = 2**32
BY_ACCOUNT = "tokens/account"


class TokenSecret(Object):
    """A Secret with a token of a service account."""

    resource: ClassVar = Resource("", "v1", "Secret", "secrets")

    data: dict[str, str] = field(default_factory=dict)


class ServiceAccount(Object):
    """A service account."""

    resource: ClassVar = Resource("", "v1", "ServiceAccount", "serviceaccounts")


class _ConfigMap(Object):
    resource: ClassVar = Resource("", "v1", "ConfigMap", "configmaps")

    data: dict[str, str] = field(default_factory=dict)


class _TokenStatus(Struct):
    token: str = ""


class _TokenRequest(Struct):
    status: _TokenStatus = _TokenStatus()


class TokensController:
    """Writes tokens into Secrets that request them."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._controller = context.controller("tokens", self._sync)
        self.run = self._controller.run
        self._secrets = self._controller.watches(
            TokenSecret, own_key, field_selector=f"type={TYPE}", indexes={BY_ACCOUNT: _account_key}
        )
        self._controller.watches(
            ServiceAccount,
            lambda account: self._secrets.keys_by(BY_ACCOUNT, account.key),
            when=_is_added_or_deleted,
        )

    async def _sync(self, key: Key) -> float | None:
        secret = self._secrets.get(key)
        if secret is None or secret.metadata.deletion_timestamp is not None:
            return None
        meta = secret.metadata
        name = meta.annotations.get(ACCOUNT_NAME, "")
        try:
            account = await self._client.get(ServiceAccount, name, meta.namespace)
        except NotFound:
            account = None
        if account is None or meta.annotations.get(ACCOUNT_UID, account.metadata.uid) != (
            account.metadata.uid
        ):
            with suppress(NotFound):
                await self._client.delete(TokenSecret, meta.name, meta.namespace, uid=meta.uid)
        elif not {"token", "namespace", "ca.crt"} <= secret.data.keys():
            await self._populate(secret, account)
        return None

    async def _populate(self, secret: TokenSecret, account: ServiceAccount) -> None:
        meta = secret.metadata
        root_ca = await self._client.get(_ConfigMap, ROOT_CA, meta.namespace)
        values = {"namespace": meta.namespace, "ca.crt": root_ca.data.get("ca.crt", "")}
        if "token" not in secret.data:
            values["token"] = await self._request_token(secret, account)
        body = {
            "metadata": {
                "resourceVersion": meta.resource_version,
                "annotations": {ACCOUNT_UID: account.metadata.uid},
            },
            "data": {key: base64.b64encode(v.encode()).decode() for key, v in values.items()},
        }
        await self._client.patch(TokenSecret, meta.name, meta.namespace, body)

    async def _request_token(self, secret: TokenSecret, account: ServiceAccount) -> str:
        meta = secret.metadata
        secret_ref = {"apiVersion": "v1", "kind": "Secret", "name": meta.name, "uid": meta.uid}
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS, "boundObjectRef": secret_ref},
        }
        response = await self._client.raw(
            "POST",
            account.resource.path(meta.namespace, account.metadata.name, "token"),
            headers={"Content-Type": "application/json"},
            body=msgspec.json.encode(body),
        )
        return msgspec.json.decode(response.body, type=_TokenRequest).status.token


def _account_key(secret: TokenSecret) -> tuple[Key]:
    return ((secret.metadata.namespace, secret.metadata.annotations.get(ACCOUNT_NAME, "")),)


def _is_added_or_deleted(old: ServiceAccount | None, new: ServiceAccount | None) -> bool:
    return old is None or new is None
