"""When a domain is taken over, and given back, without an administrator. Pure.

Off unless the configuration says ``"automatic-takeover": {"by": ["all"], "pause": "5m"}``. A domain
is taken over when a source has reported it failed for the whole pause without interruption; it is
given back when all sources that know it have reported it healthy for as long. Every change restarts
the pause, so a domain that flaps moves nothing in either direction: only being down, or up, for the
whole pause does. The sources are the storage and the nodes (``domain_states``); without a choice it
is the storage where that can tell, and the nodes elsewhere.

Nodes are silent for many harmless reasons, a restart or an update: their pause is never shorter
than two minutes, unless ``nodes-pause`` sets it.

Where an administrator let the failed domain stand in for another one, ``all`` would be a loop: then
the healthy domains are named instead.

What an administrator has decided is never undone: only domains that were taken over automatically
are given back automatically, and one that an administrator gave back has a whole pause since then.
Whatever is not done although something has failed, or is healthy again, has a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.storage import strict_json
from zonewise.storage.strict_json import ShapeError, child
from zonewise.storage.takeover.domain_states import DomainCondition, SourceStates
from zonewise.storage.takeover.stand_ins import ALL, TakeoverMap, find_takeover_loop

SHORTEST_PAUSE = 30.0
"""Seconds; with a shorter pause, zones that only restart would be taken over."""
SHORTEST_NODES_PAUSE = 120.0
"""Seconds that nodes are given at least, unless the configuration sets their pause."""
CEPH = "ceph"
NODES = "nodes"
SOURCES = (CEPH, NODES)


@dataclass(frozen=True, slots=True)
class AutomaticTakeover:
    """Which domains stand in, and for how long a domain must have been down or up."""

    by: tuple[str, ...]
    pause: float
    sources: tuple[str, ...] = ()
    """Which sources are asked; empty is what the storage can tell, or else nodes."""
    nodes_pause: float | None = None

    @property
    def pause_of_nodes(self) -> float:
        """The pause where nodes are the source."""
        if self.nodes_pause is not None:
            return self.nodes_pause
        return max(self.pause, SHORTEST_NODES_PAUSE)


@dataclass(frozen=True, slots=True)
class AutomaticDecision:
    """Changes of the map and their reasons, why others wait, and seconds until one is due."""

    changes: Mapping[str, tuple[str, ...] | None]
    reasons: tuple[Reason, ...] = ()
    holds: tuple[Reason, ...] = ()
    """Why something that seems to have failed, or to be healthy again, stays as it is."""
    given_back: Mapping[str, float] = field(default_factory=dict)
    """Of what an administrator gave back, that which has not been healthy since."""
    retry_after: float | None = None


def parse_automatic(value: Any, path: str) -> AutomaticTakeover:
    """Parse ``{"by": [...], "pause": "5m", …}``, a value of ``strict_json``; raises ShapeError."""
    members = strict_json.expect_object(
        value, path, required=("by", "pause"), optional=("sources", "nodes-pause")
    )
    targets = _parse_names(members["by"], child(path, "by"), "domain")
    if not targets:
        raise ShapeError(child(path, "by"), f"names no domain that takes over, nor {ALL!r}")
    if ALL in targets and len(targets) > 1:
        raise ShapeError(child(path, "by"), f"{ALL!r} cannot be combined with others")
    sources: tuple[str, ...] = ()
    if "sources" in members:
        sources_path = child(path, "sources")
        sources = _parse_names(members["sources"], sources_path, "source")
        if not sources:
            raise ShapeError(sources_path, f"names no source; there are {' and '.join(SOURCES)}")
        for source in sources:
            if source not in SOURCES:
                raise ShapeError(
                    sources_path,
                    f"{source!r} is not a source; there are {' and '.join(SOURCES)}",
                )
    return AutomaticTakeover(
        targets,
        _parse_pause(members["pause"], child(path, "pause")),
        sources,
        _parse_pause(members["nodes-pause"], child(path, "nodes-pause"))
        if "nodes-pause" in members
        else None,
    )


def _parse_names(value: Any, path: str, what: str) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for item_path, item in strict_json.expect_list(value, path):
        name = strict_json.expect_text(item, item_path)
        if name in names:
            raise ShapeError(item_path, f"{what} {name!r} is given twice")
        names[name] = None
    return tuple(names)


def _parse_pause(value: Any, path: str) -> float:
    text = strict_json.expect_text(value, path)
    try:
        pause = times.parse_duration(text)
    except (ParseError, ValueError) as error:
        raise ShapeError(path, str(error)) from None
    if pause < SHORTEST_PAUSE:
        raise ShapeError(path, f"{text!r} is shorter than {SHORTEST_PAUSE:g}s")
    return pause


def decide_automatic(
    settings: AutomaticTakeover,
    sources: Mapping[str, SourceStates | None],
    takeover: TakeoverMap,
    taken_automatically: Collection[str],
    given_back: Mapping[str, float],
    now: float,
) -> AutomaticDecision:
    """Decide which domains are taken over or given back now.

    A source that did not answer is None. ``taken_automatically`` are the domains that were taken
    over without an administrator, ``given_back`` says when administrators gave others back.
    """
    known = {name: source for name, source in sources.items() if source is not None}
    failed = {
        name for source in known.values() for name, state in source.domains.items() if state.failed
    }
    names = {name for source in known.values() for name in source.domains}
    changes: dict[str, tuple[str, ...] | None] = {}
    reasons: list[Reason] = []
    holds: list[Reason] = []
    waits: list[float] = []
    for name in sorted(failed):
        verdicts = [*_find_verdicts(known, name)]
        if name in takeover.targets or any(
            takeover.is_taken_over(state.segments) for state, _ in verdicts
        ):
            continue
        ripe: DomainCondition | None = None
        pending: list[tuple[float, Reason]] = []
        doubts: list[Reason] = []
        for state, pause in verdicts:
            if not state.failed:
                continue
            remaining = pause
            if state.since is not None:
                remaining += max(state.since, given_back.get(name, state.since)) - now
            if state.doubt is not None and (state.since is None or remaining <= 0):
                doubts.append(state.doubt)
            elif remaining > 0:
                pending.append((remaining, _tell_pending(name, state, pause)))
            else:
                ripe = ripe or state
        if ripe is None:
            waits += [remaining for remaining, _ in pending]
            holds += [*doubts, *(reason for _, reason in pending)]
            continue
        if name == ALL:
            holds.append(
                Reason(
                    code="NameReserved",
                    message=f"{name} has failed, and a domain of that name cannot be taken over:"
                    " the word stands for all domains",
                    object=f"Domain/{name}",
                    fix="Give its nodes another value of the label.",
                )
            )
            continue
        taken = (domain for domain, by in changes.items() if by)
        targets = _choose_targets(
            settings,
            takeover,
            name,
            sorted(names - failed - {ALL}),
            {*takeover.targets, *taken, *failed},
        )
        if not targets:
            holds.append(
                Reason(
                    code="NobodyLeft",
                    message=f"{name} has failed, and none of {', '.join(settings.by)} can stand in",
                    object=f"Domain/{name}",
                    fix="Name more domains in automatic-takeover.by, or all.",
                )
            )
            continue
        changes[name] = targets
        reasons.append(
            Reason(
                code="TakenOverAutomatically",
                message=f"{name} is taken over by {', '.join(targets)}: {ripe.evidence}",
                object=f"Domain/{name}",
            )
        )
    for name in sorted({*taken_automatically} & takeover.targets.keys()):
        verdict = _decide_giveback(name, sources, now)
        if isinstance(verdict, Reason):
            holds.append(verdict)
        elif verdict[0] > 0:
            waits.append(verdict[0])
            holds.append(verdict[1])
        else:
            changes[name] = None
            reasons.append(verdict[1])
    return AutomaticDecision(
        changes,
        tuple(reasons),
        tuple(holds),
        {
            name: at
            for name, at in given_back.items()
            if name not in takeover.targets
            and name not in changes
            and (name in failed or None in sources.values())
        },
        min(waits, default=None),
    )


def _find_verdicts(
    known: Mapping[str, SourceStates], name: str
) -> Iterator[tuple[DomainCondition, float]]:
    for source in known.values():
        if name in source.domains:
            yield source.domains[name], source.pause


def _choose_targets(
    settings: AutomaticTakeover,
    takeover: TakeoverMap,
    name: str,
    healthy: list[str],
    unavailable: set[str],
) -> tuple[str, ...]:
    substitutes = settings.by
    if settings.by == (ALL,) and find_takeover_loop({**takeover.targets, name: settings.by}):
        substitutes = tuple(healthy)
    if substitutes == (ALL,):
        return substitutes
    return tuple(domain for domain in substitutes if domain != name and domain not in unavailable)


def _decide_giveback(
    name: str, sources: Mapping[str, SourceStates | None], now: float
) -> Reason | tuple[float, Reason]:
    """Why a domain is not given back, or in how many seconds it is, and the reason for then."""
    object = f"Domain/{name}"
    silent = [source for source, states in sources.items() if states is None]
    if silent:
        return Reason(
            code="SourceSilent",
            message=f"{name} is not given back: {' and '.join(silent)} cannot be asked now",
            object=object,
        )
    verdicts = [
        *_find_verdicts({source: states for source, states in sources.items() if states}, name)
    ]
    latest: tuple[float, DomainCondition, float] | None = None
    for state, pause in verdicts:
        if state.failed or state.since is None:
            return Reason(
                code="StillDown",
                message=f"{name} is not given back: {state.evidence}",
                object=object,
            )
        end = state.since + pause
        if latest is None or end > latest[0]:
            latest = end, state, pause
    if latest is None:
        return Reason(
            code="DomainUnknown",
            message=f"{name} is not given back: {' and '.join(sources) or 'no source'} can tell"
            " nothing of it now",
            object=object,
            fix=f"If it will not come back, leave it so; else zonewise takeover clear {name}.",
        )
    end, state, pause = latest
    remaining = end - now
    if remaining > 0:
        return remaining, Reason(
            code="GivebackPending",
            message=f"{name} is healthy again: {state.evidence}; it is given back once that has"
            f" lasted {pause:g} s",
            object=object,
        )
    evidence = " and ".join(state.evidence for state, _ in verdicts)
    return 0.0, Reason(
        code="GivenBackAutomatically", message=f"{name} is given back: {evidence}", object=object
    )


def _tell_pending(name: str, state: DomainCondition, pause: float) -> Reason:
    return Reason(
        code="TakeoverPending",
        message=f"{name} seems to have failed: {state.evidence}; it is taken over once that has"
        f" lasted {pause:g} s",
        object=f"Domain/{name}",
    )
