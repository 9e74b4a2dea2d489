"""A real API server calls our webhook while its certificate rotates, again and again.

One replica mutates, the other validates, so each write meets both. The API server opens a new
connection for every call, because each answer asks it to close, so each call meets the certificate
of the moment. The policy is Fail: one call that is not answered, or not trusted, fails a write.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest

from tools import realkube as real
from zonewise.api.errors import ApiError, Forbidden
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Allowed, Denied
from zonewise.runtime.webhook.certificates import Certificates, RotationTiming
from zonewise.runtime.webhook.server import AdmissionDispatcher, WebhookLimits, WebhookServer
from zonewise.runtime.webhook.server_context import ServerContext

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
Namespace = unstructured(Resource("", "v1", "Namespace", "namespaces"))
Mutating = unstructured(MutatingWebhookConfiguration.resource)
Validating = unstructured(ValidatingWebhookConfiguration.resource)

TIMING = RotationTiming(lifetime=timedelta(seconds=24), renew_at=0.25, settle=3.0, poll=0.5)
ROTATIONS = 4
NAME = "zonewise-certificates-test"


async def label(request: AdmissionRequest) -> AdmissionAnswer:
    """Adds a label that says whether the request was a dry run."""
    labels = {"zoned": "dry" if request.dry_run else "wet"}
    return Allowed(
        patch=[{"op": "add", "path": "/metadata/labels", "value": labels}], warnings=["labelled"]
    )


async def judge(request: AdmissionRequest) -> AdmissionAnswer:
    """Refuses objects named "bad"."""
    if request.name == "bad":
        return Denied("bad is no name for a ConfigMap")
    return Allowed()


class Replica:
    """A webhook replica: a server and the rotation of its certificate."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.tls = ServerContext()
        self.handshakes = 0
        self.tls.listening.sni_callback = self.hello
        dispatcher = AdmissionDispatcher(
            {"/label": label, "/judge": judge}, limits=WebhookLimits(calls=1)
        )
        self.server = WebhookServer(dispatcher, tls=self.tls, listen="127.0.0.1:0")
        self.certificates = Certificates(
            client,
            secret="webhook-tls",
            namespace=namespace,
            hosts=["127.0.0.1"],
            configurations=[
                (MutatingWebhookConfiguration, NAME),
                (ValidatingWebhookConfiguration, NAME),
            ],
            serve=self.tls.use,
            timing=TIMING,
            rng=random.Random(id(self)),
        )

    def hello(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> int | None:
        self.handshakes += 1
        return self.tls.hello(connection, name, context)


@asynccontextmanager
async def running(client: Client, namespace: str) -> AsyncIterator[Replica]:
    replica = Replica(client, namespace)
    async with replica.server:
        task = asyncio.create_task(replica.certificates.run())
        try:
            await replica.certificates.serving.wait()
            yield replica
        finally:
            task.cancel()
            await asyncio.wait([task])


def configuration(kind: str, path: str, port: int, namespace: str) -> dict[str, object]:
    webhook = {
        "name": f"{kind.lower()}.zonewise.io",
        "clientConfig": {"url": f"https://127.0.0.1:{port}{path}"},
        "rules": [
            {
                "operations": ["CREATE"],
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["configmaps"],
            }
        ],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 10,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [webhook],
    }


def config_map(name: str, namespace: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
    }


async def test_no_call_fails_while_certificates_rotate(realapi: real.ControlPlane) -> None:
    """Through several rotations by two replicas every write is answered by both webhooks."""
    namespace = "certificates"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(HttpsTransport(load_config(realapi.kubeconfig)))
        )
        await client.create(
            Namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        )
        replicas = [await stack.enter_async_context(running(client, namespace)) for _ in range(2)]
        kinds = (("Mutating", Mutating, "/label"), ("Validating", Validating, "/judge"))
        for (kind, cls, path), replica in zip(kinds, replicas, strict=True):
            manifest = configuration(kind, path, replica.server.port, namespace)
            await client.create(cls(manifest))
            stack.push_async_callback(client.delete, cls, NAME)
        await _until_called(client, namespace)

        seen = {replicas[0].certificates.served}
        calls = 0
        while len(seen) <= ROTATIONS:
            created = await client.create(ConfigMap(config_map(f"m{calls}", namespace)))
            assert created.metadata.labels == {"zoned": "wet"}
            calls += 1
            seen.add(replicas[calls % 2].certificates.served)
        assert all(replica.handshakes > calls for replica in replicas)
        assert calls > 10 * ROTATIONS

        with pytest.raises(Forbidden, match="bad is no name for a ConfigMap"):
            await client.create(ConfigMap(config_map("bad", namespace)))
        dry = await client.create(ConfigMap(config_map("dry", namespace)), dry_run=True)
        assert dry.metadata.labels == {"zoned": "dry"}


async def _until_called(client: Client, namespace: str) -> None:
    """Wait until the API server has both configurations, trusts the webhooks and calls them."""
    async with asyncio.timeout(180):
        while True:
            with contextlib.suppress(ApiError):
                created = await client.create(
                    ConfigMap(config_map("probe", namespace)), dry_run=True
                )
                if created.metadata.labels:
                    return
            await asyncio.sleep(0.1)
