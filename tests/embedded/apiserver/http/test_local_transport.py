"""The in-process transport to the API server is the same API."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from zonewise.api import Lease, Node, ObjectMeta, Pod
from zonewise.api.errors import Conflict, Forbidden, Invalid, NotFound
from zonewise.api.objects.coordination import LeaseSpec
from zonewise.embedded.apiserver.auth.authorization import MASTERS
from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.request.call import User
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.runtime.client.client import Client

OWNER = User("test", (MASTERS,))
NOBODY = User("nobody")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A new server without a socket."""
    server = ApiServer(tmp_path, clock=lambda: 1_800_000_000.0, rng=random.Random(1), inline=True)
    await server.boot()
    yield server
    await server.close()


async def test_client_works_over_it(server: ApiServer) -> None:
    """The client creates, reads, patches, lists and deletes over the transport in process."""
    client = Client(LocalTransport(server.handle, OWNER))
    created = await client.create(Node(metadata=ObjectMeta(name="n1", labels={"zone": "a"})))
    assert created.key == ("", "n1")
    patched = await client.patch(Node, "n1", None, {"metadata": {"labels": {"zone": "b"}}})
    assert patched.metadata.labels["zone"] == "b"
    listing = await client.list(Node, label_selector="zone=b")
    assert [node.key for node in listing.items] == [("", "n1")]
    await client.delete(Node, "n1")
    with pytest.raises(NotFound, match='nodes "n1" not found'):
        await client.get(Node, "n1")


async def test_permissions_are_checked(server: ApiServer) -> None:
    """A user without a role is refused in process as over the network."""
    client = Client(LocalTransport(server.handle, NOBODY))
    with pytest.raises(Forbidden, match='User "nobody" cannot list resource "pods"'):
        await client.list(Pod)


async def test_validation_is_the_servers(server: ApiServer) -> None:
    """An object that breaks a rule of its kind is refused with its causes."""
    client = Client(LocalTransport(server.handle, OWNER))
    with pytest.raises(Invalid) as refused:
        await client.create(Lease(metadata=ObjectMeta(name="No Name", namespace="default")))
    assert refused.value.details.causes
    assert refused.value.details.causes[0].field == "metadata.name"


async def test_stale_writes_are_conflicts(server: ApiServer) -> None:
    """Of two writes based on the same version, one is a conflict."""
    client = Client(LocalTransport(server.handle, OWNER))
    meta = ObjectMeta(name="l", namespace="default")
    created = await client.create(Lease(metadata=meta, spec=LeaseSpec(holder_identity="a")))
    await client.replace(Lease(metadata=created.metadata, spec=LeaseSpec(holder_identity="b")))
    with pytest.raises(Conflict):
        await client.replace(Lease(metadata=created.metadata, spec=LeaseSpec(holder_identity="c")))


async def test_binding_schedules_a_pod(server: ApiServer) -> None:
    """A bound pod has its node, the node's zone, and the condition PodScheduled."""
    client = Client(LocalTransport(server.handle, OWNER))
    await client.create(
        Node(metadata=ObjectMeta(name="n1", labels={"topology.kubernetes.io/zone": "a"}))
    )
    account = b'{"metadata":{"name":"default"}}'
    await client.raw("POST", "/api/v1/namespaces/default/serviceaccounts", body=account)
    pod = b'{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
    await client.raw("POST", "/api/v1/namespaces/default/pods", body=pod)
    binding = b'{"metadata":{"name":"p"},"target":{"kind":"Node","name":"n1"}}'
    await client.raw("POST", "/api/v1/namespaces/default/pods/p/binding", body=binding)
    bound = await client.get(Pod, "p", "default")
    assert bound.spec.node_name == "n1"
    assert bound.metadata.labels["topology.kubernetes.io/zone"] == "a"
    assert [(condition.type, condition.status) for condition in bound.status.conditions or ()] == [
        ("PodScheduled", "True")
    ]
    with pytest.raises(Conflict, match="already assigned"):
        await client.raw("POST", "/api/v1/namespaces/default/pods/p/binding", body=binding)


async def test_creating_by_update_needs_the_permission_to_create(server: ApiServer) -> None:
    """A user who may only update and patch cannot create by PUT or by apply."""
    owner = Client(LocalTransport(server.handle, OWNER))
    role = (
        b'{"metadata":{"name":"changer"},"rules":[{"apiGroups":["coordination.k8s.io"],'
        b'"resources":["leases"],"verbs":["get","update","patch"]}]}'
    )
    binding = (
        b'{"metadata":{"name":"changer"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io",'
        b'"kind":"ClusterRole","name":"changer"},"subjects":[{"kind":"User","name":"nobody"}]}'
    )
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await owner.raw("POST", f"{rbac}/clusterroles", body=role)
    await owner.raw("POST", f"{rbac}/clusterrolebindings", body=binding)
    client = Client(LocalTransport(server.handle, NOBODY))
    lease = Lease(metadata=ObjectMeta(name="l", namespace="default"))
    with pytest.raises(Forbidden, match="cannot create resource"):
        await client.replace(lease)
    with pytest.raises(Forbidden, match="cannot create resource"):
        await client.apply(Lease, "l", "default", {})
    await owner.create(lease)
    applied = await client.apply(Lease, "l", "default", {"spec": {"holderIdentity": "me"}})
    assert applied.spec.holder_identity == "me"
