"""From where a volume can be used: its home, and the nodes that stand in for it now. Pure.

The second place of a volume is one label that nodes have only during a takeover, so the nodes that
stand in can be found by it. Where they are is given by the same keys as the home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import PersistentVolume
from zonewise.storage.domains import TAKEOVER_PREFIX, short_name

AffinityTerm = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VolumePlaces:
    """The terms of a volume's node affinity, separated."""

    homes: tuple[AffinityTerm, ...] = ()
    """Domains; empty is everywhere."""
    others: tuple[AffinityTerm, ...] = ()
    """Labels of nodes that stand in for them."""
    now: tuple[AffinityTerm, ...] | None = None
    """Where nodes with these labels are; None if no node is known."""

    @property
    def terms(self) -> tuple[AffinityTerm, ...]:
        """All of them, as the volume has them: homes first."""
        return self.homes + self.others

    def text(self) -> str:
        """For people, after "can be used from"."""
        home = where(self.homes)
        if not self.others or not self.homes:
            return home
        told = f"{home}, and from nodes that stand in for it"
        if self.now is None:
            return told
        return f"{told} (now: {where(self.now) if self.now else 'none'})"


def volume_places(volume: PersistentVolume | None, nodes: Iterable[Node]) -> VolumePlaces:
    """From where a volume can be used."""
    affinity = volume.spec.node_affinity if volume is not None else None
    if affinity is None or affinity.required is None:
        return VolumePlaces()
    terms = [
        {one.key: ",".join(one.values or ()) for one in term.match_expressions or ()}
        for term in affinity.required.node_selector_terms or ()
    ]
    others = tuple(
        term
        for term in terms
        if term and all(short_name(key).startswith(TAKEOVER_PREFIX) for key in term)
    )
    homes = tuple(term for term in terms if term not in others)
    known = [node.metadata.labels for node in nodes]
    return VolumePlaces(homes, others, _now(homes, others, known) if known else None)


def _now(
    homes: Iterable[AffinityTerm], others: Iterable[AffinityTerm], known: Iterable[AffinityTerm]
) -> tuple[AffinityTerm, ...]:
    keys = list(dict.fromkeys(key for home in homes for key in home))
    found = {
        tuple((key, labels[key]) for key in keys if key in labels)
        for labels in known
        if any(term.items() <= labels.items() for term in others)
    }
    return tuple(dict(one) or {"node": "without a domain"} for one in sorted(found))


def where(domains: Iterable[AffinityTerm]) -> str:
    """Domains as text."""
    found = [
        " and ".join(f"{short_name(key)} {value}" for key, value in one.items()) for one in domains
    ]
    return " or ".join(found) or "everywhere"
