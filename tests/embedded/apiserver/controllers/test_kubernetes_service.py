"""The API server publishes its address."""

from __future__ import annotations

import msgspec
import pytest
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.embedded.apiserver.controllers.kubernetes_service import publish

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


@pytest.mark.parametrize(
    ("host", "address", "family"),
    [
        ("127.0.0.1", "192.0.2.1", "IPv4"),
        ("0.0.0.0", "192.0.2.1", "IPv4"),
        ("10.1.2.3", "10.1.2.3", "IPv4"),
        ("fd00::1", "fd00::1", "IPv6"),
    ],
)
async def test_endpoints_and_a_slice_name_the_server(host: str, address: str, family: str) -> None:
    """Endpoints and a slice have the server's address and port, also after a restart; loopback is
    not published.
    """
    async with virtual_cluster({}) as cluster:
        for port in (1234, 6443):
            await publish(cluster.server.connect("apiserver"), host, port)
        answer = await cluster.client.raw("GET", "/api/v1/namespaces/default/endpoints/kubernetes")
        ports = [{"name": "https", "port": 6443, "protocol": "TCP"}]
        assert msgspec.json.decode(answer.body)["subsets"] == [
            {"addresses": [{"ip": address}], "ports": ports}
        ]
        answer = await cluster.client.raw(
            "GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
        )
        piece = msgspec.json.decode(answer.body)
        assert piece["addressType"] == family
        assert piece["endpoints"] == [{"addresses": [address], "conditions": {"ready": True}}]
        assert piece["ports"] == ports
        assert piece["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
