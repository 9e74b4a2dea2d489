"""The kernel's tables, made equal to what is desired.

*Adopted*: a program that starts finds the tables of the one before it. If their frame is what this
program would make (its digest is a chain's name), nothing is replaced: elements are read, and the
first transaction writes the changes. Else the whole of the new tables, elements included, is
written by ``nft`` in one transaction that also removes the old ones. In either case there is no
moment without rules, and established connections, which conntrack handles, are kept.

*Written*: elements and the chains that they lead to in one netlink transaction, networks by
``nft``. Only the frame, networks and old tables that are replaced need ``nft``, so no text of an
object is read by it but addresses in their canonical form, and names of chains that were made here.
Chains that nothing leads to any more are removed in a transaction of their own, because kernels
before 6.2 still count an element that was removed in the same one; ``sweep`` finds those that a
program left which was killed in between.

Only one coroutine may write at a time; the caller ensures that.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from zonewise.api.errors import ConfigError, ZonewiseError
from zonewise.proxy.netlink import nftables
from zonewise.proxy.netlink.draws import ClientMemory, draw_chain, new_clients
from zonewise.proxy.netlink.namespace import HOME, NetworkNamespace
from zonewise.proxy.netlink.notices import Notices
from zonewise.proxy.netlink.socket import NetlinkError, NetlinkSocket
from zonewise.proxy.tables import ruleset
from zonewise.proxy.tables.choices import CLIENTS, MOST_CLIENTS, PREFIXES, OwnChain
from zonewise.proxy.tables.desired import Changes
from zonewise.proxy.tables.layout import kind_of, prefix
from zonewise.proxy.tables.rendering import render_tables
from zonewise.proxy.tables.ruleset import (
    FAMILIES,
    KINDS,
    NETWORKS,
    SLOT_KINDS,
    TABLE,
    FamilyName,
    FrameSettings,
    NamedSet,
)

NFT = "nft"
_REMEMBERED = 64

_FAMILY: Mapping[FamilyName, nftables.NetlinkFamily] = {
    "IPv4": nftables.IPV4,
    "IPv6": nftables.IPV6,
}
_FORMS: Mapping[str, Literal["none", "value", "verdict"]] = {
    "none": "none",
    "endpoint": "value",
    "id": "value",
    "verdict": "verdict",
}
_SHAPES = {kind.name: nftables.SetForm(_FORMS[kind.data], kind.ranges) for kind in KINDS}
_SLOT_CHAINS = tuple(f"{name}-" for name in SLOT_KINDS)

Networks = Mapping[FamilyName, Mapping[str, tuple[str, ...]]]
"""What the sets of networks hold."""


class KernelRefused(ZonewiseError):
    """``nft`` failed."""


class Kernel:
    """Our tables in a network namespace."""

    def __init__(
        self, settings: Mapping[FamilyName, FrameSettings], namespace: NetworkNamespace = HOME
    ) -> None:
        self.namespace = namespace
        self._frames = {family: ruleset.frame(family, frame) for family, frame in settings.items()}
        self._socket = _open(namespace)
        self._chains: dict[FamilyName, set[str]] = {family: set() for family in self._frames}
        self._sets: dict[FamilyName, set[str]] = {family: set() for family in self._frames}
        self._networks: dict[tuple[FamilyName, str], tuple[str, ...]] = {}
        self._ours = False
        self._helpers: deque[int] = deque(maxlen=_REMEMBERED)

    def close(self) -> None:
        """Leave the tables as they are."""
        self._socket.close()

    def notices(self) -> Notices:
        """Changes that others make from now on."""
        with self.namespace.entered():
            return Notices(TABLE, but=self._socket.port, own=self._helpers)

    def read(self, *, rules_touched: bool = False) -> dict[bytes, bytes]:
        """Every existing element, in tables that this program could have made; else none.

        Tables whose rules another program ``touched`` are made again.
        """
        elements: dict[bytes, bytes] = {}
        self._networks.clear()
        self._ours = True
        for family, text in self._frames.items():
            number = _FAMILY[family]
            counts = nftables.chains(self._socket, number, TABLE)
            # A chain without rules, which another program flushed, counts as missing.
            self._chains[family] = {name for name, count in counts.items() if count}
            self._sets[family] = set()
            expected = ruleset.rule_counts(text)
            if rules_touched or any(counts.get(name) != n for name, n in expected.items()):
                self._ours = False
                return {}
        for family in self._frames:
            self._sets[family] = nftables.sets(self._socket, _FAMILY[family], TABLE)
            for kind in KINDS:
                present = nftables.elements(
                    self._socket, _FAMILY[family], TABLE, kind.name, _SHAPES[kind.name]
                )
                head = prefix(family, kind)
                elements.update((head + key, data) for key, data in present.items())
        return elements

    async def prepare(self) -> None:
        """Make empty tables if there are none."""
        if self._ours:
            return
        present = [
            family
            for family in FAMILIES
            if nftables.has_table(self._socket, _FAMILY[family], TABLE)
        ]
        if not present:
            await self._nft("".join(self._frames.values()))
            self.read()

    async def write(self, changes: Changes, networks: Networks) -> None:
        """Do all of it, or raise and have done none of it; networks are as ``write_networks``."""
        if not self._ours:
            await self._replace(changes, networks)
            return
        messages, chains, sets = self._leads(changes)
        for (family, kind), keys in _grouped((key, b"") for key in changes.remove).items():
            messages += nftables.remove(
                _FAMILY[family], TABLE, kind.name, _SHAPES[kind.name], [key for key, _ in keys]
            )
        for (family, kind), elements in _grouped(changes.put).items():
            messages += nftables.put(
                _FAMILY[family], TABLE, kind.name, _SHAPES[kind.name], elements
            )
        self._socket.transaction(messages)
        for family, name in chains:
            self._chains[family].add(name)
        for family, name in sets:
            self._sets[family].add(name)

    async def write_networks(self, networks: Networks) -> None:
        """Fill the sets of networks that are not yet as they should be."""
        if not self._ours:
            return
        changed = {
            (family, name): tuple(by_name.get(name, ()))
            for family, by_name in networks.items()
            for name in NETWORKS
            if self._networks.get((family, name)) != tuple(by_name.get(name, ()))
        }
        texts = (ruleset.networks(*key, cidrs) for key, cidrs in changed.items())
        text = "".join(texts)
        await self._nft(text)
        self._networks |= changed

    async def _replace(self, changes: Changes, networks: Networks) -> None:
        """Write everything; there is nothing to keep."""
        text = render_tables(self._frames, dict(changes.put), networks, changes.chains)
        await self._nft(_forget() + text)
        self.read()
        self._networks |= {
            (family, name): tuple(cidrs)
            for family, by_name in networks.items()
            for name, cidrs in by_name.items()
        }

    async def _nft(self, text: str) -> None:
        if text:
            await run_nft(text, started=self._helpers.append, namespace=self.namespace)

    def _leads(
        self, changes: Changes
    ) -> tuple[
        list[nftables.NetlinkMessage], set[tuple[FamilyName, str]], set[tuple[FamilyName, str]]
    ]:
        """Chains that elements are going to lead to and that do not exist yet; they and their maps.

        Messages, chains and sets.
        """
        messages: list[nftables.NetlinkMessage] = []
        own = {(family, chain.name): chain for family, chain in changes.chains}
        led_to = _led_to(changes.put) | own.keys()
        chains = {(family, name) for family, name in led_to if name not in self._chains[family]}
        sets: set[tuple[FamilyName, str]] = set()
        for family, name in sorted(chains):
            chain = own.get((family, name))
            if chain is None:
                messages += _slots(family, ruleset.Slots(name))
                continue
            if chain.clients is not None and (family, chain.clients.name) not in sets:
                new = self._clients(family, chain)
                messages += new
                sets |= {(family, chain.clients.name)} if new else set()
            messages += _own_chain(family, chain)
        return messages, chains, sets

    def _clients(self, family: FamilyName, chain: OwnChain) -> list[nftables.NetlinkMessage]:
        """The map of clients that a chain needs, if it does not exist yet."""
        clients = chain.clients
        if clients is None or clients.name in self._sets[family]:
            return []
        return [new_clients(_FAMILY[family], TABLE, clients.name, clients.seconds, MOST_CLIENTS)]

    def remove(
        self,
        unused: Iterable[tuple[FamilyName, OwnChain]],
        used: Iterable[tuple[FamilyName, OwnChain]],
    ) -> None:
        """Take out chains of Services' own that nothing leads to, and clients of none ``used``."""
        remaining = {(family, chain.clients.name) for family, chain in used if chain.clients}
        chains: dict[FamilyName, dict[str, None]] = {family: {} for family in self._frames}
        sets: dict[FamilyName, dict[str, None]] = {family: {} for family in self._frames}
        for family, chain in unused:
            chains[family][chain.name] = None
            if chain.clients is not None and (family, chain.clients.name) not in remaining:
                sets[family][chain.clients.name] = None
        for family in self._frames:
            self._take_out(
                family,
                [name for name in chains[family] if name in self._chains[family]],
                [name for name in sets[family] if name in self._sets[family]],
            )

    def _take_out(self, family: FamilyName, chains: Sequence[str], sets: Sequence[str]) -> None:
        number = _FAMILY[family]
        deletions = (nftables.delete_chain(number, TABLE, name) for name in chains)
        messages = [message for deletion in deletions for message in deletion]
        messages += [nftables.delete_set(number, TABLE, name) for name in sets]
        self._socket.transaction(messages)
        self._chains[family].difference_update(chains)
        self._sets[family].difference_update(sets)

    def sweep(
        self, elements: Mapping[bytes, bytes], own: Iterable[tuple[FamilyName, OwnChain]]
    ) -> None:
        """Take out every chain and map of clients that nothing leads to."""
        used: dict[FamilyName, set[str]] = {family: set() for family in self._frames}
        for family, name in _led_to(elements.items()):
            used[family].add(name)
        for family, chain in own:
            used[family].add(chain.name)
            if chain.clients is not None:
                used[family].add(chain.clients.name)
        for family in self._frames:
            number = _FAMILY[family]
            chains = nftables.chains(self._socket, number, TABLE)
            self._chains[family] = set(chains)
            self._sets[family] = nftables.sets(self._socket, number, TABLE)
            self._take_out(
                family,
                [
                    name
                    for name in sorted(chains)
                    if name.startswith((*PREFIXES, *_SLOT_CHAINS)) and name not in used[family]
                ],
                [
                    name
                    for name in sorted(self._sets[family])
                    if name.startswith(CLIENTS) and name not in used[family]
                ],
            )


