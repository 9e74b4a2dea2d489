"""The arithmetic of budgets against an independent model: many states, every number."""

from __future__ import annotations

import random

import pytest
from tests.disruption.clusters import NOW
from tests.disruption.drawn_cases import CASES, build, drawn
from tests.disruption.model import goes, numbers


@pytest.mark.parametrize("seed", range(CASES))
def test_every_number_is_the_models(seed: int) -> None:
    """Present, expected, desired, healthy, allowed and every pod's verdict agree with the model,
    whatever the order of the objects.
    """
    case = drawn(seed)
    expected = numbers(case)
    for order in (1, 2):
        town, pairs = build(case, random.Random(order * 1000 + seed))
        (key,) = town.budgets
        standing = town.state(key, NOW)
        computed = {
            name: {
                "present": domain.present,
                "expected": domain.expected,
                "desired": domain.desired,
                "healthy": standing.healthy(name),
                "allowed": standing.allowed(name),
            }
            for name, domain in standing.domains.items()
        }
        assert computed == expected
        for some, item in pairs:
            for evicting in (True, False):
                verdict = town.judge(item, NOW, evicting=evicting)
                assert verdict.reason.code == goes(case, some, evicting=evicting)
                assert verdict.charged == (verdict.reason.code == "Allowed")
                assert verdict.allowed == (verdict.reason.code != "Blocked")
