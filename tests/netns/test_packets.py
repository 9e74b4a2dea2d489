"""Packets really go where the routes say: six nodes, real TCP and UDP."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from tests.netns.lab import (
    NODE,
    NODES,
    PODS,
    REFUSED,
    SERVICE,
    Answer,
    Lab,
    converse,
    endpoint,
    laboratory,
    node_address,
)
from tests.netns.spaces import inside, nft
from tests.system_guard import starts_programs

from zonewise.api.errors import Invalid

SCTP = 132

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
@starts_programs
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path_factory.mktemp("lab"), proxies=NODES) as lab:
        yield lab


async def test_a_cluster_ip_reaches_every_endpoint(lab: Lab) -> None:
    """A pod and a node reach every endpoint of a ClusterIP, and no other pod."""
    address = await lab.cluster_ip("plain")
    await lab.endpoints("plain", "pod-1x", "pod-4x", "pod-6y")
    await lab.reaches("pod-2x", address, "pod-1x", "pod-4x", "pod-6y")
    await lab.reaches("node-3", address, "pod-1x", "pod-4x", "pod-6y")


async def test_pods_are_seen_as_themselves_and_nodes_are_masqueraded(lab: Lab) -> None:
    """An endpoint sees a pod's own address, and the node's address for a node."""
    address = await lab.cluster_ip("seen")
    await lab.endpoints("seen", "pod-3x")
    await lab.reaches("pod-5x", address, "pod-3x")
    assert (await lab.ask("pod-5x", address)).source == PODS["pod-5x"].ipv4
    assert (await lab.ask("node-5", address)).source == node_address("node-5")


async def test_zone_hints_keep_traffic_in_the_zone(lab: Lab) -> None:
    """Each zone uses its hinted endpoint; if an endpoint has no hint, every zone uses all."""
    address = await lab.cluster_ip("hinted")
    three = {"a": "pod-1x", "b": "pod-3x", "c": "pod-5x"}
    hinted = [endpoint(pod, zones=[zone]) for zone, pod in three.items()]
    await lab.endpoints("hinted", *hinted)
    await lab.reaches("pod-2x", address, "pod-1x")
    await lab.reaches("pod-4y", address, "pod-3x")
    await lab.reaches("node-6", address, "pod-5x")
    await lab.endpoints("hinted", *hinted[:2], "pod-5x")
    await lab.reaches("pod-2x", address, *three.values())


async def test_an_endpoint_for_two_zones_serves_both(lab: Lab) -> None:
    """An endpoint hinted for several zones is used by each of them."""
    address = await lab.cluster_ip("multizone")
    await lab.endpoints(
        "multizone", endpoint("pod-1x", zones=["a", "b"]), endpoint("pod-5x", zones=["c"])
    )
    await lab.reaches("pod-4x", address, "pod-1x")
    await lab.reaches("pod-2x", address, "pod-1x")
    await lab.reaches("pod-6x", address, "pod-5x")


async def test_node_hints_come_before_zone_hints(lab: Lab) -> None:
    """A node named by a hint uses that endpoint; other nodes of the zone go by zone hints."""
    address = await lab.cluster_ip("nodehints")
    await lab.endpoints(
        "nodehints",
        endpoint("pod-1x", zones=["a"], nodes=["node-1"]),
        endpoint("pod-3x", zones=["b"], nodes=["node-3"]),
        endpoint("pod-4x", zones=["b", "c"], nodes=["node-9"]),
    )
    await lab.reaches("pod-3y", address, "pod-3x")
    await lab.reaches("pod-4y", address, "pod-3x", "pod-4x")
    await lab.reaches("pod-6y", address, "pod-4x")


async def test_unready_endpoints_of_a_zone_send_it_elsewhere(lab: Lab) -> None:
    """Hints of unready endpoints are ignored; terminating ones that serve are the last resort."""
    address = await lab.cluster_ip("readiness")
    here = endpoint("pod-1x", zones=["a"])
    await lab.endpoints("readiness", here, endpoint("pod-3x", zones=["b"]))
    await lab.reaches("pod-2x", address, "pod-1x")
    gone = endpoint("pod-1x", zones=["a"], ready=False, serving=False)
    await lab.endpoints("readiness", gone, endpoint("pod-3x", zones=["b"]))
    await lab.reaches("pod-2x", address, "pod-3x")
    leaving = [
        endpoint(pod, zones=[zone], ready=False, terminating=True)
        for pod, zone in (("pod-3x", "b"), ("pod-5x", "c"))
    ]
    await lab.endpoints("readiness", gone, *leaving)
    await lab.reaches("pod-2x", address, "pod-3x", "pod-5x")


async def test_topology_keys_hard_and_soft(lab: Lab) -> None:
    """Keys are tried in order; without a star, no matching endpoint means refused at once."""
    hard = await lab.cluster_ip(
        "hard",
        annotations={
            "zonewise.io/topology-keys": "kubernetes.io/hostname,topology.kubernetes.io/zone"
        },
    )
    soft = await lab.cluster_ip(
        "soft", annotations={"zonewise.io/topology-keys": "kubernetes.io/hostname,*"}
    )
    for name in ("hard", "soft"):
        await lab.endpoints(name, "pod-1x", "pod-3x", "pod-3y")
    await lab.reaches("pod-1y", hard, "pod-1x")
    await lab.reaches("pod-2x", hard, "pod-1x")
    await lab.reaches("pod-4x", hard, "pod-3x", "pod-3y")
    await lab.reaches("pod-6x", hard, "refused")
    await lab.reaches("node-6", hard, "refused")
    await lab.reaches("pod-1y", soft, "pod-1x")
    await lab.reaches("pod-6x", soft, "pod-1x", "pod-3x", "pod-3y")


async def test_topology_keys_over_a_rack_label(lab: Lab) -> None:
    """Any label of nodes is a key, and when labels change traffic follows."""
    racks = {"node-1": "r1", "node-4": "r1", "node-6": "r2"}
    for node, rack in racks.items():
        await lab.client.patch(NODE, node, None, {"metadata": {"labels": {"rack": rack}}})
    address = await lab.cluster_ip("racks", annotations={"zonewise.io/topology-keys": "rack"})
    await lab.endpoints("racks", "pod-1x", "pod-6x", "pod-2x")
    await lab.reaches("pod-4x", address, "pod-1x")
    await lab.reaches("pod-3x", address, "refused")
    await lab.client.patch(NODE, "node-2", None, {"metadata": {"labels": {"rack": "r1"}}})
    await lab.reaches("pod-4x", address, "pod-1x", "pod-2x")


async def test_affinity_keeps_a_client_at_its_endpoint(lab: Lab) -> None:
    """With ClientIP affinity a client keeps its endpoint on every address until it is removed."""
    service = await lab.service("sticky", sessionAffinity="ClientIP", externalIPs=["203.0.113.5"])
    address = service["spec"]["clusterIP"]
    await lab.endpoints("sticky", "pod-1x", "pod-3x", "pod-5x", "pod-6x")

    async def served() -> bool:
        return bool((await lab.ask("pod-2x", address)).pod)

    await lab.until(served, lambda: "the Service works")
    first = (await lab.ask("pod-2x", address)).pod
    assert await lab.spread("pod-2x", address) == {first}
    assert await lab.spread("pod-2x", "203.0.113.5") == {first}
    others = [pod for pod in ("pod-1x", "pod-3x", "pod-5x", "pod-6x") if pod != first]
    await lab.endpoints("sticky", first, *others[:2])
    await asyncio.gather(*(lab.spread("pod-2x", address, times=8) for _ in range(3)))
    assert await lab.spread("pod-2x", address) == {first}
    await lab.endpoints("sticky", *others)

    async def moved() -> bool:
        return (await lab.ask("pod-2x", address)).pod != first

    await lab.until(moved, lambda: "another endpoint takes over")
    second = (await lab.ask("pod-2x", address)).pod
    assert second in others
    assert await lab.spread("pod-2x", address) == {second}


async def test_affinity_is_renewed_by_each_connection(lab: Lab) -> None:
    """The affinity timeout starts again with every connection, to any address of the Service."""
    service = await lab.service(
        "renewed",
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": 50}},
        externalIPs=["203.0.113.6"],
    )
    await lab.endpoints("renewed", "pod-3x")
    await lab.reaches("pod-2x", service["spec"]["clusterIP"], "pod-3x")
    client = re.compile(rf"{re.escape(PODS['pod-2x'].ipv4)} expires (\d+)s")

    def left() -> int:
        match = client.search(nft(lab.space("node-2"), "list", "table", "ip", "zonewise"))
        assert match is not None
        return int(match[1])

    for address in (service["spec"]["clusterIP"], "203.0.113.6"):
        await lab.until(lambda: left() < 49, lambda: f"{left()} seconds are left")
        before = left()
        assert (await lab.ask("pod-2x", address)).pod == "pod-3x"
        assert left() > before


async def test_internal_traffic_policy_local(lab: Lab) -> None:
    """With internalTrafficPolicy Local a node uses its own endpoints or drops."""
    address = await lab.cluster_ip("inlocal", internalTrafficPolicy="Local")
    await lab.endpoints("inlocal", "pod-1x", "pod-4x")
    await lab.reaches("pod-1y", address, "pod-1x")
    await lab.reaches("pod-4y", address, "pod-4x")
    await lab.reaches("pod-2x", address, "silent")


async def test_a_node_port_works_on_every_node_and_masquerades(lab: Lab) -> None:
    """From outside a NodePort of any node reaches every endpoint, which sees the node."""
    await lab.service("nodeport", type="NodePort", nodePort=30080)
    await lab.endpoints("nodeport", "pod-1x", "pod-5x")
    for node in ("node-1", "node-4"):
        await lab.reaches("outside", node_address(node), "pod-1x", "pod-5x", port=30080)
    answers = [await lab.ask("outside", node_address("node-4"), 30080) for _ in range(12)]
    assert {answer.source for answer in answers} == {node_address("node-4")}
    await lab.reaches("node-4", "127.0.0.1", "refused", port=30080)
    assert await lab.ask("outside", node_address("node-4"), 30081) == REFUSED


async def test_external_traffic_policy_local_keeps_the_source(lab: Lab) -> None:
    """Policy Local: clients outside reach the node's endpoints unmasqueraded; pods reach all."""
    await lab.service(
        "exlocal",
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        nodePort=30090,
        allocateLoadBalancerNodePorts=True,
    )
    await lab.vip("exlocal", "203.0.113.10")
    await lab.endpoints("exlocal", "pod-1x", "pod-5x")
    lab.route("outside", "203.0.113.10", "node-1")
    await lab.reaches("outside", "203.0.113.10", "pod-1x")
    assert (await lab.ask("outside", "203.0.113.10")).source == "10.99.0.200"
    await lab.reaches("outside", node_address("node-5"), "pod-5x", port=30090)
    assert (await lab.ask("outside", node_address("node-5"), 30090)).source == "10.99.0.200"
    lab.route("outside", "203.0.113.10", "node-2")
    await lab.reaches("outside", "203.0.113.10", "silent")
    await lab.reaches("outside", node_address("node-2"), "silent", port=30090)
    await lab.reaches("pod-2x", "203.0.113.10", "pod-1x", "pod-5x")
    await lab.reaches("node-2", "203.0.113.10", "pod-1x", "pod-5x")
    await lab.reaches("node-2", node_address("node-2"), "pod-1x", "pod-5x", port=30090)


