"""From any state, if the budgets leave a way, a rollout or scale-down ends, with few attempts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from tests.embedded.components.disruption.budget_stories import evict
from tests.embedded.components.disruption.foo_workloads import (
    budget,
    image_counts,
    patch,
    pods,
    workload,
)
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import Obj, settled, whole

from zonewise.api.objects.pod import Pod
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]

KINDS = ("Deployment", "StatefulSet", "DaemonSet")
ATTEMPTS_PER_MINUTE = 3
"""The most evictions of a pod that its controller may try in a minute, granted or not."""


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


def drawn_workload(rng: random.Random, kind: str, replicas: int, *, surges: bool) -> Obj:
    """A workload of a kind with any strategy that makes progress."""
    most = rng.choice([1, 3, "50%"])
    if kind == "Deployment":
        rolling = {"maxSurge": rng.choice([1, "50%"]), "maxUnavailable": most if not surges else 0}
        return workload(kind, replicas, strategy={"rollingUpdate": rolling})
    if kind == "DaemonSet":
        return workload(kind, replicas, updateStrategy={"rollingUpdate": {"maxUnavailable": most}})
    policy = rng.choice(["OrderedReady", "Parallel"])
    return workload(kind, replicas, podManagementPolicy=policy)


@pytest.mark.parametrize("seed", range(9))
async def test_a_rollout_ends_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under one to three budgets, a workload is updated, scaled, updated again and drained at any
    time. It ends with all its pods of the last revision, and no pod is tried often.
    """
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    surges = kind == "Deployment" and rng.random() < 0.5
    final = 9 if kind == "DaemonSet" else rng.randint(2, 7)
    first = final if kind == "DaemonSet" else rng.randint(2, 9)
    budgets = [
        budget(f"b{number}", **drawn_limit(rng, final, surges=surges))
        for number in range(rng.randint(1, 3))
    ]
    objects = [*NodeLayout().nodes(), drawn_workload(rng, kind, first, surges=surges), *budgets]
    async with whole(objects) as cluster:
        await settled(cluster)
        tries: Counter[tuple[str, int]] = Counter()
        gate = cluster.server.evictions.gate
        assert gate is not None
        ask = gate.ask
        clock = asyncio.get_running_loop().time
        drained: set[str] = set()

        async def noticed(pod: Pod, **more: Any) -> Any:
            if pod.metadata.name not in drained:
                tries[pod.metadata.uid, int(clock() // 60)] += 1
            return await ask(pod, **more)

        monkeypatch.setattr(gate, "ask", noticed)
        for image in ("c:2", "c:3", "c:4"):
            container = {"name": "c", "image": image}
            changed: Obj = {"template": {"spec": {"containers": [container]}}}
            if kind != "DaemonSet" and image == "c:3":
                changed["replicas"] = final
            await patch(cluster, kind, changed)
            await asyncio.sleep(rng.choice([0.2, 2.0, 20.0]))
            names = [pod.metadata.name for pod in rng.sample(pods(cluster), 2)]
            drained.update(names)
            for name in names:
                if any(pod.metadata.name == name for pod in pods(cluster)):
                    await evict(cluster, name)
        await until(lambda: image_counts(cluster) == {"c:4": final}, within=1800)
        assert len(pods(cluster)) == final
        assert max(tries.values(), default=0) <= ATTEMPTS_PER_MINUTE
