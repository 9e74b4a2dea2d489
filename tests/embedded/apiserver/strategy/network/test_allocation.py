"""Cluster addresses and node ports."""

from __future__ import annotations

import random

import pytest

from zonewise.embedded.apiserver.strategy.network.allocation import (
    API_SERVER,
    Allocation,
    Exhausted,
)
from zonewise.traffic.host_key import NODE_PORTS

ME, YOU = ("d", "me"), ("d", "you")


def test_addresses_are_free_when_their_service_is_deleted() -> None:
    """An address belongs to one Service until it is deleted."""
    allocation = Allocation(["10.96.0.0/16"], random.Random(1))
    allocation.hold(ME, {"clusterIPs": ["10.96.5.5"]})
    assert allocation.address_error("10.96.5.5", "IPv4", YOU) == "provided IP is already allocated"
    assert allocation.address_error("10.96.5.5", "IPv4", ME) == ""
    allocation.hold(ME, None)
    assert allocation.address_error("10.96.5.5", "IPv4", YOU) == ""


def test_addresses_outside_the_range_are_refused() -> None:
    """Only addresses of the cluster's range can be requested."""
    allocation = Allocation(["10.96.0.0/16"], random.Random(1))
    assert "does not match" in allocation.address_error("10.97.0.1", "IPv4", ME)


def test_the_first_address_is_the_api_servers() -> None:
    """Only the API server's own Service gets the first address."""
    allocation = Allocation(["10.96.0.0/16"], random.Random(1))
    assert allocation.api_server_address() == "10.96.0.1"
    assert allocation.address_error("10.96.0.1", "IPv4", ME)
    assert not allocation.address_error("10.96.0.1", "IPv4", API_SERVER)


def test_a_small_range_is_used_up_and_then_says_so() -> None:
    """Every address of a range is allocated once, then the error says that none is left."""
    allocation = Allocation(["10.0.0.0/28"], random.Random(1))
    chosen = set()
    for number in range(13):
        address = allocation.choose_address("IPv4")
        allocation.hold(("d", str(number)), {"clusterIPs": [address]})
        chosen.add(address)
    assert len(chosen) == 13
    assert "10.0.0.1" not in chosen
    with pytest.raises(Exhausted, match=r"10\.0\.0\.0/28"):
        allocation.choose_address("IPv4")


def test_node_ports_are_unique_per_protocol() -> None:
    """The same node port may serve TCP and UDP, of different Services too."""
    allocation = Allocation(["10.96.0.0/16"], random.Random(1))
    allocation.hold(ME, {"ports": [{"nodePort": 30100, "protocol": "TCP"}]})
    assert allocation.port_error(30100, "TCP", YOU) == "provided port is already allocated"
    assert allocation.port_error(30100, "UDP", YOU) == ""
    assert "30000-32767" in allocation.port_error(80, "TCP", YOU)


def test_chosen_node_ports_are_free() -> None:
    """A requested port must be in the range and free."""
    allocation = Allocation(["10.96.0.0/16"], random.Random(1))
    taken = set(NODE_PORTS) - {31999}
    assert allocation.choose_port(taken) == 31999
    with pytest.raises(Exhausted):
        allocation.choose_port(set(NODE_PORTS))
