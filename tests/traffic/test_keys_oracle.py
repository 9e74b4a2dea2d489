"""Topology keys against a second reading of KEP-536, on Services made at random.

The second reading knows nothing of ours: it goes over the JSON of the objects, way in by way in.
"""

from __future__ import annotations

import ipaddress
import random
from typing import Any

import pytest
from tests.traffic.random_services import random_service

from zonewise.api import LeanEndpointSlice, Service, convert
from zonewise.traffic import ProxyLocation, service_routes

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
    found: dict[tuple[str, int], Obj] = {}
    for piece in slices:
        for offered in piece["ports"] if piece["addressType"] == family else ():
            if (offered["name"], offered["protocol"]) == (port["name"], port["protocol"]):
                for one in piece["endpoints"]:
                    end = (str(ipaddress.ip_address(one["addresses"][0])), offered["port"])
                    if end not in found or not one["conditions"].get("terminating"):
                        found[end] = one
    return found


def pools(
    known: dict[tuple[str, int], Obj],
) -> tuple[dict[tuple[str, int], Obj], dict[tuple[str, int], Obj]]:
    """Those that are ready, and those that terminate and still serve."""
    said = {end: one["conditions"] for end, one in known.items()}
    ready = {end: known[end] for end, one in said.items() if one.get("ready", True)}
    left = {
        end: known[end]
        for end, one in said.items()
        if one.get("serving", True) and one.get("terminating")
    }
    return ready, left


def answer(known: dict[tuple[str, int], Obj], keys: list[str], node: str) -> tuple[str, Any, Any]:
    """Action, key and endpoints for traffic that the keys decide."""

    def matches(one: Obj, key: str) -> bool:
        there = LABELS.get(one.get("nodeName", ""), {})
        return key == "*" or (key in LABELS[node] and there.get(key) == LABELS[node][key])

    for pool in pools(known):
        for key in keys:
            chosen = [end for end, one in pool.items() if matches(one, key)]
            if chosen:
                return "dnat", key, sorted(chosen)
    return "reject", None, []


def at_home(known: dict[tuple[str, int], Obj], node: str) -> tuple[str, Any, Any]:
    """The same for traffic that must stay on the node."""
    ready, left = pools(known)
    for pool in (ready, left):
        here = sorted(e for e, o in pool.items() if o.get("nodeName") == node)
        if here:
            return "dnat", None, here
    return ("drop" if ready or left else "reject"), None, []


@pytest.mark.parametrize("seed", range(8))
def test_keys_as_somebody_else_reads_them(seed: int) -> None:
    """On every node, for every way in, both readings choose the same endpoints by the same key."""
    rng = random.Random(seed)
    compared = 0
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
            for place, port in enumerate(spec["ports"]):
                port["nodePort"] = 30_000 + place
        service["status"] = {"loadBalancer": {"ingress": ingress}}
        service["metadata"]["annotations"] = {"zonewise.io/topology-keys": ", ".join(keys)}
        rng.shuffle(slices)
        for node, labels in LABELS.items():
            made = service_routes(
                convert(Service, service),
                [convert(LeanEndpointSlice, piece) for piece in slices],
                ProxyLocation.labelled(node, labels),
                LABELS,
            )
            assert made.keyed
            for row in made.rows():
                (port,) = [one for one in spec["ports"] if one["name"] == row["port"]]
                known = endpoints(slices, row["family"], port)
                stays = row["path"] == "ClusterIP" and spec["internalTrafficPolicy"] == "Local"
                expected = at_home(known, node) if stays else answer(known, keys, node)
                ends = [(end["address"], end["port"]) for end in row["endpoints"]]
                assert (row["action"], row["key"], ends) == expected, (number, node, row)
                assert row["from"] == "any"
                compared += 1
    assert compared > 500
