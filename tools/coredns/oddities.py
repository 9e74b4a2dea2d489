"""More of the cluster that is recorded: names that look like others, and what is odd but allowed.

Namespaces and Services called ``svc``, ``pod`` and ``ns``, endpoints that share a hostname or have
one that looks like an address, slices of no Service, pods that share an address or have finished,
aliases that lead to every kind of name. Made by rule, like the rest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

Obj = dict[str, Any]

SPACES = ("x1", "x2", "svc", "pod", "dns")

_TYPES = ("A", "AAAA", "SRV", "TXT", "CNAME", "ANY", "SOA", "PTR", "HTTPS")
_HTTP = {"name": "http", "port": 80, "protocol": "TCP"}
_ADDRESSES = {"svc": ("x1", 1), "pod": ("x1", 2), "same": ("svc", 3), "ns": ("dns", 4)}
_ALIASES = {
    "to-dot": "db.example.com.",
    "to-pod": "10-1-8-1.x1.pod.cluster.local",
    "to-domain": "cluster.local",
    "to-tree": "svc.cluster.local",
    "to-version": "dns-version.cluster.local",
    "to-space": "x1.svc.cluster.local",
    "to-reverse": "1.3.96.10.in-addr.arpa",
    "to-six": "six.x2.svc.cluster.local",
    "to-empty": "empty.x2.svc.cluster.local",
}
_PODS = (
    ("plain", "x1", "10.1.8.1", "Running"),
    ("again", "x2", "10.1.8.1", "Running"),
    ("done", "x1", "10.1.8.2", "Succeeded"),
    ("failed", "x1", "10.1.8.3", "Failed"),
    ("waiting", "x1", "10.1.8.4", "Pending"),
    ("six", "x1", "fd00::8:5", "Running"),
    ("lost", "x1", "10.1.8.6", "Unknown"),
)


def services() -> Iterator[tuple[str, str, Obj, list[Obj]]]:
    """Namespace, name, spec and slices of each Service."""
    for name, (space, number) in _ADDRESSES.items():
        address = f"10.96.3.{number}"
        yield space, name, {"clusterIP": address, "clusterIPs": [address], "ports": [_HTTP]}, []
    datagrams = {"name": "http-udp", "port": 80, "protocol": "UDP"}
    balanced: Obj = {"type": "LoadBalancer", "externalIPs": ["198.51.100.1"]}
    balanced |= {"clusterIP": "10.96.3.5", "clusterIPs": ["10.96.3.5"], "ports": [_HTTP, datagrams]}
    leaving = {"ready": False, "serving": True, "terminating": True}
    shared, other = (_end(f"10.2.0.{at}", hostname="twice") for at in (1, 2))
    first = [shared, other, {**_end("10.2.0.3"), "conditions": leaving}]
    yield "x1", "balanced", balanced, [_part(first), _part([shared, _end("10.2.0.5")], datagrams)]
    headless: Obj = {"clusterIP": "None", "clusterIPs": ["None"], "ports": [_HTTP]}
    both = [_end("10.2.2.3", "10.2.2.4", hostname="pair"), _end("10.2.2.5", zone="Zone-A")]
    yield "x2", "pairs", headless, [_part([*both, _end("10.2.2.6", zone="a.b")])]
    six = _part([_end("fd00:3::1", hostname="one"), _end("fd00:3::a:0:0:1"), _end("fd00:3::")])
    dual = {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}
    yield "x2", "six", headless | dual, [{**six, "addressType": "IPv6"}]
    yield "x2", "empty", headless, [_part([])]
    peers = headless | {"publishNotReadyAddresses": True}
    asleep = {**_end("10.2.4.1"), "conditions": {"ready": False}}
    yield "x2", "peers", peers, [_part([asleep, _end("10.2.4.2", hostname="up")])]
    yield "x2", "asleep", peers, [_part([{**_end("10.2.5.1"), "conditions": {"ready": False}}])]
    terminating = {**_end("10.2.6.1"), "conditions": {"ready": True, "terminating": True}}
    yield "x2", "told", headless, [_part([terminating])]
    moved = [_end("10.2.7.1", zone="zone-a"), _end("10.2.7.1", zone="b.a", hostname="again")]
    yield "x2", "moved", headless, [_part(moved)]
    liar = [_end("10.2.8.1", hostname="10-2-8-2"), _end("10.2.8.2")]
    yield "x2", "liar", headless, [_part(liar)]
    for name, target in _ALIASES.items():
        yield "x1", name, {"type": "ExternalName", "externalName": target}, []


def pods() -> Iterator[tuple[str, str, list[str], str]]:
    """Name, namespace, addresses and phase of each pod."""
    for name, space, address, phase in _PODS:
        yield name, space, [address], phase


def orphan() -> Obj:
    """A slice of a Service that does not exist."""
    return _part([_end("10.2.9.1"), _end("10.2.9.2", hostname="o")])


def questions(domain: str) -> Iterator[tuple[str, str]]:
    """Names and types."""
    for space, name, _, parts in (*services(), ("x2", "orphan", {}, [orphan()])):
        base = f"{name}.{space}.svc.{domain}"
        yield from ((base, kind) for kind in _TYPES)
        for labels in (
            "_HTTP._tcp",
            "_http._udp",
            "_*._tcp",
            "_._tcp",
            "http.tcp",
            "_http",
            "_tcp",
        ):
            yield from ((f"{labels}.{base}", kind) for kind in ("A", "SRV"))
        for labels in ("zone-a.pin", "A.B.prefer", "b.a.pin", "pin", "zone-a.PIN", "x.other"):
            yield from ((f"{labels}._zone.{base}", kind) for kind in ("A", "SRV"))
        yield f"_http._tcp.zone-a.pin._zone.{base}", "SRV"
        for end in (endpoint for part in parts for endpoint in part["endpoints"]):
            for label in (*map(_label, end["addresses"]), end.get("hostname", "x")):
                yield from ((f"{label}.{base}", kind) for kind in ("A", "AAAA", "SRV", "TXT"))
                yield f"_http._tcp.{label}.{base}", "SRV"
            for address in end["addresses"]:
                reverse = ipaddress.ip_address(address).reverse_pointer
                yield from ((reverse, kind) for kind in ("PTR", "A", "TXT", "SOA"))
                yield reverse.upper(), "PTR"
    for space in SPACES:
        for tree in ("svc", "pod", "other"):
            yield from ((f"{space}.{tree}.{domain}", kind) for kind in _TYPES)
    numbers = ("10-1-8-1", "10-1-8-2", "10-1-8-3", "10-1-8-4", "fd00--8-5", "FD00--8-5", "10-1-8")
    for label in (*numbers, "10-1-8-6", "010-1-8-1", "10-1-8-256", "--1", "plain", "10.1.8.1"):
        for space in ("x1", "x2", "svc"):
            yield from ((f"{label}.{space}.pod.{domain}", kind) for kind in ("A", "AAAA", "SRV"))
    for name in ("10", "3.96.10", "5.1.3.96.10", "300.3.96.10", "01.3.96.10", "x.3.96.10"):
        yield from ((f"{name}.in-addr.arpa", kind) for kind in ("PTR", "A", "TXT"))
    for name in (f"ns.dns.{domain}", "ns.dns.in-addr.arpa", "in-addr.arpa", "ip6.arpa"):
        yield from ((name, kind) for kind in ("TXT", "PTR", "SRV", "SOA", "MX"))
    for name in ("DNS-Version", "x.dns-version", "dns", "a.ns.dns", "svc.svc.svc", "*", "*.svc"):
        yield from ((f"{name}.{domain}", kind) for kind in ("A", "TXT", "SRV", "SOA"))


def _label(address: str) -> str:
    label = address.replace(".", "-").replace(":", "-")
    return f"{label}0" if label.endswith("-") else label


def _part(endpoints: list[Obj], port: Obj | None = None) -> Obj:
    return {"addressType": "IPv4", "ports": [port or _HTTP], "endpoints": endpoints}


def _end(*addresses: str, **more: Any) -> Obj:
    return {"addresses": list(addresses), "conditions": {"ready": True}, **more}
