"""Stages: what happens to a pod next, and after which time, as data.

A stage applies to pods *in* certain states that *match* a selector (*unless* another one matches
too). It is due some time *after* the state began; a pod's *annotation* may give another time. Of
all stages that apply, the one that is due first happens, and of several due at once the first in
the file. So a file reads from top to bottom, and adding a stage never changes what others mean.

Times are ``2s``, a range ``1s..5s`` of which each pod draws its own, ``never``, or ``backoff``, the
growing pause before a container is restarted. What a pod draws depends on the seed, the pod and
the stage only, never on the order in which pods are looked at.
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
BACKOFF_FIRST = 10.0
BACKOFF_LAST = 300.0
_DOUBLINGS = 5
"""So many take the first pause to the last."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class StageSelector(Struct, forbid_unknown_fields=True):
    """Which pods are selected: all that is given must match."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()
    restart_policy: tuple[str, ...] = ()

    def matches(self, pod: Pod) -> bool:
        """Whether it means this pod."""
        meta = pod.metadata
        return (
            self.labels.items() <= meta.labels.items()
            and self.annotations.items() <= meta.annotations.items()
            and (not self.namespaces or meta.namespace in self.namespaces)
            and (not self.restart_policy or pod.spec.restart_policy in self.restart_policy)
        )


class _Written(Struct, forbid_unknown_fields=True):
    """A stage as it is in the file."""

    name: str
    states: tuple[PodState, ...] = field(name="in")
    effect: StageEffect = field(name="do")
    match: StageSelector = StageSelector()
    unless: StageSelector | None = None
    after: str = "0s"
    annotation: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A time or a range of times, in seconds; ``backoff`` grows with the restarts instead."""

    low: float
    high: float
    backoff: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing that may happen."""

    name: str
    effect: StageEffect
    match: StageSelector
    unless: StageSelector | None
    after: Span
    annotation: str

    def applies(self, pod: Pod) -> bool:
        """Whether it is about this pod at all."""
        return self.match.matches(pod) and not (self.unless and self.unless.matches(pod))

    def delay(self, pod: Pod, *, seed: int, restarts: int) -> float:
        """Seconds after the state's beginning; infinite for never, or if it does not apply."""
        if not self.applies(pod):
            return inf
        span = self.after
        if self.annotation and (text := pod.metadata.annotations.get(self.annotation)):
            span = _steered(text) or span
        if span.backoff:
            return backoff(restarts)
        if span.low == span.high:
            return span.low
        drawn = random.Random(f"{seed}/{pod.metadata.uid}/{self.name}/{restarts}")
        return drawn.uniform(span.low, span.high)


Stages = Mapping[PodState, tuple[Stage, ...]]


def backoff(restarts: int) -> float:
    """The pause before a container starts again: none at first, then ever longer ones."""
    if restarts > _DOUBLINGS:
        return BACKOFF_LAST
    return min(BACKOFF_FIRST * 2.0 ** (restarts - 1), BACKOFF_LAST) if restarts else 0.0


def span(text: str) -> Span:
    """A time as it is written in a file or an annotation."""
    if text == "never":
        return Span(inf, inf)
    if text == "backoff":
        return Span(0.0, 0.0, backoff=True)
    low, dots, high = text.partition("..")
    first = _seconds(low)
    last = _seconds(high) if dots else first
    if last < first:
        raise ConfigError(f'"{text}" ends before it begins; write the shorter time first')
    return Span(first, last)


def read_stages(text: str, origin: str) -> Stages:
    """The stages of a YAML file; refuses what could never happen."""
    try:
        written = msgspec.convert(yamltext.read(text.encode()).value or [], list[_Written])
    except ParseError as error:
        why = str(error).removeprefix("yaml: ")
        raise ConfigError(
            f"{origin} is not YAML: {why}; docs/embedded.md shows the format"
        ) from error
    except msgspec.ValidationError as error:
        why = decode_error_text(error)
        raise ConfigError(f"{origin}: {why}; docs/embedded.md shows the format") from error
    found: dict[PodState, list[Stage]] = {state: [] for state in get_args(PodState)}
    for one in written:
        try:
            after = span(one.after)
        except ConfigError as error:
            raise ConfigError(f"{origin}: stage {one.name}: {error}") from error
        for state in one.states:
            if one.effect not in EFFECTS.get(state, frozenset()):
                raise ConfigError(
                    f'{origin}: stage {one.name}: a pod that is {state} cannot "{one.effect}"'
                )
            found[state].append(
                Stage(one.name, one.effect, one.match, one.unless, after, one.annotation)
            )
    return {state: tuple(stages) for state, stages in found.items()}


def default_stages() -> Stages:
    """The stages this package brings."""
    text = files(__package__).joinpath("stages.yaml").read_text(encoding="utf-8")
    return read_stages(text, "stages.yaml")


def timed(stages: Stages, **after: str) -> Stages:
    """The same stages, with other times for those that are named: ``timed(stages, start="2s")``."""
    chosen = {name: span(text) for name, text in after.items()}
    if unknown := chosen.keys() - {one.name for every in stages.values() for one in every}:
        raise ConfigError(f"there is no stage {min(unknown)}; name one that there is")
    return {
        state: tuple(replace(one, after=chosen.get(one.name, one.after)) for one in of_state)
        for state, of_state in stages.items()
    }


def _steered(text: str) -> Span | None:
    # A bad annotation must not stop the pod; it then behaves as all others do.
    try:
        return span(text)
    except ConfigError:
        return None


def _seconds(text: str) -> float:
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f'"{text}" is not a time; write it like 10s, 1m30s or 500ms')
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
