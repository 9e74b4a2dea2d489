"""EndpointSlices and the Endpoints they replace."""

from __future__ import annotations

from collections.abc import Callable

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.network import addresses

FAMILIES = {"IPv4": 4, "IPv6": 6}
TYPES = ("FQDN", "IPv4", "IPv6")
PROTOCOLS = ("SCTP", "TCP", "UDP")
MOST_ENDPOINTS = 1000
MOST_ADDRESSES = 100
MOST_PORTS = 20_000
MOST_HINTS = 8


class SliceRules(Rules):
    """The rules of EndpointSlices."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """The topology of an older version has no place in a new slice."""
        for endpoint in obj.get("endpoints") or ():
            endpoint.pop("deprecatedTopology", None)

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """It stays where it was, as long as the endpoints do; to bring it in is still a change."""
        if obj.get("endpoints") == old.get("endpoints"):
            return
        self.prepare_create(obj, context)
        if not self.changed(obj, old):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Labels count too: they name the Service."""
        return super().changed(obj, old) or (obj["metadata"].get("labels") or {}) != (
            old["metadata"].get("labels") or {}
        )

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a slice."""
        kind = obj.get("addressType", "")
        found: Faults = []
        if not kind:
            found.append(field_errors.required("addressType"))
        elif kind not in TYPES:
            found.append(field_errors.unsupported("addressType", kind, TYPES))
        return found + _endpoints(obj.get("endpoints") or [], kind) + _ports(obj.get("ports") or [])

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What kind of addresses it holds does not change."""
        found: Faults = []
        if obj.get("addressType") != old.get("addressType"):
            text = "field is immutable"
            found.append(field_errors.invalid("addressType", obj.get("addressType"), text))
        return found + self.validate(obj, context)


