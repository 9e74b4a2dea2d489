"""A write whose lease ends before it reaches the socket is not sent."""

from __future__ import annotations

import json

import pytest
from tests.runtime.loopback import Reply, Seen, web

from zonewise.api.errors import LeadershipLost
from zonewise.api.objects.core import Node
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import ClusterConfig
from zonewise.runtime.config.credentials import Credential

NODE = json.dumps({"metadata": {"name": "a"}}).encode()


class Lease:
    """A lease that ends, and credentials that are fetched until after its end."""

    def __init__(self) -> None:
        self.leading = True
        self.slow = False

    def fence(self) -> None:
        if not self.leading:
            raise LeadershipLost("the lease has ended")

    async def current(self) -> Credential:
        if self.slow:
            self.leading = False
        return Credential()

    async def renew(self, rejected: Credential) -> Credential | None:
        self.leading = False
        return Credential(authorization="Bearer fresh")


async def test_a_lease_that_ends_while_credentials_are_fetched_stops_the_write() -> None:
    """The fence is checked again when the connection is open; no byte of the write is sent."""
    lease = Lease()
    with web(lambda _: Reply(body=NODE)) as server:
        config = ClusterConfig(server=server.url, credentials=lease)
        async with Client(HttpsTransport(config), fence=lease.fence) as client:
            await client.patch(Node, "a", None, {})
            assert len(server.seen) == 1
            lease.slow = True
            with pytest.raises(LeadershipLost):
                await client.patch(Node, "a", None, {})
            assert len(server.seen) == 1
            await client.get(Node, "a")
            assert [seen.method for seen in server.seen] == ["PATCH", "GET"]


async def test_a_lease_that_ends_between_two_attempts_stops_the_second() -> None:
    """A write that is repeated with new credentials passes the fence again."""
    lease = Lease()

    def unauthorized(seen: Seen) -> Reply:
        return Reply(status=200 if seen.header("authorization") else 401, body=NODE)

    with web(unauthorized) as server:
        config = ClusterConfig(server=server.url, credentials=lease)
        async with Client(HttpsTransport(config), fence=lease.fence) as client:
            with pytest.raises(LeadershipLost):
                await client.patch(Node, "a", None, {})
            assert len(server.seen) == 1
