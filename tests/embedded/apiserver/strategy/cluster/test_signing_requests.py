"""CertificateSigningRequests on the embedded server."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.embedded.virtual_cluster import virtual_cluster

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def request() -> str:
    """A request for a certificate."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "e2e")])
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return base64.b64encode(request.public_bytes(Encoding.PEM)).decode()


async def test_the_server_records_the_requesting_user() -> None:
    """The server sets the requesting user, and requests are selected by their signer."""
    async with virtual_cluster({}) as cluster:
        spec = {
            "request": request(),
            "signerName": "example.com/one",
            "usages": ["client auth"],
            "username": "somebody-else",
            "groups": ["system:masters"],
        }
        body = {"metadata": {"name": "a"}, "spec": spec}
        answer = await cluster.client.raw("POST", PATH, body=msgspec.json.encode(body))
        created = msgspec.json.decode(answer.body)
        assert created["spec"]["username"] == "system:test"
        for signer, count in (("example.com/one", 1), ("example.com/two", 0)):
            query = {"fieldSelector": f"spec.signerName={signer}"}
            answer = await cluster.client.raw("GET", PATH, query=query)
            assert len(msgspec.json.decode(answer.body)["items"]) == count


async def test_approval_and_certificate_are_separate_subresources() -> None:
    """Each of the two subresources changes its own part of the status only."""
    async with virtual_cluster({}) as cluster:
        spec = {
            "request": request(),
            "signerName": "example.com/one",
            "usages": ["client auth"],
        }
        body = {"metadata": {"name": "a"}, "spec": spec}
        await cluster.client.raw("POST", PATH, body=msgspec.json.encode(body))
        yes = {"type": "Approved", "status": "True", "reason": "Test"}
        both = {"status": {"conditions": [yes], "certificate": "QUJD"}}

        async def patch(below: str) -> dict[str, Any]:
            answer = await cluster.client.raw(
                "PATCH",
                f"{PATH}/a/{below}",
                headers={"Content-Type": "application/merge-patch+json"},
                body=msgspec.json.encode(both),
            )
            status: dict[str, Any] = msgspec.json.decode(answer.body).get("status") or {}
            return status

        signed = await patch("status")
        assert "certificate" in signed
        assert not signed.get("conditions")
        approved = await patch("approval")
        assert [condition["type"] for condition in approved["conditions"]] == ["Approved"]
        assert approved["certificate"] == signed["certificate"]
