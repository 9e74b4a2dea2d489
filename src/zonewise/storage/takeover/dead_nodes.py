"""What a takeover takes from the nodes that it declares dead: pods, and staged volumes. Pure.

Pods: a dead node cannot report that its pods have ended, so a StatefulSet waits forever. Pods that
use volumes of the failed domain on nodes that are not Ready are deleted at once, without waiting
for their kubelet, and start again where the volumes can be used. Pods on nodes that are Ready are
left alone, and so is everything when a domain is given back.

Volumes: a single-node-writer volume records its holder, the node that staged it. Another node takes
it only from a dead one. Then the old holder is fenced first, because a node that is unreachable may
still write. When a domain is given back, no node is fenced: the node that stood in is alive, and
unstages the volume when its pod has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from zonewise.api.reason import Reason
from zonewise.storage.domains import Segments
from zonewise.storage.takeover.stand_ins import TakeoverMap, covers, domain_name


@dataclass(frozen=True, slots=True)
class VolumePod:
    """A pod with volumes of the driver, and the node it is on."""

    name: str
    """``namespace/name``."""
    node: str
    node_domain: Segments
    node_ready: bool
    homes: tuple[Segments, ...]
    """The domains of its volumes."""


def find_reason_to_delete(
    pod: VolumePod, takeover: TakeoverMap, ready_domains: Iterable[Segments]
) -> Reason | None:
    """Why a pod is deleted; None if it stays. ``ready_domains`` are those of Ready nodes."""
    if pod.node_ready:
        return None
    for source in sorted(takeover.targets):
        if not covers(source, pod.node_domain):
            continue
        if not any(home and covers(source, home) for home in pod.homes):
            continue
        if not any(takeover.stands_in(domain, source) for domain in ready_domains):
            continue
        return Reason(
            code="TakenOver",
            message=f"pod {pod.name} is deleted from node {pod.node}, which is not Ready:"
            f" {domain_name(pod.node_domain)} is taken over by"
            f" {', '.join(takeover.targets[source])}",
            object=f"Pod/{pod.name}",
        )
    return None


class Fence(Enum):
    """How far a holder on a node that is out of service has been fenced."""

    BEGUN = "begun"
    CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class VolumeHolder:
    """The node that has a volume staged, as that node recorded it; unknown without a name."""

    node: str = ""
    domain: Segments = field(default_factory=dict)
    """The node's domain, in the order of its labels."""
    connected: bool = True
    """Whether it is connected to the volume now, as far as the backend can tell."""
    fence: Fence | None = None
    """How far it has been fenced as a node that is out of service."""

    def to_json(self) -> str:
        """The record that is stored with the volume."""
        record: dict[str, object] = {"node": self.node, "at": dict(self.domain)}
        if self.fence is not None:
            record["fence"] = self.fence.value
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> VolumeHolder:
        """Parse such a record; one that is not valid was written by an unknown holder."""
        try:
            record = json.loads(text)
            domain = {str(name): str(value) for name, value in record["at"].items()}
            fence = Fence(record["fence"]) if "fence" in record else None
            return cls(str(record["node"]), domain, fence=fence)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls()


class FenceStep(Enum):
    """What a node does before it stages a volume."""

    NOTHING = "nothing"
    FENCE = "fence"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class FenceDecision:
    """A step and its reason."""

    step: FenceStep
    reason: Reason


def decide_fencing(
    volume: str,
    holder: VolumeHolder | None,
    node: VolumeHolder,
    home: Mapping[str, str],
    takeover: TakeoverMap,
    *,
    out_of_service: bool = False,
) -> FenceDecision:
    """Decide what a node does about the holder of a volume before it stages the volume.

    ``home`` is the volume's domain; a holder without a domain is assumed to be there. A node that
    is ``out_of_service`` itself gets no volume: it would be fenced again at once.
    """
    if out_of_service:
        return FenceDecision(
            FenceStep.REFUSE,
            Reason(
                code="OutOfService",
                message=f"node {node.node} is out of service, so volume {volume} is not staged"
                " there",
                object=f"Node/{node.node}",
                fix="Remove the taint node.kubernetes.io/out-of-service when the node is well.",
            ),
        )
    if holder is None or (holder.node and holder.node == node.node):
        return FenceDecision(
            FenceStep.NOTHING, Reason(code="NobodyElse", message=f"no other node has {volume}")
        )
    holder_domain = holder.domain or home
    holder_text = f"node {holder.node}" if holder.node else "a client that gave no name"
    if holder_domain:
        holder_text += f" in {domain_name(holder_domain)}"
    if not takeover.is_taken_over(holder_domain):
        if holder.fence is Fence.BEGUN:
            return FenceDecision(
                FenceStep.REFUSE,
                Reason(
                    code="FenceUnconfirmed",
                    message=f"{holder_text} has volume {volume} and is out of service; that it is"
                    " fenced is not confirmed yet",
                    object=f"Node/{holder.node}",
                    fix="Wait; zonewise takeover status says why it takes long.",
                ),
            )
        if not holder.connected:
            return FenceDecision(
                FenceStep.NOTHING,
                Reason(
                    code="HolderGone",
                    message=f"{holder_text} had volume {volume} and is not connected any more",
                ),
            )
        return FenceDecision(
            FenceStep.REFUSE,
            Reason(
                code="VolumeInUse",
                message=f"volume {volume} is in use on {holder_text}, which no takeover declares"
                " dead",
                object=f"Node/{holder.node}" if holder.node else "",
                fix="Wait until its pod has ended there; if the domain is lost, take it over.",
            ),
        )
    if takeover.is_taken_over(node.domain):
        return FenceDecision(
            FenceStep.REFUSE,
            Reason(
                code="FencedSelf",
                message=f"volume {volume} is in use on {holder_text}, and node {node.node} is in"
                f" {domain_name(node.domain)}, which is taken over itself",
                object=f"Node/{node.node}",
                fix="Give the domain back once it is healthy.",
            ),
        )
    return FenceDecision(
        FenceStep.FENCE,
        Reason(
            code="HolderFenced",
            message=f"volume {volume} is taken from {holder_text}, which was taken over",
            object=f"Node/{holder.node}" if holder.node else "",
        ),
    )
