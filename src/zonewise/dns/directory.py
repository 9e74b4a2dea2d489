"""Services, endpoints and namespaces, indexed by name and by address.

The directory is filled object by object and read between two changes; nothing here waits. What a
question needs of a Service (its addresses, its endpoints with their names) is computed when it is
first needed and kept until the Service or one of its slices changes, so a list of a thousand slices
costs no more than recording which addresses they have. A Service can have 20,000 endpoints and one
of its slices change every second, so slices are read one by one, and nothing that a client can ask
for, existing or not, is searched for among all endpoints (``EndpointIndex``).

Every change is passed to ``changed`` as tokens: what an answer could have been made from. Answers
record the same tokens (``zonewise.dns.zone``), so exactly those that are affected are dropped. A
change of anything else (another annotation, a status) is no change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.traffic.dns_answers import (
    NamedEndpoint,
    NamedPort,
    NamedService,
    canonical_addresses,
    depends_on_location,
    read_named_endpoints,
    read_named_service,
    slice_addresses,
)
from zonewise.traffic.slices.identity import service_keys_of
from zonewise.traffic.slices.topology import TOPOLOGY_ANNOTATION

ChangeToken: TypeAlias = tuple[str, ...]
"""Something answers are made from: a Service, a namespace, an address or a node."""


def service_token(namespace: str, name: str) -> ChangeToken:
    """A Service and its slices."""
    return ("service", namespace, name)


def namespace_token(name: str) -> ChangeToken:
    """That a namespace exists."""
    return ("namespace", name)


def address_token(address: str) -> ChangeToken:
    """Which endpoint or Service has an address."""
    return ("address", address)


def node_token(name: str) -> ChangeToken:
    """The labels of a node."""
    return ("node", name)


class EndpointIndex:
    """Ready endpoints of one Service, found by what names and addresses say of them.

    Each index is made when it is first used.
    """

    def __init__(self, every: Sequence[NamedEndpoint]) -> None:
        self.every = every
        self._by_port: dict[tuple[str, str], EndpointIndex] = {}
        self._sorted: dict[int, list[bytes]] = {}
        self._located: dict[tuple[bool, bool], bool] = {}

    def __bool__(self) -> bool:
        return bool(self.every)

    def of_host(self, host: str) -> EndpointIndex:
        """The endpoints with this label before the name of the Service."""
        return EndpointIndex(self._by_host.get(host, ()))

    def of_zone(self, zone: str) -> EndpointIndex:
        """The endpoints in a zone."""
        return self._by_zone.get(zone, NO_ENDPOINTS)

    def at(self, address: str) -> EndpointIndex:
        """The endpoints that have an address."""
        return EndpointIndex(self._by_address.get(address, ()))

    def with_port(self, port: str, protocol: str) -> EndpointIndex:
        """The endpoints with a port that matches; "" matches any."""
        known = self._by_port.get((port, protocol))
        if known is not None:
            return known
        matching = {
            key
            for key, ports in self._port_lists.items()
            if any(named.matches(port, protocol) for named in ports)
        }
        if not matching:
            return NO_ENDPOINTS
        known = self
        if len(matching) < len(self._port_lists):
            endpoints = [endpoint for endpoint in self.every if id(endpoint.ports) in matching]
            known = EndpointIndex(endpoints)
        self._by_port[port, protocol] = known
        return known

    def addresses(self, size: int) -> list[bytes]:
        """The addresses of so many bytes, each once, sorted."""
        known = self._sorted.get(size)
        if known is None:
            packed = {endpoint.packed for endpoint in self.every if len(endpoint.packed) == size}
            known = self._sorted[size] = sorted(packed)
        return known

    def by_location(self, keys: Sequence[str], *, hints: bool) -> bool:
        """Whether clients in different locations may get different endpoints."""
        known = self._located.get((bool(keys), hints))
        if known is None:
            known = depends_on_location(self.every, keys, hints=hints)
            self._located[bool(keys), hints] = known
        return known

    @cached_property
    def _by_host(self) -> dict[str, list[NamedEndpoint]]:
        return self._index(lambda endpoint: endpoint.host)

    @cached_property
    def _by_zone(self) -> dict[str, EndpointIndex]:
        return {
            zone: EndpointIndex(every)
            for zone, every in self._index(lambda endpoint: endpoint.zone).items()
        }

    @cached_property
    def _by_address(self) -> dict[str, list[NamedEndpoint]]:
        return self._index(lambda endpoint: endpoint.address)

    @cached_property
    def _port_lists(self) -> dict[int, tuple[NamedPort, ...]]:
        return {id(endpoint.ports): endpoint.ports for endpoint in self.every}

    def _index(self, key: Callable[[NamedEndpoint], str]) -> dict[str, list[NamedEndpoint]]:
        indexed: defaultdict[str, list[NamedEndpoint]] = defaultdict(list)
        for endpoint in self.every:
            indexed[key(endpoint)].append(endpoint)
        return indexed


NO_ENDPOINTS = EndpointIndex(())


class Directory:
    """All Services, slices and namespaces; calls ``changed`` with the tokens of each change."""

    def __init__(
        self,
        changed: Callable[[Iterable[ChangeToken]], None],
        gates: Mapping[str, bool] | None = None,
    ) -> None:
        self._changed = changed
        self._gates = FeatureGates() if gates is None else gates
        self._services: dict[Key, Service] = {}
        self._slices: dict[Key, dict[Key, LeanEndpointSlice]] = {}
        self._namespaces: set[str] = set()
        self._entries: dict[Key, NamedService] = {}
        self._endpoints: dict[Key, EndpointIndex] = {}
        self._read: dict[Key, tuple[NamedEndpoint, ...]] = {}
        self._by_cluster_ip: dict[str, set[Key]] = {}
        self._by_endpoint: dict[str, dict[tuple[Key, Key], None]] = {}

    def exists(self, namespace: str) -> bool:
        """Whether a namespace exists."""
        return namespace in self._namespaces

    def entry(self, key: Key) -> NamedService | None:
        """The Service of a name, as answers need it."""
        entry = self._entries.get(key)
        if entry is None:
            service = self._services.get(key)
            if service is None:
                return None
            entry = self._entries[key] = self._read_service(service)
        return entry

    def endpoints(self, key: Key) -> EndpointIndex:
        """The ready endpoints of a Service, every address of each."""
        index = self._endpoints.get(key)
        if index is None:
            slices = self._slices.get(key)
            if not slices:
                return NO_ENDPOINTS
            pieces = (slices[name] for name in sorted(slices))
            every = [endpoint for piece in pieces for endpoint in self._of_slice(piece)]
            index = self._endpoints[key] = EndpointIndex(every)
        return index

    def _read_service(self, service: Service) -> NamedService:
        return read_named_service(service, self._gates)

    def _of_slice(self, piece: LeanEndpointSlice) -> tuple[NamedEndpoint, ...]:
        endpoints = self._read.get(piece.key)
        if endpoints is None:
            endpoints = self._read[piece.key] = read_named_endpoints([piece])
        return endpoints

    def service_at(self, address: str) -> Key | None:
        """The Service that has an address as its cluster IP."""
        return min(self._by_cluster_ip.get(address, ()), default=None)

    def services_behind(self, address: str) -> list[Key]:
        """The Services that have an endpoint, ready or not, with an address."""
        return sorted({service for service, _ in self._by_endpoint.get(address, ())})

    def put_service(self, old: Service | None, new: Service | None) -> None:
        """A Service was added, changed or deleted."""
        before = _cluster_ips(old) if old else ()
        after = _cluster_ips(new) if new else ()
        key = _key(new or old)
        if old and new and before == after and self._read_service(old) == self._read_service(new):
            self._services[key] = new
            return
        for address in before:
            owners = self._by_cluster_ip.get(address, set())
            owners.discard(key)
            if not owners:
                self._by_cluster_ip.pop(address, None)
        for address in after:
            self._by_cluster_ip.setdefault(address, set()).add(key)
        if new is None:
            self._services.pop(key, None)
        else:
            self._services[key] = new
        self._entries.pop(key, None)
        touched = {*before, *after} if before != after else set()
        self._changed([service_token(*key), *map(address_token, touched)])

    def put_slice(self, old: LeanEndpointSlice | None, new: LeanEndpointSlice | None) -> None:
        """A slice was added, changed, deleted, or is another Service's now."""
        before, after = _owners(old), _owners(new)
        if old and new and before == after and _parts(old) == _parts(new):
            for service in after:
                self._note_slice(service, new, present=True)
            return
        gone, come = _addresses(old), _addresses(new)
        tokens: set[ChangeToken] = set()
        for piece, owners, present in ((old, before, False), (new, after, True)):
            if piece is None:
                continue
            self._read.pop(piece.key, None)
            for service in owners:
                tokens.add(service_token(*service))
                self._endpoints.pop(service, None)
                self._note_slice(service, piece, present=present)
        if old is not None:
            self._forget_addresses(old.key, before, gone if before != after else gone - come)
        if new is not None:
            self._note_addresses(new.key, after, come if before != after else come - gone)
        tokens.update(map(address_token, gone ^ come))
        self._changed(tokens)

    def put_namespace(self, name: str, *, present: bool) -> None:
        """A namespace was added or deleted."""
        if present == (name in self._namespaces):
            return
        if present:
            self._namespaces.add(name)
        else:
            self._namespaces.discard(name)
        self._changed([namespace_token(name)])

    def _note_slice(self, service: Key, piece: LeanEndpointSlice, *, present: bool) -> None:
        if present:
            self._slices.setdefault(service, {})[piece.key] = piece
            return
        slices = self._slices.get(service, {})
        slices.pop(piece.key, None)
        if not slices:
            self._slices.pop(service, None)

    def _forget_addresses(
        self, piece: Key, services: Iterable[Key], addresses: Iterable[str]
    ) -> None:
        for service in services:
            for address in addresses:
                owners = self._by_endpoint[address]
                owners.pop((service, piece), None)
                if not owners:
                    del self._by_endpoint[address]

    def _note_addresses(
        self, piece: Key, services: Iterable[Key], addresses: Iterable[str]
    ) -> None:
        for service in services:
            for address in addresses:
                self._by_endpoint.setdefault(address, {})[service, piece] = None


def _key(item: Service | None) -> Key:
    assert item is not None
    return item.key


def _cluster_ips(service: Service) -> tuple[str, ...]:
    return tuple(canonical_addresses(service.spec.cluster_ips or (service.spec.cluster_ip,)))


def _owners(piece: LeanEndpointSlice | None) -> tuple[Key, ...]:
    return () if piece is None else tuple(service_keys_of(piece))


def _parts(piece: LeanEndpointSlice) -> tuple[object, ...]:
    """Everything of a slice that an answer can be made from."""
    topology = piece.metadata.annotations.get(TOPOLOGY_ANNOTATION)
    return piece.address_type, piece.endpoints, piece.ports, topology


def _addresses(piece: LeanEndpointSlice | None) -> set[str]:
    return set() if piece is None else slice_addresses(piece)
