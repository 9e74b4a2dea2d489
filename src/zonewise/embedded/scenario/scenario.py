"""Scenarios: what happens to a cluster, and what must be true then, as a YAML file.

::

    about: One zone goes dark for ten minutes.
    cluster: {zones: [a, b, c], nodesPerZone: 3, cpu: [8, 4, 2], podStart: 2s}
    workloads: shop                     # the demo, or a list of objects
    always:                             # checked whenever a pod changes, after the first step
      - ready shop/web >= 5
    steps:
      - at: 0s
        expect: unavailable shop/web == 0
        within: 1m
      - at: 1m
        do: fail zone a
        expect: pending == 0
        within: 2m

``do``, ``expect`` and ``always`` are a sentence or a list of them; ``embedded.scenario.actions``
has what can be done and ``embedded.scenario.assertions`` what can be expected. Times count from the
start. A file is parsed as a whole before anything starts, and an error in it is one sentence.

A scenario can also be played on the objects of a dump: these are then its nodes, and the demo is
left out. Workloads that the file lists are created beside those of the dump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.text import yamltext
from zonewise.api.text.decode_errors import decode_error_text
from zonewise.api.values import times
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.scenario.actions import Action
from zonewise.embedded.scenario.assertions import Assertion
from zonewise.embedded.seed.demo import shop_objects
from zonewise.embedded.seed.nodes import NodeLayout

Obj = dict[str, Any]


class _ClusterEntry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    zones: list[str] = msgspec.field(default_factory=lambda: ["a", "b", "c"])
    nodes_per_zone: int = 3
    cpu: list[str | int | float] = msgspec.field(default_factory=lambda: ["8", "4", "2"])
    pod_start: str = "1s"
    workload_removal: RemovalMode = "evict"
    volumes: bool = False


class _StepEntry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    at: str
    do: str | list[str] = ""
    expect: str | list[str] = ""
    within: str = "0s"


class _ScenarioFile(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    steps: list[_StepEntry]
    about: str = ""
    cluster: _ClusterEntry = msgspec.field(default_factory=_ClusterEntry)
    workloads: str | list[Obj] = "shop"
    always: str | list[str] = ""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """Actions at a time, and what is expected after them, at once or within some seconds."""

    at: float
    do: tuple[Action, ...]
    expect: tuple[Assertion, ...]
    within: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, ready to be played."""

    about: str
    nodes: Sequence[Obj]
    pod_start: str
    removal: RemovalMode
    volumes: bool
    """Whether the cluster has the CSI driver."""
    seed: int
    workloads: Sequence[Obj] | None
    """None stands for the demo."""
    always: tuple[Assertion, ...]
    steps: tuple[ScenarioStep, ...]

    def objects(self, dump: Sequence[Obj] | None = None) -> list[Obj]:
        """The objects of the cluster at the beginning, with or without a dump."""
        if dump is not None:
            return [*dump, *(self.workloads or ())]
        return [*self.nodes, *(shop_objects() if self.workloads is None else self.workloads)]


def load_scenario(path: str | Path) -> Scenario:
    """Load the scenario in a file."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the scenario {path}: {error.strerror}") from None
    return parse_scenario(text, str(path))


def parse_scenario(text: bytes, source: str) -> Scenario:
    """Parse a scenario."""
    try:
        value = yamltext.read(text).value
    except ParseError as error:
        reason = str(error).removeprefix("yaml: ")
        raise ConfigError(f"{source} is not YAML: {reason}; see docs/embedded.md") from None
    try:
        return _build_scenario(msgspec.convert(value, _ScenarioFile))
    except msgspec.ValidationError as error:
        reason = decode_error_text(error)
    except (ConfigError, ParseError) as error:
        reason = str(error)
    raise ConfigError(f"{source} is not a scenario: {reason}; see docs/embedded.md")


def _build_scenario(file: _ScenarioFile) -> Scenario:
    steps = tuple(
        ScenarioStep(
            at=times.parse_duration(step.at),
            do=tuple(map(Action.parse, _to_tuple(step.do))),
            expect=tuple(map(Assertion.parse, _to_tuple(step.expect))),
            within=times.parse_duration(step.within),
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
    layout = NodeLayout(
        tuple(cluster.zones), cluster.nodes_per_zone, tuple(str(cpu) for cpu in cluster.cpu)
    )
    return Scenario(
        about=file.about,
        nodes=tuple(layout.nodes()),
        pod_start=cluster.pod_start,
        removal=cluster.workload_removal,
        volumes=cluster.volumes,
        seed=file.seed,
        workloads=None if isinstance(file.workloads, str) else file.workloads,
        always=tuple(map(Assertion.parse, _to_tuple(file.always))),
        steps=steps,
    )


def _to_tuple(text: str | list[str]) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, list) else (text,) if text else ()
