"""Clusters made of plain objects that answer DNS questions without a socket."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from zonewise.api import FeatureGates
from zonewise.api.codec import convert
from zonewise.api.objects.core import Node, Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.objects.locator import LocatedPod, PodLocator
from zonewise.dns.directory import ChangeToken, Directory, address_token, node_token
from zonewise.dns.names import parse_domain
from zonewise.dns.responder import Forwards, Responder
from zonewise.dns.zone import DnsCluster, Domains
from zonewise.topology.locator_index import LocationChange, Locator, LocatorIndex

Obj = dict[str, Any]

CLUSTER = "cluster.local"
OUTSIDER = "192.0.2.9"


class Names:
    """A cluster's names: objects go in by ``put`` and ``remove``, questions by ``ask``."""

    def __init__(
        self,
        *,
        nodes: bool = True,
        domains: Sequence[str] = (CLUSTER,),
        forwards: Forwards | None = None,
        trusted: Sequence[str] = (),
        addresses: Sequence[str] = (),
        gates: FeatureGates | None = None,
    ) -> None:
        self.synced = True
        self.locators = LocatorIndex(follow_nodes=nodes)
        self.directory = Directory(self._changed, gates)
        cluster = DnsCluster(
            Domains(tuple(map(parse_domain, domains))),
            self.directory,
            self.locators,
            lambda: 7,
            tuple(addresses),
        )
        self.responder = Responder(
            cluster,
            forwards,
            lambda: self.synced,
            tuple(map(ipaddress.ip_network, trusted)),
        )
        self._objects: dict[tuple[str, str, str], Any] = {}

    def _changed(self, tokens: Iterable[ChangeToken]) -> None:
        self.responder.cache.drop(tokens)

    def _moved(self, moved: LocationChange) -> None:
        self._changed([*map(address_token, moved.addresses), *map(node_token, moved.nodes)])

    def put(self, *objects: Obj) -> None:
        """Add or change objects."""
        for item in objects:
            meta = item["metadata"]
            key = (item["kind"], meta.get("namespace", ""), meta["name"])
            match item["kind"]:
                case "Namespace":
                    self.directory.put_namespace(meta["name"], present=True)
                    new: Any = item
                case "Service":
                    new = convert(Service, item)
                    self.directory.put_service(self._objects.get(key), new)
                case "EndpointSlice":
                    new = convert(LeanEndpointSlice, item)
                    self.directory.put_slice(self._objects.get(key), new)
                case "PodLocator":
                    new = convert(PodLocator, item)
                    self._moved(self.locators.put(Locator.from_object(new)))
                case "Pod":
                    new = convert(LocatedPod, item)
                    self._moved(self.locators.put(Locator.from_pod(new)))
                case "Node":
                    new = convert(Node, item)
                    self._moved(self.locators.put_node(new))
                case kind:
                    raise AssertionError(kind)
            self._objects[key] = new

    def remove(self, kind: str, name: str, namespace: str = "") -> None:
        """Delete an object."""
        old = self._objects.pop((kind, namespace, name))
        match kind:
            case "Namespace":
                self.directory.put_namespace(name, present=False)
            case "Service":
                self.directory.put_service(old, None)
            case "EndpointSlice":
                self.directory.put_slice(old, None)
            case "Node":
                self._moved(self.locators.remove_node(name))
            case _:
                self._moved(self.locators.remove((namespace, name)))

    def send(self, packet: bytes, source: str = OUTSIDER, *, stream: bool = False) -> bytes | None:
        """The answer to a packet; the second time, from the cache."""
        entry = None if stream else self.responder.cache.table.get(packet[2:])
        if entry is not None:
            turns = entry.turns or entry.by_location.get(self.responder.locate(source).number)
            if turns is not None:
                cached: bytes = packet[:2] + turns.next()
                return cached
        response = self.responder.respond(packet, source, stream=stream)
        if response is None or isinstance(response, bytes):
            return response
        return asyncio.run(_wait_for(response))

    def ask(
        self,
        name: str,
        kind: str = "A",
        source: str = OUTSIDER,
        *,
        stream: bool = False,
        **options: Any,
    ) -> dns.message.Message:
        """The answer to a question, parsed by dnspython."""
        options.setdefault("use_edns", 0)
        options.setdefault("payload", 4096)
        query = dns.message.make_query(name, kind, **options)
        packet = self.send(query.to_wire(), source, stream=stream)
        assert packet is not None
        answer = dns.message.from_wire(packet)
        assert query.is_response(answer)
        return answer

    def addresses(self, name: str, source: str = OUTSIDER, kind: str = "A") -> list[str]:
        """The addresses of a name, sorted."""
        return texts(self.ask(name, kind, source))

    def code(self, name: str, kind: str = "A") -> str:
        """The outcome of a question: NODATA, NXDOMAIN, or the number of records."""
        return code_of(self.ask(name, kind))


async def _wait_for(answering: Any) -> bytes:
    response = await answering
    assert isinstance(response, bytes)
    return response


def code_of(answer: dns.message.Message) -> str:
    """The outcome of a question; negative answers must carry a SOA record and AA."""
    code = dns.rcode.to_text(answer.rcode())
    if code == "NOERROR" and not answer.answer:
        code = "NODATA"
    if code in ("NODATA", "NXDOMAIN"):
        assert [records.rdtype for records in answer.authority] == [dns.rdatatype.SOA]
        assert answer.flags & dns.flags.AA
    return code


def texts(answer: dns.message.Message, section: str = "answer") -> list[str]:
    """The data of the records of a section, sorted."""
    sets: list[dns.rrset.RRset] = getattr(answer, section)
    return sorted(str(record) for records in sets for record in records)


def namespace(name: str) -> Obj:
    """A namespace."""
    return {"kind": "Namespace", "metadata": {"name": name}}


def service(name: str, space: str = "shop", *, keys: str = "", **spec: Any) -> Obj:
    """A Service; ``keys`` are topology keys."""
    notes = {"zonewise.io/topology-keys": keys} if keys else {}
    return {
        "kind": "Service",
        "metadata": {"name": name, "namespace": space, "annotations": notes},
        "spec": spec,
    }


def headless(name: str, space: str = "shop", **more: Any) -> Obj:
    """A headless Service."""
    ports = more.pop("ports", [port("http", 80)])
    return service(name, space, clusterIP="None", clusterIPs=["None"], ports=ports, **more)


def port(name: str, number: int, protocol: str = "TCP") -> Obj:
    """A port of a Service or a slice."""
    return {"name": name, "port": number, "protocol": protocol}


def pieces(
    of: str,
    endpoints: Sequence[Obj],
    space: str = "shop",
    *,
    name: str = "",
    family: str = "IPv4",
    ports: Sequence[Obj] | None = None,
) -> Obj:
    """A slice of a Service."""
    return {
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{of}-{family.lower()}",
            "namespace": space,
            "labels": {"kubernetes.io/service-name": of},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [port("http", 80)] if ports is None else list(ports),
    }


def endpoint(*addresses: str, ready: bool | None = True, **more: Any) -> Obj:
    """An endpoint; hints as ``zones=`` and ``nodes=``."""
    zones, nodes = more.pop("zones", ()), more.pop("nodes", ())
    conditions = {} if ready is None else {"ready": ready}
    fields: Obj = {"addresses": list(addresses), "conditions": conditions, **more}
    if zones or nodes:
        fields["hints"] = {
            "forZones": [{"name": zone} for zone in zones],
            "forNodes": [{"name": node} for node in nodes],
        }
    return fields
