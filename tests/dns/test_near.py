"""Answers by the client's location: scenarios, and random clusters compared with a model."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

import dns.edns
import dns.message
import pytest
from tests.dns.changing_cluster import HOST, RACK, ZONE, Source, World
from tests.dns.clusters import endpoint, headless, pieces, port, service, texts

from zonewise.api import FeatureGates
from zonewise.api.meta import Key

DB = "db.shop.svc.cluster.local."
SOURCES: tuple[Source, ...] = ("locators", "pods", "both")


def zones(source: Source, **more: Any) -> World:
    """Nodes n-a, n-b, n-c in three zones, one backend on each, a client on each."""
    world = World(source, **more)
    for at, zone in enumerate("abc"):
        labels = {ZONE: zone, HOST: f"n-{zone}", RACK: f"r{at % 2}"}
        world.node(f"n-{zone}", labels, f"172.16.0.{at + 1}")
        world.pod(f"db-{zone}", f"n-{zone}", f"10.0.0.{at + 1}", f"fd00::{at + 1}")
        world.pod(f"client-{zone}", f"n-{zone}", f"10.0.1.{at + 1}")
    world.node("n-d", {ZONE: "d", HOST: "n-d"}, "172.16.0.4")
    world.pod("client-d", "n-d", "10.0.1.4")
    backends = [(f"10.0.0.{at}", f"fd00::{at}", f"n-{zone}") for at, zone in enumerate("abc", 1)]
    world.names.put(
        pieces("db", [endpoint(four, nodeName=node) for four, _, node in backends]),
        pieces("db", [endpoint(six, nodeName=node) for _, six, node in backends], family="IPv6"),
    )
    return world


EVERYBODY = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


@pytest.mark.parametrize("source", SOURCES)
def test_soft_keys_answer_near_and_widen(source: Source) -> None:
    """Scenario 58: clients get their zone's endpoints in A, AAAA and SRV with glue; else all."""
    world = zones(source)
    world.names.put(headless("db", keys=f"{ZONE},*"))
    ask = world.names.addresses
    for at in (1, 2, 3):
        client = f"10.0.1.{at}"
        assert ask(DB, client) == [f"10.0.0.{at}"]
        assert ask(DB, client, "AAAA") == [f"fd00::{at}"]
        srv = world.names.ask(DB, "SRV", client)
        assert texts(srv, "additional") == [f"10.0.0.{at}", f"fd00::{at}"]
        assert len(texts(srv)) == 2
        assert ask(f"_http._tcp.{DB}", client) == [f"10.0.0.{at}"]
    assert ask(DB, "10.0.1.4") == EVERYBODY
    assert ask(DB, "203.0.113.1") == EVERYBODY


@pytest.mark.parametrize("source", SOURCES)
def test_hard_keys_without_a_match_are_nodata(source: Source) -> None:
    """Scenarios 58 and 60: a name whose hard keys match nothing exists, so it is never NXDOMAIN;
    unknown clients match nothing.
    """
    world = zones(source)
    world.names.put(headless("db", keys=ZONE))
    for client in ("10.0.1.4", "203.0.113.1"):
        for kind in ("A", "AAAA", "SRV"):
            answer = world.names.ask(DB, kind, client)
            assert answer.rcode() == 0
            assert not answer.answer
            assert answer.authority
    assert world.names.addresses(DB, "10.0.1.2") == ["10.0.0.2"]


@pytest.mark.parametrize("source", SOURCES)
def test_two_zones_never_share_an_answer(source: Source) -> None:
    """Scenario 59: the same question from two zones, in turn, gets two answers, also from the
    cache.
    """
    world = zones(source)
    world.names.put(headless("db", keys=f"{ZONE},*"))
    query_a = world.names.addresses
    for _ in range(3):
        for at in (1, 2, 3):
            assert query_a(DB, f"10.0.1.{at}") == [f"10.0.0.{at}"]
        assert query_a(DB, "198.51.100.1") == EVERYBODY


