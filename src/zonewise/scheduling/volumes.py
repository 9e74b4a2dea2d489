"""What the volumes of a pod ask of its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zonewise.api.nodeselector import NodeTerms
from zonewise.scheduling.decision import Refusal


@dataclass(frozen=True, slots=True)
class Volumes:
    """Conditions on the node, in the order they are asked, each with what is said if it fails."""

    conditions: tuple[tuple[Refusal, NodeTerms], ...] = ()

    def refused_by(self, labels: Mapping[str, str], name: str) -> Refusal | None:
        """Why a node of this name with these labels cannot have the volumes."""
        for refusal, terms in self.conditions:
            if not terms.matches(labels, name):
                return refusal
        return None


NO_VOLUMES = Volumes()