async def test_the_host_as_the_only_key_keeps_the_source(lab: Lab) -> None:
    """The host alone as key: clients outside reach the node's endpoints unmasqueraded or nobody,
    pods and nodes those of their node or are refused; each node says on the port of the annotation
    whether it has an endpoint.
    """
    cluster_ip = await lab.cluster_ip(
        "hosted",
        type="LoadBalancer",
        nodePort=30091,
        annotations={
            "zonewise.io/topology-keys": "kubernetes.io/hostname",
            "zonewise.io/health-check-node-port": "31091",
        },
    )
    await lab.vip("hosted", "203.0.113.12")
    await lab.endpoints("hosted", "pod-1x", "pod-5x")
    lab.route("outside", "203.0.113.12", "node-1")
    await lab.reaches("outside", "203.0.113.12", "pod-1x")
    assert (await lab.ask("outside", "203.0.113.12")).source == "10.99.0.200"
    await lab.reaches("outside", node_address("node-5"), "pod-5x", port=30091)
    assert (await lab.ask("outside", node_address("node-5"), 30091)).source == "10.99.0.200"
    lab.route("outside", "203.0.113.12", "node-2")
    await lab.reaches("outside", "203.0.113.12", "silent")
    await lab.reaches("outside", node_address("node-2"), "silent", port=30091)
    for asker, pod in (("pod-1y", "pod-1x"), ("node-5", "pod-5x"), ("pod-2x", "refused")):
        await lab.reaches(asker, "203.0.113.12", pod)
        await lab.reaches(asker, cluster_ip, pod)
    assert (await lab.ask("pod-1y", "203.0.113.12")).source == PODS["pod-1y"].ipv4
    await lab.until(lambda: says(lab, "node-1", 31091, "200"), lambda: "node-1 has an endpoint")
    await lab.until(lambda: says(lab, "node-2", 31091, "503"), lambda: "node-2 has none")
    taken = {"metadata": {"annotations": {"zonewise.io/health-check-node-port": "30091"}}}
    with pytest.raises(Invalid, match="it is a node port of this Service"):
        await lab.client.patch(SERVICE, "hosted", "default", taken)
    assert await says(lab, "node-1", 31091, "200")


