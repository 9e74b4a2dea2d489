"""The frame in the kernel: tables, chains and rules that are the same however many Services exist.

There is no chain for a Service. ``services`` leads from an address, protocol and port to a chain
named by how many endpoints there are to choose from; ``slots-3`` draws 0, 1 or 2 and looks
``(drawn, address, protocol, port)`` up in ``endpoints``. Two transactions may meet in one packet:
it was led to ``slots-3`` and finds two endpoints left. So a second rule takes slot 0, which every
Service that has endpoints has.

A packet on its way (``ip``; ``ip6`` is the same)::

    prerouting, output   firewalled and not from its source ranges: drop
    prerouting, output   externals: mark for masquerade, or for a Local policy see where it is from
                         cluster-ips: mark for masquerade unless it comes from a pod
                         services -> slots-K -> endpoints: destination is rewritten
                         an address of the node: nodeports -> nodeport-slots-K -> nodeport-endpoints
    input, forward,      what still goes to a Service's address was not rewritten: refused ones are
    output               rejected
    forward, output      other ports of cluster-ips are rejected, other addresses of service-cidrs
                         dropped
    postrouting          marked, or from a pod to itself by way of a Service: masquerade

With session affinity or with weights the chain is the Service's own (``choices``): ``services``
leads to it instead of to ``slots-3``. With affinity a slot leads to the id of an endpoint
(``drawn``) and the id to the endpoint (``members``). The id is what is remembered of a client: it
leads nowhere once the endpoint is gone.

An external address with a Local policy is two choices under one key. Packets from outside draw from
slots that begin at ``OUTSIDE``; those from this node and its pods return and go on as any other.

nft 1.0.6, which Debian 12 has, takes all of this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from zonewise.proxy.netlink.draws import Draw

TABLE = "zonewise"
GROUP = 1 << 20
"""Slots of one weight; no Service has so many endpoints."""
OUTSIDE = 1 << 31
"""Slots for traffic from outside begin here."""

FIRST_ID, ID_MASK = 1 << 30, 3 << 30
"""The ids of endpoints that clients are remembered by: these bits of a number say that it is one.

A rule cannot use what it looked up for another look-up, except by way of the packet. Its priority
is what a packet can carry without harm: it is for queues, of which none is before postrouting, and
only the first packet of a connection ever comes here. An id is taken off again in postrouting.
"""

FamilyName = Literal["IPv4", "IPv6"]
FAMILIES: tuple[FamilyName, ...] = ("IPv4", "IPv6")

KeyPart = Literal["slot", "id", "address", "protocol", "port"]
_WAY: tuple[KeyPart, ...] = ("address", "protocol", "port")
_NODEPORT: tuple[KeyPart, ...] = ("protocol", "port")
_WAY_TEXT = "meta l4proto . th dport"


@dataclass(frozen=True, slots=True)
class NamedSet:
    """A set or map that is filled with elements: what they are found by and what they lead to."""

    name: str
    key: tuple[KeyPart, ...]
    data: Literal["none", "endpoint", "id", "verdict"] = "none"
    ranges: bool = False
    shared: bool = False
    """Whether several Services may want the same element."""


SERVICES = NamedSet("services", _WAY, "verdict")
EXTERNALS = NamedSet("externals", _WAY, "verdict")
FROM_OUTSIDE = NamedSet("outside", _WAY, "verdict")
ENDPOINTS = NamedSet("endpoints", ("slot", *_WAY), "endpoint")
REFUSED = NamedSet("refused", _WAY)
NODEPORTS = NamedSet("nodeports", _NODEPORT, "verdict")
NODEPORT_EXTERNALS = NamedSet("nodeport-externals", _NODEPORT, "verdict")
NODEPORT_OUTSIDE = NamedSet("nodeport-outside", _NODEPORT, "verdict")
NODEPORT_ENDPOINTS = NamedSet("nodeport-endpoints", ("slot", *_NODEPORT), "endpoint")
NODEPORT_REFUSED = NamedSet("nodeport-refused", _NODEPORT)
DRAWN = NamedSet("drawn", ("slot", *_WAY), "id")
MEMBERS = NamedSet("members", ("id", *_WAY), "endpoint")
OUTSIDE_MEMBERS = NamedSet("outside-members", ("id", *_WAY), "endpoint")
NODEPORT_DRAWN = NamedSet("nodeport-drawn", ("slot", *_NODEPORT), "id")
NODEPORT_MEMBERS = NamedSet("nodeport-members", ("id", *_NODEPORT), "endpoint")
NODEPORT_OUTSIDE_MEMBERS = NamedSet("nodeport-outside-members", ("id", *_NODEPORT), "endpoint")
CLUSTER_IPS = NamedSet("cluster-ips", ("address",), shared=True)
HAIRPIN = NamedSet("hairpin", ("address", "address"), shared=True)
FIREWALLED = NamedSet("firewalled", _WAY)
SOURCE_RANGES = NamedSet("source-ranges", (*_WAY, "address"), ranges=True)

KINDS = (
    SERVICES,
    EXTERNALS,
    FROM_OUTSIDE,
    ENDPOINTS,
    REFUSED,
    NODEPORTS,
    NODEPORT_EXTERNALS,
    NODEPORT_OUTSIDE,
    NODEPORT_ENDPOINTS,
    NODEPORT_REFUSED,
    DRAWN,
    MEMBERS,
    OUTSIDE_MEMBERS,
    NODEPORT_DRAWN,
    NODEPORT_MEMBERS,
    NODEPORT_OUTSIDE_MEMBERS,
    CLUSTER_IPS,
    HAIRPIN,
    FIREWALLED,
    SOURCE_RANGES,
)

NETWORKS = ("pods", "service-cidrs", "nodeport-addresses")
"""Sets of networks, which few changes ever touch."""


@dataclass(frozen=True, slots=True)
class FrameSettings:
    """The settings that the rules depend on.

    ``pods`` says how packets of this node's pods are recognised: by their address (``address``), by
    the interface they come from (``=cni0``), by the beginning of its name (``veth*``), or not at
    all.
    """

    pods: str = ""
    masquerade_all: bool = False
    masquerade_bit: int = 14


def frame(family: FamilyName, settings: FrameSettings) -> str:
    """The table, for ``nft -f``; a chain named by the text's digest identifies it."""
    text = "\n".join(_frame(family, settings))
    return text.replace("LAYOUT", f"layout-{hashlib.sha256(text.encode()).hexdigest()[:12]}")


