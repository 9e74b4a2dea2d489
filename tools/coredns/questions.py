"""A cluster with every kind of Service, and what is asked about it.

Both are made by rule, not by chance, so that a recording made anew differs only where CoreDNS
does. Objects are what an API server stores; slices are written by hand, because which endpoints
there are is not the name server's business.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import chain
from typing import Any

from tools.coredns import oddities

Obj = dict[str, Any]

DOMAIN = "cluster.local"
SPACES = ("shop", "data", "alone", *oddities.SPACES)
EXTERNAL = {
    ("db.example.com.", "A"): ["198.51.100.7", "198.51.100.8"],
    ("db.example.com.", "AAAA"): ["2001:db8::7"],
    ("www.example.com.", "CNAME"): ["db.example.com."],
}
"""What the world outside answers; a CNAME is followed by the records of its target."""


def objects() -> list[Obj]:
    """The cluster: namespaces, Services, slices, pods."""
    manifests: list[Obj] = [_object("v1", "Namespace", name, "") for name in SPACES]
    for space, name, spec, parts in chain(_services(), oddities.services()):
        manifests.append(_object("v1", "Service", name, space, spec=spec))
        manifests += (_slice(name, space, number, part) for number, part in enumerate(parts))
    manifests.append(_slice("orphan", "x2", 0, oddities.orphan()))
    plain = ((*pod, "Running") for pod in _pods())
    for name, space, ips, phase in chain(plain, oddities.pods()):
        pod = _object("v1", "Pod", name, space)
        pod["spec"] = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}
        pod["status"] = {
            "phase": phase,
            "podIP": ips[0],
            "podIPs": [{"ip": ip} for ip in ips],
        }
        manifests.append(pod)
    return manifests


def questions() -> list[tuple[str, str]]:
    """Names and types, each once."""
    return list(dict.fromkeys(chain(_questions(), oddities.questions(DOMAIN))))


def _questions() -> Iterator[tuple[str, str]]:
    for name in (DOMAIN, f"svc.{DOMAIN}", f"pod.{DOMAIN}"):
        for kind in ("A", "AAAA", "SRV", "TXT", "CNAME", "MX", "SOA", "PTR", "HTTPS"):
            yield name, kind
    for space in (*SPACES[:3], "nowhere", "*"):
        for tree in ("svc", "pod"):
            for kind in ("A", "AAAA", "SRV", "TXT", "CNAME"):
                yield f"{space}.{tree}.{DOMAIN}", kind
    for name in ("dns-version", "ns.dns", "x", "shop", "web.shop"):
        for kind in ("A", "TXT"):
            if (name, kind) != ("ns.dns", "A"):
                yield f"{name}.{DOMAIN}", kind
    for space, name, spec, parts in _services():
        base = f"{name}.{space}.svc.{DOMAIN}"
        for kind in ("A", "AAAA", "SRV", "TXT", "CNAME", "ANY", "MX", "SOA", "NS"):
            yield base, kind
        yield base.upper(), "A"
        yield base.title(), "SRV"
        for port in spec.get("ports", ()):
            for label in (port.get("name") or "none", "wrong"):
                yield f"_{label}._{port.get('protocol', 'TCP').lower()}.{base}", "SRV"
            yield f"_{port.get('name') or 'none'}._tcp.{base}", "A"
        yield f"_._.{base}", "SRV"
        yield f"zone-a.pin._zone.{base}", "A"
        yield f"Zone.B.1.prefer._zone.{base}", "A"
        yield f"zone-x.pin._zone.{base}", "TXT"
        yield f"zone-x.prefer._zone.{base}", "SRV"
        for part in parts:
            for endpoint in part["endpoints"][:3]:
                for address in endpoint["addresses"]:
                    dashed = address.replace(".", "-").replace(":", "-")
                    label = dashed + "0" if dashed.endswith("-") else dashed
                    kind = "AAAA" if ":" in address else "A"
                    yield f"{label}.{base}", kind
                    yield f"{label}.{base}", "SRV"
                    yield ipaddress.ip_address(address).reverse_pointer + ".", "PTR"
                if "hostname" in endpoint:
                    yield f"{endpoint['hostname']}.{base}", "A"
                    yield f"{endpoint['hostname']}.{base}", "SRV"
        for address in spec.get("clusterIPs", ()):
            if address != "None":
                yield ipaddress.ip_address(address).reverse_pointer + ".", "PTR"
    for _, space, ips in _pods():
        for address in ips:
            label = address.replace(".", "-").replace(":", "-")
            for tree in (space, "alone"):
                for kind in ("A", "AAAA", "SRV", "TXT"):
                    yield f"{label}.{tree}.pod.{DOMAIN}", kind
    for label in ("10-1-1-250", "nobody", "1-2-3", "fd00-0-0-0-0-0-0-1", "x.10-1-0-1"):
        yield f"{label}.shop.pod.{DOMAIN}", "A"
    for name in ("*.shop", "any.shop", "a.b.c.web.shop", "web.shop.svc", "web"):
        yield f"{name}.svc.{DOMAIN}", "A"


def _services() -> Iterator[tuple[str, str, Obj, list[Obj]]]:
    """Namespace, name, spec and slices of each Service."""
    http = {"name": "http", "port": 80, "protocol": "TCP"}
    dns = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    bare = {"port": 8080, "protocol": "TCP"}
    shapes: list[tuple[str, list[Obj]]] = [
        ("one", [http]),
        ("two", [http, {"name": "https", "port": 443, "protocol": "TCP"}]),
        ("both", dns),
        ("bare", [bare]),
        ("sctp", [{"name": "s", "port": 132, "protocol": "SCTP"}]),
    ]
    number = 0
    for label, ports in shapes:
        for family in ("v4", "v6", "dual"):
            number += 1
            yield (
                "shop",
                f"cip-{label}-{family}",
                _cluster_ip(number, family, ports),
                _parts(number, family, ports, count=2),
            )
    for label, ports in [*shapes[:4], ("none", [])]:
        for family in ("v4", "v6", "dual"):
            number += 1
            spec: Obj = {"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}
            spec |= _families(family)
            yield "data", f"hl-{label}-{family}", spec, _parts(number, family, ports, count=4)
    headless: Obj = {"clusterIP": "None", "clusterIPs": ["None"], "ports": [http]}
    headless |= _families("v4")
    yield "data", "hl-empty", headless, []
    yield "data", "hl-asleep", headless, [_part("IPv4", [http], [_end("10.9.0.1", ready=False)])]
    yield "data", "hl-unknown", headless, [_part("IPv4", [http], [_end("10.9.0.2", ready=None)])]
    yield (
        "data",
        "hl-many",
        headless,
        [_part("IPv4", [http], [_end(f"10.9.1.{at}", zone="zone-a") for at in range(1, 31)])],
    )
    yield (
        "data",
        "hl-twice",
        headless,
        [
            _part("IPv4", [http], [_end("10.9.2.1", hostname="a"), _end("10.9.2.2")]),
            _part("IPv4", [bare | {"name": "more"}], [_end("10.9.2.1", hostname="a")]),
        ],
    )
    yield (
        "data",
        "hl-shared",
        headless,
        [_part("IPv4", [http], [_end("10.9.2.1"), _end("10.9.2.2", hostname="x")])],
    )
    yield (
        "data",
        "hl-many-addresses",
        headless,
        [_part("IPv4", [http], [{"addresses": ["10.9.3.1", "10.9.3.2"], "conditions": {}}])],
    )
    yield "alone", "orphan", _cluster_ip(90, "v4", [http]), []
    aliases = {
        "to-ip": "cip-one-dual.shop.svc.cluster.local",
        "to-headless": "hl-two-dual.data.svc.cluster.local",
        "to-endpoint": "a.hl-twice.data.svc.cluster.local",
        "to-alias": "to-ip.alone.svc.cluster.local",
        "to-nobody": "nobody.shop.svc.cluster.local",
        "to-itself": "to-itself.alone.svc.cluster.local",
        "to-below": "x.to-below.alone.svc.cluster.local",
        "to-round": "to-back.alone.svc.cluster.local",
        "to-back": "to-round.alone.svc.cluster.local",
        "to-outside": "db.example.com",
        "to-outside-alias": "www.example.com",
        "to-nothing": "nothing.example.com",
        "to-number": "192.0.2.1",
    }
    for name, target in aliases.items():
        yield "alone", name, {"type": "ExternalName", "externalName": target}, []
    for step in range(13):
        target = f"chain-{step + 1}" if step < 12 else "orphan"
        target = f"{target}.alone.svc.cluster.local"
        yield "alone", f"chain-{step}", {"type": "ExternalName", "externalName": target}, []


def _families(family: str) -> Obj:
    listed = {"v4": ["IPv4"], "v6": ["IPv6"], "dual": ["IPv4", "IPv6"]}[family]
    policy = "RequireDualStack" if family == "dual" else "SingleStack"
    return {"ipFamilies": listed, "ipFamilyPolicy": policy}


def _cluster_ip(number: int, family: str, ports: list[Obj]) -> Obj:
    both = {"v4": f"10.96.1.{number}", "v6": f"fd00:10:96::{number:x}"}
    ips = list(both.values()) if family == "dual" else [both[family]]
    return {"clusterIP": ips[0], "clusterIPs": ips, "ports": ports} | _families(family)


def _parts(number: int, family: str, ports: list[Obj], *, count: int) -> list[Obj]:
    parts = []
    if family != "v6":
        ends = [
            _end(
                f"10.1.{number}.{at}",
                zone=("zone-a", "Zone.B.1")[at % 2],
            )
            for at in range(1, count + 1)
        ]
        ends[0]["hostname"] = "host-1"
        parts.append(_part("IPv4", ports, [*ends, _end(f"10.1.{number}.99", ready=False)]))
    if family != "v4":
        ends = [_end(f"fd00:{number:x}::{at:x}") for at in range(1, count)]
        ends.append(_end(f"fd00:{number:x}::", hostname="last"))
        parts.append(_part("IPv6", ports, ends))
    return parts


def _part(family: str, ports: list[Obj], endpoints: list[Obj]) -> Obj:
    named = [{"name": "", **port} for port in ports]
    return {"addressType": family, "ports": named, "endpoints": endpoints}


def _end(address: str, *, ready: bool | None = True, **more: Any) -> Obj:
    return {
        "addresses": [address],
        "conditions": {} if ready is None else {"ready": ready},
        **more,
    }


def _pods() -> Iterator[tuple[str, str, list[str]]]:
    yield "four", "shop", ["10.1.0.1"]
    yield "both", "shop", ["10.1.0.2", "fd00::2"]
    yield "six", "data", ["fd00:0:0:1::5"]


def _slice(name: str, space: str, number: int, part: Obj) -> Obj:
    piece = _object("discovery.k8s.io/v1", "EndpointSlice", f"{name}-{number}", space, **part)
    piece["metadata"]["labels"] = {"kubernetes.io/service-name": name}
    return piece


def _object(version: str, kind: str, name: str, space: str, **more: Any) -> Obj:
    metadata = {"namespace": space} if space else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, **more}
