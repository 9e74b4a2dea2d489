"""What is wrong with a Service, field by field: ports, addresses, type, policies.

Nothing here depends on what the cluster has left to give; that is ``services``.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
OUTSIDE = ("LoadBalancer", "NodePort")
PROTOCOLS = ("SCTP", "TCP", "UDP")
DISTRIBUTIONS = ("PreferClose", "PreferSameNode", "PreferSameZone")
LONGEST_AFFINITY = 86_400
TRAFFIC_POLICIES = ("Cluster", "Local", "PreferZone")


def port_faults(spec: Obj) -> Faults:
    """What is wrong with the ports of a Service."""
    ports = spec.get("ports") or ()
    headless = spec.get("clusterIP") == "None"
    found: Faults = []
    if not ports and not headless and spec.get("type") != "ExternalName":
        return [field_errors.required("spec.ports")]
    if spec.get("type") == "LoadBalancer":
        for index, port in enumerate(ports):
            if port.get("port") == 10250:
                text = "may not expose port 10250 externally since it is used by kubelet"
                found.append(field_errors.invalid(f"spec.ports[{index}]", 10250, text))
    seen_names: set[str] = set()
    seen_ports: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        name = port.get("name", "")
        if not name and len(ports) > 1:
            found.append(field_errors.required(f"{path}.name"))
        elif name:
            found += [
                field_errors.invalid(f"{path}.name", name, text) for text in names.label(name)
            ]
            if name in seen_names:
                found.append(field_errors.duplicate(f"{path}.name", name))
            seen_names.add(name)
        number = port.get("port", 0)
        if not 1 <= number <= 65535:
            text = "must be between 1 and 65535, inclusive"
            found.append(field_errors.invalid(f"{path}.port", number, text))
        protocol = port.get("protocol", "")
        if not protocol:
            found.append(field_errors.required(f"{path}.protocol"))
        elif protocol not in PROTOCOLS:
            found.append(field_errors.unsupported(f"{path}.protocol", protocol, PROTOCOLS))
        target = port.get("targetPort")
        if isinstance(target, int) and not 1 <= target <= 65535:
            text = "must be between 1 and 65535, inclusive"
            found.append(field_errors.invalid(f"{path}.targetPort", target, text))
        elif isinstance(target, str):
            found += [
                field_errors.invalid(f"{path}.targetPort", target, text)
                for text in names.port_name(target)
            ]
        application = port.get("appProtocol")
        if application:
            found += [
                field_errors.invalid(f"{path}.appProtocol", application, text)
                for text in metadata.qualified_name(application)
            ]
        if port.get("nodePort") and spec.get("type") not in OUTSIDE:
            text = "may not be used when `type` is 'ClusterIP'"
            found.append(field_errors.forbidden(f"{path}.nodePort", text))
    for index, port in enumerate(ports):
        key = (port.get("port"), port.get("protocol"))
        if key in seen_ports:
            shown = {"port": key[0], "protocol": key[1]}
            found.append(field_errors.duplicate(f"spec.ports[{index}]", shown))
        seen_ports.add(key)
    return found


def address_faults(spec: Obj) -> Faults:
    """What is wrong with its cluster IPs."""
    many = spec.get("clusterIPs") or []
    one = spec.get("clusterIP", "")
    if spec.get("type") == "ExternalName":
        if one or many:
            text = "may not be set when `type` is 'ExternalName'"
            return [field_errors.forbidden("spec.clusterIPs", text)]
        return []
    if not many:
        return []
    if one != many[0]:
        return [field_errors.invalid("spec.clusterIPs", many, "first value must match `clusterIP`")]
    found: Faults = []
    if len(many) > 2:
        found.append(field_errors.invalid("spec.clusterIPs", many, "may only hold up to 2 values"))
    for index, address in enumerate(many):
        path = f"spec.clusterIPs[{index}]"
        if address == "None":
            if index or len(many) > 1:
                text = "'None' must be the first and only value"
                found.append(field_errors.invalid(path, address, text))
            elif spec.get("type") in OUTSIDE:
                text = f"may not be set to 'None' for {spec['type']} services"
                found.append(field_errors.invalid(path, address, text))
        elif not family_of(address):
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            found.append(field_errors.invalid(path, address, text))
    return found


def type_faults(spec: Obj) -> Faults:
    """What is wrong with its type, and with the fields that go with a type."""
    found: Faults = []
    kind = spec.get("type", "")
    if not kind:
        found.append(field_errors.required("spec.type"))
    elif kind not in TYPES:
        found.append(field_errors.unsupported("spec.type", kind, TYPES))
    if kind == "ExternalName":
        external = spec.get("externalName", "").removesuffix(".")
        if not external:
            found.append(field_errors.required("spec.externalName"))
        else:
            found += [
                field_errors.invalid("spec.externalName", external, text)
                for text in names.subdomain(external)
            ]
    for index, address in enumerate(spec.get("externalIPs") or ()):
        path = f"spec.externalIPs[{index}]"
        if not family_of(address):
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            found.append(field_errors.invalid(path, address, text))
        elif _mapped(address):
            text = "must not be an IPv4-mapped IPv6 address"
            found.append(field_errors.invalid(path, address, text))
        else:
            found += _special_address(path, address)
    if kind != "LoadBalancer":
        only = "may only be used when `type` is 'LoadBalancer'"
        if spec.get("loadBalancerSourceRanges"):
            found.append(field_errors.forbidden("spec.LoadBalancerSourceRanges", only))
        for key in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
            if spec.get(key) is not None:
                found.append(field_errors.forbidden(f"spec.{key}", only))
    elif spec.get("loadBalancerClass"):
        found += [
            field_errors.invalid("spec.loadBalancerClass", spec["loadBalancerClass"], text)
            for text in metadata.qualified_name(spec["loadBalancerClass"])
        ]
    for index, block in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        text = ""
        try:
            face = ipaddress.ip_interface(block.strip())
        except ValueError:
            text = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
        else:
            if _mapped(str(face.ip)):
                text = "must not have an IPv4-mapped IPv6 address"
            elif face.ip != face.network.network_address:
                text = "must not have bits set beyond the prefix length"
        if text:
            found.append(
                field_errors.invalid(f"spec.LoadBalancerSourceRanges[{index}]", block, text)
            )
    return found


def _mapped(address: str) -> bool:
    """Whether an address is one of IPv4 that dresses as one of IPv6."""
    found = ipaddress.ip_address(address)
    return isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None


def _special_address(path: str, text: str) -> Faults:
    address = ipaddress.ip_address(text)
    for special, why in (
        (address.is_unspecified, "may not be unspecified (0.0.0.0 or ::)"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (
            address.is_multicast and str(address).startswith(("224.0.0.", "ff02")),
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ):
        if special:
            return [field_errors.invalid(path, text, why)]
    return []


def policy_faults(spec: Obj) -> Faults:
    """What is wrong with its traffic policies and its affinity."""
    found: Faults = []
    affinity = spec.get("sessionAffinity", "")
    if not affinity:
        found.append(field_errors.required("spec.sessionAffinity"))
    elif affinity not in {"ClientIP", "None"}:
        found.append(
            field_errors.unsupported("spec.sessionAffinity", affinity, ("ClientIP", "None"))
        )
    elif affinity == "ClientIP":
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        client = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
        seconds = client.get("timeoutSeconds", 10_800)
        if not 0 < seconds <= LONGEST_AFFINITY:
            text = f"must be greater than 0 and less than {LONGEST_AFFINITY}"
            found.append(field_errors.invalid(path, seconds, text))
    internal = spec.get("internalTrafficPolicy")
    if internal is not None and internal not in {"Cluster", "Local"}:
        found.append(
            field_errors.unsupported("spec.internalTrafficPolicy", internal, ("Cluster", "Local"))
        )
    external = spec.get("externalTrafficPolicy")
    if external:
        if spec.get("type") not in OUTSIDE and not spec.get("externalIPs"):
            text = (
                "may only be set for externally-accessible services: NodePort, LoadBalancer, or"
                " one with externalIPs"
            )
            found.append(field_errors.invalid("spec.externalTrafficPolicy", external, text))
        elif external not in {"Cluster", "Local"}:
            found.append(
                field_errors.unsupported(
                    "spec.externalTrafficPolicy", external, ("Cluster", "Local")
                )
            )
    elif spec.get("type") in OUTSIDE:
        found.append(field_errors.required("spec.externalTrafficPolicy"))
    check = spec.get("healthCheckNodePort", 0)
    if check and not local_balancer(spec):
        text = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        found.append(field_errors.invalid("spec.healthCheckNodePort", check, text))
    distribution = spec.get("trafficDistribution")
    if distribution is not None and distribution not in DISTRIBUTIONS:
        found.append(
            field_errors.unsupported("spec.trafficDistribution", distribution, DISTRIBUTIONS)
        )
    return found


def added_field_faults(obj: Obj) -> Faults:
    """The field of the sources that hints and keys are not judged by: trafficPolicy."""
    spec = obj["spec"]
    found: Faults = []
    policy = spec.get("trafficPolicy")
    if policy is not None and policy not in TRAFFIC_POLICIES:
        found.append(field_errors.unsupported("spec.trafficPolicy", policy, TRAFFIC_POLICIES))
    return found


def local_balancer(spec: Obj) -> bool:
    """Whether a load balancer sends traffic only to nodes with endpoints."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def family_of(address: str) -> str:
    """The family of an address; "" if it is none."""
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""