async def says(lab: Lab, node: str, port: int, status: str) -> bool:
    """Whether a node answers a health check with a status."""
    with lab.socket("outside", socket.SOCK_STREAM, node_address(node)) as link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5):
                await loop.sock_connect(link, (node_address(node), port))
                await loop.sock_sendall(link, b"GET / HTTP/1.0\r\n\r\n")
                answer = await loop.sock_recv(link, 1000)
        except OSError:
            return False
    return answer.split()[1:2] == [status.encode()]


async def test_source_ranges_are_checked_before_anything_else(lab: Lab) -> None:
    """A load balancer's address takes packets only from its source ranges; NodePorts take all."""
    await lab.service(
        "ranges",
        type="LoadBalancer",
        loadBalancerSourceRanges=["10.99.0.200/32 ", "10.244.3.0/24"],
        nodePort=30095,
    )
    await lab.vip("ranges", "203.0.113.20")
    await lab.endpoints("ranges", "pod-1x")
    lab.route("outside", "203.0.113.20", "node-1")
    await lab.reaches("outside", "203.0.113.20", "pod-1x")
    await lab.reaches("pod-3x", "203.0.113.20", "pod-1x")
    await lab.reaches("pod-4x", "203.0.113.20", "silent")
    await lab.reaches("fabric", node_address("node-1"), "pod-1x", port=30095)


