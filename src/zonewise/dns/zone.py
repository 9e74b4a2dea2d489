"""What the cluster answers to a question: records as a function of the directory and a place.

Answers are those of CoreDNS 1.15 with ``pods verified``, ``zonal`` and ``ttl 5``; where they differ
``docs/dns.md`` says why. In short: a name that does not exist is NXDOMAIN, one that exists without
records of the type is NODATA, both with the SOA of the domain. A headless Service without a ready
endpoint does not exist. An alias (ExternalName) is followed here as far as it leads through the
cluster; if it leads out of it, ``Resolved.outside`` names where the rest has to be looked up.

``None`` instead of an answer means that the question is not ours: every name outside of the
cluster's domains, and addresses in the reverse domains that nothing in the cluster has.

Records that may be many are made one by one as they are written (``Spread``), so of 20,000
endpoints only those cost something that fit into the answer.

While it looks things up, ``_Asking`` records every token it depends on, whether found or not, and
whether the client's place mattered. No other code has to know what an answer was made from.
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
from zonewise.topology.locators import NOWHERE, Locators, PodLocation
from zonewise.traffic.endpoint import NO_HINT
from zonewise.traffic.named import NO_PORT, NamedEndpoint, NamedService, Port, packed
from zonewise.traffic.names import POD, SVC, NameQuestion, label_address, parse_name
from zonewise.traffic.near import near
from zonewise.traffic.routes import ProxyLocation, parse_address

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
_POD_PORTS = (Port("", "", 0),)
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
    """Whether another place might get another answer."""

    same: bytes = b""
    """Equal for two places that get the same answer, if they have the same basis."""

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
    in canonical text; ``serial`` gives the time of the last change, for SOA records."""

    domains: Domains
    directory: Directory
    locators: Locators
    serial: Callable[[], int]
    addresses: tuple[str, ...] = ()

    def resolve(self, question: Question, spot: PodLocation = NOWHERE) -> Resolved | None:
        """The answer for a client in a place, or None if the question is not ours."""
        domain = self.domains.of(question.lower)
        if domain is None:
            return None
        return _Asking(self, spot).resolve(question, domain)


@dataclass(slots=True)
class _Found:
    """What is behind a name: endpoints, or an alias. None of both is NODATA."""

    endpoints: EndpointIndex = NO_ENDPOINTS
    asked: NameQuestion = field(default_factory=NameQuestion)
    name: tuple[str, ...] = ()
    """The name that each endpoint's label is put before."""

    alias: str | None = None
    chooser: NamedService | None = None
    """The Service by which the endpoints for a place are chosen."""


@dataclass(slots=True)
class _Made:
    """Records of an answer; see ``Resolved``."""

    answers: list[ResourceRecord] = field(default_factory=list)
    extra: list[ResourceRecord] = field(default_factory=list)
    spread: Spread[Any] | None = None
    outside: bytes | None = None


