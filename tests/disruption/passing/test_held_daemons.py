"""Which pods of a DaemonSet are evicted while a budget holds others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.disruption.clusters import EXISTS, NOW, NS, namespace_budgets, node, pod, tdb

from zonewise.api import DaemonSet, Pod, convert
from zonewise.disruption.owners import owner_of
from zonewise.disruption.passing.held_daemons import choose_daemons

ZONES = "abcabc"
"""The zones of the pods 0 to 5."""


def daemon(number: int, generation: str = "1", **fields: Any) -> Pod:
    """A pod of the DaemonSet, in its zone."""
    labels = {"pod-template-generation": generation}
    return pod(f"ds-{number}", f"n-{number}", owner="ds", kind="DaemonSet", labels=labels, **fields)


def choose(
    *changed: Pod,
    open_zones: str = "a",
    limit: int | str | None = None,
    evicted: tuple[str, ...] = (),
    rule: dict[str, Any] | None = None,
    **spec: Any,
) -> list[str]:
    """The choice among six pods, some of them changed, if only these zones are open."""
    by_name = {item.metadata.name: item for item in (*map(daemon, range(6)), *changed)}
    rolling = {"rollingUpdate": {"maxUnavailable": limit}}
    meta = {
        "name": "ds",
        "namespace": NS,
        "uid": "uid-ds",
        "generation": 1,
        "annotations": {"deprecated.daemonset.template.generation": "2"},
    }
    status = {"observedGeneration": 1, "desiredNumberScheduled": 6}
    body = {"metadata": meta, "spec": {"updateStrategy": rolling, **spec}, "status": status}
    item = convert(DaemonSet, body)
    closed = {**EXISTS, "operator": "NotIn", "values": list(open_zones)}
    term = {"matchExpressions": [EXISTS, closed]}
    budget = tdb(nodeSelectorTerm=term, **(rule or {"maxUnavailable": 0}))
    pods = list(by_name.values())
    nodes = {f"n-{number}": node(f"n-{number}", zone) for number, zone in enumerate(ZONES)}
    budgets = namespace_budgets(pods, budget, nodes=nodes, owners=[owner_of(item)])
    choice = choose_daemons(item, pods, budgets, NOW, evicted=evicted)
    return [pod.metadata.name for pod in choice.pods]


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [(None, ["ds-0"]), (1, ["ds-0"]), (2, ["ds-0", "ds-3"]), ("100%", ["ds-0", "ds-3"])],
)
def test_pods_of_the_open_zone_go_before_held_ones(
    limit: int | str | None, chosen: list[str]
) -> None:
    """As many as the DaemonSet's own maxUnavailable allows, and none of a closed zone."""
    assert choose(limit=limit) == chosen


def test_what_is_missing_counts() -> None:
    """A pod that is not Ready, is leaving or was evicted leaves that much less room."""
    assert choose(daemon(1, ready=False)) == []
    assert choose(daemon(1, ready=False), limit=2) == ["ds-0"]
    assert choose(daemon(3, leaving=True), limit=2) == ["ds-0"]
    assert choose(evicted=("uid-ds-0",)) == []
    assert choose(evicted=("uid-ds-0",), limit=2) == ["ds-3"]


def test_the_controller_does_alone_what_it_can() -> None:
    """Nothing is chosen where nothing is held: no outdated pod, or none that may not go."""
    assert choose(*(daemon(number, "2") for number in range(6))) == []
    assert choose(open_zones="abc") == []
    updated = [daemon(number, "2") for number in (1, 2, 4, 5)]
    assert choose(*updated) == []
    assert choose(daemon(0, "2"), daemon(3, "2")) == []


@pytest.mark.parametrize(
    "strategy",
    [
        {"type": "OnDelete"},
        {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    ],
)
def test_other_strategies_are_left_alone(strategy: dict[str, Any]) -> None:
    """Under OnDelete nobody replaces pods, and with a surge new ones come first."""
    assert choose(updateStrategy=strategy) == []