async def test_a_load_balancer_in_proxy_mode_is_left_to_itself(lab: Lab) -> None:
    """An address with ipMode Proxy is not rewritten here."""
    await lab.service("proxied", type="LoadBalancer", nodePort=30096)
    await lab.vip("proxied", "203.0.113.30", mode="Proxy")
    await lab.endpoints("proxied", "pod-1x")
    await lab.reaches("outside", node_address("node-1"), "pod-1x", port=30096)
    assert "203.0.113.30" not in nft(lab.space("node-1"), "list", "table", "ip", "zonewise")


async def test_a_pod_reaches_itself_through_its_service(lab: Lab) -> None:
    """A pod that is the only endpoint of a Service can use that Service."""
    address = await lab.cluster_ip("hairpin")
    await lab.endpoints("hairpin", "pod-2y")
    await lab.reaches("pod-2y", address, "pod-2y")
    await lab.reaches("pod-2x", address, "pod-2y")
    assert (await lab.ask("pod-2x", address)).source == PODS["pod-2x"].ipv4


async def test_no_endpoint_is_refused_at_once_and_other_addresses_are_dropped(lab: Lab) -> None:
    """A request is refused at once without endpoints or at another port, and dropped at an
    unassigned ClusterIP.
    """
    address = await lab.cluster_ip("empty")
    await lab.reaches("pod-1x", address, "refused")
    await lab.reaches("node-1", address, "refused")
    await lab.endpoints("empty", "pod-1x")
    await lab.reaches("pod-2x", address, "pod-1x")
    assert await lab.ask("pod-2x", address, 81) == REFUSED
    assert await lab.ask("pod-2x", address, 80, udp=True) == REFUSED
    unused = "10.96.255.250" if not address.startswith("10.96.255.") else "10.97.255.250"
    networks = nft(lab.space("node-2"), "list", "set", "ip", "zonewise", "service-cidrs")
    assert "10.96.0.0" in networks, networks
    await lab.reaches("pod-2x", unused, "silent")


