"""Whether a node may stage a volume that another node has staged. Pure.

A single-node-writer volume records its holder. Another node takes it only from a dead one, and a
node is dead if its domain was taken over: that is what a takeover declares. Then the old holder is
fenced first, because a node that is unreachable may still write. No node is fenced on the way home:
the node that stood in is alive, and unstages the volume when its pod has ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from zonewise.api.reason import Reason
from zonewise.storage.domains import Segments
from zonewise.storage.takeover.standing_in import TakeoverMap, domain_name


@dataclass(frozen=True, slots=True)
class VolumeHolder:
    """The node that has a volume staged, as that node recorded it; unknown without a name."""

    node: str = ""
    at: Segments = field(default_factory=dict)
    """The node's domain, in the order of its labels."""
    live: bool = True
    """Whether it is connected to the volume now, as far as can be seen."""

    def text(self) -> str:
        """As it is kept with the volume."""
        return json.dumps({"node": self.node, "at": dict(self.at)}, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> VolumeHolder:
        """What was kept; what cannot be read was written by an unknown holder."""
        try:
            found = json.loads(text)
            at = {str(name): str(value) for name, value in found["at"].items()}
            return cls(str(found["node"]), at)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()


class FenceStep(Enum):
    """What comes before staging."""

    NOTHING = "nothing"
    FENCE = "fence"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class FenceDecision:
    """The step, and why."""

    step: FenceStep
    reason: Reason


def before_staging(
    volume: str,
    holder: VolumeHolder | None,
    node: VolumeHolder,
    home: Mapping[str, str],
    takeover: TakeoverMap,
) -> FenceDecision:
    """What a node has to do about the holder of a volume before it stages it.

    ``home`` is the volume's domain; a holder without a domain is assumed to be there.
    """
    if holder is None or (holder.node and holder.node == node.node):
        return FenceDecision(
            FenceStep.NOTHING, Reason(code="NobodyElse", message=f"no other node has {volume}")
        )
    who = f"node {holder.node}" if holder.node else "a client that gave no name"
    place = holder.at or home
    where = f" in {domain_name(place)}" if place else ""
    if not takeover.taken(place):
        if not holder.live:
            return FenceDecision(
                FenceStep.NOTHING,
                Reason(
                    code="HolderGone",
                    message=f"{who}{where} had volume {volume} and is not connected any more",
                ),
            )
        return FenceDecision(
            FenceStep.REFUSE,
            Reason(
                code="VolumeInUse",
                message=f"volume {volume} is in use on {who}{where}, which no takeover declares"
                " dead",
                object=f"Node/{holder.node}" if holder.node else "",
                fix="Wait until its pod has ended there; if the domain is lost, take it over.",
            ),
        )
    if takeover.taken(node.at):
        return FenceDecision(
            FenceStep.REFUSE,
            Reason(
                code="FencedSelf",
                message=f"volume {volume} is in use on {who}{where}, and node {node.node} is in"
                f" {domain_name(node.at)}, which is taken over itself",
                object=f"Node/{node.node}",
                fix="Give the domain back once it is healthy.",
            ),
        )
    return FenceDecision(
        FenceStep.FENCE,
        Reason(
            code="HolderFenced",
            message=f"volume {volume} is taken from {who}{where}, which was taken over",
            object=f"Node/{holder.node}" if holder.node else "",
        ),
    )
