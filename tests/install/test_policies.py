"""The printed policies refuse what our accounts could do beyond what their programs do."""

from __future__ import annotations

import pytest
from tests.embedded.virtual_cluster import virtual_cluster
from tests.install.accounts import GROUPS, create
from tests.install.attacks import ATTACKS, INSTALLATION, WORK, Try, victims
from tests.install.enforced import enforce

from zonewise.api.errors import Forbidden
from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.request.call import User
from zonewise.install.installation import NAME, Installation, Obj
from zonewise.install.manifests import render_manifests
from zonewise.runtime.client.client import Client

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def send_attempt(attempt: Try, *, policies: bool = True) -> Obj:
    """The answer to a request on a cluster where everything is installed."""
    async with virtual_cluster({}) as cluster:
        await create(cluster, render_manifests(INSTALLATION))
        await create(cluster, victims())
        if policies:
            enforce(cluster.server, render_manifests(INSTALLATION))
        user = User(INSTALLATION.username(attempt.account), GROUPS)
        client = Client(LocalTransport(cluster.server.handle, user))
        return await attempt.send(client, cluster.client)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.what)
async def test_an_attack_is_refused(attack: Try) -> None:
    """Roles allow it, and a policy refuses it."""
    assert await send_attempt(attack, policies=False)
    with pytest.raises(Forbidden, match=r"Zonewise's (controller|webhook) may"):
        await send_attempt(attack)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK, ids=lambda work: work.what)
async def test_work_is_allowed(work: Try) -> None:
    """The programs' own requests are allowed."""
    assert await send_attempt(work)


SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
MANAGED = "endpointslice.kubernetes.io/managed-by"


def own_slice(service: str, manager: str) -> Obj:
    """A slice that sends a Service's traffic to another address."""
    labels = {"kubernetes.io/service-name": service, MANAGED: manager}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "new", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"]}],
    }


@pytest.mark.parametrize(
    ("service", "manager", "allowed"),
    [
        ("web", "endpointslice-controller.k8s.io", True),
        ("web", "somebody.example.com", False),
        ("kubernetes", "endpointslice-controller.k8s.io", False),
    ],
)
async def test_which_slices_may_be_written(service: str, manager: str, allowed: bool) -> None:
    """With own the controller writes its own slices, but none of the API server's Service."""
    own = Installation(role="own")
    async with virtual_cluster({}) as cluster:
        await create(cluster, render_manifests(own))
        enforce(cluster.server, render_manifests(own))
        client = Client(LocalTransport(cluster.server.handle, User(own.username(NAME), GROUPS)))
        attempt = Try("write a slice", NAME, "POST", SLICES, own_slice(service, manager))
        if allowed:
            assert await attempt.send(client, cluster.client)
        else:
            with pytest.raises(Forbidden, match="may write only EndpointSlices managed by"):
                await attempt.send(client, cluster.client)
