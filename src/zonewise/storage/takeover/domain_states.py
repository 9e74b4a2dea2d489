"""What a source says about domains: since when one has failed, or is healthy. Pure.

Two sources can be asked. The *storage* (Ceph) answers what has failed now, so the times are counted
by whoever asks. *Nodes* have their times on them, the last transition of the condition Ready, so a
restart of the asking process changes little:

* a domain has failed while all of its nodes are not Ready, and is healthy while at least half of
  them are. In between nothing is certain, and nothing changes;
* time counts since the last of its nodes became not Ready, without those that have not been Ready
  since they were made: an autoscaler that replaces lost nodes by nodes that never start would
  otherwise restart it with each of them;
* where less than half of the nodes of all *other* domains are Ready, it is more likely that nobody
  can see the nodes than that they are gone. Then no domain counts as failed, and time counts only
  since that many others were Ready: when a broken view is repaired, domains come back one by one;
* those times are of other clocks than ours, and one that is wrong or jumps would end every pause at
  once. So whoever asks must also have seen it for a minute, by a clock that nobody sets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from zonewise.api.reason import Reason
from zonewise.api.values.times import format_time, from_epoch
from zonewise.storage.domains import Segments
from zonewise.storage.takeover.stand_ins import domain_name

SEEN_SECONDS = 60.0
"""How long a domain must have been seen failed, or healthy, whatever the times of nodes say."""
BEGINNING_SECONDS = 120.0
"""A node that is not Ready since so soon after it was made counts as one that never was."""


@dataclass(frozen=True, slots=True)
class DomainTimes:
    """Since when domains are down or up, in seconds of any monotonic clock."""

    down_since: Mapping[str, float] = field(default_factory=dict)
    up_since: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DomainCondition:
    """What one source says about one domain; the times are in seconds of any clock."""

    evidence: str
    """What was seen; a sentence without its end, which stays the same while nothing changes."""
    failed: bool = False
    since: float | None = None
    """Since when it has failed, or has been healthy; None if neither can be said."""
    doubt: Reason | None = None
    """Why it is not taken over although it seems to have failed."""
    segments: Segments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceStates:
    """The domains that a source knows, and how long one must have failed, or been healthy."""

    pause: float
    domains: Mapping[str, DomainCondition]


@dataclass(frozen=True, slots=True)
class NodeState:
    """Whether a node is Ready, and since when, in seconds since the epoch."""

    domain: Segments
    """In the order of the labels, with a value for each."""
    ready: bool
    since: float
    created: float = float("-inf")


def count_times(
    failed: Collection[str], domains: Collection[str], previous: DomainTimes, now: float
) -> DomainTimes:
    """Since when domains are down or up, by the answers until now."""
    return DomainTimes(
        {name: previous.down_since.get(name, now) for name in sorted(failed)},
        {name: previous.up_since.get(name, now) for name in sorted(domains) if name not in failed},
    )


def judge_storage(times: DomainTimes, pause: float) -> SourceStates:
    """What the storage says: half of all domains cannot fail, we are cut off rather."""
    down, total = len(times.down_since), len(times.down_since) + len(times.up_since)
    states = {
        name: DomainCondition(
            "its storage is down",
            failed=True,
            since=since,
            doubt=_doubt_storage(name, down, total) if down * 2 >= total else None,
        )
        for name, since in times.down_since.items()
    }
    for name, since in times.up_since.items():
        states[name] = DomainCondition("its storage is up", since=since)
    return SourceStates(pause, states)


def _doubt_storage(name: str, down: int, total: int) -> Reason:
    return Reason(
        code="TooManyDown",
        message=f"{name} has failed and is not taken over: {down} of {total} domains seem to have"
        " failed",
        object=f"Domain/{name}",
        fix="If they really have, take them over by hand: zonewise takeover set.",
    )


def judge_nodes(nodes: Iterable[NodeState], pause: float, *, ahead: float = 0.0) -> SourceStates:
    """What the conditions of nodes say; times are moved by ``ahead`` to the clock of a caller."""
    nodes_by_domain: dict[str, list[NodeState]] = defaultdict(list)
    for node in nodes:
        nodes_by_domain[domain_name(node.domain)].append(node)
    names = _shorten({name: members[0].domain for name, members in nodes_by_domain.items()})
    total = sum(map(len, nodes_by_domain.values()))
    ready_times = sorted(
        (node.since, full)
        for full, members in nodes_by_domain.items()
        for node in members
        if node.ready
    )
    states: dict[str, DomainCondition] = {}
    for full, members in sorted(nodes_by_domain.items()):
        ready = sorted(node.since for node in members if node.ready)
        name, half = names[full], (len(members) + 1) // 2
        segments = members[0].domain
        if len(ready) >= half:
            states[name] = DomainCondition(
                f"{len(ready)} of {len(members)} nodes are Ready",
                since=ready[half - 1] + ahead,
                segments=segments,
            )
            continue
        if ready:
            states[name] = DomainCondition(
                f"only {len(ready)} of {len(members)} nodes are Ready, less than half",
                segments=segments,
            )
            continue
        lost = [node.since for node in members if node.since - node.created >= BEGINNING_SECONDS]
        down_since = max(lost) if lost else min(node.since for node in members)
        evidence = (
            f"none of {len(members)} nodes is Ready since {format_time(from_epoch(down_since))}"
        )
        others = [since for since, domain in ready_times if domain != full]
        needed = (total - len(members) + 1) // 2
        if not needed or len(others) < needed:
            doubt = _doubt_nodes(name, evidence, len(others), total - len(members))
            states[name] = DomainCondition(evidence, failed=True, doubt=doubt, segments=segments)
            continue
        begun = max(down_since, others[needed - 1]) + ahead
        states[name] = DomainCondition(evidence, failed=True, since=begun, segments=segments)
    return SourceStates(pause, states)


def count_seen(states: SourceStates, previous: DomainTimes, now: float) -> DomainTimes:
    """Since when domains are seen failed or healthy; what is uncertain is neither."""
    certain = {name: state for name, state in states.domains.items() if state.since is not None}
    failed = {name for name, state in certain.items() if state.failed}
    return count_times(failed, certain.keys(), previous, now)


def require_seen(states: SourceStates, seen: DomainTimes) -> SourceStates:
    """The same, but no pause ends before the domain was seen so for a minute, or the pause."""
    waits = max(states.pause - SEEN_SECONDS, 0.0)
    domains = {}
    for name, state in states.domains.items():
        seen_since = (seen.down_since if state.failed else seen.up_since).get(name)
        domains[name] = (
            replace(state, since=max(state.since, seen_since - waits))
            if state.since is not None and seen_since is not None
            else state
        )
    return replace(states, domains=domains)


def _doubt_nodes(name: str, evidence: str, ready: int, others: int) -> Reason:
    why = (
        f"only {ready} of {others} nodes of other domains are Ready, so it is more likely that"
        " nodes cannot be seen"
        if others
        else "no other domain has a node"
    )
    return Reason(
        code="TooFewNodesReady",
        message=f"{name} is not taken over: {evidence}, but {why}",
        object=f"Domain/{name}",
        numbers={"ready": ready, "nodes": others},
        fix=f"If {name} has really failed, take it over by hand: zonewise takeover set {name}.",
    )


def _shorten(domains: Mapping[str, Segments]) -> dict[str, str]:
    """The short name of each domain, where no other domain of any size has the same."""
    named = {
        tuple(values[:count])
        for values in (list(segments.values()) for segments in domains.values())
        for count in range(1, len(values) + 1)
    }
    counts = Counter(path[-1] for path in named)
    lasts = {full: [*segments.values()][-1] for full, segments in domains.items()}
    return {full: last if counts[last] == 1 else full for full, last in lasts.items()}
