"""Reviews as an API server sends them, and handlers that answer in every way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import trustme

from zonewise.api.errors import ConnectionFailed
from zonewise.api.objects.core import Service
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Allowed, Denied

SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}}


def review(**request: Any) -> bytes:
    content = {"uid": "u-1", "operation": "CREATE", **request}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": content}
    ).encode()


def pair(authority: trustme.CA) -> tuple[bytes, bytes]:
    issued = authority.issue_cert("127.0.0.1", "webhook.shop.svc")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return chain, issued.private_key_pem.bytes()


async def named(request: AdmissionRequest) -> AdmissionAnswer:
    service = request.new(Service)
    assert service is not None
    if service.metadata.name == "bad":
        return Denied("bad is no name")
    return Allowed(warnings=["dry" if request.dry_run else "wet"])


async def crash(request: AdmissionRequest) -> AdmissionAnswer:
    raise KeyError("a secret of the program")


async def unreachable(request: AdmissionRequest) -> AdmissionAnswer:
    raise ConnectionFailed("the API server did not answer")


async def hang(request: AdmissionRequest) -> AdmissionAnswer:
    await asyncio.Event().wait()
    raise AssertionError


HANDLERS = {"/name": named, "/crash": crash, "/cut": unreachable, "/hang": hang}