def clean_up() -> list[str]:
    """Remove everything this program ever made; returns the tables that existed."""
    socket = _open()
    try:
        present = [
            family for family in FAMILIES if nftables.has_table(socket, _FAMILY[family], TABLE)
        ]
        socket.transaction([nftables.delete_table(_FAMILY[family], TABLE) for family in present])
    finally:
        socket.close()
    return [f"{ruleset.protocol_word(family)} {TABLE}" for family in present]


async def run_nft(
    text: str, *, started: Callable[[int], None], namespace: NetworkNamespace = HOME
) -> None:
    """Run ``nft``, in one transaction; ``started`` is called with its process id."""
    try:
        process = await asyncio.create_subprocess_exec(
            *namespace.command(NFT, "-f", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ConfigError(
            f"cannot run {NFT}: {error.strerror or error}; "
            "install the package nftables, 1.0.1 or newer"
        ) from error
    started(process.pid)
    _, errors = await process.communicate(text.encode())
    if process.returncode:
        first = errors.decode(errors="replace").strip().splitlines()
        raise KernelRefused(f"nft failed: {first[0] if first else f'exit {process.returncode}'}")


def _open(namespace: NetworkNamespace = HOME) -> NetlinkSocket:
    try:
        with namespace.entered():
            socket = NetlinkSocket()
    except OSError as error:
        raise ConfigError(
            f"this kernel has no netfilter netlink ({error.strerror}); nf_tables, in Linux 5.13 or "
            "newer, is needed"
        ) from error
    try:
        for family in _FAMILY.values():
            nftables.has_table(socket, family, TABLE)
    except NetlinkError as error:
        socket.close()
        if error.code == errno.EPERM:
            raise ConfigError(
                "no permission to change packet rules; run as root or with CAP_NET_ADMIN"
            ) from error
        raise ConfigError(
            f"this kernel does not answer for nf_tables ({error}); Linux 5.13 or newer with "
            "nf_tables is needed"
        ) from error
    return socket


def _forget() -> str:
    """Remove our tables whether they exist or not."""
    words = [ruleset.protocol_word(family) for family in FAMILIES]
    return "".join(f"table {word} {TABLE}\ndelete table {word} {TABLE}\n" for word in words)


def _slots(family: FamilyName, slots: ruleset.Slots) -> list[nftables.NetlinkMessage]:
    kind = slots.kind
    return draw_chain(
        _FAMILY[family],
        TABLE,
        slots.name,
        kind.endpoints.name,
        draws=slots.draws,
        by_address=kind.by_address,
    )


def _own_chain(family: FamilyName, chain: OwnChain) -> list[nftables.NetlinkMessage]:
    kind, memory = chain.kind, None
    if chain.clients is not None:
        memory = ClientMemory(chain.clients.name, kind.drawn.name, kind.members.name)
    return draw_chain(
        _FAMILY[family],
        TABLE,
        chain.name,
        kind.endpoints.name,
        draws=chain.draws,
        by_address=kind.by_address,
        memory=memory,
    )


def _led_to(elements: Iterable[tuple[bytes, bytes]]) -> set[tuple[FamilyName, str]]:
    """The chains that these elements lead to by ``goto``."""
    targets = {(key[0], data) for key, data in elements if data.startswith(b"goto ")}
    return {(kind_of(bytes((number,)))[0], data[5:].decode()) for number, data in targets}


def _grouped(
    elements: Iterable[tuple[bytes, bytes]],
) -> dict[tuple[FamilyName, NamedSet], list[tuple[bytes, bytes]]]:
    groups: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, data in elements:
        group = groups.get(key[0])
        if group is None:
            group = groups[key[0]] = []
        group.append((key[1:], data))
    return {kind_of(bytes((number,))): group for number, group in groups.items()}
