"""The host as the only topology key, in place of externalTrafficPolicy Local."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api import FeatureGates, LeanEndpointSlice, Service, convert
from zonewise.traffic.host_key import HEALTH_PORT_ANNOTATION, health_port_of
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.service import RouteSettings, compute_node_routes
from zonewise.traffic.topology_keys import TOPOLOGY_KEYS_ANNOTATION, topology_keys_of
from zonewise.traffic.validation import validate_service_traffic

HOST = "kubernetes.io/hostname"
LABELS = {"n1": {HOST: "n1"}, "n2": {HOST: "n2"}, "twin": {HOST: "n1"}, "bare": {}}
ENDPOINT = {"addresses": ["10.1.0.1"], "nodeName": "n1"}
KEYED = FeatureGates({"ServiceTopology": True, "TopologyAwareHints": False})
Document = dict[str, Any]


def service(name: str = "s", port: str | None = None, **spec: Any) -> Document:
    """A Service with the host as its only key, and a port for health checks."""
    notes = {TOPOLOGY_KEYS_ANNOTATION: spec.pop("keys", HOST)}
    if port is not None:
        notes[HEALTH_PORT_ANNOTATION] = port
    ports = [{"name": "", "protocol": "TCP", "port": 80, "nodePort": spec.pop("nodePort", 30_080)}]
    meta = {
        "name": name,
        "namespace": "x",
        "annotations": {key: text for key, text in notes.items() if text is not None},
        "creationTimestamp": spec.pop("created", None),
    }
    base = {"type": "NodePort", "clusterIP": "10.96.0.1", "ports": ports}
    return {"metadata": meta, "spec": base | spec}


def routes(
    *services: Document,
    node: str = "n1",
    endpoints: tuple[Document, ...] = (ENDPOINT,),
    gates: FeatureGates | None = None,
) -> Document:
    """What the dry run prints for a node."""
    slices = [
        {
            "metadata": {
                "name": item["metadata"]["name"],
                "namespace": "x",
                "labels": {"kubernetes.io/service-name": item["metadata"]["name"]},
            },
            "addressType": "IPv4",
            "endpoints": list(endpoints),
            "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        }
        for item in services
    ]
    return compute_node_routes(
        [convert(Service, item) for item in services],
        [convert(LeanEndpointSlice, item) for item in slices],
        ClientLocation.of_labels(node, LABELS[node]),
        LABELS,
        RouteSettings(gates=gates or FeatureGates()),
    ).to_dict()


def brief(row: Document) -> tuple[str, str, str, str, str | None]:
    return row["path"], row["from"], row["action"], row["why"], row.get("sourceAddress")


def test_packets_from_outside_stay_on_their_node() -> None:
    """Ways in have a row for outside, which keeps the client's address, and one for inside by the
    key; the ClusterIP has one.
    """
    assert [brief(row) for row in routes(service())["routes"]] == [
        ("ClusterIP", "any", "dnat", "TopologyKey", None),
        ("NodePort", "inside", "dnat", "TopologyKey", None),
        ("NodePort", "outside", "dnat", "TopologyKey", "kept"),
    ]
    assert [brief(row) for row in routes(service(), node="n2")["routes"]] == [
        ("ClusterIP", "any", "reject", "NoKeyMatches", None),
        ("NodePort", "inside", "reject", "NoKeyMatches", None),
        ("NodePort", "outside", "drop", "NoKeyMatches", "kept"),
    ]


def test_a_twin_takes_no_packets() -> None:
    """A node with the hostname of another one is another node: the key is about the node itself."""
    _, inside, outside = routes(service(), node="twin")["routes"]
    assert brief(inside)[1:4] == ("inside", "reject", "NoKeyMatches")
    assert brief(outside)[1:4] == ("outside", "drop", "NoKeyMatches")


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": f"{HOST},*"},
        {"keys": f"{HOST},topology.kubernetes.io/zone"},
        {"keys": "topology.kubernetes.io/zone"},
        {"keys": "*"},
        {"keys": None},
    ],
)
def test_other_keys_are_not_like_local(changed: Document) -> None:
    """With any other list of keys, or none, packets from outside are masqueraded as before."""
    row = routes(service(**changed))["routes"][1]
    assert (row["from"], row["sourceAddress"]) == ("any", "masqueraded")


def test_local_policies_keep_the_source_as_well() -> None:
    """externalTrafficPolicy Local keeps the client's address; trafficPolicy Local does not."""
    local = service(keys=None, externalTrafficPolicy="Local")
    _, inside, outside = routes(local)["routes"]
    assert (inside.get("sourceAddress"), outside["sourceAddress"]) == (None, "kept")
    everywhere = routes(service(keys=None, trafficPolicy="Local"))["routes"]
    assert brief(everywhere[1]) == ("NodePort", "any", "dnat", "Local", "masqueraded")


def test_a_key_that_matches_only_terminating_endpoints() -> None:
    """Rows say Terminating, and the key, where it matched only endpoints that still serve."""
    leaving = ENDPOINT | {"conditions": {"ready": False, "serving": True, "terminating": True}}
    document = routes(service(port="31000"), endpoints=(leaving,))
    assert [(row["why"], row["key"]) for row in document["routes"]] == [("Terminating", HOST)] * 3
    assert [check["localEndpoints"] for check in document["healthChecks"]] == [0]