@dataclass(slots=True)
class _Asking:
    """One question being answered; collects what the answer depends on."""

    cluster: DnsCluster
    spot: PodLocation
    basis: set[ChangeToken] = field(default_factory=set)
    near: bool = False
    same: bytes = b""

    def resolve(self, question: Question, domain: bytes) -> Resolved | None:
        """The answer, or None if nothing in the cluster has the requested address."""
        zone = question.name[len(question.name) - len(domain) :]
        labels = labels_of(question.lower[: len(question.lower) - len(domain)] + b"\0")
        made = self._special(question, zone, labels)
        if made is None and domain in REVERSE:
            made = self._reverse(question, domain, labels)
            if made is None:
                return None
        elif made is None:
            made = self._named(question, zone, domain, parse_name(labels))
        return self._resolved(made, zone)

    def _resolved(self, made: _Made | None, zone: bytes) -> Resolved:
        basis = frozenset(self.basis)
        if made is not None and (made.answers or made.spread):
            fixed = (
                *zip(repeat(ANSWER), made.answers),
                *zip(repeat(ADDITIONAL), made.extra),
            )
            return Resolved(
                Rcode.NOERROR,
                zone,
                basis,
                self.near,
                self.same,
                fixed,
                made.spread,
                made.outside,
            )
        rcode = Rcode.NXDOMAIN if made is None else Rcode.NOERROR
        soa = (AUTHORITY, _soa(zone, self.cluster.serial()))
        return Resolved(rcode, zone, basis, self.near, self.same, (soa,))

    def _named(
        self, question: Question, zone: bytes, domain: bytes, asked: NameQuestion | None
    ) -> _Made | None:
        """The records of a name of the cluster; None if it does not exist."""
        found = None if asked is None else self._find(asked)
        if found is None:
            # As CoreDNS: below the apex a question for SOA only finds out the domain.
            return _Made() if question.type == RecordType.SOA else None
        if question.type == RecordType.SRV:
            return self._services(question, found, zone)
        if question.type in (RecordType.A, RecordType.AAAA):
            return self._addresses(question, found, domain)
        if question.type == RecordType.CNAME and found.alias is not None:
            return _Made([_alias(question.name, found.alias)])
        return _Made()

    def _reverse(self, question: Question, domain: bytes, labels: Sequence[str]) -> _Made | None:
        """The names of an address; None if nothing here has it, or it is not about an address."""
        if question.type == RecordType.SOA or (not labels and question.type != RecordType.TXT):
            return _Made()  # the domain, and that it exists
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
                    (one.host, name, namespace, SVC)
                    for one in directory.endpoints((namespace, name)).at(address).every
                )
        primary = labels_of(self.cluster.domains.cluster[0])
        targets = (_joined(*name, *primary) for name in dict.fromkeys(names))
        records = [
            ResourceRecord(question.name, RecordType.PTR, TTL, targets=(one,))
            for one in targets
            if one
        ]
        return _Made(records) if records else None

    def _special(self, question: Question, zone: bytes, labels: Sequence[str]) -> _Made | None:
        """The few names that are not of Services or pods."""
        if not labels and question.type == RecordType.SOA:
            return _Made([_soa(zone, self.cluster.serial())])
        if not labels and question.type == RecordType.NS:
            return self._name_servers(question, zone)
        if tuple(labels) == ("ns", "dns") and question.type not in _UNKNOWN_OF_NS:
            size = _SIZES.get(question.type)
            own = dict.fromkeys(address for _, address in self._own())
            return _Made(
                [address_record(question.name, TTL, one) for one in own if len(one) == size]
            )
        if tuple(labels) == ("dns-version",) and question.type == RecordType.TXT:
            text = bytes([len(SCHEMA_VERSION)]) + SCHEMA_VERSION
            return _Made([ResourceRecord(question.name, RecordType.TXT, VERSION_TTL, text)])
        return None

    def _name_servers(self, question: Question, zone: bytes) -> _Made:
        records, extra = [], []
        for name, address in self._own():
            target = _joined(*name, *labels_of(zone))
            if target is None:
                continue
            records.append(ResourceRecord(question.name, RecordType.NS, TTL, targets=(target,)))
            extra.append(address_record(target, TTL, address))
        return _Made(list(dict.fromkeys(records)), list(dict.fromkeys(extra)))

    def _own(self) -> list[tuple[tuple[str, ...], bytes]]:
        """The names and addresses this server has: of its Services, else of itself."""
        directory = self.cluster.directory
        found: list[tuple[tuple[str, ...], bytes]] = []
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
                    found += (((one.host, *name), one.packed) for one in endpoints.every)
                else:
                    found += ((name, one) for one in entry.addresses)
        if served:
            return found
        return [(("ns", "dns"), packed(address)) for address in self.cluster.addresses]

    def _find(self, asked: NameQuestion) -> _Found | None:
        """What is behind a name; None if the name does not exist."""
        if not asked.kind:
            return _Found()
        self.basis.add(namespace_token(asked.namespace))
        if not self.cluster.directory.exists(asked.namespace):
            return None
        if not asked.service:
            return _Found()
        return self._pod(asked) if asked.kind == POD else self._service(asked)

    def _pod(self, asked: NameQuestion) -> _Found | None:
        text = label_address(asked.service)
        address = parse_address(text)
        if address is None or address.text != text:
            return None
        self.basis.add(address_token(text))
        pods = self.cluster.locators.named(text)
        if not any(namespace == asked.namespace for namespace, _ in pods):
            return None
        pod = NamedEndpoint(text, packed(text), asked.service, _POD_PORTS, "", "", NO_HINT)
        return _Found(EndpointIndex([pod]), asked, (asked.namespace, POD))

    def _service(self, asked: NameQuestion) -> _Found | None:
        key = (asked.namespace, asked.service)
        self.basis.add(service_token(*key))
        entry = self.cluster.directory.entry(key)
        if entry is None or (asked.zone and not entry.headless):
            return None
        if entry.external is not None:
            bare = not (asked.endpoint or asked.port or asked.protocol)
            return _Found(alias=entry.external) if bare and _is_name(entry.external) else None
        name = (entry.name, entry.namespace, SVC)
        if not entry.headless and not asked.endpoint:
            if not any(port.matches(asked.port, asked.protocol) for port in entry.ports):
                return None
            own = [
                NamedEndpoint("", address, "", entry.ports, "", "", NO_HINT)
                for address in entry.addresses
            ]
            return _Found(EndpointIndex(own), asked, name)
        return self._of_endpoints(asked, entry, name)

    def _of_endpoints(
        self, asked: NameQuestion, entry: NamedService, name: tuple[str, ...]
    ) -> _Found | None:
        """The requested endpoints; None if there are none at all."""
        known = self.cluster.directory.endpoints((entry.namespace, entry.name))
        if asked.endpoint:
            known = known.of_host(asked.endpoint)
        known = known.with_port(asked.port, asked.protocol)
        if asked.zone:
            there = known.of_zone(asked.zone)
            return _Found(there or (known if asked.prefer else NO_ENDPOINTS), asked, name)
        if not known:
            return None
        return _Found(known, asked, name, chooser=entry if asked.whole_service else None)

    def _chosen(self, found: _Found) -> EndpointIndex:
        """The endpoints that are for the client, each family decided by itself."""
        entry, endpoints = found.chooser, found.endpoints
        if entry is None or not endpoints.by_place(entry.keys, peers=entry.peers):
            return endpoints
        self.near = True
        each = {one.address: one for one in reversed(endpoints.every)}
        locators = self.cluster.locators
        nodes = {}
        if entry.keys:
            nodes = {one.node: locators.labels(one.node) for one in each.values() if one.node}
            self.basis.update(map(node_token, nodes))
        place = ProxyLocation.labelled(self.spot.node, self.spot.labels)
        chosen: set[str] = set()
        for size in (4, 16):
            family = [one for one in each.values() if len(one.packed) == size]
            selection = near(family, place, entry.keys, nodes, peers=entry.peers)
            chosen.update(one.address for one in selection.targets)
        every = [one for one in endpoints.every if one.address in chosen]
        self.same = blake2b(" ".join(one.address for one in every).encode()).digest()
        return EndpointIndex(every)

    def _services(self, question: Question, found: _Found, zone: bytes) -> _Made:
        """SRV records and the addresses of their targets; all weigh the same, at least 1."""
        asked, every = found.asked, self._chosen(found).every
        weight = 1
        if len(every) < _HEAVY:
            count = sum(len(_matching(one, asked)) for one in every)
            weight = max(1, 100 // count) if count else 0
        name = name_of(found.name)[:-1] + zone

        def answers(items: Iterable[NamedEndpoint]) -> Iterator[ResourceRecord]:
            sent: set[tuple[bytes, int]] = set()
            for one in items:
                target = _below(one.host, name)
                for port in _matching(one, asked):
                    if target is None or port.number == NO_PORT or (target, port.number) in sent:
                        continue
                    sent.add((target, port.number))
                    head = _SRV_HEAD.pack(0, weight, port.number)
                    yield ResourceRecord(question.name, RecordType.SRV, TTL, head, (target,))

        def glue(items: Iterable[NamedEndpoint]) -> Iterator[ResourceRecord]:
            sent: set[tuple[bytes, bytes]] = set()
            for one in items:
                target = _below(one.host, name)
                ports = any(port.number != NO_PORT for port in _matching(one, asked))
                if target is None or not ports or (target, one.packed) in sent:
                    continue
                sent.add((target, one.packed))
                yield address_record(target, TTL, one.packed)

        some = next(answers(every), None) is not None
        return _Made(spread=Spread(every, answers, glue) if some else None)

    def _addresses(self, question: Question, found: _Found, domain: bytes) -> _Made:
        """Address records, behind the aliases that lead to them; nothing if they lead nowhere."""
        aliases: list[ResourceRecord] = []
        name, lower = question.name, question.lower
        while found.alias is not None:
            target = _target(found.alias)
            if target is None or is_within(target.lower(), lower):
                return _Made()
            step = ResourceRecord(name, RecordType.CNAME, TTL, targets=(target,))
            if len(aliases) >= ALIASES or step in aliases:
                return _Made()
            aliases.append(step)
            name, lower = target, target.lower()
            if not is_within(lower, domain):
                return _Made(aliases, outside=target)
            asked = parse_name(labels_of(lower[: len(lower) - len(domain)] + b"\0"))
            further = None if asked is None else self._find(asked)
            if further is None:
                return _Made()
            found = further
        addresses = self._chosen(found).addresses(_SIZES[question.type])
        return _Made(aliases, spread=_spread(name, addresses)) if addresses else _Made()


def _spread(name: bytes, addresses: Sequence[bytes]) -> Spread[bytes]:
    def answers(items: Iterable[bytes]) -> Iterator[ResourceRecord]:
        return (address_record(name, TTL, address) for address in items)

    return Spread(addresses, answers)


def _matching(one: NamedEndpoint, asked: NameQuestion) -> list[Port]:
    return [port for port in one.ports if port.matches(asked.port, asked.protocol)]


def _below(host: str, name: bytes) -> bytes | None:
    """A name below another, or that itself; None if it would be none, or too long."""
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
