"""From any state, if the budgets leave a way, a rollout or scale-down ends, with few attempts."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.embedded.components.disruption.drawn_workloads import (
    ATTEMPTS_PER_MINUTE,
    NODES,
    LivingWorkload,
    choose_seeds,
    draw_kind,
    drawn_workload,
)
from tests.embedded.components.disruption.foo_workloads import budget
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import Obj, whole

from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]


def drawn_limit(rng: random.Random, replicas: int, *, surges: bool) -> Obj:
    """A limit that leaves a way for this many replicas."""
    limits: list[Obj] = [
        {"maxUnavailable": 1},
        {"maxUnavailable": "20%"},
        {"maxUnavailable": replicas},
        {"minAvailable": rng.randrange(replicas)},
        {"minAvailable": "50%"},
    ]
    if surges:
        limits += [{"maxUnavailable": 0}, {"minAvailable": "100%"}, {"minAvailable": replicas + 2}]
    return rng.choice(limits)


@pytest.mark.parametrize("seed", choose_seeds(10))
async def test_a_rollout_ends_whatever_happens(seed: int) -> None:
    """Under one to three budgets, a workload is updated, scaled, updated again and drained at any
    time. It ends with all its pods of the last revision, and no pod is tried often.
    """
    rng = random.Random(seed)
    kind = draw_kind(seed)
    surges = kind in ("Deployment", "DaemonSet") and rng.random() < 0.5
    final = NODES if kind == "DaemonSet" else rng.randint(2, 7)
    first = final if kind == "DaemonSet" else rng.randint(2, 9)
    budgets = [
        budget(f"b{number}", **drawn_limit(rng, final, surges=surges))
        for number in range(rng.randint(1, 3))
    ]
    async with whole([*NodeLayout().nodes(), *budgets]) as cluster:
        workload = LivingWorkload(cluster, kind, drawn_workload(rng, kind, first, surging=surges))
        async with workload.running():
            await workload.until_ready(first)
            for image in ("pause:2", "pause:3", "pause:4"):
                await workload.change(image=image, replicas=final if image == "pause:3" else None)
                await asyncio.sleep(rng.choice([0.2, 2.0, 20.0]))
                pods = workload.pods()
                for pod in rng.sample(pods, min(2, len(pods))):
                    await workload.evict(pod)
            await until(lambda: workload.is_done(final), within=3600)
            most = workload.tries.most_common(3)
            assert max(workload.tries.values(), default=0) <= ATTEMPTS_PER_MINUTE, most
