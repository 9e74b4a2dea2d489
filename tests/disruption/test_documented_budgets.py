"""What the page on budgets shows and warns of: a manifest to copy, and a limit with its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.disruption.clusters import (
    ZONE,
    allowed,
    code,
    deployment,
    namespace_budgets,
    per_zone,
    pod,
    spread,
    tdb,
    zones,
)

from zonewise.api import TopologyDisruptionBudget, convert
from zonewise.disruption.budget import budget_of

PAGE = Path(__file__).parents[2] / "docs" / "disruption.md"


def documented(name: str) -> TopologyDisruptionBudget:
    """The budget of a name in the examples of the page."""
    blocks = [part.split("```")[0] for part in PAGE.read_text().split("```yaml\n")[1:]]
    bodies = [yaml.safe_load(block) for block in blocks]
    (body,) = [body for body in bodies if body["metadata"]["name"] == name]
    return convert(TopologyDisruptionBudget, body)


def test_the_budget_of_the_page_opens_one_zone() -> None:
    """Pods of an old revision may go in the zone bar only."""
    namespace = namespace_budgets(
        [pod(f"{zone}-0", f"n-{zone}") for zone in ("foo", "bar", "baz")],
        budget_of(documented("only-bar")),
        nodes=zones("foo", "bar", "baz"),
        owners=deployment(3, revisions=2),
    )
    assert allowed(namespace, "only-bar") == {"foo": 0, "bar": None, "baz": 0}
    assert {zone: code(namespace, f"{zone}-0") for zone in ("foo", "bar", "baz")} == {
        "foo": "Blocked",
        "bar": "Uncovered",
        "baz": "Blocked",
    }


@pytest.mark.parametrize(("operator", "zone"), [("In", "a"), ("NotIn", "c")])
def test_without_exists_the_zones_are_one_domain(operator: str, zone: str) -> None:
    """An expression that selects zones, without one that names them as domains, selects nodes."""
    values = ["a", "b"] if operator == "In" else ["a"]
    term = [{"key": ZONE, "operator": operator, "values": values}]
    namespace = namespace_budgets(
        spread(a=3, b=3, c=3), tdb(**per_zone(term=term, maxUnavailable=0))
    )
    assert allowed(namespace) == {"*": 0}
    assert code(namespace, f"{zone}-0") == "Blocked"


def test_exclusive_even_shares_wait_for_pods_that_nobody_creates() -> None:
    """While a zone has fewer pods than its share none may go; with its share, or if the budget is
    not exclusive, others' may.
    """
    spec: dict[str, Any] = {"maxUnavailable": 1, "expectedPods": "ReplicasPerDomain"}
    exclusive = tdb(**per_zone(**spec, crossDomain="Exclusive"))
    waits = namespace_budgets(spread(a=4, b=4, c=1), exclusive, replicas=9)
    assert allowed(waits) == {"a": 0, "b": 0, "c": 0}
    replaced = namespace_budgets(spread(a=3, b=3, c=3), exclusive, replicas=9)
    assert allowed(replaced) == {"a": 1, "b": 1, "c": 1}
    independent = namespace_budgets(spread(a=4, b=4, c=1), tdb(**per_zone(**spec)), replicas=9)
    assert allowed(independent) == {"a": 2, "b": 2, "c": 0}
