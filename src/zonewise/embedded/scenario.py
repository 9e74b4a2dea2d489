"""Scenarios: what happens to a cluster, and what must be true then, as a YAML file.

::

    about: One zone goes dark for ten minutes.
    cluster: {zones: [a, b, c], nodesPerZone: 3, cpu: [8, 4, 2], podStart: 2s}
    workloads: shop                     # the demo, or a list of objects
    always:                             # looked at whenever a pod changes, after the first step
      - ready shop/web >= 5
    steps:
      - at: 0s
        expect: unavailable shop/web == 0
        within: 1m
      - at: 1m
        do: fail zone a
        expect: pending == 0
        within: 2m

``do``, ``expect`` and ``always`` are a sentence or a list of them; ``embedded.deeds`` knows
what can be done and ``embedded.measures`` what can be expected. Times count from the start. A
file is read as a whole before anything starts, and what is wrong with it is told in a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import yaml

from zonewise.api import times
from zonewise.api.errors import ConfigError, ParseError
from zonewise.embedded.deeds import Deed
from zonewise.embedded.demo import shop
from zonewise.embedded.measures import Expectation
from zonewise.embedded.terrain import Terrain
from zonewise.embedded.workloads.removal import Mode

Obj = dict[str, Any]


class _Cluster(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    zones: list[str] = msgspec.field(default_factory=lambda: ["a", "b", "c"])
    nodes_per_zone: int = 3
    cpu: list[str | int | float] = msgspec.field(default_factory=lambda: ["8", "4", "2"])
    pod_start: str = "1s"
    workload_removal: Mode = "evict"


class _Step(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    at: str
    do: str | list[str] = ""
    expect: str | list[str] = ""
    within: str = "0s"


class _File(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    steps: list[_Step]
    about: str = ""
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)
    workloads: str | list[Obj] = "shop"
    always: str | list[str] = ""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """At a time, do something and then expect something, at once or within some seconds."""

    at: float
    do: tuple[Deed, ...]
    expect: tuple[Expectation, ...]
    within: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, ready to be played."""

    about: str
    terrain: Terrain
    pod_start: str
    removal: Mode
    seed: int
    objects: Sequence[Obj]
    always: tuple[Expectation, ...]
    steps: tuple[Step, ...]


def load(path: str | Path) -> Scenario:
    """The scenario in a file."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the scenario {path}: {error.strerror}") from None
    return parse(text, str(path))


def parse(text: bytes, source: str) -> Scenario:
    """The scenario in a text."""
    try:
        file = msgspec.convert(yaml.load(text, Loader=yaml.CSafeLoader), _File)
        return _scenario(file)
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{source} is not YAML: {why}") from None
    except (msgspec.ValidationError, ConfigError, ParseError) as error:
        raise ConfigError(f"{source} is no scenario: {error}; see docs/embedded.md") from None


def _scenario(file: _File) -> Scenario:
    steps = tuple(
        Step(
            at=times.seconds(step.at),
            do=tuple(map(Deed.parse, _lines(step.do))),
            expect=tuple(map(Expectation.parse, _lines(step.expect))),
            within=times.seconds(step.within),
        )
        for step in file.steps
    )
    if not steps:
        raise ConfigError("it has no steps")
    if any(later.at < earlier.at for earlier, later in pairwise(steps)):
        raise ConfigError("steps are not in the order of their times")
    if isinstance(file.workloads, str) and file.workloads != "shop":
        raise ConfigError('workloads is "shop" or a list of objects')
    cluster = file.cluster
    return Scenario(
        about=file.about,
        terrain=Terrain(
            tuple(cluster.zones), cluster.nodes_per_zone, tuple(str(cpu) for cpu in cluster.cpu)
        ),
        pod_start=cluster.pod_start,
        removal=cluster.workload_removal,
        seed=file.seed,
        objects=shop() if isinstance(file.workloads, str) else file.workloads,
        always=tuple(map(Expectation.parse, _lines(file.always))),
        steps=steps,
    )


def _lines(text: str | list[str]) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, list) else (text,) if text else ()
