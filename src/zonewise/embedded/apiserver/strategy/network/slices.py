"""EndpointSlices and the Endpoints they replace."""

from __future__ import annotations

from collections.abc import Callable

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.addresses import (
    NOT_AN_ADDRESS,
    is_canonical,
    parse_address,
    special_use,
)
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.metadata import validate_labels

VERSIONS = {"IPv4": 4, "IPv6": 6}
ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
PROTOCOLS = ("SCTP", "TCP", "UDP")
ENDPOINTS_LIMIT = 1000
ADDRESSES_LIMIT = 100
PORTS_LIMIT = 20_000
HINTS_LIMIT = 8


class EndpointSliceRules(Rules):
    """The rules of EndpointSlices."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """The topology of an older version is not part of a new slice."""
        for endpoint in obj.get("endpoints") or ():
            endpoint.pop("deprecatedTopology", None)

    def prepare_update(self, obj: Obj, old: Obj, context: StrategyContext) -> None:
        """It stays as long as the endpoints do; to bring it in is still a change."""
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

    def validate(self, obj: Field, context: StrategyContext) -> None:
        address_type = obj["addressType"]
        address_type.required().enum(ADDRESS_TYPES)
        if obj["endpoints"].max_items(ENDPOINTS_LIMIT):
            for endpoint in obj["endpoints"].each():
                _validate_endpoint(endpoint, address_type.value)
        if obj["ports"].max_items(PORTS_LIMIT):
            _validate_ports(obj["ports"])

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What kind of addresses it has does not change."""
        obj["addressType"].immutable(old.get("addressType"))
        self.validate(obj, context)


class EndpointsRules(Rules):
    """The rules of Endpoints."""

    def validate(self, obj: Field, context: StrategyContext) -> None:
        for subset in obj["subsets"].each():
            ready, not_ready = subset["addresses"], subset["notReadyAddresses"]
            if not ready.value and not not_ready.value:
                subset.missing("must specify `addresses` or `notReadyAddresses`")
            for addresses in (ready, not_ready):
                for address in addresses.each():
                    _validate_endpoint_address(address)
            ports = subset["ports"]
            for port in ports.each():
                _validate_endpoint_port(port, is_name_required=len(ports.value) > 1)


def _validate_endpoint(endpoint: Field, address_type: str | None) -> None:
    fields, addresses = endpoint.value, endpoint["addresses"]
    addresses.required("must contain at least 1 address").max_items(ADDRESSES_LIMIT)
    for address in addresses.each():
        _validate_address(address, addresses, address_type)
    if fields.get("nodeName") is not None:
        endpoint["nodeName"].dns_subdomain()
    if fields.get("hostname") is not None:
        endpoint["hostname"].dns_label()
    if fields.get("deprecatedTopology"):
        validate_labels(endpoint["deprecatedTopology"])
    if fields.get("hints"):
        hints = endpoint["hints"]
        _validate_hints(hints["forZones"], Field.label_value)
        _validate_hints(hints["forNodes"], Field.dns_subdomain)


def _validate_address(address: Field, addresses: Field, address_type: str | None) -> None:
    text = address.value
    if address_type == "FQDN":
        if address.dns_subdomain() and "." not in text:
            address.invalid("should be a domain with at least two segments separated by dots")
        return
    if address_type not in VERSIONS:
        return
    ip = parse_address(text)
    if ip is None:
        address.invalid(NOT_AN_ADDRESS)
    elif not is_canonical(ip, text):
        address.invalid("must be in canonical form")
    else:
        if ip.version != VERSIONS[address_type]:
            addresses.invalid(f"must be an {address_type} address", text)
        address.invalid_if(special_use(ip))


def _validate_hints(hints: Field, validate_name: Callable[[Field], Field]) -> None:
    names: set[str] = set()
    if hints.max_items(HINTS_LIMIT):
        for hint in hints.each():
            name = hint.get("name", "")
            name.unique(names)
            validate_name(name)


def _validate_ports(ports: Field) -> None:
    names: set[str] = set()
    for port in ports.each():
        name = port["name"]
        name.optional().dns_label()
        name.holding(name.value or "").unique(names)
        protocol = port["protocol"]
        if protocol.value not in PROTOCOLS:
            protocol.unsupported(PROTOCOLS)
        port["appProtocol"].qualified_name()


def _validate_endpoint_address(address: Field) -> None:
    ip = address.get("ip", "")
    parsed = parse_address(ip.value)
    ip.invalid_if(special_use(parsed) if parsed else NOT_AN_ADDRESS)
    address["hostname"].optional().dns_label()
    address["nodeName"].dns_subdomain()


def _validate_endpoint_port(port: Field, *, is_name_required: bool) -> None:
    name = port["name"]
    if is_name_required:
        name.required()
    name.optional().dns_label()
    port.get("port", 0).port_number()
    port["protocol"].required().enum(PROTOCOLS)
    port["appProtocol"].qualified_name()
