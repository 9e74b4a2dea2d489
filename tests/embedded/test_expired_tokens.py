"""Tokens that expire while a controller runs: it reads the new one and loses nothing."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from pathlib import Path

import msgspec
import pytest
from tests.embedded.virtual_cluster import until
from tests.runtime.loopback import write_kubeconfig

from zonewise.api.errors import Unauthorized
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Namespace
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

pytestmark = pytest.mark.asyncio

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
HOUR = 3600.0


async def token(server: ApiServer, *, seconds: int = 600) -> str:
    """A token of an account that may read everything."""
    client = server.connect("test")
    body = msgspec.json.encode({"spec": {"expirationSeconds": seconds}})
    answer = await client.raw("POST", f"{ACCOUNTS}/robot/token", body=body)
    token: str = answer.json()["status"]["token"]
    return token


async def test_an_expired_token_is_read_again(tmp_path: Path) -> None:
    """After 401 the next token is read from the file, and watches and writes continue."""
    shift = [0.0]
    server = ApiServer(
        tmp_path / "data", clock=lambda: time.time() + shift[0], rng=random.Random(1)
    )
    address = await server.start(0)
    try:
        owner = server.connect("test")
        body = msgspec.json.encode({"metadata": {"name": "robot"}})
        await owner.raw("POST", ACCOUNTS, body=body)
        role = {"kind": "ClusterRole", "name": "cluster-admin"}
        subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
        binding = {
            "metadata": {"name": "robot"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **role},
            "subjects": [subject],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        await owner.raw("POST", path, body=msgspec.json.encode(binding))
        file = tmp_path / "token"
        file.write_text(await token(server))
        authority = base64.b64encode(server.identity.authority_pem.encode()).decode()
        config = write_kubeconfig(
            tmp_path / "config",
            cluster={"server": address, "certificate-authority-data": authority},
            user={"tokenFile": str(file)},
        )
        async with Client(HttpsTransport(load_config(config))) as client:
            cache = Cache(client)
            seen = cache.store(Namespace)
            work = asyncio.create_task(cache.run())
            try:
                await until(lambda: ("", "default") in seen)
                shift[0] = HOUR
                with pytest.raises(Unauthorized):
                    await client.list(Namespace)
                file.write_text(await token(server))
                await client.create(Namespace(metadata=ObjectMeta(name="later")))
                await until(lambda: ("", "later") in seen)
                assert not work.done()
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
    finally:
        await server.close()
