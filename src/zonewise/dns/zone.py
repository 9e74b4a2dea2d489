"""What the cluster answers to a question: records as a function of directory and location.

Answers are those of CoreDNS 1.15 with ``pods verified``, ``zonal`` and ``ttl 5``; where they differ
``docs/dns.md`` says why. In short: a name that does not exist is NXDOMAIN, one that exists without
records of the type is NODATA, both with the SOA of the domain. A headless Service without a ready
endpoint does not exist. An alias (ExternalName) is followed here as far as it leads through the
cluster; if it leads out of it, ``Resolved.outside`` names where the rest has to be looked up.

``None`` instead of an answer means that the question is not ours: every name outside of the
cluster's domains, and addresses in the reverse domains that nothing in the cluster has.

Records that may be many are made one by one as they are written (``Spread``), so of 20,000
endpoints only those cost something that fit into the answer.

``_Resolution`` records every token that it looks up, whether found or not, and whether the client's
location mattered. No other code has to know what an answer was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import chain, repeat
from struct import Struct as Layout
from typing import Any, Generic, TypeVar

from zonewise.api.errors import ParseError
from zonewise.api.meta import Key
from zonewise.dns.directory import (
    NO_ENDPOINTS,
    ChangeToken,
    Directory,
    EndpointIndex,
    address_token,
    namespace_token,
    node_token,
    service_token,
)
from zonewise.dns.names import (
    LABEL_LIMIT,
    NAME_LIMIT,
    domain_text,
    is_within,
    labels_of,
    name_of,
    parse_domain,
    suffixes,
)
from zonewise.dns.sections import ADDITIONAL, ANSWER, AUTHORITY, Placed
from zonewise.dns.wire import Question, Rcode, RecordType, ResourceRecord, address_record
from zonewise.topology.locator_index import UNKNOWN_LOCATION, LocatorIndex, NodeLocation
from zonewise.traffic.dns_answers import (
    NO_PORT,
    NamedEndpoint,
    NamedPort,
    NamedService,
    choose_for_client,
    pack_address,
)
from zonewise.traffic.dns_names import POD, SVC, NameQuestion, label_to_address, parse_name
from zonewise.traffic.endpoint import NO_HINT
from zonewise.traffic.routes.addresses import parse_address
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.slices.topology import unstated_labels

T = TypeVar("T")

TTL = 5
VERSION_TTL = 28_800
SCHEMA_VERSION = b"1.1.0"
ALIASES = 11
"""How many aliases an answer may have: the first, and ten steps after it."""

V4_REVERSE, V6_REVERSE = parse_domain("in-addr.arpa"), parse_domain("ip6.arpa")
REVERSE = (V4_REVERSE, V6_REVERSE)
_SOA_TIMES = b"".join(value.to_bytes(4, "big") for value in (7200, 1800, 86_400, TTL))
_UNKNOWN_OF_NS = (RecordType.TXT, RecordType.PTR)
"""For these CoreDNS denies its own name, ``ns.dns``."""

_SIZES: Mapping[int, int] = {RecordType.A: 4, RecordType.AAAA: 16}
_HEX = frozenset("0123456789abcdef")
_SRV_HEAD = Layout("!HHH")
_POD_PORTS = (NamedPort("", "", 0),)
_HEAVY = 100
"""So many SRV records weigh 1 each, as do more."""

domain_name = cache(domain_text)


@dataclass(frozen=True, slots=True)
class Domains:
    """The names that are ours; the first domain is the one that PTR records lead to."""

    cluster: tuple[bytes, ...]
    all: frozenset[bytes] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all", frozenset((*self.cluster, *REVERSE)))

    def of(self, name: bytes) -> bytes | None:
        """The longest of our domains that a name, in lower case, is in."""
        ours = self.all
        for suffix in suffixes(name):
            if suffix in ours:
                return suffix
        return None


@dataclass(frozen=True)
class Spread(Generic[T]):
    """Records that may be sent in any order, made of ``items`` when they are written."""

    items: Sequence[T]
    answers: Callable[[Iterable[T]], Iterator[ResourceRecord]]
    glue: Callable[[Iterable[T]], Iterator[ResourceRecord]] | None = None

    def records(self, by: int) -> Iterator[Placed]:
        """All records, turned by some places."""
        items = [*self.items[by:], *self.items[:by]]
        glue = self.glue(items) if self.glue is not None else ()
        return chain(zip(repeat(ANSWER), self.answers(items)), zip(repeat(ADDITIONAL), glue))


@dataclass(frozen=True, slots=True)
class Resolved:
    """An answer, what it was made from, and what is still missing."""

    rcode: int
    domain: bytes
    """Of the question, as it is spelled there."""

    basis: frozenset[ChangeToken] = frozenset()
    near: bool = False
    """Whether another location might get another answer."""

    same: bytes = b""
    """Equal for two locations that get the same answer, if they have the same basis."""

    fixed: tuple[Placed, ...] = ()
    """The records whose order is fixed; answers come before those of ``spread``."""

    spread: Spread[Any] | None = None
    outside: bytes | None = None
    """Where the last alias leads, if that has to be looked up elsewhere."""

    @property
    def answered(self) -> bool:
        """Whether there is any answer."""
        return self.spread is not None or (bool(self.fixed) and self.fixed[0][0] == ANSWER)

    @property
    def orders(self) -> int:
        """In how many orders it can be sent."""
        return len(self.spread.items) if self.spread is not None else 1

    def records(self, by: int = 0) -> Iterator[Placed]:
        """All records, those that may be in any order turned by some places."""
        return chain(self.fixed, self.spread.records(by) if self.spread is not None else ())


@dataclass(frozen=True, slots=True)
class DnsCluster:
    """Everything names are answered from. ``addresses`` are those the server itself is reached at,
    in canonical text; ``serial`` gives the time of the last change, for SOA records.
    ``read_nodes`` is called with a Service whose endpoints' labels neither its slices nor
    PodLocators state, where these are followed."""

    domains: Domains
    directory: Directory
    locators: LocatorIndex
    serial: Callable[[], int]
    addresses: tuple[str, ...] = ()
    read_nodes: Callable[[Key], None] | None = None

    def resolve(self, question: Question, at: NodeLocation = UNKNOWN_LOCATION) -> Resolved | None:
        """The answer for a client at a location, or None if the question is not ours."""
        domain = self.domains.of(question.lower)
        if domain is None:
            return None
        return _Resolution(self, at).resolve(question, domain)


@dataclass(slots=True)
class _Backend:
    """What is behind a name: endpoints, or an alias. Neither is NODATA."""

    endpoints: EndpointIndex = NO_ENDPOINTS
    parsed: NameQuestion = field(default_factory=NameQuestion)
    name: tuple[str, ...] = ()
    """The name that each endpoint's label is put before."""

    alias: str | None = None
    chooser: NamedService | None = None
    """The Service by which the endpoints for a location are chosen."""