async def test_endpoints_go_under_load_without_a_failed_connection(lab: Lab) -> None:
    """While endpoints come and go every new connection succeeds."""
    address = await lab.cluster_ip("rolling")
    pods = ["pod-1x", "pod-2x", "pod-3x", "pod-4x", "pod-5x", "pod-6x"]
    await lab.endpoints("rolling", *pods)
    await lab.reaches("pod-1y", address, *pods)
    answers: list[Answer] = []
    done = asyncio.Event()

    async def load() -> None:
        while not done.is_set():
            answers.append(await lab.ask("pod-1y", address))

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(load())
        for turn in range(30):
            await lab.endpoints("rolling", *pods[turn % 5 : turn % 5 + 1 + turn % 4])
        done.set()
    assert len(answers) > 30
    assert not [answer for answer in answers if answer.fault]


async def test_connections_survive_the_removal_of_their_endpoint(lab: Lab) -> None:
    """An established connection is not touched when its endpoint leaves the Service."""
    address = await lab.cluster_ip("standing")
    await lab.endpoints("standing", "pod-4x")
    await lab.reaches("pod-1x", address, "pod-4x")
    with lab.socket("pod-1x", socket.SOCK_STREAM, address) as link:
        assert (await converse(link, (address, 80))).pod == "pod-4x"
        await lab.endpoints("standing", "pod-5x")
        await lab.reaches("pod-1x", address, "pod-5x")
        assert (await converse(link, (address, 80), connect=False)).pod == "pod-4x"


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
async def test_stale_udp_flows_move_on(lab: Lab, family: str) -> None:
    """A UDP client that never stops sending moves to a new endpoint, also after there was none."""
    name = f"datagrams-{family.lower()}"
    address = await lab.cluster_ip(
        name, protocol="UDP", ipFamilyPolicy="SingleStack", ipFamilies=[family]
    )

    async def serve(*endpoints: dict[str, Any] | str) -> None:
        await lab.endpoints(name, *endpoints, protocol="UDP", family=family)

    await serve("pod-3x")
    await lab.reaches("pod-1x", address, "pod-3x", udp=True)
    with lab.socket("pod-1x", socket.SOCK_DGRAM, address) as link:
        link.bind(("0.0.0.0" if family == "IPv4" else "::", 5353))

        async def ask() -> str:
            answer = await converse(link, (address, 80))
            return answer.pod or answer.fault

        assert await ask() == "pod-3x"
        # Another choice among those who serve leaves the flow where it is.
        hinted = (("pod-3x", "b"), ("pod-1y", "a"))
        await serve(*(endpoint(pod, family, zones=[zone]) for pod, zone in hinted))
        await lab.reaches("pod-1x", address, "pod-1y", udp=True)
        assert await ask() == "pod-3x"
        await serve("pod-1y")

        async def is_at(pod: str) -> bool:
            return await ask() == pod

        await lab.until(lambda: is_at("pod-1y"), lambda: "the flow moves to the new endpoint")
        await serve()
        await lab.until(lambda: is_at("refused"), lambda: "nobody serves, and the flow ends")
        await serve("pod-5y")
        await lab.until(lambda: is_at("pod-5y"), lambda: "the flow begins again")


