"""What the cluster answers to a question: records as a function of the directory and a place.

Answers are those of CoreDNS 1.15 with ``pods verified``, ``zonal`` and ``ttl 5``; where they differ
``docs/dns.md`` says why. In short: a name that does not exist is NXDOMAIN, one that exists without
records of the type is NODATA, both with the SOA of the domain. A headless Service without a ready
endpoint does not exist. An alias (ExternalName) is followed here as far as it leads through the
cluster; if it leads out of it, ``Resolved.outside`` names where the rest has to be looked up.

``None`` instead of an answer means that the question is not ours: every name outside of the
cluster's domains, and addresses in the reverse domains that nothing in the cluster has.

While it looks things up, ``_Asking`` records every token it depends on, whether found or not, and
whether the client's place mattered. No other code has to know what an answer was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zonewise.api.errors import ParseError
from zonewise.dns.directory import (
    ChangeToken,
    Directory,
    address_token,
    namespace_token,
    node_token,
    service_token,
)
from zonewise.dns.names import is_within, labels_of, name_of, parse_domain, suffixes
from zonewise.dns.wire import Message, Question, Rcode, RecordType, ResourceRecord, address_record
from zonewise.topology.locators import NOWHERE, Locators, PodLocation
from zonewise.traffic.named import NO_PORT, NamedEndpoint, NamedService, Port, packed
from zonewise.traffic.names import POD, SVC, NameQuestion, label_address, parse_name
from zonewise.traffic.near import by_place, near
from zonewise.traffic.routes import ProxyLocation, parse_address

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


@dataclass(frozen=True, slots=True)
class Resolved:
    """An answer, what it was made from, and what is still missing."""

    message: Message
    basis: frozenset[ChangeToken] = frozenset()
    near: bool = False
    """Whether another place might get another answer."""

    outside: bytes | None = None
    """Where the last alias leads, if that has to be looked up elsewhere."""

    spread: int = 0
    """How many records, at the end of the answers, may be sent in any order."""

    domain: bytes = b""


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


@dataclass(frozen=True, slots=True)
class _Item:
    """An address with a port, and the name it has of its own."""

    address: bytes
    port: int
    target: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    """What is behind a name: items, or an alias. None of both is NODATA."""

    items: list[_Item] = field(default_factory=list)
    alias: str | None = None


@dataclass(slots=True)
class _Made:
    """Records of an answer; see ``Resolved``."""

    answers: list[ResourceRecord] = field(default_factory=list)
    extra: list[ResourceRecord] = field(default_factory=list)
    outside: bytes | None = None
    spread: int = 0


@dataclass(slots=True)
class _Asking:
    """One question being answered; collects what the answer depends on."""

    cluster: DnsCluster
    spot: PodLocation
    basis: set[ChangeToken] = field(default_factory=set)
    near: bool = False

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
        return self._resolved(made, zone, domain)

    def _resolved(self, made: _Made | None, zone: bytes, domain: bytes) -> Resolved:
        if made is not None and made.answers:
            message = Message(
                Rcode.NOERROR, tuple(made.answers), additional=tuple(made.extra), aa=True
            )
            outside, spread = made.outside, made.spread
        else:
            rcode = Rcode.NXDOMAIN if made is None else Rcode.NOERROR
            soa = _soa(zone, self.cluster.serial())
            message, outside, spread = Message(rcode, authority=(soa,), aa=True), None, 0
        return Resolved(message, frozenset(self.basis), self.near, outside, spread, domain)

    def _named(
        self, question: Question, zone: bytes, domain: bytes, asked: NameQuestion | None
    ) -> _Made | None:
        """The records of a name of the cluster; None if it does not exist."""
        found = None if asked is None else self._find(asked)
        if found is None:
            # As CoreDNS: below the apex a question for SOA only finds out the domain.
            return _Made() if question.type == RecordType.SOA else None
        if question.type == RecordType.SRV:
            return _services(question, found, labels_of(zone))
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
                    for one in directory.endpoints((namespace, name))
                    if one.address == address
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
                if not any(one.address == address for one in endpoints):
                    continue
                served = True
                if entry is None:
                    continue
                name = (entry.name, entry.namespace, SVC)
                if entry.headless:
                    found += (((one.host, *name), one.packed) for one in endpoints)
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
        return _Found([_Item(packed(text), 0, (asked.service, asked.namespace, POD))])

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
            ports = [port for port in entry.ports if port.matches(asked.port, asked.protocol)]
            if not ports:
                return None
            return _Found(
                [_Item(one, port.number, name) for port in ports for one in entry.addresses]
            )
        return self._chosen(asked, entry, name)

    def _chosen(
        self, asked: NameQuestion, entry: NamedService, name: tuple[str, ...]
    ) -> _Found | None:
        """The requested endpoints, as items; None if there are none at all."""
        known = [
            (one, ports)
            for one in self.cluster.directory.endpoints((entry.namespace, entry.name))
            if asked.endpoint in ("", one.host) and (ports := _matching(one, asked))
        ]
        if asked.zone:
            there = [pair for pair in known if pair[0].zone == asked.zone]
            known = there or (known if asked.prefer else [])
        elif not known:
            return None
        elif asked.whole_service:
            chosen = self._nearest([one for one, _ in known], entry)
            known = [pair for pair in known if pair[0].address in chosen]
        return _Found(
            [
                _Item(one.packed, port.number, (one.host, *name))
                for one, ports in known
                for port in ports
            ]
        )

    def _nearest(self, endpoints: list[NamedEndpoint], entry: NamedService) -> frozenset[str]:
        """The addresses that are for the asker, each family decided by itself."""
        if not by_place(endpoints, entry.keys, peers=entry.peers):
            return frozenset(one.address for one in endpoints)
        self.near = True
        each = {one.address: one for one in reversed(endpoints)}
        locators = self.cluster.locators
        nodes = {}
        if entry.keys:
            nodes = {one.node: locators.labels(one.node) for one in each.values() if one.node}
            self.basis.update(map(node_token, nodes))
        place = ProxyLocation.labelled(self.spot.node, self.spot.labels)
        found: set[str] = set()
        for size in (4, 16):
            family = [one for one in each.values() if len(one.packed) == size]
            chosen = near(family, place, entry.keys, nodes, peers=entry.peers)
            found.update(one.address for one in chosen.targets)
        return frozenset(found)

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
        size = _SIZES[question.type]
        addresses = {item.address for item in found.items if len(item.address) == size}
        records = [address_record(name, TTL, address) for address in sorted(addresses)]
        return _Made(aliases + records, spread=len(records)) if records else _Made()


def extended(resolved: Resolved, more: Iterable[ResourceRecord]) -> Resolved:
    """An answer whose last alias was followed outside."""
    message = resolved.message
    return replace(
        resolved,
        message=replace(message, answers=(*message.answers, *more)),
        outside=None,
    )


def rotated(message: Message, spread: int, by: int) -> Message:
    """The same answer with the last ``spread`` records turned by some places."""
    fixed = len(message.answers) - spread
    head, tail = message.answers[:fixed], message.answers[fixed:]
    return replace(message, answers=(*head, *tail[by:], *tail[:by]))


def _matching(one: NamedEndpoint, asked: NameQuestion) -> list[Port]:
    return [port for port in one.ports if port.matches(asked.port, asked.protocol)]


def _services(question: Question, found: _Found, zone: tuple[str, ...]) -> _Made:
    """SRV records and the addresses of their targets; all weigh the same, at least 1."""
    records: dict[tuple[bytes, int], ResourceRecord] = {}
    glue: dict[ResourceRecord, None] = {}
    weight = max(1, 100 // len(found.items)) if found.items else 0
    for item in found.items:
        if item.port == NO_PORT:
            continue
        target = _joined(*item.target, *zone)
        if target is None:
            continue
        head = b"".join(value.to_bytes(2, "big") for value in (0, weight, item.port))
        records.setdefault(
            (target, item.port), ResourceRecord(question.name, RecordType.SRV, TTL, head, (target,))
        )
        glue[address_record(target, TTL, item.address)] = None
    return _Made(list(records.values()), list(glue), spread=len(records))


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
