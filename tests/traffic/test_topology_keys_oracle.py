"""Topology keys compared with a second implementation of KEP-536, on random Services.

It shares no code with ours: it reads the JSON of the objects, for each address and port.
"""

from __future__ import annotations

import ipaddress
import random
from typing import Any

import pytest
from tests.traffic.random_services import random_service

from zonewise.api import LeanEndpointSlice, Service, convert
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.service import compute_service_routes

Obj = dict[str, Any]
HOST, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/rack"
LABELS: dict[str, dict[str, str]] = {
    "n1": {HOST: "n1", ZONE: "a", RACK: "r1"},
    "n2": {HOST: "other", ZONE: "a", RACK: ""},
    "n3": {HOST: "n3", ZONE: "b", RACK: "r1"},
    "n4": {HOST: "n4", ZONE: "c", RACK: ""},
    "n5": {HOST: "n5"},
    "n6": {},
}
LISTS = (
    [HOST],
    [ZONE],
    [RACK],
    ["*"],
    [HOST, "*"],
    [ZONE, "*"],
    [HOST, ZONE],
    [HOST, ZONE, "*"],
    [RACK, ZONE, "*"],
    ["nobody/has-this", RACK],
)


def endpoints(slices: list[Obj], family: str, port: Obj) -> dict[tuple[str, int], Obj]:
    """The endpoints of a port by address and port; one that does not terminate wins."""
    by_address: dict[tuple[str, int], Obj] = {}
    for piece in slices:
        for offered in piece["ports"] if piece["addressType"] == family else ():
            if (offered["name"], offered["protocol"]) == (port["name"], port["protocol"]):
                for endpoint in piece["endpoints"]:
                    end = (str(ipaddress.ip_address(endpoint["addresses"][0])), offered["port"])
                    if end not in by_address or not endpoint["conditions"].get("terminating"):
                        by_address[end] = endpoint
    return by_address


def pools(
    known: dict[tuple[str, int], Obj],
) -> tuple[dict[tuple[str, int], Obj], dict[tuple[str, int], Obj]]:
    """The ready endpoints, and those that terminate and still serve."""
    conditions = {end: endpoint["conditions"] for end, endpoint in known.items()}
    ready = {
        end: known[end] for end, condition in conditions.items() if condition.get("ready", True)
    }
    left = {
        end: known[end]
        for end, condition in conditions.items()
        if condition.get("serving", True) and condition.get("terminating")
    }
    return ready, left


def answer(known: dict[tuple[str, int], Obj], keys: list[str], node: str) -> tuple[str, Any, Any]:
    """Action, key and endpoints for traffic that the keys decide."""

    def matches(endpoint: Obj, key: str) -> bool:
        there = LABELS.get(endpoint.get("nodeName", ""), {})
        if key == "kubernetes.io/hostname":
            return key in LABELS[node] and endpoint.get("nodeName") == node
        if key == "topology.kubernetes.io/zone" and endpoint.get("zone"):
            there = {key: endpoint["zone"]} if endpoint.get("nodeName") else {}
        return key == "*" or (key in LABELS[node] and there.get(key) == LABELS[node][key])

    for pool in pools(known):
        for key in keys:
            chosen = [end for end, endpoint in pool.items() if matches(endpoint, key)]
            if chosen:
                return "dnat", key, sorted(chosen)
    return "reject", None, []


def from_outside(known: dict[tuple[str, int], Obj], node: str) -> tuple[str, Any, Any]:
    """Action, key and endpoints for packets from outside if the host is the only key."""
    here = {end: o for end, o in known.items() if o.get("nodeName") == node}
    action, key, chosen = answer(here, [HOST], node)
    return ("drop" if action == "reject" and any(pools(known)) else action), key, chosen


def at_home(known: dict[tuple[str, int], Obj], node: str) -> tuple[str, Any, Any]:
    """Action, key and endpoints for traffic that must stay on the node."""
    ready, left = pools(known)
    for pool in (ready, left):
        here = sorted(e for e, o in pool.items() if o.get("nodeName") == node)
        if here:
            return "dnat", None, here
    return ("drop" if ready or left else "reject"), None, []


@pytest.mark.parametrize("seed", range(8))
def test_keys_agree_with_the_second_implementation(seed: int) -> None:
    """On every node and for every path our routes and a second implementation of KEP-536 choose the
    same endpoints by the same key.
    """
    rng = random.Random(seed)
    compared, seen = 0, set[tuple[str, str, str]]()
    for number in range(60):
        service, ingress, slices = random_service(rng, number, list(LABELS), "abcd")
        spec, keys = service["spec"], rng.choice(LISTS)
        if spec.get("externalTrafficPolicy"):
            spec["externalTrafficPolicy"] = "Cluster"
        spec["clusterIPs"] = [
            "10.96.0.1" if family == "IPv4" else "fd00:96::1" for family in spec["ipFamilies"]
        ]
        spec["clusterIP"] = spec["clusterIPs"][0]
        if spec["type"] != "ClusterIP":
            for offset, port in enumerate(spec["ports"]):
                port["nodePort"] = 30_000 + offset
        service["status"] = {"loadBalancer": {"ingress": ingress}}
        service["metadata"]["annotations"] = {"zonewise.io/topology-keys": ", ".join(keys)}
        rng.shuffle(slices)
        for node, labels in LABELS.items():
            computed = compute_service_routes(
                convert(Service, service),
                [convert(LeanEndpointSlice, piece) for piece in slices],
                ClientLocation.of_labels(node, labels),
                LABELS,
            )
            assert computed.keyed
            for row in computed.rows():
                (port,) = [entry for entry in spec["ports"] if entry["name"] == row["port"]]
                known = endpoints(slices, row["family"], port)
                stays = row["path"] == "ClusterIP" and spec["internalTrafficPolicy"] == "Local"
                expected = at_home(known, node) if stays else answer(known, keys, node)
                sources = ["any"]
                if keys == [HOST] and row["path"] != "ClusterIP":
                    sources = ["inside", "outside"]
                    if row["from"] == "outside":
                        expected = from_outside(known, node)
                ends = [(end["address"], end["port"]) for end in row["endpoints"]]
                assert (row["action"], row["key"], ends) == expected, (number, node, row)
                assert row["from"] in sources
                source = {"inside": None, "outside": "kept"}.get(row["from"], "masqueraded")
                source = None if row["path"] == "ClusterIP" else source
                assert row.get("sourceAddress") == source
                seen.add((row["from"], row["action"], row["why"]))
                compared += 1
    assert compared > 500
    assert {("outside", "dnat", "TopologyKey"), ("outside", "drop", "NoKeyMatches")} <= seen