async def test_udp_flows_to_another_services_address_are_left_alone(lab: Lab) -> None:
    """A Service whose external IP is another's ClusterIP moves none of that one's flows."""
    address = await lab.cluster_ip("dns", protocol="UDP")
    await lab.endpoints("dns", "pod-2x", "pod-4x", protocol="UDP")
    await lab.reaches("pod-1x", address, "pod-2x", "pod-4x", udp=True)
    own = await lab.cluster_ip("dns-thief", protocol="UDP", externalIPs=[address])
    with lab.socket("pod-1x", socket.SOCK_DGRAM, address) as link:
        link.bind(("0.0.0.0", 5354))
        first = await converse(link, (address, 80))
        assert first.pod in ("pod-2x", "pod-4x")
        for turn in range(5):
            pod = ("pod-3x", "pod-5x")[turn % 2]
            await lab.endpoints("dns-thief", pod, protocol="UDP")
            await lab.reaches("pod-1x", own, pod, udp=True)
            assert await converse(link, (address, 80)) == first


def sctp_works() -> bool:
    """Whether this kernel has SCTP at all."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, SCTP).close()
    except OSError:
        return False
    return True


async def test_sctp_has_the_same_rules(lab: Lab) -> None:
    """SCTP is routed as TCP is: read back from the kernel, and by packets where it has SCTP."""
    annotations = {"zonewise.io/topology-keys": "topology.kubernetes.io/zone"}
    service = await lab.service(
        "sctp", protocol="SCTP", type="NodePort", nodePort=30077, annotations=annotations
    )
    address = service["spec"]["clusterIP"]
    await lab.endpoints("sctp", "pod-1x", "pod-1y", "pod-5x", protocol="SCTP")
    chosen = {PODS[pod].ipv4 for pod in ("pod-1x", "pod-1y")}

    def rules() -> str:
        return nft(lab.space("node-2"), "list", "table", "ip", "zonewise")

    await lab.until(lambda: f"{address} . sctp . 80 : goto slots-2" in rules(), rules)
    for way in (rf"{re.escape(address)} \. sctp \. 80", r"sctp \. 30077"):
        targets = re.findall(rf"[01] \. {way} : (\S+) \. 8080", rules())
        assert set(targets) == chosen
    assert "sctp . 30077 : goto nodeport-slots-2" in rules()
    await lab.endpoints("sctp", protocol="SCTP")
    refused = re.compile(rf"{re.escape(address)} \. sctp \. 80(?! :)")
    await lab.until(lambda: refused.search(rules()), rules)
    if not sctp_works():
        return
    await lab.endpoints("sctp", "pod-1x", protocol="SCTP")
    with inside(lab.space("pod-1x")):
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, SCTP)
    with inside(lab.space("pod-2x")):
        link = socket.socket(socket.AF_INET, socket.SOCK_STREAM, SCTP)
    with server, link:
        server.bind(("0.0.0.0", 8080))
        server.listen()
        await lab.until(lambda: "slots-1" in rules(), rules)
        link.settimeout(10)
        link.connect((address, 80))
        assert server.accept()[1][0] == PODS["pod-2x"].ipv4


async def test_a_node_that_moves_to_another_zone_is_routed_anew(lab: Lab) -> None:
    """When the zone label of a node changes its traffic follows, without a restart."""
    address = await lab.cluster_ip("moving")
    await lab.endpoints("moving", endpoint("pod-1x", zones=["a"]), endpoint("pod-5x", zones=["c"]))
    await lab.reaches("pod-6x", address, "pod-5x")
    zone = "topology.kubernetes.io/zone"
    await lab.client.patch(NODE, "node-6", None, {"metadata": {"labels": {zone: "a"}}})
    await lab.reaches("pod-6x", address, "pod-1x")
    await lab.client.patch(NODE, "node-6", None, {"metadata": {"labels": {zone: "c"}}})
    await lab.reaches("pod-6x", address, "pod-5x")


async def test_foreign_services_are_left_alone(lab: Lab) -> None:
    """A Service labelled for another proxy is not routed until the label is removed."""
    label = "service.kubernetes.io/service-proxy-name"
    address = await lab.cluster_ip("foreign", labels={label: "someone-else"})
    await lab.endpoints("foreign", "pod-1x")
    await lab.reaches("pod-2x", await lab.cluster_ip("witness"), "refused")
    assert address not in nft(lab.space("node-2"), "list", "table", "ip", "zonewise")
    await lab.client.patch(SERVICE, "foreign", "default", {"metadata": {"labels": {label: None}}})
    await lab.reaches("pod-2x", address, "pod-1x")


async def test_ipv6_has_the_same_rules(lab: Lab) -> None:
    """ClusterIP, NodePort, hints and refusals work over IPv6 as over IPv4."""
    service = await lab.service(
        "six",
        ipFamilyPolicy="SingleStack",
        ipFamilies=["IPv6"],
        type="NodePort",
        nodePort=30066,
    )
    address = service["spec"]["clusterIP"]
    assert ":" in address
    await lab.reaches("pod-1x", address, "refused")
    await lab.endpoints(
        "six",
        endpoint("pod-1x", "IPv6", zones=["a"]),
        endpoint("pod-3x", "IPv6", zones=["b"]),
        family="IPv6",
    )
    await lab.reaches("pod-2x", address, "pod-1x")
    assert (await lab.ask("pod-2x", address)).source == PODS["pod-2x"].ipv6
    await lab.reaches("node-4", address, "pod-3x")
    await lab.reaches("outside", node_address("node-1", "IPv6"), "pod-1x", port=30066)


async def test_an_external_ip_belongs_to_its_load_balancer_then_to_the_oldest(lab: Lab) -> None:
    """A load balancer's address is its own; among externalIPs the oldest Service has it."""
    await lab.service("share-b", externalIPs=["203.0.113.40"])
    await lab.endpoints("share-b", "pod-3x")
    await lab.reaches("pod-1x", "203.0.113.40", "pod-3x")
    await lab.service("share-c", externalIPs=["203.0.113.40"])
    await lab.endpoints("share-c", "pod-4x")
    await lab.service("share-z", type="LoadBalancer")
    await lab.endpoints("share-z", "pod-5x")
    ingress = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.40"}]}}}
    await lab.client.patch(SERVICE, "share-z", "default", ingress, subresource="status")
    await lab.reaches("pod-1x", "203.0.113.40", "pod-5x")
    await lab.client.delete(SERVICE, "share-z", "default")
    await lab.reaches("pod-1x", "203.0.113.40", "pod-3x")
    await lab.client.delete(SERVICE, "share-b", "default")
    await lab.reaches("pod-1x", "203.0.113.40", "pod-4x")


