"""The report about a claim or a volume, and from where the volume can be used. Pure.

A volume can be used from its home domain, and during a takeover from the nodes that stand in for
it: its second affinity term is one label that only these nodes have, so they are found by it. Their
domain is given by the same keys as the home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import PersistentVolume
from zonewise.api.reason import Reason
from zonewise.explain.columns import format_table
from zonewise.storage.domains import TAKEOVER_PREFIX, short_name
from zonewise.storage.placement import TriedPool
from zonewise.storage.takeover.stand_ins import covers

AffinityTerm = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VolumeAccess:
    """The terms of a volume's node affinity, separated."""

    homes: tuple[AffinityTerm, ...] = ()
    """Domains; empty is everywhere."""
    stand_ins: tuple[AffinityTerm, ...] = ()
    """Labels of nodes that stand in for them."""
    taken_over_by: tuple[AffinityTerm, ...] | None = None
    """Where nodes with these labels are now; None if no node is known."""

    @property
    def terms(self) -> tuple[AffinityTerm, ...]:
        """All of them, as the volume has them: homes first."""
        return self.homes + self.stand_ins

    def text(self) -> str:
        """For people, after "can be used from"."""
        home = format_terms(self.homes)
        if not self.stand_ins or not self.homes:
            return home
        text = f"{home}, and from nodes that stand in for it"
        if self.taken_over_by is None:
            return text
        return f"{text} (now: {format_terms(self.taken_over_by) if self.taken_over_by else 'none'})"


def read_access(volume: PersistentVolume | None, nodes: Iterable[Node]) -> VolumeAccess:
    """From where a volume can be used."""
    affinity = volume.spec.node_affinity if volume is not None else None
    if affinity is None or affinity.required is None:
        return VolumeAccess()
    terms = [
        {each.key: ",".join(each.values or ()) for each in term.match_expressions or ()}
        for term in affinity.required.node_selector_terms or ()
    ]
    stand_ins = tuple(
        term
        for term in terms
        if term and all(short_name(key).startswith(TAKEOVER_PREFIX) for key in term)
    )
    homes = tuple(term for term in terms if term not in stand_ins)
    labels = [node.metadata.labels for node in nodes]
    return VolumeAccess(homes, stand_ins, _locate(homes, stand_ins, labels) if labels else None)


def select_takeover(reasons: Iterable[Reason], access: VolumeAccess) -> tuple[Reason, ...]:
    """What is reported of takeovers about the domains of a volume, or about all of them."""
    if not access.stand_ins:
        return ()
    return tuple(
        reason
        for reason in reasons
        if not reason.object
        or any(covers(reason.object.partition("/")[2], home) for home in access.homes)
    )


def _locate(
    homes: Iterable[AffinityTerm],
    stand_ins: Iterable[AffinityTerm],
    node_labels: Iterable[AffinityTerm],
) -> tuple[AffinityTerm, ...]:
    keys = list(dict.fromkeys(key for home in homes for key in home))
    domains = {
        tuple((key, labels[key]) for key in keys if key in labels)
        for labels in node_labels
        if any(term.items() <= labels.items() for term in stand_ins)
    }
    return tuple(dict(domain) or {"node": "without a domain"} for domain in sorted(domains))


def format_terms(terms: Iterable[AffinityTerm]) -> str:
    """Domains as text."""
    texts = (" and ".join(f"{short_name(key)} {term[key]}" for key in term) for term in terms)
    return " or ".join(texts) or "everywhere"


@dataclass(frozen=True, slots=True)
class VolumeReport:
    """One claim, one volume, or both."""

    claim: str
    namespace: str
    volume: str
    storage_class: str
    driver: str
    phase: str
    pool: str
    access: VolumeAccess
    """From where the volume can be used; empty is from everywhere, or there is no volume."""
    node: str
    """The node that was chosen for the first pod, if the class waits for one."""
    reason: Reason
    tried: tuple[TriedPool, ...] = ()
    events: tuple[str, ...] = ()
    """The last messages of the provisioner and the scheduler."""
    takeover: tuple[Reason, ...] = ()
    """Why a takeover of the volume's domain waits."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "claim": self.claim or None,
            "namespace": self.namespace or None,
            "volume": self.volume or None,
            "storageClass": self.storage_class,
            "driver": self.driver,
            "phase": self.phase,
            "pool": self.pool or None,
            "domains": [dict(term) for term in self.access.terms],
            "node": self.node or None,
            "reason": self.reason.to_dict(),
            "tried": [
                {
                    "pool": tried.pool or None,
                    "domain": dict(tried.term),
                    "code": tried.reason.code,
                    "message": tried.reason.message,
                }
                for tried in self.tried
            ],
            "events": list(self.events),
            "takeover": [reason.to_dict() for reason in self.takeover],
        }


def render_volume(report: VolumeReport) -> str:
    """A report for people."""
    text = report.reason.message
    blocks = [[f"{text[:1].upper()}{text[1:]}."]]
    fields = [
        ("claim", f"{report.namespace}/{report.claim}" if report.claim else "–"),
        ("volume", report.volume or "–"),
        ("class", report.storage_class or "–"),
        ("driver", report.driver or "–"),
        ("phase", report.phase),
        ("pool", report.pool or "–"),
        ("domain", report.access.text() if report.volume else "–"),
        ("node chosen", report.node or "–"),
    ]
    blocks.append(format_table(["WHAT", ""], fields)[1:])
    if report.tried:
        rows = [
            [
                tried.pool or "–",
                format_terms([tried.term]) if tried.term else "any",
                tried.reason.message,
            ]
            for tried in report.tried
        ]
        blocks.append(format_table(["POOL", "REQUESTED", "OUTCOME"], rows))
    if report.takeover:
        blocks.append(["Takeover:", *(f"  {reason}" for reason in report.takeover)])
    if report.events:
        blocks.append(["Latest events:", *(f"  {note}" for note in report.events)])
    if report.reason.fix:
        blocks.append([f"What would help: {report.reason.fix}"])
    return "\n\n".join("\n".join(block) for block in blocks)