@pytest.mark.parametrize(("node", "local"), [("n1", 1), ("n2", 0), ("bare", 0)])
def test_the_annotation_serves_the_health_check(node: str, local: int) -> None:
    """Each node counts its ready endpoints; one without the label takes no packets from outside."""
    here = ENDPOINT | {"nodeName": "bare", "addresses": ["10.1.0.2"]}
    document = routes(service(port="31000"), node=node, endpoints=(ENDPOINT, here))
    (check,) = document["healthChecks"]
    assert (check["port"], check["localEndpoints"]) == (31000, local)
    assert document["notes"] == []


@pytest.mark.parametrize("port", ["30000", "32767"])
def test_the_ports_of_the_annotation_are_node_ports(port: str) -> None:
    """The first and the last port that API servers allocate by themselves may be chosen."""
    stored = convert(Service, service(port=port))
    assert validate_service_traffic(stored) == []
    assert health_port_of(stored, topology_keys_of(stored)) == int(port)


@pytest.mark.parametrize(
    ("text", "changed", "sentence"),
    [
        ("", {}, "a whole number from 30000 to 32767"),
        ("http", {}, "a whole number from 30000 to 32767"),
        ("0", {}, "a whole number from 30000 to 32767"),
        ("-1", {}, "a whole number from 30000 to 32767"),
        ("65536", {}, "a whole number from 30000 to 32767"),
        ("9" * 5000, {}, "a whole number from 30000 to 32767"),
        ("10250", {}, "others are of programs of the nodes"),
        ("29999", {}, "a whole number from 30000 to 32767"),
        ("32768", {}, "a whole number from 30000 to 32767"),
        ("31000", {"keys": f"{HOST},*"}, "whose topology keys are exactly kubernetes.io/hostname"),
        ("31000", {"keys": None}, "whose topology keys are exactly kubernetes.io/hostname"),
        ("31000", {"keys": f"{HOST},*"}, f"remove the annotation, or let {HOST} be its only key"),
        ("31000", {"type": "ClusterIP"}, "that is reached from outside"),
        (
            "31000",
            {"type": "ClusterIP"},
            "remove the annotation, or make it reachable from outside",
        ),
        ("30080", {}, "it is a node port of this Service"),
    ],
)
def test_a_bad_annotation_changes_nothing(text: str, changed: Document, sentence: str) -> None:
    """A write with it is refused by one sentence; stored, it is ignored with the same sentence."""
    bad, good = service(port=text, **changed), service(**changed)
    stored = convert(Service, bad)
    (error,) = validate_service_traffic(stored)
    assert error.field == f"metadata.annotations[{HEALTH_PORT_ANNOTATION}]"
    assert sentence in error.message
    assert validate_service_traffic(stored, stored) == []
    assert health_port_of(stored, topology_keys_of(stored)) == 0
    document = routes(bad)
    assert document["routes"] == routes(good)["routes"]
    assert document["healthChecks"] == []
    (note,) = document["notes"]
    assert note["code"] == "InvalidService"
    assert sentence in note["message"]


@pytest.mark.parametrize(
    ("other", "served"),
    [
        (service("other", keys=None, nodePort=31_000, clusterIP="10.96.0.2"), None),
        (
            service("other", "31000", nodePort=0, clusterIP="10.96.0.2", created="2026-01-01"),
            "other",
        ),
        (service("other", "31000", nodePort=0, clusterIP="10.96.0.2", created="2026-03-01"), "s"),
        (
            service(
                "other",
                keys=None,
                nodePort=0,
                clusterIP="10.96.0.2",
                type="LoadBalancer",
                externalTrafficPolicy="Local",
                healthCheckNodePort=31_000,
                created="2026-03-01",
            ),
            "other",
        ),
    ],
)
def test_conflicts_are_noted(other: Document, served: str | None) -> None:
    """Node ports and ports that the API server allocated come first, then the older Service; the
    other one has a note that names the owner.
    """
    mine = service(port="31000", created="2026-02-01")
    for services in ((mine, other), (other, mine)):
        document = routes(*services)
        assert [check["service"] for check in document["healthChecks"]] == (
            [served] if served else []
        )
        (note,) = document["notes"]
        loser, owner = ("other", "x/s") if served == "s" else ("s", "x/other")
        assert (note["code"], note["object"]) == ("AddressInUse", f"Service/x/{loser}")
        assert note["message"] == (
            f"health check *:31000/TCP is not routed: Service {owner} has it"
        )


def test_the_field_needs_its_gate() -> None:
    """With the gate ServiceTopology off the field has no effect on routes, the annotation has; with
    it on both have.
    """
    field = service(keys=None, topologyKeys=["nobody/has-this"])
    annotated = service(keys="nobody/has-this")
    both = service(keys="nobody/has-this", topologyKeys=["another/key"])
    off = {"field": "Unhinted", "annotated": "NoKeyMatches", "both": "NoKeyMatches"}
    on = {"field": "NoKeyMatches", "annotated": "NoKeyMatches", "both": "Unhinted"}
    items = {"field": field, "annotated": annotated, "both": both}
    for gates, expected in ((None, off), (KEYED, on)):
        documents = {name: routes(item, gates=gates) for name, item in items.items()}
        assert {name: item["routes"][0]["why"] for name, item in documents.items()} == expected
        noted = {
            name: item["notes"][0]["code"] for name, item in documents.items() if item["notes"]
        }
        ignored = dict.fromkeys(("field", "both"), "TopologyKeysOff")
        assert noted == ({"both": "InvalidTopologyKeys"} if gates else ignored)
