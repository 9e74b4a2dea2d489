"""Everything that is desired as one text for ``nft -f``: for people, and to replace old tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from zonewise.proxy.tables import ruleset
from zonewise.proxy.tables.choices import MOST_CLIENTS, OwnChain
from zonewise.proxy.tables.layout import decode
from zonewise.proxy.tables.ruleset import TABLE, FamilyName

_PER_LINE = 500
"""Elements per command: a parser's stack and a reader's eye are finite."""


def render_tables(
    frames: Mapping[FamilyName, str],
    elements: Mapping[bytes, bytes],
    networks: Mapping[FamilyName, Mapping[str, tuple[str, ...]]],
    chains: Iterable[tuple[FamilyName, OwnChain]],
) -> str:
    """The tables with all that is in them."""
    parts = list(frames.values())
    for family, by_name in networks.items():
        for name, cidrs in by_name.items():
            if cidrs:
                parts.append(ruleset.networks(family, name, cidrs))
    known: dict[FamilyName, set[str]] = {family: set() for family in frames}
    for family, chain in chains:
        clients = chain.clients
        if clients is not None and clients.name not in known[family]:
            parts.append(ruleset.clients_text(family, clients.name, clients.seconds, MOST_CLIENTS))
            known[family].add(clients.name)
        parts.append(chain.text(family))
        known[family].add(chain.name)
    groups: dict[tuple[FamilyName, str], list[str]] = {}
    for key, data in elements.items():
        family, kind, found_by, leads_to = decode(key, data)
        if leads_to.startswith("goto "):
            name = leads_to.removeprefix("goto ")
            if name not in known[family]:
                parts.append(ruleset.Slots(name).text(family))
                known[family].add(name)
        text = f"{found_by} : {leads_to}" if leads_to else found_by
        groups.setdefault((family, kind.name), []).append(text)
    for (family, name), texts in sorted(groups.items()):
        parts += _added(f"{ruleset.protocol_word(family)} {TABLE} {name}", sorted(texts))
    return "".join(parts)


def _added(where: str, texts: list[str]) -> Iterator[str]:
    for at in range(0, len(texts), _PER_LINE):
        listed = ",\n  ".join(texts[at : at + _PER_LINE])
        yield f"add element {where} {{\n  {listed}\n}}\n"
