"""Tokens of service accounts that are requested as a Secret.

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
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key

KIND = "kubernetes.io/service-account-token"
NAME = "kubernetes.io/service-account.name"
UID = "kubernetes.io/service-account.uid"
AUTHORITY = "kube-root-ca.crt"
LIFETIME = 2**32
ACCOUNT = "tokens/account"


class TokenSecret(Object):
    """A Secret, as far as it is about a token."""

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


class AccountTokens:
    """Fills Secrets with tokens."""

    def __init__(self, context: ComponentContext) -> None:
        self._client = context.client
        self._controller = Controller("tokens", self._sync, cache=context.cache, rng=context.rng)
        self._secrets = self._controller.watches(
            TokenSecret, own_key, field_selector=f"type={KIND}", indexes={ACCOUNT: _account}
        )
        self._controller.watches(
            ServiceAccount, lambda one: self._secrets.keys_by(ACCOUNT, one.key), when=_came_or_went
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def _sync(self, key: Key) -> float | None:
        secret = self._secrets.get(key)
        if secret is None or secret.metadata.deletion_timestamp is not None:
            return None
        meta = secret.metadata
        name = meta.annotations.get(NAME, "")
        try:
            account = await self._client.get(ServiceAccount, name, meta.namespace)
        except NotFound:
            account = None
        if account is None or meta.annotations.get(UID, account.metadata.uid) != (
            account.metadata.uid
        ):
            with suppress(NotFound):
                await self._client.delete(TokenSecret, meta.name, meta.namespace, uid=meta.uid)
        elif not {"token", "namespace", "ca.crt"} <= secret.data.keys():
            await self._fill(secret, account)
        return None

    async def _fill(self, secret: TokenSecret, account: ServiceAccount) -> None:
        meta = secret.metadata
        authority = await self._client.get(_ConfigMap, AUTHORITY, meta.namespace)
        texts = {"namespace": meta.namespace, "ca.crt": authority.data.get("ca.crt", "")}
        if "token" not in secret.data:
            texts["token"] = await self._token(secret, account)
        body = {
            "metadata": {
                "resourceVersion": meta.resource_version,
                "annotations": {UID: account.metadata.uid},
            },
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
        }
        await self._client.patch(TokenSecret, meta.name, meta.namespace, body)

    async def _token(self, secret: TokenSecret, account: ServiceAccount) -> str:
        meta = secret.metadata
        bound = {"apiVersion": "v1", "kind": "Secret", "name": meta.name, "uid": meta.uid}
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME, "boundObjectRef": bound},
        }
        answer = await self._client.raw(
            "POST",
            account.resource.path(meta.namespace, account.metadata.name, "token"),
            headers={"Content-Type": "application/json"},
            body=msgspec.json.encode(body),
        )
        return msgspec.json.decode(answer.body, type=_TokenRequest).status.token


def _account(secret: TokenSecret) -> tuple[Key]:
    return ((secret.metadata.namespace, secret.metadata.annotations.get(NAME, "")),)


def _came_or_went(old: ServiceAccount | None, new: ServiceAccount | None) -> bool:
    return old is None or new is None
