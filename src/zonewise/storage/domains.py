"""Domain labels: which node labels name domains, and their keys on the wire.

``--domain-labels a.io/region,b.io/zone`` is an ordered list of node labels, the largest domain
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
WELL_KNOWN_LABELS = (f"{WELL_KNOWN_PREFIX}/region", f"{WELL_KNOWN_PREFIX}/zone")
TAKEOVER_PREFIX = "takeover."
"""Prefix of the names of the labels that say which domain stands in for which."""

_DRIVER_NAME = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9.]*)?[A-Za-z]")
_DNS_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")

Segments = Mapping[str, str]
"""A domain: short label names to values."""


@dataclass(frozen=True, slots=True)
class DomainLabels:
    """The domain labels of a driver in their order; without any, it has no topology."""

    driver: str
    labels: tuple[str, ...] = ()
    well_known: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The labels' short names, the largest domain first."""
        return tuple(short_name(label) for label in self.labels)

    @property
    def prefix(self) -> str:
        """What all keys on the wire begin with, without the slash."""
        return WELL_KNOWN_PREFIX if self.well_known else KEY_PREFIX + self.driver

    def key(self, name: str) -> str:
        """The key of a short name on the wire."""
        return f"{self.prefix}/{name}"

    def to_wire(self, segments: Segments) -> dict[str, str]:
        """A domain as it is reported on the wire, in the order of the labels."""
        return {self.key(name): value for name, value in self.ordered(segments).items()}

    def ordered(self, segments: Segments) -> dict[str, str]:
        """A domain in the order of the labels; names without a label come last, sorted."""
        rank = {name: index for index, name in enumerate(self.names)}
        keys = sorted(segments, key=lambda name: (rank.get(name, len(rank)), name))
        return {name: segments[name] for name in keys}

    def segments_of(self, term: Mapping[str, str]) -> dict[str, str]:
        """The domain in a term of a requirement; empty if the term names none."""
        segments: dict[str, str] = {}
        for label in self.labels:
            name = short_name(label)
            for key in (self.key(name), f"{KEY_PREFIX}{self.driver}/{name}", label):
                if key in term:
                    segments[name] = term[key]
                    break
        return segments

    def segments_of_node(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The domain of a node by its labels, without the labels that the node lacks."""
        return {short_name(label): labels[label] for label in self.labels if labels.get(label)}

    def missing_labels(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The domain labels that a node lacks."""
        return tuple(label for label in self.labels if not labels.get(label))

    def name_of(self, label: str) -> str | None:
        """The short name of a domain label, given with or without prefix; None if it is not one."""
        for own_label in self.labels:
            name = short_name(own_label)
            if label in (name, own_label, self.key(name), f"{KEY_PREFIX}{self.driver}/{name}"):
                return name
        return None


def short_name(label: str) -> str:
    """A label's name without its prefix."""
    return label.rpartition("/")[2]


def parse_domain_labels(text: str, driver: str, *, well_known: bool = False) -> DomainLabels:
    """Parse ``--domain-labels``; raises ConfigError."""
    labels = split_domain_labels(text) if text.strip() else []
    return build_domain_labels(labels, driver, well_known=well_known)


def split_domain_labels(text: str) -> list[str]:
    """Labels that are separated by ``,``, or by ``;`` as the segments of ``--domain``."""
    return [part.strip() for part in text.replace(";", ",").split(",")]


def build_domain_labels(
    labels: Iterable[str], driver: str, *, well_known: bool = False
) -> DomainLabels:
    """Check the domain labels of a driver; raises ConfigError with one sentence."""
    result = DomainLabels(driver, tuple(labels), well_known)
    if len(driver) > label_rules.NAME_LIMIT or not _DRIVER_NAME.fullmatch(driver):
        raise ConfigError(
            f"--drivername {driver!r} is not a driver name: it has at most"
            f" {label_rules.NAME_LIMIT} letters, digits, '-' and '.', begins with a letter or digit"
            " and ends with a letter"
        )
    if result.labels:
        _check_prefix(KEY_PREFIX + driver, driver)
    by_name: dict[str, str] = {}
    for label in result.labels:
        if error := label_rules.label_key_error(label):
            raise ConfigError(f"--domain-labels: label {label!r} {error}")
        if label in by_name.values():
            raise ConfigError(f"--domain-labels: label {label!r} is given twice")
        name = short_name(label)
        if name.lower().startswith(TAKEOVER_PREFIX):
            raise ConfigError(
                f"--domain-labels: label {label!r} begins with {TAKEOVER_PREFIX!r}, which is"
                " reserved for domains that are taken over"
            )
        if well_known and label not in WELL_KNOWN_LABELS:
            raise ConfigError(
                f"--domain-labels: label {label!r} cannot be used together with the well-known"
                " keys, because all keys of a driver have one prefix: use only"
                f" {' and '.join(WELL_KNOWN_LABELS)}, or the driver's own keys"
            )
        # Kubernetes compares keys exactly, the protocol without regard to case.
        if (other := by_name.get(name.lower())) is not None:
            raise ConfigError(
                f"--domain-labels: labels {other!r} and {label!r} would both be"
                f" {result.key(name)!r}: use labels whose names after the '/' differ"
            )
        by_name[name.lower()] = label
    return result


def _check_prefix(prefix: str, driver: str) -> None:
    if len(prefix) > PREFIX_LIMIT:
        raise ConfigError(
            f"--drivername {driver!r} is too long for topology: {prefix!r} has {len(prefix)}"
            f" characters, allowed are {PREFIX_LIMIT}"
        )
    if not _DNS_NAME.fullmatch(prefix):
        raise ConfigError(
            f"--drivername {driver!r} cannot be used with --domain-labels: {prefix!r} is not a DNS"
            " name of lower case letters, digits, '-' and '.'"
        )


def parse_domain(text: str, labels: DomainLabels) -> dict[str, str]:
    """Parse ``--domain "region=r1;zone=a"``, a value for every label; raises ConfigError.

    Names are given as labels, or without their prefix.
    """
    if not labels.labels:
        if text.strip():
            raise ConfigError("--domain needs --domain-labels, which name the domains")
        return {}
    segments: dict[str, str] = {}
    for part in text.split(";") if text.strip() else ():
        label, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"--domain: {part.strip()!r} is not of the form NAME=VALUE")
        name = labels.name_of(label)
        if name is None:
            raise ConfigError(
                f"--domain: {label!r} is not one of --domain-labels: {', '.join(labels.labels)}"
            )
        if name in segments:
            raise ConfigError(f"--domain: {name!r} is given twice")
        if error := domain_value_error(value):
            raise ConfigError(f"--domain: the value of {name!r}, {value!r}, {error}")
        segments[name] = value
    if missing := [name for name in labels.names if name not in segments]:
        raise ConfigError(
            f"--domain has no value for {' and '.join(map(repr, missing))}: give one for each of"
            " --domain-labels, as in 'region=r1;zone=a'"
        )
    return labels.ordered(segments)


def domain_value_error(value: str) -> str | None:
    """What is wrong with the value of a domain label; None if it is valid."""
    return label_rules.label_value_error(value) if value else "is empty"
