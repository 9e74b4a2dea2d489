"""Which strings in objects become networks in the kernel, and how they are written."""

from __future__ import annotations

import pytest

from zonewise.api import convert
from zonewise.api.objects.core import Node
from zonewise.proxy.objects import ServiceCIDR
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.tables.cidrs import merged
from zonewise.proxy.tables.preview import preview
from zonewise.traffic.routes.table import NodeRoutes

HOSTILE = (
    "2001:db8::%x } ; flush ruleset ; add set ip6 zonewise x { /64",
    "fe80::1%eth0/64",
    "fe80::1%eth0",
    "10.0.0.0/8 }\nflush ruleset",
    "10.0.0.0/8/8",
    "10.0.0.0/255.0.0.0",
    "10.0.0.0/٨",
    "0x0a.0.0.0/8",
    "",
    "/",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_is_not_a_network_is_left_out(text: str) -> None:
    """A network is an address and a prefix length, without a zone or anything else."""
    assert merged("IPv4", [text]) == merged("IPv6", [text]) == ()


def test_every_spelling_is_written_in_one_way() -> None:
    """Leading zeros, host bits and mapped addresses are read as Kubernetes reads them."""
    texts = ["010.001.0.0/16", "10.1.2.3/16", "::ffff:10.9.0.1", " 192.0.2.1 ", "2001:DB8::1/64"]
    assert [str(network) for network in merged("IPv4", texts)] == [
        "10.1.0.0/16",
        "10.9.0.1/32",
        "192.0.2.1/32",
    ]
    assert [str(network) for network in merged("IPv6", texts)] == ["2001:db8::/64"]


def test_no_text_of_an_object_is_read_as_a_rule() -> None:
    """ServiceCIDRs, pod networks and a node's addresses reach nft as networks or not at all."""
    cidrs = convert(ServiceCIDR, {"metadata": {"name": "x"}, "spec": {"cidrs": list(HOSTILE)}})
    node = convert(
        Node,
        {
            "metadata": {"name": "n1"},
            "spec": {"podCIDRs": ["10.244.0.0/24", *HOSTILE]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": address} for address in HOSTILE]
            },
        },
    )
    settings = ProxySettings(node_name="n1", detect_local_mode="NodeCIDR")
    text = preview(NodeRoutes(node="n1", zone=""), node, [cidrs], settings)
    assert "flush ruleset" not in text
    assert "%" not in text
    assert "add element ip zonewise pods { 10.244.0.0/24 }" in text


@pytest.mark.parametrize(
    "text", ["0.0.0.0/0", "1.2.3.4/0", "0.0.0.0/1", "127.0.0.0/16", " ::/0", "2001:db8::/0"]
)
def test_a_service_cidr_with_loopback_addresses_is_ignored(text: str) -> None:
    """Packets to it are not dropped; those to the other networks of the same object are."""
    spec = {"cidrs": [text, "10.96.0.0/12", "240.0.0.0/4", "fd00::/108"]}
    cidrs = convert(ServiceCIDR, {"metadata": {"name": "x"}, "spec": spec})
    node = convert(Node, {"metadata": {"name": "n1"}})
    rules = preview(NodeRoutes(node="n1", zone=""), node, [cidrs], ProxySettings(node_name="n1"))
    assert "add element ip zonewise service-cidrs { 10.96.0.0/12, 240.0.0.0/4 }" in rules
    assert "add element ip6 zonewise service-cidrs { fd00::/108 }" in rules
