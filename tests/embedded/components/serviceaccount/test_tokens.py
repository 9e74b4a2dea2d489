"""Tokens of service accounts in Secrets."""

from __future__ import annotations

import base64

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.errors import ApiError
from zonewise.embedded.components.serviceaccount.tokens import (
    ServiceAccount,
    TokensController,
    TokenSecret,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS = {"tokens-controller": TokensController}


async def secret(cluster: VirtualCluster, account: str) -> None:
    """A Secret that requests a token."""
    meta = {"name": "t", "annotations": {"kubernetes.io/service-account.name": account}}
    body = {"metadata": meta, "type": "kubernetes.io/service-account-token"}
    await cluster.client.raw(
        "POST", "/api/v1/namespaces/default/secrets", body=msgspec.json.encode(body)
    )


async def test_a_secret_is_filled_with_a_token_that_works() -> None:
    """The token is valid for the account until the Secret is deleted."""
    async with virtual_cluster(PARTS) as cluster:
        await secret(cluster, "default")
        selector = "type=kubernetes.io/service-account-token"
        secrets = cluster.program.cache.store(TokenSecret, field_selector=selector)
        await until(lambda: any("token" in secret.data for secret in secrets))
        issued = secrets.values()[0]
        assert base64.b64decode(issued.data["namespace"]) == b"default"
        assert b"BEGIN CERTIFICATE" in base64.b64decode(issued.data["ca.crt"])
        assert "kubernetes.io/service-account.uid" in issued.metadata.annotations
        token = base64.b64decode(issued.data["token"]).decode()
        user = cluster.server.authenticator.authenticate(f"Bearer {token}", None)
        assert user.name == "system:serviceaccount:default:default"
        await cluster.client.delete(TokenSecret, "t", "default")
        await until(lambda: not secrets.values())

        def refused() -> bool:
            try:
                cluster.server.authenticator.authenticate(f"Bearer {token}", None)
            except ApiError:
                return True
            return False

        await until(refused)


async def test_a_secret_goes_with_its_account() -> None:
    """The Secret is deleted with its account; one without an account is deleted at once."""
    async with virtual_cluster(PARTS) as cluster:
        body = msgspec.json.encode({"metadata": {"name": "robot"}})
        await cluster.client.raw("POST", "/api/v1/namespaces/default/serviceaccounts", body=body)
        await secret(cluster, "robot")
        selector = "type=kubernetes.io/service-account-token"
        secrets = cluster.program.cache.store(TokenSecret, field_selector=selector)
        await until(lambda: any("token" in secret.data for secret in secrets))
        await cluster.client.delete(ServiceAccount, "robot", "default")
        await until(lambda: not secrets.values())
        seen: list[TokenSecret | None] = []
        secrets.on_change(lambda _, new: seen.append(new))
        await secret(cluster, "nobody")
        await until(lambda: len(seen) > 1 and not secrets.values())
        assert all(secret is None or not secret.data for secret in seen)
