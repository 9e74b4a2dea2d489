"""Stages: what happens to a pod next, and after which time, as data.

A stage applies to pods *in* certain states that *match* a selector (*unless* another one matches
too). It is due some time *after* the state began; a pod's *annotation* may give another time. Of
all stages that apply, the one that is due first happens, and of several due at once the first in
the file. So a file reads from top to bottom, and adding a stage never changes what others mean.

Times are ``2s``, a range ``1s..5s`` of which each pod draws its own, ``never``, or ``backoff``, the
growing pause before a container is restarted. What a pod draws depends on the seed, the pod and
the stage only, never on the order in which pods are processed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from math import inf
from typing import Literal, get_args

import msgspec

from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.objects.pod import Pod
from zonewise.api.struct import Struct, field
from zonewise.api.text import yamltext
from zonewise.api.text.decode_errors import decode_error_text

PodState = Literal["bound", "running", "ready", "ended", "finished", "terminating"]
StageEffect = Literal["start", "ready", "unready", "exit", "remove"]

EFFECTS: Mapping[PodState, frozenset[StageEffect]] = {
    "bound": frozenset({"start"}),
    "running": frozenset({"ready", "exit"}),
    "ready": frozenset({"unready", "exit"}),
    "ended": frozenset({"start"}),
    "terminating": frozenset({"remove"}),
}
INITIAL_BACKOFF = 10.0
MAX_BACKOFF = 300.0
_DOUBLINGS = 5
"""How often the backoff doubles before it is the longest."""

_TIME_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class StageSelector(Struct, forbid_unknown_fields=True):
    """Which pods a stage applies to: every field that is set must match."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()
    restart_policy: tuple[str, ...] = ()

    def matches(self, pod: Pod) -> bool:
        """Whether a pod is selected."""
        meta = pod.metadata
        return (
            (not self.labels or self.labels.items() <= meta.labels.items())
            and (not self.annotations or self.annotations.items() <= meta.annotations.items())
            and (not self.namespaces or meta.namespace in self.namespaces)
            and (not self.restart_policy or pod.spec.restart_policy in self.restart_policy)
        )


class _StageEntry(Struct, forbid_unknown_fields=True):
    """A stage as it is written in the file."""

    name: str
    states: tuple[PodState, ...] = field(name="in")
    effect: StageEffect = field(name="do")
    match: StageSelector = StageSelector()
    unless: StageSelector | None = None
    after: str = "0s"
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class DelayRange:
    """A time or a range of times, in seconds; ``backoff`` grows with the restarts instead."""

    low: float
    high: float
    backoff: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing that may happen to a pod."""

    name: str
    effect: StageEffect
    match: StageSelector
    unless: StageSelector | None
    after: DelayRange
    annotation: str

    def applies(self, pod: Pod) -> bool:
        """Whether the stage applies to a pod."""
        return self.match.matches(pod) and not (self.unless and self.unless.matches(pod))

    def delay(self, pod: Pod, *, seed: int, restarts: int) -> float:
        """Seconds after the state began; infinite for never, or if the stage does not apply."""
        if not self.applies(pod):
            return inf
        delay_range = self.after
        if self.annotation and (text := pod.metadata.annotations.get(self.annotation)):
            delay_range = _parse_annotation(text) or delay_range
        if delay_range.backoff:
            return backoff_seconds(restarts)
        if delay_range.low == delay_range.high:
            return delay_range.low
        rng = random.Random(f"{seed}/{pod.metadata.uid}/{self.name}/{restarts}")
        return rng.uniform(delay_range.low, delay_range.high)


Stages = Mapping[PodState, tuple[Stage, ...]]


def backoff_seconds(restarts: int) -> float:
    """Seconds before a container is restarted: none at first, then twice as many each time."""
    if restarts > _DOUBLINGS:
        return MAX_BACKOFF
    return min(INITIAL_BACKOFF * 2.0 ** (restarts - 1), MAX_BACKOFF) if restarts else 0.0


def parse_delay(text: str) -> DelayRange:
    """Parse a time as it is written in a file or an annotation."""
    if text == "never":
        return DelayRange(inf, inf)
    if text == "backoff":
        return DelayRange(0.0, 0.0, backoff=True)
    low, dots, high = text.partition("..")
    first = _parse_seconds(low)
    last = _parse_seconds(high) if dots else first
    if last < first:
        raise ConfigError(f'"{text}" ends before it begins; write the shorter time first')
    return DelayRange(first, last)


def read_stages(text: str, origin: str) -> Stages:
    """Parse the stages of a YAML file; an effect that a state does not allow is an error."""
    try:
        entries = msgspec.convert(yamltext.read(text.encode()).value or [], list[_StageEntry])
    except ParseError as error:
        reason = str(error).removeprefix("yaml: ")
        raise ConfigError(
            f"{origin} is not YAML: {reason}; docs/embedded.md shows the format"
        ) from error
    except msgspec.ValidationError as error:
        reason = decode_error_text(error)
        raise ConfigError(f"{origin}: {reason}; docs/embedded.md shows the format") from error
    stages_by_state: dict[PodState, list[Stage]] = {state: [] for state in get_args(PodState)}
    for entry in entries:
        try:
            after = parse_delay(entry.after)
        except ConfigError as error:
            raise ConfigError(f"{origin}: stage {entry.name}: {error}") from error
        for state in entry.states:
            if entry.effect not in EFFECTS.get(state, frozenset()):
                raise ConfigError(
                    f'{origin}: stage {entry.name}: a pod that is {state} cannot "{entry.effect}"'
                )
            stages_by_state[state].append(
                Stage(entry.name, entry.effect, entry.match, entry.unless, after, entry.annotation)
            )
    return {state: tuple(stages) for state, stages in stages_by_state.items()}


def default_stages() -> Stages:
    """The stages of ``stages.yaml`` in this package."""
    text = files(__package__).joinpath("stages.yaml").read_text(encoding="utf-8")
    return read_stages(text, "stages.yaml")


def with_delays(stages: Stages, **after: str) -> Stages:
    """The same stages with other times for some: ``with_delays(stages, start="2s")``."""
    delays = {name: parse_delay(text) for name, text in after.items()}
    names = {stage.name for group in stages.values() for stage in group}
    if unknown := delays.keys() - names:
        raise ConfigError(
            f"unknown stage {min(unknown)}; the stages are {', '.join(sorted(names))}"
        )
    return {
        state: tuple(replace(stage, after=delays.get(stage.name, stage.after)) for stage in group)
        for state, group in stages.items()
    }


def _parse_annotation(text: str) -> DelayRange | None:
    # An invalid annotation must not stop the pod; it is ignored.
    try:
        return parse_delay(text)
    except ConfigError:
        return None


def _parse_seconds(text: str) -> float:
    parts = _TIME_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f'"{text}" is not a time; write it like 10s, 1m30s or 500ms')
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