@pytest.mark.parametrize("source", SOURCES)
def test_any_label_is_a_key_and_keys_step_down(source: Source) -> None:
    """Scenarios 51 and 54: keys choose by host first, then by rack, then all endpoints; a label
    changed later counts at once.
    """
    world = zones(source)
    world.names.put(headless("db", keys=f"{HOST},{RACK},*"))
    world.node("n-d", {RACK: "r0"})
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]
    assert world.names.addresses(DB, "10.0.1.4") == ["10.0.0.1", "10.0.0.3"]
    world.node("n-d", {RACK: "r1"})
    assert world.names.addresses(DB, "10.0.1.4") == ["10.0.0.2"]
    world.node("n-c", {RACK: "r1"}, "172.16.0.3")
    assert world.names.addresses(DB, "10.0.1.4") == ["10.0.0.2", "10.0.0.3"]
    world.node("n-d", {})
    assert world.names.addresses(DB, "10.0.1.4") == EVERYBODY


@pytest.mark.parametrize("source", SOURCES)
def test_an_address_that_is_reused_belongs_to_its_newest_pod(source: Source) -> None:
    """Scenario 62: a reused address belongs to its newest pod, whether the old one finished, was
    deleted or still exists.
    """
    world = zones(source)
    world.names.put(headless("db", keys=f"{ZONE},*"))
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]
    world.pod("client-a", "n-a", "10.0.1.1", done=True)
    assert world.names.addresses(DB, "10.0.1.1") == EVERYBODY
    world.pod("second", "n-b", "10.0.1.1", created=5)
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.2"]
    world.pod("third", "n-c", "10.0.1.1", created=5)
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.3"]
    world.pod("second", "n-b", "10.0.1.1", created=5)
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.3"]
    world.no_pod("third")
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.2"]
    world.no_pod("second")
    assert world.names.addresses(DB, "10.0.1.1") == EVERYBODY


@pytest.mark.parametrize("source", SOURCES)
def test_clients_in_the_host_network_are_on_their_node(source: Source) -> None:
    """Scenario 60: the node of a client in the host network is known from a locator of such a pod,
    or from the node's address if nodes can be read.
    """
    world = zones(source)
    world.names.put(headless("db", keys=f"{ZONE},*"))
    known = [] if source == "locators" else ["10.0.0.2"]
    assert world.names.addresses(DB, "172.16.0.2") == (known or EVERYBODY)
    world.pod("agent", "n-b", "172.16.0.2")
    world.pod("other", "n-b", "172.16.0.2", created=3)
    assert world.names.addresses(DB, "172.16.0.2") == ["10.0.0.2"]


@pytest.mark.parametrize("source", SOURCES)
def test_a_deleted_node_makes_its_pods_unknown(source: Source) -> None:
    """Clients and backends on it have no location; keys without * leave them out."""
    world = zones(source)
    world.names.put(headless("db", keys=ZONE))
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]
    world.no_node("n-a")
    assert world.names.addresses(DB, "10.0.1.1") == []
    assert world.names.addresses(DB, "10.0.1.2") == ["10.0.0.2"]
    local = [
        endpoint(f"10.0.0.{at}", nodeName=f"n-{zone}", nodes=(f"n-{zone}",))
        for at, zone in enumerate("abc", 1)
    ]
    world.names.put(headless("db"), pieces("db", local))
    assert world.names.addresses(DB, "10.0.1.1") == EVERYBODY
    assert world.names.addresses(DB, "10.0.1.2") == ["10.0.0.2"]
    world.node("n-a", {ZONE: "a"})
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]


