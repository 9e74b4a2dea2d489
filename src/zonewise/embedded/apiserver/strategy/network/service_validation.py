"""The rules of Services, field by field: ports, addresses, type, policies.

Nothing here depends on what the cluster has left to give; that is ``services``.
"""

from __future__ import annotations

import ipaddress

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.addresses import (
    NOT_A_NETWORK,
    NOT_AN_ADDRESS,
    is_mapped,
    special_use,
)
from zonewise.embedded.apiserver.strategy.base import Obj

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
EXTERNAL_TYPES = ("LoadBalancer", "NodePort")
PROTOCOLS = ("SCTP", "TCP", "UDP")
KUBELET_PORT = 10250
AFFINITY_LIMIT = 86_400
FAMILIES = ("IPv4", "IPv6")
FAMILY_POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")
LOAD_BALANCER_FIELDS = frozenset(
    {"allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerSourceRanges"}
)
ONLY_LOAD_BALANCER = "may only be used when `type` is 'LoadBalancer'"


def validate_ports(spec: Field) -> None:
    """The ports of a Service."""
    ports, fields = spec["ports"], spec.value
    count = len(ports.value or ())
    if not count and fields.get("clusterIP") != "None" and fields.get("type") != "ExternalName":
        ports.missing()
        return
    if fields.get("type") == "LoadBalancer":
        for port in ports.each():
            if port.value.get("port") == KUBELET_PORT:
                port.invalid(
                    f"may not expose port {KUBELET_PORT} externally since it is used by kubelet",
                    KUBELET_PORT,
                )
    names: set[str] = set()
    for port in ports.each():
        name = port["name"]
        if count > 1:
            name.required()
        if name.value:
            name.dns_label()
            name.unique(names)
        port.get("port", 0).port_number()
        port["protocol"].required().enum(PROTOCOLS)
        port["targetPort"].port()
        if port.value.get("appProtocol"):
            port["appProtocol"].qualified_name()
        if port.value.get("nodePort") and fields.get("type") not in EXTERNAL_TYPES:
            port["nodePort"].forbid("may not be used when `type` is 'ClusterIP'")
    if count > 1:
        _validate_unique_ports(ports)


def _validate_unique_ports(ports: Field) -> None:
    seen: set[tuple[int, str]] = set()
    for port in ports.each():
        key = (port.value.get("port"), port.value.get("protocol"))
        if key in seen:
            port.duplicate({"port": key[0], "protocol": key[1]})
        seen.add(key)


def validate_cluster_ips(spec: Field) -> None:
    """The cluster IPs of a Service."""
    addresses, first = spec["clusterIPs"], spec.value.get("clusterIP", "")
    kind = spec.value.get("type")
    if kind == "ExternalName":
        if first or addresses.value:
            addresses.forbid("may not be set when `type` is 'ExternalName'")
        return
    if not addresses.value:
        return
    if first != addresses.value[0]:
        addresses.invalid("first value must match `clusterIP`")
        return
    if len(addresses.value) > 2:
        addresses.invalid("may only hold up to 2 values")
    for address in addresses.each():
        if address.value != "None":
            if not family_of(address.value):
                address.invalid(NOT_AN_ADDRESS)
        elif len(addresses.value) > 1:
            address.invalid("'None' must be the first and only value")
        elif kind in EXTERNAL_TYPES:
            address.invalid(f"may not be set to 'None' for {kind} services")


def validate_families(spec: Field, configured: tuple[str, ...]) -> None:
    """The IP families of a Service in a cluster that has those that are ``configured``."""
    fields = spec.value
    if fields.get("type") == "ExternalName":
        return
    families, policy = spec["ipFamilies"], spec.get("ipFamilyPolicy", "")
    values = families.value or ()
    without_selector = is_headless_without_selector(fields)
    if policy.enum(FAMILY_POLICIES):
        if (
            policy.value == "RequireDualStack"
            and len(configured) < 2
            and all(family in FAMILIES for family in values)
            and not without_selector
        ):
            policy.invalid("this cluster is not configured for dual-stack services")
        elif policy.value == "SingleStack" and len(set(values)) > 1:
            policy.invalid(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are"
                " specified"
            )
    seen: set[str] = set()
    for family in families.each():
        if (
            family.enum(FAMILIES).unique(seen)
            and family.value not in configured
            and not without_selector
        ):
            family.invalid("not configured on this cluster")