async def test_no_service_takes_a_port_of_a_node(lab: Lab) -> None:
    """A Service whose external IP is a node's address gets no packets to that node."""
    target = node_address("node-2")
    await lab.service("node-thief", externalIPs=[target, "203.0.113.41"])
    await lab.endpoints("node-thief", "pod-6x")
    await lab.reaches("pod-1x", "203.0.113.41", "pod-6x")
    assert (await lab.ask("pod-1x", target)).pod == ""


async def test_a_restart_takes_over_without_a_gap(lab: Lab) -> None:
    """While a proxy is stopped and started, new and old connections work."""
    address = await lab.cluster_ip("restart")
    await lab.endpoints("restart", "pod-3x", "pod-5x")
    await lab.reaches("pod-1x", address, "pod-3x", "pod-5x")
    before = nft(lab.space("node-1"), "-a", "list", "chains")
    async with AsyncExitStack() as stack:
        link = stack.enter_context(lab.socket("pod-1x", socket.SOCK_STREAM, address))
        first = await converse(link, (address, 80))
        for kill in (False, True):
            code = lab.stop_proxy("node-1", kill=kill)
            assert code == (-9 if kill else 0)
            assert await lab.spread("pod-1x", address) <= {"pod-3x", "pod-5x"}
            await lab.endpoints("restart", "pod-5x") if kill else None
            lab.start_proxy("node-1")
        await lab.reaches("pod-1x", address, "pod-5x")
        assert await converse(link, (address, 80), connect=False) == first
    after = nft(lab.space("node-1"), "-a", "list", "chains")
    layout = [line for line in before.splitlines() if "layout-" in line]
    assert layout
    assert layout == [line for line in after.splitlines() if "layout-" in line]