@pytest.mark.parametrize("source", SOURCES)
def test_hints_decide_where_there_are_no_keys(source: Source) -> None:
    """kube-proxy's rules: hints count if all endpoints have them and some match the client."""
    world = zones(source)
    world.names.put(headless("db"))
    nodes = ("n-a", "n-b", "n-c")
    hinted = [
        endpoint(f"10.0.0.{at}", nodeName=node, zones=(zone,))
        for at, (node, zone) in enumerate(zip(nodes, "abc", strict=True), 1)
    ]
    world.names.put(pieces("db", hinted))
    assert world.names.addresses(DB, "10.0.1.2") == ["10.0.0.2"]
    assert world.names.addresses(DB, "10.0.1.4") == EVERYBODY
    assert world.names.addresses(DB, "203.0.113.1") == EVERYBODY
    assert world.names.addresses(DB, "10.0.1.2", "AAAA") == ["fd00::1", "fd00::2", "fd00::3"]
    world.names.put(pieces("db", [*hinted[:2], endpoint("10.0.0.3")]))
    assert world.names.addresses(DB, "10.0.1.2") == EVERYBODY
    local = [
        endpoint(f"10.0.0.{at}", zones=("a",), nodes=(node,)) for at, node in enumerate(nodes, 1)
    ]
    world.names.put(pieces("db", local))
    assert world.names.addresses(DB, "10.0.1.3") == ["10.0.0.3"]
    assert world.names.addresses(DB, "10.0.1.4") == EVERYBODY


def test_peers_that_look_for_each_other_are_not_filtered_by_hints() -> None:
    """publishNotReadyAddresses: hints leave out no endpoint, keys do."""
    world = zones("locators")
    hinted = [
        endpoint(f"10.0.0.{at}", zones=("a",), nodeName=f"n-{z}") for at, z in enumerate("abc", 1)
    ]
    world.names.put(headless("db", publishNotReadyAddresses=True), pieces("db", hinted))
    assert world.names.addresses(DB, "10.0.1.1") == EVERYBODY
    world.names.put(headless("db", publishNotReadyAddresses=True, keys=ZONE))
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]


def test_without_the_gate_hints_leave_out_no_endpoint() -> None:
    """Hints of a mode that is off do not choose answers; those of trafficDistribution do."""
    world = zones("locators", gates=FeatureGates({"TopologyAwareHints": False}))
    hinted = [
        endpoint(f"10.0.0.{at}", zones=(z,), nodeName=f"n-{z}") for at, z in enumerate("abc", 1)
    ]
    world.names.put(headless("db"), pieces("db", hinted))
    assert world.names.addresses(DB, "10.0.1.1") == EVERYBODY
    world.names.put(headless("db", trafficDistribution="PreferClose"))
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]


def test_other_answers_do_not_depend_on_the_client() -> None:
    """Scenario 61: cluster IPs, endpoints and zones by name, PTR records and pods are equal for
    all.
    """
    world = zones("locators")
    world.names.put(
        headless("db", keys=ZONE),
        service("web", clusterIP="10.96.0.7", ports=[port("http", 80)], keys=f"{ZONE},*"),
    )
    for client in ("10.0.1.1", "10.0.1.4", "203.0.113.1"):
        ask = world.names.addresses
        assert ask("web.shop.svc.cluster.local", client) == ["10.96.0.7"]
        assert ask(f"10-0-0-2.{DB}", client) == ["10.0.0.2"]
        assert ask("10-0-1-2.shop.pod.cluster.local", client) == ["10.0.1.2"]
        assert ask(f"x.prefer._zone.{DB}", client) == EVERYBODY
        assert texts(world.names.ask("2.0.0.10.in-addr.arpa", "PTR", client)) == [
            "10-0-0-2.db.shop.svc.cluster.local."
        ]


def test_what_a_slice_states_comes_before_other_sources() -> None:
    """The zone and the annotation of a slice count before the labels that locators have."""
    world = zones("locators")
    stated = [
        endpoint(f"10.0.0.{at}", nodeName=f"n-{zone}", zone="b") for at, zone in enumerate("abc", 1)
    ]
    world.names.put(headless("db", keys=ZONE), pieces("db", stated))
    assert world.names.addresses(DB, "10.0.1.1") == []
    assert world.names.addresses(DB, "10.0.1.2") == EVERYBODY
    assert world.names.addresses(f"b.pin._zone.{DB}") == EVERYBODY
    world.node("n-a", {ZONE: "a", RACK: "r1"})
    world.node("n-b", {ZONE: "b", RACK: "r2"})
    piece = pieces("db", stated)
    world.names.put(headless("db", keys=RACK), piece)
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]
    for address, rack, expected in (("10.0.0.1", None, []), ("10.0.0.2", "r1", [1, 2])):
        annotations = {"zonewise.io/topology": json.dumps({address: {RACK: rack}})}
        world.names.put(piece | {"metadata": piece["metadata"] | {"annotations": annotations}})
        assert world.names.addresses(DB, "10.0.1.1") == [f"10.0.0.{at}" for at in expected]


