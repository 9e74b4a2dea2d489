"""Services, endpoints, ingresses and policies."""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    UNSET,
    Obj,
    age_of,
    joined,
    labels_of,
    name_of,
    prints,
    short,
    spec_of,
    status_of,
)


@prints("/services")
def _service(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    kind = spec.get("type", "")
    outside = list(spec.get("externalIPs") or ())
    external = joined(outside)
    if kind == "LoadBalancer":
        ingress = (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
        found = [one.get("ip") or one.get("hostname", "") for one in ingress] + outside
        external = joined(found, "<pending>")
    elif kind == "ExternalName":
        external = spec.get("externalName", "")
    ports = joined(
        f"{port.get('port')}"
        + (f":{port['nodePort']}" if port.get("nodePort") else "")
        + f"/{port.get('protocol', 'TCP')}"
        for port in spec.get("ports") or ()
    )
    address = (spec.get("clusterIPs") or [spec.get("clusterIP")])[0] or NONE
    return [
        name_of(obj),
        kind,
        address,
        external,
        ports,
        age_of(obj, now),
        labels_of(spec.get("selector")),
    ]


@prints("discovery.k8s.io/endpointslices")
def _endpoint_slice(obj: Obj, now: str) -> list[Any]:
    ports = obj.get("ports")
    shown = (
        short(["*" if port.get("port") is None else str(port["port"]) for port in ports], UNSET)
        if ports
        else UNSET
    )
    addresses = [
        address for one in obj.get("endpoints") or () for address in one.get("addresses") or ()
    ]
    return [
        name_of(obj),
        obj.get("addressType", ""),
        shown,
        short(addresses, UNSET),
        age_of(obj, now),
    ]


@prints("/endpoints")
def _endpoints(obj: Obj, now: str) -> list[Any]:
    found = []
    for subset in obj.get("subsets") or ():
        addresses = [one.get("ip", "") for one in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        if not ports:
            found += addresses
        for port in ports:
            found += [f"{address}:{port.get('port')}" for address in addresses]
    return [name_of(obj), short(found, NONE), age_of(obj, now)]


@prints("networking.k8s.io/ingresses")
def _ingress(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    hosts = [rule["host"] for rule in spec.get("rules") or () if rule.get("host")]
    found = (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
    return [
        name_of(obj),
        spec.get("ingressClassName") or NONE,
        short(hosts, "*"),
        ",".join(one.get("ip") or one.get("hostname", "") for one in found),
        "80, 443" if spec.get("tls") else "80",
        age_of(obj, now),
    ]


@prints("networking.k8s.io/ingressclasses")
def _ingress_class(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    reference = spec.get("parameters")
    shown = NONE
    if reference:
        group = reference.get("apiGroup")
        shown = reference["kind"] + (f".{group}" if group else "") + f"/{reference['name']}"
    return [name_of(obj), spec.get("controller", ""), shown, age_of(obj, now)]


@prints("networking.k8s.io/networkpolicies")
def _network_policy(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), labels_of(spec_of(obj).get("podSelector")), age_of(obj, now)]


@prints("networking.k8s.io/ipaddresses")
def _address(obj: Obj, _now: str) -> list[Any]:
    parent = spec_of(obj).get("parentRef") or {}
    group = parent.get("group")
    place = parent.get("namespace")
    shown = "/".join(
        part
        for part in (
            parent.get("resource", "") + (f".{group}" if group else ""),
            place,
            parent.get("name", ""),
        )
        if part
    )
    return [name_of(obj), shown]


@prints("networking.k8s.io/servicecidrs")
def _cidr(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), ",".join(spec_of(obj).get("cidrs") or ()), age_of(obj, now)]