def is_headless_without_selector(spec: Obj) -> bool:
    """Whether its endpoints may be of any family, since others write them."""
    return spec.get("clusterIP") == "None" and not spec.get("selector")


def validate_type(spec: Field) -> None:
    """The type of a Service, and the fields that go with a type."""
    kind, fields = spec["type"], spec.value
    kind.required().enum(TYPES)
    if kind.value == "ExternalName":
        name = spec.get("externalName", "")
        name.holding(name.value.removesuffix(".")).required().dns_subdomain()
    if fields.get("externalIPs"):
        for address in spec["externalIPs"].each():
            _validate_external_ip(address)
    if not LOAD_BALANCER_FIELDS.isdisjoint(fields):
        _validate_load_balancer_fields(spec)


def _validate_load_balancer_fields(spec: Field) -> None:
    ranges = spec["loadBalancerSourceRanges"].named("LoadBalancerSourceRanges")
    if spec.value.get("type") != "LoadBalancer":
        ranges.forbid_filled(ONLY_LOAD_BALANCER)
        spec["allocateLoadBalancerNodePorts"].forbid_set(ONLY_LOAD_BALANCER)
        spec["loadBalancerClass"].forbid_set(ONLY_LOAD_BALANCER)
    else:
        spec["loadBalancerClass"].optional().qualified_name()
    for block in ranges.each():
        _validate_source_range(block)


def _validate_external_ip(address: Field) -> None:
    if not family_of(address.value):
        address.invalid(NOT_AN_ADDRESS)
        return
    ip = ipaddress.ip_address(address.value)
    if is_mapped(ip):
        address.invalid("must not be an IPv4-mapped IPv6 address")
    else:
        address.invalid_if(special_use(ip))


def _validate_source_range(block: Field) -> None:
    try:
        interface = ipaddress.ip_interface(block.value.strip())
    except ValueError:
        block.invalid(NOT_A_NETWORK)
        return
    if is_mapped(interface.ip):
        block.invalid("must not have an IPv4-mapped IPv6 address")
    elif interface.ip != interface.network.network_address:
        block.invalid("must not have bits set beyond the prefix length")


def validate_policies(spec: Field) -> None:
    """The traffic policies of a Service, and its affinity."""
    fields = spec.value
    spec["sessionAffinity"].required().enum(("ClientIP", "None"))
    if fields.get("sessionAffinity") == "ClientIP":
        client = spec["sessionAffinityConfig"]["clientIP"]
        client["timeoutSeconds"].between(
            1, AFFINITY_LIMIT, f"must be greater than 0 and less than {AFFINITY_LIMIT}"
        )
    spec["internalTrafficPolicy"].enum(("Cluster", "Local"))
    if fields.get("type") in EXTERNAL_TYPES:
        spec["externalTrafficPolicy"].required().enum(("Cluster", "Local"))
    elif fields.get("externalTrafficPolicy"):
        if fields.get("externalIPs"):
            spec["externalTrafficPolicy"].enum(("Cluster", "Local"))
        else:
            spec["externalTrafficPolicy"].invalid(
                "may only be set for externally-accessible services: NodePort, LoadBalancer, or"
                " one with externalIPs"
            )
    if fields.get("healthCheckNodePort") and not is_local_load_balancer(fields):
        spec["healthCheckNodePort"].invalid(
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
    spec["trafficDistribution"].enum(("PreferClose", "PreferSameNode", "PreferSameZone"))


def is_local_load_balancer(spec: Obj) -> bool:
    """Whether a load balancer sends traffic only to nodes with endpoints."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def family_of(address: str) -> str:
    """The family of an address; empty if it is not valid."""
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""