def test_locators_come_before_nodes() -> None:
    """Where both are read labels are those of locators; those of Nodes are for nodes without one
    and for what limited locators leave out, and then the Service is noted.
    """
    world = zones("both")
    noted: list[Key] = []
    responder = world.names.responder
    responder.cluster = replace(responder.cluster, read_nodes=noted.append)
    world.names.put(headless("db", keys=RACK))
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1", "10.0.0.3"]
    world.names.put({"kind": "Node", "metadata": {"name": "n-a", "labels": {RACK: "other"}}})
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1", "10.0.0.3"]
    assert not noted
    for name, keys in (("db-c", [ZONE]), ("client-c", [ZONE])):
        meta = {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "99"}
        ips = [{"ip": "10.0.1.3" if name == "client-c" else "10.0.0.3"}]
        located = {"nodeName": "n-c", "nodeLabels": {ZONE: "c"}, "nodeLabelKeys": keys}
        world.names.put({"kind": "PodLocator", "metadata": meta, "ips": ips, **located})
    world.names.put({"kind": "Node", "metadata": {"name": "n-c", "labels": {RACK: "other"}}})
    assert world.names.addresses(DB, "10.0.1.1") == ["10.0.0.1"]
    assert noted == [("shop", "db")]


def test_a_forwarder_may_name_its_client() -> None:
    """ECS counts from trusted networks only, with a full address; the scope is not zero."""
    world = zones("locators", trusted=("127.0.0.0/8", "::1/128"))
    world.names.put(headless("db", keys=f"{ZONE},*"))

    def ask_through(source: str, address: str, prefix: int) -> tuple[list[str], list[Any]]:
        option = dns.edns.ECSOption(address, prefix)
        answer = world.names.ask(DB, source=source, options=[option])
        return texts(answer), list(answer.options)

    for source in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"):
        addresses, options = ask_through(source, "10.0.1.2", 32)
        assert addresses == ["10.0.0.2"]
        assert [(option.address, option.srclen, option.scopelen) for option in options] == [
            ("10.0.1.2", 32, 32)
        ]
    addresses, options = ask_through("127.0.0.1", "10.0.1.2", 24)
    assert addresses == EVERYBODY
    assert options[0].scopelen == 24
    addresses, options = ask_through("10.0.1.1", "10.0.1.2", 32)
    assert (addresses, options) == (["10.0.0.1"], [])
    assert ask_through("127.0.0.1", "0.0.0.0", 0)[0] == EVERYBODY
    assert world.names.addresses(DB, "127.0.0.1") == EVERYBODY


def test_invalid_client_subnets_of_trusted_forwarders_are_format_errors() -> None:
    """A client subnet with bits outside of its prefix, a wrong length or a scope is FORMERR from a
    trusted forwarder, and ignored from others.
    """
    world = zones("locators", trusted=("127.0.0.0/8",))
    world.names.put(headless("db"))
    for data in (
        b"",
        b"\0\1\x20\0\n",
        b"\0\1\x08\0\n\1",
        b"\0\1\x18\1\n\0\1",
        b"\0\1\x21\0" + b"\1" * 5,
    ):
        option = dns.edns.GenericOption(dns.edns.OptionType(8), data)
        query = dns.message.make_query(DB, "A", use_edns=0, options=[option]).to_wire()
        trusted, other = world.names.send(query, "127.0.0.1"), world.names.send(query, "10.0.1.1")
        assert trusted is not None and other is not None
        assert (trusted[3] & 0xF, other[3] & 0xF) == (1, 0)
        refusal = dns.message.from_wire(trusted)
        assert refusal.question and refusal.edns == 0 and not refusal.options


