"""Our side: the controller's own pure functions over a script of events, nothing sent anywhere.

Timed is what is timed of the other side: deciding, comparing and encoding. The store in between
decodes what was encoded, as a watch would bring it, and is not timed on either side.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.slices.life import Obj, Step
from zonewise.api import EndpointSlice, Node, Pod, Service
from zonewise.api.codec import convert, decode, encode
from zonewise.api.gates import FeatureGates
from zonewise.controllers.hints.decided import DecidedService, find_concerned
from zonewise.controllers.hints.node_shares import NodeShares
from zonewise.traffic.modes import hint_request_of
from zonewise.traffic.slices.planning import PlanCache, SlicePlan, SliceSnapshot, plan_slices


@dataclass(frozen=True, slots=True)
class Turn:
    """What one step cost."""

    writes: int = 0
    nanoseconds: int = 0
    synced: bool = False


class Keeper:
    """A Service, its slices, and what the controller remembers of it."""

    def __init__(self, service: Obj, *, limit: int) -> None:
        self._service = convert(Service, service)
        self._hint_request = hint_request_of(self._service, FeatureGates())
        self._limit = limit
        self._nodes: dict[str, Node] = {}
        self._places = NodeShares(self._all_nodes)
        self._pods: dict[str, Pod] = {}
        self._slices: dict[str, EndpointSlice] = {}
        self._memory = PlanCache()
        self._standings: dict[tuple[str, str], DecidedService] = {}
        self._created = 0

    def _all_nodes(self) -> Iterable[Node]:
        return self._nodes.values()

    def run(self, steps: Iterable[Step]) -> list[Turn]:
        """Live through the steps."""
        return [self._step(step) for step in steps]

    def _step(self, step: Step) -> Turn:
        wake = bool(step.put or step.drop)
        if step.nodes is not None:
            self._renew(step.nodes)
            self._places.recompute()
            wake = wake or bool(list(find_concerned(self._standings, self._places.within)))
        for manifest in step.put:
            created = convert(Pod, manifest)
            self._pods[created.metadata.name] = created
        for name in step.drop:
            del self._pods[name]
        return self._turn() if wake else Turn()

    def _renew(self, nodes: list[Obj]) -> None:
        known, self._nodes = self._nodes, {}
        for manifest in nodes:
            created = convert(Node, manifest)
            self._nodes[created.metadata.name] = created
            self._places.note(known.get(created.metadata.name), created)
        for name, gone in known.items():
            if name not in self._nodes:
                self._places.note(gone, None)

    def _turn(self) -> Turn:
        pods, slices = list(self._pods.values()), list(self._slices.values())
        shares = self._places.within(None)
        begun = time.process_time_ns()
        plan = plan_slices(
            SliceSnapshot(
                service=self._service,
                hint_request=self._hint_request,
                shares=shares,
                pods=pods,
                zones=self._places.zones,
                slices=slices,
                limit=self._limit,
            ),
            self._memory,
        )
        bodies = [encode(piece) for piece in (*plan.create, *plan.update)]
        spent = time.process_time_ns() - begun
        self._standings["default", "web"] = DecidedService.of(
            self._service, self._hint_request, plan, shares, None
        )
        self._keep(plan, bodies)
        return Turn(plan.writes, spent, synced=True)

    def _keep(self, plan: SlicePlan, bodies: list[bytes]) -> None:
        for body in bodies:
            piece = decode(EndpointSlice, body)
            self._created += 1
            name = piece.metadata.name or f"{piece.metadata.generate_name}{self._created:05}"
            metadata = replace(
                piece.metadata, name=name, uid=name, resource_version=str(self._created)
            )
            self._slices[name] = replace(piece, metadata=metadata)
        for piece in plan.delete:
            del self._slices[piece.metadata.name]