@dataclass(slots=True)
class _Records:
    """Records of an answer; see ``Resolved``."""

    answers: list[ResourceRecord] = field(default_factory=list)
    extra: list[ResourceRecord] = field(default_factory=list)
    spread: Spread[Any] | None = None
    outside: bytes | None = None


@dataclass(slots=True)
class _Resolution:
    """One question being answered; collects what the answer depends on."""

    cluster: DnsCluster
    location: NodeLocation
    basis: set[ChangeToken] = field(default_factory=set)
    near: bool = False
    same: bytes = b""

    def resolve(self, question: Question, domain: bytes) -> Resolved | None:
        """The answer, or None if nothing in the cluster has the requested address."""
        zone = question.name[len(question.name) - len(domain) :]
        labels = labels_of(question.lower[: len(question.lower) - len(domain)] + b"\0")
        records = self._resolve_special(question, zone, labels)
        if records is None and domain in REVERSE:
            records = self._reverse(question, domain, labels)
            if records is None:
                return None
        elif records is None:
            records = self._named(question, zone, domain, parse_name(labels))
        return self._resolved(records, zone)

    def _resolved(self, records: _Records | None, zone: bytes) -> Resolved:
        basis = frozenset(self.basis)
        if records is not None and (records.answers or records.spread):
            fixed = (*zip(repeat(ANSWER), records.answers), *zip(repeat(ADDITIONAL), records.extra))
            spread, outside = records.spread, records.outside
            return Resolved(
                Rcode.NOERROR, zone, basis, self.near, self.same, fixed, spread, outside
            )
        rcode = Rcode.NXDOMAIN if records is None else Rcode.NOERROR
        soa = (AUTHORITY, _soa(zone, self.cluster.serial()))
        return Resolved(rcode, zone, basis, self.near, self.same, (soa,))

    def _named(
        self, question: Question, zone: bytes, domain: bytes, parsed: NameQuestion | None
    ) -> _Records | None:
        """The records of a name of the cluster; None if it does not exist."""
        backend = None if parsed is None else self._find(parsed)
        if backend is None:
            # As CoreDNS: below the apex a question for SOA only finds out the domain.
            return _Records() if question.type == RecordType.SOA else None
        if question.type == RecordType.SRV:
            return self._services(question, backend, zone)
        if question.type in (RecordType.A, RecordType.AAAA):
            return self._addresses(question, backend, domain)
        if question.type == RecordType.CNAME and backend.alias is not None:
            return _Records([_alias(question.name, backend.alias)])
        return _Records()

    def _reverse(self, question: Question, domain: bytes, labels: Sequence[str]) -> _Records | None:
        """The names of an address; None if nothing here has it, or it is not about an address."""
        if question.type == RecordType.SOA or (not labels and question.type != RecordType.TXT):
            return _Records()  # the domain, and that it exists
        address = _reverse_address(labels, domain) if question.type == RecordType.PTR else None
        if address is None:
            return None
        self.basis.add(address_token(address))
        directory = self.cluster.directory
        service = directory.service_at(address)
        names: list[tuple[str, ...]] = []
        if service is not None:
            names.append((service[1], service[0], SVC))
        else:
            for namespace, name in directory.services_behind(address):
                self.basis.add(service_token(namespace, name))
                names += (
                    (endpoint.host, name, namespace, SVC)
                    for endpoint in directory.endpoints((namespace, name)).at(address).every
                )
        primary = labels_of(self.cluster.domains.cluster[0])
        targets = (_joined(*name, *primary) for name in dict.fromkeys(names))
        records = [
            ResourceRecord(question.name, RecordType.PTR, TTL, targets=(target,))
            for target in targets
            if target
        ]
        return _Records(records) if records else None

    def _resolve_special(
        self, question: Question, zone: bytes, labels: Sequence[str]
    ) -> _Records | None:
        """The few names that are not of Services or pods."""
        if not labels and question.type == RecordType.SOA:
            return _Records([_soa(zone, self.cluster.serial())])
        if not labels and question.type == RecordType.NS:
            return self._name_servers(question, zone)
        if tuple(labels) == ("ns", "dns") and question.type not in _UNKNOWN_OF_NS:
            size = _SIZES.get(question.type)
            own = dict.fromkeys(address for _, address in self._own() if len(address) == size)
            return _Records([address_record(question.name, TTL, address) for address in own])
        if tuple(labels) == ("dns-version",) and question.type == RecordType.TXT:
            text = bytes([len(SCHEMA_VERSION)]) + SCHEMA_VERSION
            return _Records([ResourceRecord(question.name, RecordType.TXT, VERSION_TTL, text)])
        return None

    def _name_servers(self, question: Question, zone: bytes) -> _Records:
        records, extra = [], []
        for name, address in self._own():
            target = _joined(*name, *labels_of(zone))
            if target is None:
                continue
            records.append(ResourceRecord(question.name, RecordType.NS, TTL, targets=(target,)))
            extra.append(address_record(target, TTL, address))
        return _Records(list(dict.fromkeys(records)), list(dict.fromkeys(extra)))

    def _own(self) -> list[tuple[tuple[str, ...], bytes]]:
        """The names and addresses this server has: of its Services, else of itself."""
        directory = self.cluster.directory
        names: list[tuple[tuple[str, ...], bytes]] = []
        served = False
        for address in self.cluster.addresses:
            self.basis.add(address_token(address))
            for key in directory.services_behind(address):
                self.basis.add(service_token(*key))
                endpoints = directory.endpoints(key)
                entry = directory.entry(key)
                if not endpoints.at(address):
                    continue
                served = True
                if entry is None:
                    continue
                name = (entry.name, entry.namespace, SVC)
                if entry.headless:
                    names += (((each.host, *name), each.packed) for each in endpoints.every)
                else:
                    names += ((name, packed) for packed in entry.addresses)
        if served:
            return names
        return [(("ns", "dns"), pack_address(address)) for address in self.cluster.addresses]

    def _find(self, parsed: NameQuestion) -> _Backend | None:
        """What is behind a name; None if the name does not exist."""
        if not parsed.kind:
            return _Backend()
        self.basis.add(namespace_token(parsed.namespace))
        if not self.cluster.directory.exists(parsed.namespace):
            return None
        if not parsed.service:
            return _Backend()
        return self._pod(parsed) if parsed.kind == POD else self._service(parsed)

    def _pod(self, parsed: NameQuestion) -> _Backend | None:
        text = label_to_address(parsed.service)
        address = parse_address(text)
        if address is None or address.text != text:
            return None
        self.basis.add(address_token(text))
        pods = self.cluster.locators.resolvable_pods_at(text)
        if not any(namespace == parsed.namespace for namespace, _ in pods):
            return None
        pod = NamedEndpoint(text, pack_address(text), parsed.service, _POD_PORTS, "", "", NO_HINT)
        return _Backend(EndpointIndex([pod]), parsed, (parsed.namespace, POD))

    def _service(self, parsed: NameQuestion) -> _Backend | None:
        key = (parsed.namespace, parsed.service)
        self.basis.add(service_token(*key))
        entry = self.cluster.directory.entry(key)
        if entry is None or (parsed.zone and not entry.headless):
            return None
        if entry.external_name is not None:
            bare = not (parsed.endpoint or parsed.port or parsed.protocol)
            if not bare or not _is_name(entry.external_name):
                return None
            return _Backend(alias=entry.external_name)
        name = (entry.name, entry.namespace, SVC)
        if not entry.headless and not parsed.endpoint:
            if not any(port.matches(parsed.port, parsed.protocol) for port in entry.ports):
                return None
            own = [
                NamedEndpoint("", address, "", entry.ports, "", "", NO_HINT)
                for address in entry.addresses
            ]
            return _Backend(EndpointIndex(own), parsed, name)
        return self._of_endpoints(parsed, entry, name)

    def _of_endpoints(
        self, parsed: NameQuestion, entry: NamedService, name: tuple[str, ...]
    ) -> _Backend | None:
        """The requested endpoints; None if there are none at all."""
        known = self.cluster.directory.endpoints((entry.namespace, entry.name))
        if parsed.endpoint:
            known = known.of_host(parsed.endpoint)
        known = known.with_port(parsed.port, parsed.protocol)
        if parsed.zone:
            there = known.of_zone(parsed.zone)
            return _Backend(there or (known if parsed.prefer else NO_ENDPOINTS), parsed, name)
        if not known:
            return None
        return _Backend(known, parsed, name, chooser=entry if parsed.names_all_endpoints else None)

    def _chosen(self, backend: _Backend) -> EndpointIndex:
        """The endpoints that are for the client, each family decided by itself."""
        entry, endpoints = backend.chooser, backend.endpoints
        if entry is None:
            return endpoints
        keys, hints = entry.topology_keys, entry.hints
        if not endpoints.by_location(keys, hints=hints):
            return endpoints
        self.near = True
        each = {endpoint.address: endpoint for endpoint in reversed(endpoints.every)}
        nodes = {}
        if keys:
            locators, unstated = self.cluster.locators, unstated_labels(each.values(), keys)
            nodes = {name: locators.labels_of(name) for name in unstated}
            self.basis.update(map(node_token, nodes))
            if self.cluster.read_nodes is not None and any(
                locators.takes_from_node(name, needed) for name, needed in unstated.items()
            ):
                self.cluster.read_nodes((entry.namespace, entry.name))
        client = ClientLocation.of_labels(self.location.node, self.location.labels)
        chosen: set[str] = set()
        for size in (4, 16):
            family = [endpoint for endpoint in each.values() if len(endpoint.packed) == size]
            selection = choose_for_client(family, client, keys, nodes, hints=hints)
            chosen.update(endpoint.address for endpoint in selection.endpoints)
        every = [endpoint for endpoint in endpoints.every if endpoint.address in chosen]
        self.same = blake2b(" ".join(endpoint.address for endpoint in every).encode()).digest()
        return EndpointIndex(every)

    def _services(self, question: Question, backend: _Backend, zone: bytes) -> _Records:
        """SRV records and the addresses of their targets; all weigh the same, at least 1."""
        parsed, every = backend.parsed, self._chosen(backend).every
        weight = 1
        if len(every) < _HEAVY:
            count = sum(len(_matching(endpoint, parsed)) for endpoint in every)
            weight = max(1, 100 // count) if count else 0
        name = name_of(backend.name)[:-1] + zone

        def answers(items: Iterable[NamedEndpoint]) -> Iterator[ResourceRecord]:
            sent: set[tuple[bytes, int]] = set()
            for endpoint in items:
                target = _prepend_label(endpoint.host, name)
                for port in _matching(endpoint, parsed):
                    if target is None or port.number == NO_PORT or (target, port.number) in sent:
                        continue
                    sent.add((target, port.number))
                    head = _SRV_HEAD.pack(0, weight, port.number)
                    yield ResourceRecord(question.name, RecordType.SRV, TTL, head, (target,))

        def glue(items: Iterable[NamedEndpoint]) -> Iterator[ResourceRecord]:
            sent: set[tuple[bytes, bytes]] = set()
            for endpoint in items:
                target = _prepend_label(endpoint.host, name)
                ports = any(port.number != NO_PORT for port in _matching(endpoint, parsed))
                if target is None or not ports or (target, endpoint.packed) in sent:
                    continue
                sent.add((target, endpoint.packed))
                yield address_record(target, TTL, endpoint.packed)

        some = next(answers(every), None) is not None
        return _Records(spread=Spread(every, answers, glue) if some else None)

    def _addresses(self, question: Question, backend: _Backend, domain: bytes) -> _Records:
        """Address records, behind the aliases that lead to them; nothing if they lead nowhere."""
        aliases: list[ResourceRecord] = []
        name, lower = question.name, question.lower
        while backend.alias is not None:
            target = _target(backend.alias)
            if target is None or is_within(target.lower(), lower):
                return _Records()
            step = ResourceRecord(name, RecordType.CNAME, TTL, targets=(target,))
            if len(aliases) >= ALIASES or step in aliases:
                return _Records()
            aliases.append(step)
            name, lower = target, target.lower()
            if not is_within(lower, domain):
                return _Records(aliases, outside=target)
            parsed = parse_name(labels_of(lower[: len(lower) - len(domain)] + b"\0"))
            further = None if parsed is None else self._find(parsed)
            if further is None:
                return _Records()
            backend = further
        addresses = self._chosen(backend).addresses(_SIZES[question.type])
        return _Records(aliases, spread=_spread(name, addresses)) if addresses else _Records()


def _spread(name: bytes, addresses: Sequence[bytes]) -> Spread[bytes]:
    def answers(items: Iterable[bytes]) -> Iterator[ResourceRecord]:
        return (address_record(name, TTL, address) for address in items)

    return Spread(addresses, answers)


def _matching(endpoint: NamedEndpoint, parsed: NameQuestion) -> list[NamedPort]:
    return [port for port in endpoint.ports if port.matches(parsed.port, parsed.protocol)]


def _prepend_label(host: str, name: bytes) -> bytes | None:
    """A name below another, or that itself; None if it would be invalid or too long."""
    if not host:
        return name if len(name) <= NAME_LIMIT else None
    label = host.encode("latin-1", "replace")
    if len(label) > LABEL_LIMIT or len(label) + len(name) >= NAME_LIMIT:
        return None
    return bytes([len(label)]) + label + name


def _soa(zone: bytes, serial: int) -> ResourceRecord:
    names = (b"\x02ns\x03dns" + zone, b"\x0ahostmaster" + zone)
    tail = (serial & 0xFFFF_FFFF).to_bytes(4, "big") + _SOA_TIMES
    return ResourceRecord(zone, RecordType.SOA, TTL, targets=names, tail=tail)


def _alias(name: bytes, target: str) -> ResourceRecord:
    return ResourceRecord(name, RecordType.CNAME, TTL, targets=(_target(target) or b"\0",))


def _joined(*labels: str) -> bytes | None:
    """A name, or None if it would be too long."""
    try:
        return name_of(labels)
    except ParseError:
        return None


def _target(text: str) -> bytes | None:
    try:
        return parse_domain(text)
    except ParseError:
        return None


def _is_name(text: str) -> bool:
    return parse_address(text) is None and _target(text) is not None


def _reverse_address(labels: Sequence[str], domain: bytes) -> str | None:
    """The address that a name in a reverse domain is about, in canonical text."""
    if domain == V4_REVERSE:
        text = ".".join(reversed(labels))
        address = parse_address(text) if len(labels) == 4 else None
        return address.text if address and address.text == text else None
    if len(labels) != 32 or not all(len(label) == 1 and label in _HEX for label in labels):
        return None
    digits = "".join(reversed(labels))
    address = parse_address(":".join(digits[at : at + 4] for at in range(0, 32, 4)))
    return address.text if address else None
