"""Domain labels: which node labels name domains, and what they are called on the wire.

``--domain-labels "a.io/region;b.io/zone"`` is an ordered list of node labels, the largest domain
first. A driver reports a node's domain with keys of its own, ``topology.<driver>/<name>``, where
the name is the label's without its prefix: the protocol requires one prefix for all keys a driver
ever uses. Inside, a domain is a mapping of the short names to values, in the order of the labels,
so that only this module depends on how keys are spelled.

Optionally the well-known labels are used as they are (``topology.kubernetes.io/zone``), which is
what node autoscalers understand; because of the one prefix no other label can be used then.

A requirement's keys count if they have the driver's prefix or are the node's own labels; when both
exist and differ, the driver's counts. Others are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zonewise.api.errors import ConfigError
from zonewise.api.values import labels as label_rules

KEY_PREFIX = "topology."
PREFIX_LIMIT = 63
"""The protocol's limit for the prefix of a key; Kubernetes would take more."""
WELL_KNOWN_PREFIX = "topology.kubernetes.io"
WELL_KNOWN = (f"{WELL_KNOWN_PREFIX}/region", f"{WELL_KNOWN_PREFIX}/zone")
TAKEOVER = "takeover."
"""Prefix of the names of the labels that say which domain stands in for which."""

_DRIVER = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9.]*)?[A-Za-z]")
_PREFIX = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")

Segments = Mapping[str, str]
"""A domain: short label names to values."""


@dataclass(frozen=True, slots=True)
class DomainLabels:
    """The labels of a driver in their order; none at all means no topology."""

    driver: str
    labels: tuple[str, ...] = ()
    well_known: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The short names, the largest domain first."""
        return tuple(short(label) for label in self.labels)

    @property
    def prefix(self) -> str:
        """What all keys on the wire begin with, without the slash."""
        return WELL_KNOWN_PREFIX if self.well_known else KEY_PREFIX + self.driver

    def key(self, name: str) -> str:
        """The key of a short name on the wire."""
        return f"{self.prefix}/{name}"

    def keyed(self, segments: Segments) -> dict[str, str]:
        """A domain as it is reported on the wire, in the order of the labels."""
        return {self.key(name): value for name, value in self.ordered(segments).items()}

    def ordered(self, segments: Segments) -> dict[str, str]:
        """A domain in the order of the labels; what has no label comes last, by name."""
        rank = {name: place for place, name in enumerate(self.names)}
        keys = sorted(segments, key=lambda name: (rank.get(name, len(rank)), name))
        return {name: segments[name] for name in keys}

    def understood(self, term: Mapping[str, str]) -> dict[str, str]:
        """What a term of a requirement says about domains; empty if nothing."""
        found: dict[str, str] = {}
        for label in self.labels:
            name = short(label)
            for key in (self.key(name), f"{KEY_PREFIX}{self.driver}/{name}", label):
                if key in term:
                    found[name] = term[key]
                    break
        return found

    def of_node(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The domain that a node's labels give, as far as they give one."""
        return {short(label): labels[label] for label in self.labels if labels.get(label)}

    def missing(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The labels a node lacks."""
        return tuple(label for label in self.labels if not labels.get(label))

    def name_of(self, label: str) -> str | None:
        """The short name of a label that is given with or without prefix; None if it is none."""
        for known in self.labels:
            name = short(known)
            if label in (name, known, self.key(name), f"{KEY_PREFIX}{self.driver}/{name}"):
                return name
        return None


def short(label: str) -> str:
    """A label's name without its prefix."""
    return label.rpartition("/")[2]


def parse_domain_labels(text: str, driver: str, *, well_known: bool = False) -> DomainLabels:
    """The labels of ``--domain-labels``, separated by ``;``; raises ConfigError."""
    labels = [part.strip() for part in text.split(";")] if text.strip() else []
    return domain_labels(labels, driver, well_known=well_known)


def domain_labels(labels: Iterable[str], driver: str, *, well_known: bool = False) -> DomainLabels:
    """The labels of a driver, checked; raises ConfigError with one sentence."""
    found = DomainLabels(driver, tuple(labels), well_known)
    if len(driver) > label_rules.NAME_LIMIT or not _DRIVER.fullmatch(driver):
        raise ConfigError(
            f"--drivername {driver!r} is not a driver name: it has at most"
            f" {label_rules.NAME_LIMIT} letters, digits, '-' and '.', begins with a letter or digit"
            " and ends with a letter"
        )
    if found.labels:
        _check_prefix(KEY_PREFIX + driver, driver)
    by_name: dict[str, str] = {}
    for label in found.labels:
        if fault := label_rules.key_fault(label):
            raise ConfigError(f"--domain-labels: label {label!r} {fault}")
        if label in by_name.values():
            raise ConfigError(f"--domain-labels: label {label!r} is given twice")
        name = short(label)
        if name.lower().startswith(TAKEOVER):
            raise ConfigError(
                f"--domain-labels: label {label!r} begins with {TAKEOVER!r}, which is kept for"
                " domains that are taken over"
            )
        if well_known and label not in WELL_KNOWN:
            raise ConfigError(
                f"--domain-labels: label {label!r} cannot be used together with the well-known"
                " keys, because all keys of a driver have one prefix: use only"
                f" {' and '.join(WELL_KNOWN)}, or the driver's own keys"
            )
        # Kubernetes compares keys exactly, the protocol without regard to case.
        if (other := by_name.get(name.lower())) is not None:
            raise ConfigError(
                f"--domain-labels: labels {other!r} and {label!r} would both be"
                f" {found.key(name)!r}: use labels whose names after the '/' differ"
            )
        by_name[name.lower()] = label
    return found


def _check_prefix(prefix: str, driver: str) -> None:
    if len(prefix) > PREFIX_LIMIT:
        raise ConfigError(
            f"--drivername {driver!r} is too long for topology: {prefix!r} has {len(prefix)}"
            f" characters, allowed are {PREFIX_LIMIT}"
        )
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"--drivername {driver!r} cannot be used with --domain-labels: {prefix!r} is not a DNS"
            " name of lower case letters, digits, '-' and '.'"
        )


def parse_domain(text: str, labels: DomainLabels) -> dict[str, str]:
    """The domain of ``--domain "region=r1;zone=a"``: a value for every label; raises ConfigError.

    Names are given as labels, or without their prefix.
    """
    if not labels.labels:
        if text.strip():
            raise ConfigError("--domain needs --domain-labels, which name the domains")
        return {}
    found: dict[str, str] = {}
    for part in text.split(";") if text.strip() else ():
        label, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"--domain: {part.strip()!r} is not of the form NAME=VALUE")
        name = labels.name_of(label)
        if name is None:
            raise ConfigError(
                f"--domain: {label!r} is not one of --domain-labels: {', '.join(labels.labels)}"
            )
        if name in found:
            raise ConfigError(f"--domain: {name!r} is given twice")
        if fault := value_fault(value):
            raise ConfigError(f"--domain: the value of {name!r}, {value!r}, {fault}")
        found[name] = value
    if missing := [name for name in labels.names if name not in found]:
        raise ConfigError(
            f"--domain has no value for {' and '.join(map(repr, missing))}: give one for each of"
            " --domain-labels, as in 'region=r1;zone=a'"
        )
    return labels.ordered(found)


def value_fault(value: str) -> str | None:
    """What is wrong with the name of a domain."""
    return label_rules.value_fault(value) if value else "is empty"