def rule_counts(text: str) -> dict[str, int]:
    """How many rules each chain of a frame has; the digest's chain has none."""
    counts: dict[str, int] = {}
    name = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("chain "):
            name = line.split()[1]
            counts[name] = 0
        elif line == "}":
            name = ""
        elif name and not line.startswith("type "):
            counts[name] += 1
    return counts


def networks(family: FamilyName, name: str, cidrs: Sequence[str]) -> str:
    """Replace what a set of networks holds, in one transaction."""
    word = protocol_word(family)
    lines = [f"flush set {word} {TABLE} {name}"]
    if cidrs:
        lines.append(f"add element {word} {TABLE} {name} {{ {', '.join(cidrs)} }}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class SlotKind:
    """A kind of slots: those of which packets, and where they are."""

    name: str
    first: int
    endpoints: NamedSet
    drawn: NamedSet
    members: NamedSet

    @property
    def by_address(self) -> bool:
        """Whether a way has an address, or is any of the node's."""
        return "address" in self.endpoints.key


_SLOT_KINDS = (
    SlotKind("slots", 0, ENDPOINTS, DRAWN, MEMBERS),
    SlotKind("outside", OUTSIDE, ENDPOINTS, DRAWN, OUTSIDE_MEMBERS),
    SlotKind("nodeport-slots", 0, NODEPORT_ENDPOINTS, NODEPORT_DRAWN, NODEPORT_MEMBERS),
    SlotKind(
        "nodeport-outside", OUTSIDE, NODEPORT_ENDPOINTS, NODEPORT_DRAWN, NODEPORT_OUTSIDE_MEMBERS
    ),
)
SLOT_KINDS = {kind.name: kind for kind in _SLOT_KINDS}


@dataclass(frozen=True, slots=True)
class Slots:
    """A chain that draws one of so many slots: the parts of its name, ``nodeport-outside-3``."""

    name: str

    @property
    def kind(self) -> SlotKind:
        """Which slots it draws from."""
        return SLOT_KINDS[self.name.rpartition("-")[0]]

    @property
    def draws(self) -> tuple[Draw, ...]:
        """What each of its rules draws."""
        count, first = int(self.name.rpartition("-")[2]), self.kind.first
        fallback = Draw(1, first)
        return (fallback,) if count == 1 else (Draw(count, first), fallback)

    def text(self, family: FamilyName) -> str:
        """The chain as input of ``nft -f``."""
        rules = (draw_text(family, self.kind, draw) for draw in self.draws)
        return chain_text(family, self.name, rules)


def draw_text(family: FamilyName, kind: SlotKind, draw: Draw) -> str:
    """The rule of a draw."""
    to = f"{_drawn(family, kind, draw)} map @{kind.endpoints.name}"
    return f"{_at_times(draw)}dnat {protocol_word(family)} to {to}"


def recall_text(family: FamilyName, kind: SlotKind, clients: str) -> str:
    """The rule that leads a client where it went before, if that is still a member."""
    stored = _stored(family, "update", clients)
    return f"{_recalled(family, clients)} {stored} {_to_member(family, kind)}"


def forget_text(family: FamilyName, clients: str) -> str:
    """The rule that forgets a client; the kernel requires its data and ignores it."""
    return _stored(family, "delete", clients)


def member_text(family: FamilyName, kind: SlotKind, draw: Draw, clients: str = "") -> str:
    """The rule of a draw where clients are remembered; it remembers, if it says where.

    Of two connections at the same time one is the first, and the other follows it.
    """
    drawn = _drawn(family, kind, draw)
    parts = [f"{_at_times(draw)}meta priority set {drawn} map @{kind.drawn.name}"]
    if clients:
        parts += [_stored(family, "update", clients), _recalled(family, clients)]
    return " ".join((*parts, _to_member(family, kind)))


def clients_text(family: FamilyName, name: str, seconds: int, most: int) -> str:
    """A map of clients for ``nft -f``."""
    address = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    return (
        f"add map {protocol_word(family)} {TABLE} {name} {{ type {address} : classid;"
        f" flags dynamic,timeout; timeout {seconds}s; size {most}; }}\n"
    )


def _at_times(draw: Draw) -> str:
    return f"numgen random mod {draw.of} < {draw.below} " if draw.of else ""


def _drawn(family: FamilyName, kind: SlotKind, draw: Draw) -> str:
    offset = f" offset {draw.first}" if draw.first else ""
    return f"numgen random mod {draw.count}{offset} . {_way_of(family, kind.endpoints)}"


def _to_member(family: FamilyName, kind: SlotKind) -> str:
    endpoint = f"meta priority . {_way_of(family, kind.members)} map @{kind.members.name}"
    return f"dnat {protocol_word(family)} to {endpoint}"


def _recalled(family: FamilyName, clients: str) -> str:
    return f"meta priority set {protocol_word(family)} saddr map @{clients}"


def _stored(family: FamilyName, operation: str, clients: str) -> str:
    return f"{operation} @{clients} {{ {protocol_word(family)} saddr : meta priority }}"


def _way_of(family: FamilyName, kind: NamedSet) -> str:
    return _way(family) if "address" in kind.key else _WAY_TEXT


def protocol_word(family: FamilyName) -> str:
    """As nft calls a family."""
    return "ip" if family == "IPv4" else "ip6"


def declaration(family: FamilyName, kind: NamedSet) -> str:
    """A set or map as nft declares it."""
    if kind.key[0] in ("slot", "id"):
        head = "numgen random mod 2" if kind.key[0] == "slot" else "meta priority"
        endpoint = f"{protocol_word(family)} daddr . th dport"
        leads_to = "meta priority" if kind.data == "id" else endpoint
        return f"map {kind.name} {{ typeof {head} . {_way_of(family, kind)} : {leads_to}; }}"
    address = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    types = {"address": address, "protocol": "inet_proto", "port": "inet_service"}
    fields = " . ".join(types[field] for field in kind.key)
    flags = " flags interval;" if kind.ranges else ""
    if kind.data == "verdict":
        return f"map {kind.name} {{ type {fields} : verdict; }}"
    return f"set {kind.name} {{ type {fields};{flags} }}"


def _frame(family: FamilyName, settings: FrameSettings) -> Iterator[str]:
    word = protocol_word(family)
    address = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    way = _way(family)
    loopback = "127.0.0.0/8" if family == "IPv4" else "::1"
    mark = 1 << settings.masquerade_bit
    masquerade = f"meta mark set meta mark | {mark:#x}"
    node = f"fib daddr type local {word} daddr != {loopback} {word} daddr @nodeport-addresses"
    yield f"table {word} {TABLE} {{"
    yield "  chain LAYOUT {\n  }"
    for kind in KINDS:
        yield f"  {declaration(family, kind)}"
    for name in NETWORKS:
        yield f"  set {name} {{ type {address}; flags interval; auto-merge; }}"

    def chain(name: str, *rules: str) -> str:
        return "\n".join((f"  chain {name} {{", *(f"    {rule}" for rule in rules), "  }"))

    yield chain("mark-masquerade", masquerade)
    # The kernel limits ICMP errors to a few per second and client, resets it does not.
    yield chain("refused-packet", "meta l4proto tcp reject with tcp reset", "reject")
    pods = _pods(word, settings.pods, same=True)
    yield chain(
        "from-outside",
        *([f"{pods} return"] if pods else []),
        f"fib saddr type local {masquerade} return",
        f"{way} vmap @outside",
        "accept",
    )
    yield chain(
        "nodeport-from-outside",
        *([f"{pods} return"] if pods else []),
        f"fib saddr type local {masquerade} return",
        f"{_WAY_TEXT} vmap @nodeport-outside",
        "accept",
    )
    yield chain(
        "to-nodeport", f"{_WAY_TEXT} vmap @nodeport-externals", f"{_WAY_TEXT} vmap @nodeports"
    )
    strangers = _pods(word, settings.pods, same=False)
    cluster_ips = []
    if settings.masquerade_all:
        cluster_ips = [f"{word} daddr @cluster-ips {masquerade}"]
    elif strangers:
        cluster_ips = [f"{word} daddr @cluster-ips {strangers} {masquerade}"]
    yield chain(
        "to-service",
        f"{way} vmap @externals",
        *cluster_ips,
        f"{way} vmap @services",
        f"{node} goto to-nodeport",
    )
    yield chain("firewall", f"{way} @firewalled {way} . {word} saddr != @source-ranges drop")
    yield chain("refuse", f"{way} @refused goto refused-packet")
    yield chain(
        "refuse-cluster-ips",
        f"{word} daddr @cluster-ips goto refused-packet",
        f"{word} daddr @service-cidrs drop",
    )
    yield chain("refuse-nodeport", f"{node} {_WAY_TEXT} @nodeport-refused goto refused-packet")
    # Before others in the same hook, so that a Service is rejected as decided here although another
    # proxy on the node, which does not know it, would drop its address. A ClusterIP that the node
    # itself has (a cache of a name server) is not rejected on input: its listener answers.
    new = "ct state new jump"
    for hook, rules in (
        ("input", (f"{new} refuse-nodeport", f"{new} refuse")),
        ("forward", (f"{new} refuse", f"{new} refuse-cluster-ips")),
        ("output", (f"{new} refuse", f"{new} refuse-cluster-ips")),
    ):
        accept = f"type filter hook {hook} priority -1; policy accept;"
        yield chain(f"filter-{hook}", accept, *rules)
    for hook in ("prerouting", "output"):
        yield chain(
            f"firewall-{hook}",
            f"type filter hook {hook} priority -110; policy accept;",
            f"{new} firewall",
        )
        yield chain(
            f"nat-{hook}", f"type nat hook {hook} priority -100; policy accept;", "jump to-service"
        )
    yield chain(
        "nat-postrouting",
        "type nat hook postrouting priority 100; policy accept;",
        f"meta priority & {ID_MASK:#x} == {FIRST_ID:#x} meta priority set 0",
        f"meta mark & {mark:#x} != 0 meta mark set meta mark ^ {mark:#x} masquerade fully-random",
        f"ct status dnat {word} saddr . {word} daddr @hairpin masquerade fully-random",
    )
    yield "}\n"


def _way(family: FamilyName) -> str:
    return f"{protocol_word(family)} daddr . {_WAY_TEXT}"


def _pods(word: str, known_by: str, *, same: bool) -> str:
    if not known_by:
        return ""
    unlike = "" if same else "!= "
    if known_by == "address":
        return f"{word} saddr {unlike}@pods"
    return f'iifname {unlike}"{known_by.removeprefix("=")}"'


def chain_text(family: FamilyName, name: str, rules: Iterable[str]) -> str:
    """A chain of an existing table, for ``nft -f``."""
    where = f"{protocol_word(family)} {TABLE} {name}"
    lines = [f"add chain {where}", *(f"add rule {where} {rule}" for rule in rules)]
    return "\n".join(lines) + "\n"
