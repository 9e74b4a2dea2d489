"""Side by side with the module k8s.io/endpointslice, in one run, on the same events.

Neither side talks to an API server. Both decide, compare and encode: we to JSON as we send it,
upstream to protobuf as its controller sends it. Times are processor time, upstream's with one
processor, so that its garbage collector is not hidden on another; the lower quartile of many turns.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.realkube.binaries import Module, Suite, build

from benchmarks.sheet import Line, Sheet
from benchmarks.slices import life
from benchmarks.slices.ours import Keeper, Turn
from zonewise.api import Node
from zonewise.api.codec import convert
from zonewise.api.reason import Reason
from zonewise.controllers.hints.decided import DecidedService, find_concerned
from zonewise.controllers.hints.node_shares import NodeShares
from zonewise.traffic.hints import HINTED, HintDecision
from zonewise.traffic.limits import HintCounts
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.planning import FamilyPlan

HERE = Path(__file__).with_name("upstream")
SOURCE = hashlib.sha256((HERE / "main.go").read_bytes()).hexdigest()
UPSTREAM = Suite(
    "endpointslice", "v0.36.4", (Module(HERE, {"upstream": "."}, {"main.source": SOURCE}),)
)
LIMIT = 100
RACED, COUNTED = (100, 1_000), (10, 5_000)
CHANGES = 60
LIVES = 12
EVENTS = 120
NODES = 5_000
SERVICES = 10_000
ROUNDS = 15


def upstream(document: object, *arguments: str) -> Any:
    """What Kubernetes' reconciler makes of a script."""
    done = subprocess.run(
        [build(UPSTREAM).path("upstream"), *arguments],
        input=json.dumps(document).encode(),
        stdout=subprocess.PIPE,
        env=os.environ | {"GOMAXPROCS": "1"},
        check=True,
    )
    return json.loads(done.stdout)


def both(service: life.Obj, steps: Sequence[life.Step]) -> tuple[list[Turn], list[Turn]]:
    """The turns of our controller and of Kubernetes' reconciler, on one script."""
    ours = Keeper(service, limit=LIMIT).run(steps)
    script = {"limit": LIMIT, "service": service, "steps": [asdict(step) for step in steps]}
    theirs = [
        Turn(row["create"] + row["update"] + row["delete"], row["nanoseconds"], row["synced"])
        for row in upstream(script)
    ]
    return ours, theirs


def writes() -> Iterator[Sheet]:
    """How many slices are written per event, over whole lives."""
    of_pods: list[Line] = []
    of_nodes: list[Line] = []
    for auto, size in ((False, 30), (False, 250), (True, 30), (True, 250)):
        counts = {lines: [0, 0, 0] for lines in ("pods", "nodes")}
        for seed in range(LIVES):
            steps = list(life.Life(seed, pods=size).steps(EVENTS))
            for step, mine, real in zip(steps, *both(life.service(auto=auto), steps), strict=True):
                count = counts["pods" if step.put or step.drop else "nodes"]
                for column, amount in enumerate((1, mine.writes, real.writes)):
                    count[column] += amount
        name = f"about {size} pods, {'Auto' if auto else 'no hints'}"
        for lines, (events, ours, theirs) in zip((of_pods, of_nodes), counts.values(), strict=True):
            part = 100 / events
            lines.append(Line(name=name, unit="per 100", ours=ours * part, real=theirs * part))
    yield Sheet(
        title=f"Slices written per 100 events of pods: {LIVES} lives of {EVENTS} events",
        lines=tuple(of_pods),
        note="Rollouts, scaling, flips of readiness, nodes that are lost with their pods.",
    )
    yield Sheet(
        title="Slices written per 100 nodes that come, with no event of pods",
        lines=tuple(of_nodes[2:]),
        goal=0.0,
        note="Told, not raced: upstream leaves zones above its limit where pods do not change.",
    )


def turns() -> Iterator[Sheet]:
    """The processor time of one turn in which one pod changed."""
    title = "One pod of a hinted Service changes: decide, compare, encode"
    yield Sheet(title=title, lines=tuple(_turn(size) for size in RACED))
    yield Sheet(
        title=f"{title} (told, not raced)",
        lines=tuple(_turn(size) for size in COUNTED),
        goal=0.0,
    )


def _turn(size: int) -> Line:
    steps = list(life.one_pod(size, pods=size, changes=CHANGES))
    mine, real = both(life.service(auto=True), steps)
    return Line(name=f"{size:,} endpoints", unit="µs", ours=_usual(mine[1:]), real=_usual(real[1:]))


def nodes() -> Iterator[Sheet]:
    """What one node event costs: the shares of 5,000 nodes, and 10,000 Services judged."""
    per_zone = dict.fromkeys(life.ZONES, 10)
    manifests = [life.node(f"n{n}", life.ZONES[n % len(life.ZONES)]) for n in range(NODES)]
    question = {"nodes": manifests, "services": SERVICES, "per_zone": per_zone, "rounds": ROUNDS}
    real = upstream(question, "nodes")
    known = [convert(Node, manifest) for manifest in manifests]
    places = NodeShares(lambda: known)
    for known_node in known:
        places.note(None, known_node)
    reason = Reason(code=HINTED, message="measured")
    counts = HintCounts.of((zone, (zone,)) for zone, n in per_zone.items() for _ in range(n))
    family = FamilyPlan(HintDecision(Mode.AUTO, True, reason), counts, 50, 1, 1)
    standing = DecidedService("", HintRequest(Mode.AUTO), {"IPv4": family}, None, "", "")
    decided_services = {("default", f"web-{n}"): standing for n in range(SERVICES)}
    places.recompute()
    changed = [convert(Node, life.node("n0", "a", milli)) for milli in (5000, 4000)]

    def one_node() -> None:
        changed.reverse()
        places.note(changed[0], changed[1])
        places.recompute()

    yield Sheet(
        title=f"One node event: {NODES:,} nodes, {SERVICES:,} hinted Services",
        lines=(
            Line(name="shares", unit="µs", ours=_best(one_node), real=real["set"] / 1e3),
            Line(
                name="Services judged",
                unit="µs",
                ours=_best(lambda: list(find_concerned(decided_services, places.within))),
                real=real["judge"] / 1e3,
            ),
        ),
        goal=0.0,
        note="Upstream looks only for hinted Services above its limit, ours also for those that"
        " could get hints. Not raced: the budget for judging is 100,000 µs.",
    )


def _usual(turns: Sequence[Turn]) -> float:
    """The lower quartile: what a turn costs while nobody else wants the processor."""
    times = [turn.nanoseconds for turn in turns if turn.synced]
    return statistics.quantiles(times, n=4)[0] / 1e3


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - begun)
    return min(times) / 1e3
