"""Printers of services, endpoints, ingresses and network policies."""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    UNSET,
    Obj,
    age_of,
    format_selector,
    join_first,
    join_or,
    name_of,
    printer_for,
    spec_of,
    status_of,
)


@printer_for("/services")
def _print_service(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    service_type = spec.get("type", "")
    external_ips = list(spec.get("externalIPs") or ())
    external = join_or(external_ips)
    if service_type == "LoadBalancer":
        ingress = (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
        addresses = [
            entry.get("ip") or entry.get("hostname", "") for entry in ingress
        ] + external_ips
        external = join_or(addresses, "<pending>")
    elif service_type == "ExternalName":
        external = spec.get("externalName", "")
    ports = join_or(
        f"{port.get('port')}"
        + (f":{port['nodePort']}" if port.get("nodePort") else "")
        + f"/{port.get('protocol', 'TCP')}"
        for port in spec.get("ports") or ()
    )
    address = (spec.get("clusterIPs") or [spec.get("clusterIP")])[0] or NONE
    return [
        name_of(obj),
        service_type,
        address,
        external,
        ports,
        age_of(obj, now),
        format_selector(spec.get("selector")),
    ]


@printer_for("discovery.k8s.io/endpointslices")
def _print_endpoint_slice(obj: Obj, now: str) -> list[Any]:
    ports = obj.get("ports")
    ports_text = (
        join_first(
            ["*" if port.get("port") is None else str(port["port"]) for port in ports], UNSET
        )
        if ports
        else UNSET
    )
    addresses = [
        address
        for endpoint in obj.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    ]
    return [
        name_of(obj),
        obj.get("addressType", ""),
        ports_text,
        join_first(addresses, UNSET),
        age_of(obj, now),
    ]


@printer_for("/endpoints")
def _print_endpoints(obj: Obj, now: str) -> list[Any]:
    endpoints = []
    for subset in obj.get("subsets") or ():
        addresses = [entry.get("ip", "") for entry in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        if not ports:
            endpoints += addresses
        for port in ports:
            endpoints += [f"{address}:{port.get('port')}" for address in addresses]
    return [name_of(obj), join_first(endpoints, NONE), age_of(obj, now)]


@printer_for("networking.k8s.io/ingresses")
def _print_ingress(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    hosts = [rule["host"] for rule in spec.get("rules") or () if rule.get("host")]
    entries = (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
    return [
        name_of(obj),
        spec.get("ingressClassName") or NONE,
        join_first(hosts, "*"),
        ",".join(entry.get("ip") or entry.get("hostname", "") for entry in entries),
        "80, 443" if spec.get("tls") else "80",
        age_of(obj, now),
    ]


@printer_for("networking.k8s.io/ingressclasses")
def _print_ingress_class(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    reference = spec.get("parameters")
    parameters = NONE
    if reference:
        group = reference.get("apiGroup")
        parameters = reference["kind"] + (f".{group}" if group else "") + f"/{reference['name']}"
    return [name_of(obj), spec.get("controller", ""), parameters, age_of(obj, now)]


@printer_for("networking.k8s.io/networkpolicies")
def _print_network_policy(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), format_selector(spec_of(obj).get("podSelector")), age_of(obj, now)]


@printer_for("networking.k8s.io/ipaddresses")
def _print_address(obj: Obj, _now: str) -> list[Any]:
    parent = spec_of(obj).get("parentRef") or {}
    group = parent.get("group")
    namespace = parent.get("namespace")
    parent_text = "/".join(
        part
        for part in (
            parent.get("resource", "") + (f".{group}" if group else ""),
            namespace,
            parent.get("name", ""),
        )
        if part
    )
    return [name_of(obj), parent_text]


@printer_for("networking.k8s.io/servicecidrs")
def _print_cidr(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), ",".join(spec_of(obj).get("cidrs") or ()), age_of(obj, now)]
