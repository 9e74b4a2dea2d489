"""KEP-8's stories for every kind of workload: what is done to it, and what has to hold.

A story is a budget and a disruption. Kinds differ in who disrupts: where a controller has rolling
updates, the template is changed and the controller replaces the pods; otherwise the test evicts
them, as a drain or the owner of a custom kind would. Both clusters follow this table, and
``docs/disruption.md`` has it as ``in_markdown`` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "Deployment",
    "StatefulSet OrderedReady",
    "StatefulSet Parallel",
    "DaemonSet",
    "ReplicationController",
    "Job",
    "custom kind",
]
Story: TypeAlias = Literal["1", "2", "3", "4", "DomainRollout"]
Deed: TypeAlias = Literal["update", "evict", "operate", "scale", "shrink", "none"]

DEEDS: dict[Deed, str] = {
    "update": "updated",
    "evict": "evicted",
    "operate": "evicted by its owner",
    "scale": "scaled down",
    "shrink": "fewer nodes",
    "none": "-",
}
"""What is done in a story, as the docs say it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is done to a workload, and ``why`` it is that, or nothing."""

    deed: Deed
    why: str = ""
    limited: bool = True
    """Whether the budget limits it."""


STORIES: dict[Story, str] = {
    "1": "one zone at a time",
    "2": "one pod of each zone",
    "3": "one pod of all",
    "4": "scale-down, one pod of each zone stays",
    "DomainRollout": "in the order given",
}

ROLLING = Cell("update")
EVICTED = Cell("evict", "it has no rolling update")
FIXED = Cell("evict", "its template cannot be changed")
OPERATED = Cell("operate", "its own controller replaces pods")
NOT_ROLLED = Cell("none", "a rollout is for Deployments, StatefulSets and DaemonSets")
SCALED = Cell("scale")


def _row(replacing: Cell, scaling: Cell, rollout: Cell) -> dict[Story, Cell]:
    return {"1": replacing, "2": replacing, "3": replacing, "4": scaling, "DomainRollout": rollout}


TABLE: dict[Kind, dict[Story, Cell]] = {
    "Deployment": _row(ROLLING, SCALED, ROLLING),
    "StatefulSet OrderedReady": _row(ROLLING, SCALED, ROLLING),
    "StatefulSet Parallel": _row(ROLLING, SCALED, ROLLING),
    "DaemonSet": _row(ROLLING, Cell("shrink", "it has a pod on every eligible node"), ROLLING),
    "ReplicationController": _row(EVICTED, SCALED, NOT_ROLLED),
    "Job": _row(
        FIXED,
        Cell("scale", "its controller is not asked to wait for budgets", limited=False),
        NOT_ROLLED,
    ),
    "custom kind": _row(OPERATED, OPERATED, NOT_ROLLED),
}


def cases(story: Story) -> list[tuple[Kind, Cell]]:
    """The kinds for which a story is played."""
    return [(kind, row[story]) for kind, row in TABLE.items() if row[story].deed != "none"]


def in_markdown() -> str:
    """The table as the docs have it."""
    lines = [
        "| | " + " | ".join(f"{_title(story)}: {what}" for story, what in STORIES.items()) + " |",
        "|---" * (len(STORIES) + 1) + "|",
    ]
    for kind, row in TABLE.items():
        cells = (
            DEEDS[cell.deed] + ("" if cell.limited else ", not limited") for cell in row.values()
        )
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _title(story: Story) -> str:
    return story if story == "DomainRollout" else f"story {story}"