@dataclass(frozen=True)
class Backend:
    """An endpoint in the model."""

    address: str
    node: str
    zones: tuple[str, ...]
    nodes: tuple[str, ...]


def model(world: World, keys: list[str], backends: list[Backend], client: str) -> list[str]:
    """The addresses a client gets, computed without indexes, as the design says."""
    claims = [
        (state["created"], order, state["node"])
        for order, (_, state) in enumerate(sorted(world.pods.items()))
        if client in state["ips"] and not state["done"]
    ]
    node = max(claims)[2] if claims else ""
    mine = world.nodes.get(node, {})
    node = node if node in world.nodes else ""
    if keys:
        for key in keys:
            if key == "*":
                return sorted(backend.address for backend in backends)
            if key not in mine:
                continue
            same = [
                backend.address
                for backend in backends
                if backend.node in world.nodes and world.nodes[backend.node].get(key) == mine[key]
            ]
            if same:
                return sorted(same)
        return []
    if all(backend.nodes for backend in backends):
        same = [backend.address for backend in backends if node and node in backend.nodes]
        if same:
            return sorted(same)
    if all(backend.zones for backend in backends):
        same = [
            backend.address
            for backend in backends
            if mine.get(ZONE) and mine[ZONE] in backend.zones
        ]
        if same:
            return sorted(same)
    return sorted(backend.address for backend in backends)


def draw_labels(rng: random.Random, name: str) -> dict[str, str]:
    """Labels of a node, some of them missing."""
    every = {ZONE: rng.choice("abc"), HOST: name, RACK: rng.choice("rst"), "x/y": rng.choice("12")}
    return {key: value for key, value in every.items() if rng.random() < 0.8}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", range(60))
def test_random_clusters_against_the_model(source: Source, seed: int) -> None:
    """Answers equal the model's for any cluster, keys and hints, after every change."""
    rng = random.Random(seed)
    world = World(source)
    nodes = [f"n{at}" for at in range(rng.randint(1, 6))]
    for name in nodes:
        world.node(name, draw_labels(rng, name))
        world.pod(f"anchor-{name}", name, f"10.9.0.{nodes.index(name)}")
    clients = [f"10.0.1.{at}" for at in range(4)]
    keys = rng.sample([ZONE, HOST, RACK, "x/y"], rng.randint(0, 3)) + rng.choice([[], ["*"]])
    hinting = rng.choice(["none", "all", "some", "nodes"])
    backends = []
    for at in range(rng.randint(1, 6)):
        node = rng.choice([*nodes, "", "gone"])
        zone = (rng.choice("abc"),) if hinting == "all" or rng.random() < 0.3 else ()
        hosts = (rng.choice(nodes),) if hinting == "nodes" else ()
        backends.append(Backend(f"10.0.0.{at}", node, zone if hinting != "none" else (), hosts))
        if node in nodes:
            world.pod(f"db-{at}", node, f"10.0.0.{at}")
    world.names.put(
        headless("db", keys=",".join(keys)),
        pieces(
            "db",
            [
                endpoint(
                    backend.address,
                    zones=backend.zones,
                    nodes=backend.nodes,
                    nodeName=backend.node or None,
                )
                for backend in backends
            ],
        ),
    )
    for step in range(6):
        for client in clients:
            expected = model(world, keys, backends, client)
            assert world.names.addresses(DB, client) == expected, (step, client, keys)
        match rng.choice(["relabel", "pod", "finish", "move", "node"]):
            case "relabel":
                name = rng.choice(nodes)
                world.node(name, draw_labels(rng, name))
            case "pod":
                world.pod(f"p{step}", rng.choice(nodes), rng.choice(clients), created=step)
            case "finish" if world.pods:
                name = rng.choice(sorted(world.pods))
                state = world.pods[name]
                world.pod(name, state["node"], *state["ips"], created=state["created"], done=True)
            case "move":
                world.pod(f"m{step}", rng.choice(nodes), rng.choice(clients), created=step)
            case "node" if len(nodes) > 1:
                name = nodes.pop()
                world.no_node(name)