class EndpointsRules(Rules):
    """The rules of Endpoints."""

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with Endpoints."""
        found: Faults = []
        for index, subset in enumerate(obj.get("subsets") or ()):
            path = f"subsets[{index}]"
            ready, waiting = subset.get("addresses") or (), subset.get("notReadyAddresses") or ()
            if not ready and not waiting:
                text = "must specify `addresses` or `notReadyAddresses`"
                found.append(field_errors.required(path, text))
            for key, many in (("addresses", ready), ("notReadyAddresses", waiting)):
                for number, address in enumerate(many):
                    found += _subset_address(address, f"{path}.{key}[{number}]")
            ports = subset.get("ports") or ()
            for number, port in enumerate(ports):
                found += _subset_port(port, f"{path}.ports[{number}]", named=len(ports) > 1)
        return found


def _endpoints(endpoints: list[Obj], kind: str) -> Faults:
    if len(endpoints) > MOST_ENDPOINTS:
        return [field_errors.too_many("endpoints", len(endpoints), MOST_ENDPOINTS)]
    found: Faults = []
    for index, endpoint in enumerate(endpoints):
        path = f"endpoints[{index}]"
        many = endpoint.get("addresses") or []
        if not many:
            text = "must contain at least 1 address"
            found.append(field_errors.required(f"{path}.addresses", text))
        elif len(many) > MOST_ADDRESSES:
            found.append(field_errors.too_many(f"{path}.addresses", len(many), MOST_ADDRESSES))
        for number, text in enumerate(many):
            found += _address(text, kind, f"{path}.addresses", number)
        if endpoint.get("nodeName") is not None:
            found += _named(f"{path}.nodeName", endpoint["nodeName"], names.subdomain)
        if endpoint.get("hostname") is not None:
            found += _named(f"{path}.hostname", endpoint["hostname"], names.label)
        found += _topology(endpoint.get("deprecatedTopology") or {}, f"{path}.deprecatedTopology")
        hints = endpoint.get("hints") or {}
        found += _hints(hints.get("forZones") or [], f"{path}.hints.forZones", metadata.label_value)
        found += _hints(hints.get("forNodes") or [], f"{path}.hints.forNodes", names.subdomain)
    return found


def _address(text: str, kind: str, path: str, number: int) -> Faults:
    at = f"{path}[{number}]"
    if kind == "FQDN":
        texts = names.subdomain(text)
        if not texts and "." not in text:
            texts = ["should be a domain with at least two segments separated by dots"]
        return [field_errors.invalid(at, text, why) for why in texts]
    if kind not in FAMILIES:
        return []
    address = addresses.parse(text)
    if address is None:
        return [field_errors.invalid(at, text, addresses.NOT_AN_ADDRESS)]
    if not addresses.canonical(address, text):
        return [field_errors.invalid(at, text, "must be in canonical form")]
    found: Faults = []
    if address.version != FAMILIES[kind]:
        found.append(field_errors.invalid(path, text, f"must be an {kind} address"))
    why = addresses.special(address)
    if why:
        found.append(field_errors.invalid(at, text, why))
    return found


def _named(path: str, name: str, judge: Callable[[str], list[str]]) -> Faults:
    return [field_errors.invalid(path, name, text) for text in judge(name)]


def _topology(topology: dict[str, str], path: str) -> Faults:
    return metadata.label_faults(path, topology) if topology else []


def _hints(hints: list[Obj], path: str, judge: Callable[[str], list[str]]) -> Faults:
    if len(hints) > MOST_HINTS:
        return [field_errors.too_many(path, len(hints), MOST_HINTS)]
    found: Faults = []
    seen: set[str] = set()
    for index, hint in enumerate(hints):
        at, name = f"{path}[{index}].name", hint.get("name", "")
        if name in seen:
            found.append(field_errors.duplicate(at, name))
        seen.add(name)
        found += _named(at, name, judge)
    return found


def _ports(ports: list[Obj]) -> Faults:
    if len(ports) > MOST_PORTS:
        return [field_errors.too_many("ports", len(ports), MOST_PORTS)]
    found: Faults = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        path = f"ports[{index}]"
        name = port.get("name") or ""
        if name:
            found += _named(f"{path}.name", name, names.label)
        if name in seen:
            found.append(field_errors.duplicate(f"{path}.name", name))
        seen.add(name)
        protocol = port.get("protocol")
        if protocol not in PROTOCOLS:
            found.append(field_errors.unsupported(f"{path}.protocol", protocol, PROTOCOLS))
        found += _application(port, path)
    return found


def _protocol(port: Obj, path: str) -> Faults:
    protocol = port.get("protocol", "")
    if not protocol:
        return [field_errors.required(f"{path}.protocol")]
    if protocol not in PROTOCOLS:
        return [field_errors.unsupported(f"{path}.protocol", protocol, PROTOCOLS)]
    return []


def _application(port: Obj, path: str) -> Faults:
    if port.get("appProtocol") is None:
        return []
    return _named(f"{path}.appProtocol", port["appProtocol"], metadata.qualified_name)


def _subset_address(address: Obj, path: str) -> Faults:
    text = address.get("ip", "")
    found: Faults = []
    parsed = addresses.parse(text)
    why = addresses.special(parsed) if parsed else addresses.NOT_AN_ADDRESS
    if why:
        found.append(field_errors.invalid(f"{path}.ip", text, why))
    if address.get("hostname"):
        found += _named(f"{path}.hostname", address["hostname"], names.label)
    if address.get("nodeName") is not None:
        found += _named(f"{path}.nodeName", address["nodeName"], names.subdomain)
    return found


def _subset_port(port: Obj, path: str, *, named: bool) -> Faults:
    found: Faults = []
    name, number = port.get("name", ""), port.get("port", 0)
    if name:
        found += _named(f"{path}.name", name, names.label)
    elif named:
        found.append(field_errors.required(f"{path}.name"))
    if not 1 <= number <= 65535:
        text = "must be between 1 and 65535, inclusive"
        found.append(field_errors.invalid(f"{path}.port", number, text))
    return found + _protocol(port, path) + _application(port, path)
