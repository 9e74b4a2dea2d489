"""``zonewise install --proxy``: a DaemonSet that may do what it must and nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml
from tests.cli.run_program import here
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster
from tests.proxy.remembering_kernel import NODE, SERVICE, Remembering

from zonewise.api.objects.events import Event
from zonewise.embedded.apiserver.http.local_transport import LocalTransport
from zonewise.embedded.apiserver.request.call import User
from zonewise.install.proxy import PROXY, ProxyInstallation, render_proxy
from zonewise.proxy.notes import Notes
from zonewise.proxy.objects import ServiceCIDR
from zonewise.proxy.proxier import Proxier
from zonewise.proxy.settings import ProxySettings
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.watch import WatchOptions

Capture = pytest.CaptureFixture[str]
ACCOUNT = User(
    f"system:serviceaccount:{PROXY}:{PROXY}",
    ("system:serviceaccounts", f"system:serviceaccounts:{PROXY}", "system:authenticated"),
)


def printed(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    result = here(capsys, "install", "--proxy", *arguments)
    assert (result.code, result.err) == (0, "")
    assert "&id" not in result.out
    return list(yaml.safe_load_all(result.out))


def test_the_pod_has_one_capability_and_no_privilege(capsys: Capture) -> None:
    """The proxy's pod has NET_ADMIN in the node's network; no other capability, no host path, no
    privilege.
    """
    objects = printed(
        capsys,
        *("--cluster-cidr", "10.244.0.0/16", "--api-server", "[fd00::1]:6443", "--image", "me:1"),
        *("--service-proxy-name", "zonewise"),
    )
    assert [item["kind"] for item in objects] == [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
    ]
    pod = objects[-1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert "privileged" not in security
    assert pod["hostNetwork"] is True
    assert not {"hostPID", "hostIPC", "volumes"} & pod.keys()
    assert container["args"] == [
        "proxy",
        "--node-name=$(NODE_NAME)",
        "--cluster-cidr=10.244.0.0/16",
        "--service-proxy-name=zonewise",
    ]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert environment["KUBERNETES_SERVICE_HOST"] == "fd00::1"
    assert environment["KUBERNETES_SERVICE_PORT"] == "6443"


def test_flags_of_the_proxy_need_it(capsys: Capture) -> None:
    """Flags of the proxy are refused without --proxy, and wrong values always."""
    for flags in (("--cluster-cidr", "10.0.0.0/8"), ("--proxy", "--api-server", "somewhere")):
        result = here(capsys, "install", *flags)
        assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--api-server", "nonsense"), "--api-server 'nonsense' is not an address with a port"),
        (("--api-server", "nonsense"), "write it like 10.0.0.1:6443"),
        (("--api-server", ":6443"), "--api-server :6443 needs a host"),
        (("--api-server", ""), "--api-server '' is not an address"),
        (("--cluster-cidr", "foo"), "--cluster-cidr: 'foo' is not a network"),
        (("--cluster-cidr", "10.0.0.0/8,10.0.0.0/99"), "'10.0.0.0/99' is not a network"),
    ],
)
def test_nonsense_is_refused_by_name(capsys: Capture, flags: tuple[str, ...], says: str) -> None:
    """Values with which no proxy could start are refused; the sentence names the flag."""
    result = here(capsys, "install", "--proxy", *flags)
    assert (result.code, result.out) == (2, "")
    assert says in result.sentence()


async def installed(cluster: VirtualCluster) -> None:
    for item in render_proxy(ProxyInstallation(image="zonewise", version="1.0")):
        served = cluster.server.registry.by_kind(item["apiVersion"], item["kind"])
        assert served is not None
        answer = await cluster.client.raw(
            "POST",
            served.kind.resource.path(item["metadata"].get("namespace", "")),
            query={"fieldValidation": "Strict"},
            headers={"Content-Type": "application/json"},
            body=json.dumps(item).encode(),
        )
        assert answer.status == 201
        assert "Warning" not in answer.headers


@pytest.mark.looptime
async def test_the_rights_are_enough() -> None:
    """Under its own account a proxy watches what it needs, and writes Events."""
    async with virtual_cluster({}) as cluster:
        await installed(cluster)
        await cluster.client.create(NODE({"metadata": {"name": "n1"}}))
        ports = [{"name": "p", "port": 80}]
        keys = {"zonewise.io/topology-keys": "kubernetes.io/hostname,*"}
        metadata = {"name": "s", "namespace": "default", "annotations": keys}
        await cluster.client.create(SERVICE({"metadata": metadata, "spec": {"ports": ports}}))
        client = Client(LocalTransport(cluster.server.handle, ACCOUNT))
        await client.list(ServiceCIDR)
        cache = Cache(client, options=WatchOptions(watch_list=False))
        kernel = Remembering()
        cidrs = cache.store(ServiceCIDR)
        proxier = Proxier(cache, kernel, ProxySettings(node_name="n1"), service_cidrs=cidrs)
        notes = Notes(client, "n1", service=proxier.services.get)
        proxier.observers = (notes,)
        tasks = [asyncio.create_task(part) for part in (cache.run(), proxier.run(), notes.run())]
        await until(lambda: bool(kernel.writes))
        assert kernel.networks["IPv4"]["service-cidrs"]
        notes.no_health_check(("default", "s"), 30000, "taken")
        events: list[Event] = []
        for _ in range(100):
            await asyncio.sleep(0.1)
            events = list(await cluster.client.list(Event, "default"))
            if events:
                break
        assert [event.reason for event in events] == ["FailedToStartServiceHealthcheck"]
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        kernel.heard.close()