@pytest.mark.parametrize(
    "damage",
    [
        ("flush", "map", "ip", "zonewise", "services"),
        ("flush", "chain", "ip", "zonewise", "to-service"),
        ("delete", "table", "ip", "zonewise"),
        ("flush", "ruleset"),
    ],
    ids=" ".join,
)
async def test_rules_removed_by_others_are_restored(lab: Lab, damage: tuple[str, ...]) -> None:
    """Rules removed from our tables by others are restored without a change in the cluster."""
    name = "broken-" + "-".join(damage[:2])
    address = await lab.cluster_ip(name)
    await lab.endpoints(name, "pod-3x")
    await lab.reaches("pod-2x", address, "pod-3x")
    nft(lab.space("node-2"), *damage)
    await lab.reaches("pod-2x", address, "pod-3x")


async def test_other_settings_replace_the_tables_without_a_gap(lab: Lab) -> None:
    """A proxy restarted with other flags replaces the rules without a failed connection."""
    service = await lab.service("settings", type="NodePort", nodePort=30110)
    address = service["spec"]["clusterIP"]
    await lab.endpoints("settings", "pod-4x")
    await lab.reaches("pod-6x", address, "pod-4x")
    assert (await lab.ask("pod-6x", address)).source == PODS["pod-6x"].ipv4
    await lab.reaches("pod-6x", "10.244.6.1", "refused", port=30110)
    answers: list[Answer] = []
    done = asyncio.Event()

    async def load() -> None:
        while not done.is_set():
            answers.append(await lab.ask("pod-6x", address))

    async with asyncio.TaskGroup() as group:
        group.create_task(load())
        lab.stop_proxy("node-6")
        lab.start_proxy(
            "node-6",
            *("--masquerade-all", "--masquerade-bit", "7", "--detect-local-mode", "NodeCIDR"),
            *("--nodeport-addresses", "10.0.0.0/8,fd44::/32"),
        )

        async def masqueraded() -> bool:
            return (await lab.ask("pod-6x", address)).source == node_address("node-6")

        await lab.until(masqueraded, lambda: "the new settings are in force")
        done.set()
    assert not [answer for answer in answers if answer.fault]
    await lab.reaches("pod-6x", "10.244.6.1", "pod-4x", port=30110)
    lab.stop_proxy("node-6")
    lab.start_proxy("node-6")
    await lab.reaches("pod-6x", "10.244.6.1", "refused", port=30110)
