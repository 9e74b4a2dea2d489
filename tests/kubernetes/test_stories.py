"""KEP-8's stories for every kind of workload, on real Kubernetes with its own controllers.

The table is that of ``embedded/components/disruption/test_stories.py``. All kinds of a story are
played at the same time, in a namespace each; Zonewise has the rights that ``zonewise install
--budgets enforce`` prints, and for the custom kind those that the docs name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple, get_args

import pytest
from tests.disruption.story_plays import define, play
from tests.disruption.story_stage import TOPOLOGY, Stage
from tests.disruption.story_table import Cell, Kind, Story, cases
from tests.disruption.story_workloads import OWNER, REPLICAS
from tests.kubernetes.budget_scene import AUDIT, ZONES, BudgetScene, scene

from tools import realkube as real
from zonewise.api import Namespace, Pod
from zonewise.api.meta import ObjectMeta
from zonewise.install.installation import NAME, WEBHOOK

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.asyncio]

ATTEMPTS = {
    "Deployment": 1,
    "StatefulSet OrderedReady": 12,
    "StatefulSet Parallel": 12,
    "DaemonSet": 40,
    "ReplicationController": 6,
}
"""The most deletions for each pod that are refused to a kind's own controller.

A Deployment's is steered. The others try again at each change of a pod, about five for each one
that is replaced: that of StatefulSets its highest ordinal, that of DaemonSets as many as its
strategy allows, here four.
"""

REFUSALS_PER_MINUTE = 100
"""The most refusals of a pod in a minute: each change of another pod lets its controller try again,
and a story has about thirty.
"""


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A whole control plane with an audit log, where StatefulSets have ``maxUnavailable``; its long
    grace period keeps nodes Ready on a busy machine.
    """
    gates = "--feature-gates=MaxUnavailableStatefulSet=true"
    settings = real.Settings(
        fsync=False,
        audit=AUDIT,
        apiserver_args=(gates,),
        controller_manager_args=(gates, "--node-monitor-grace-period=10m"),
    )
    with real.start(settings, binaries=real_binaries) as running:
        yield running


@pytest.mark.parametrize("story", get_args(Story))
async def test_a_story_of_all_kinds(
    plane: real.ControlPlane,
    story: Story,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    """Every workload is disrupted as its budget allows, after every change of a pod, until all is
    done; few requests are refused.
    """
    async with scene(plane, f"story-{story.lower()}") as here:
        await define(here.client)
        _allow_custom_owners(here)
        played = await asyncio.gather(
            *(_play(here, story, kind, cell) for kind, cell in cases(story)),
            return_exceptions=True,
        )
        faults = [fault for fault in played if isinstance(fault, BaseException)]
        assert not faults, [str(fault) or repr(fault) for fault in faults]
        for kind, cell in cases(story):
            answers = _answers(here, _namespace(here, kind))
            requests = Counter((answer.user, answer.verb, answer.code) for answer in answers)
            refused = Counter((each.pod, each.minute) for each in answers if each.code == 429)
            most = max(refused.values(), default=0)
            record_testsuite_property(f"{story} {kind}", dict(requests) | {"most": most})
            assert most <= REFUSALS_PER_MINUTE, (kind, refused)
            deleted, denied = _deletions(requests, 200), _deletions(requests, 429)
            assert denied <= ATTEMPTS.get(kind, 0) * REPLICAS, (kind, requests)
            if cell.deed not in ("evict", "operate"):
                assert deleted, (kind, requests)
            if story == "1" and kind in ("DaemonSet", "StatefulSet Parallel"):
                assert denied, f"nothing was denied to the controller of {kind}: {requests}"


async def _play(here: BudgetScene, story: Story, kind: Kind, cell: Cell) -> None:
    namespace = _namespace(here, kind)
    async with _opted_in(here, namespace):
        zones = {f"{here.namespace}-{zone}{number}": zone for zone in ZONES for number in range(2)}
        pods = here.components.cache.store(Pod)
        stage = Stage(here.client, pods, namespace, kind=kind, zones=zones, budgets=TOPOLOGY)
        await play(stage, story, cell)


@asynccontextmanager
async def _opted_in(here: BudgetScene, namespace: str) -> AsyncIterator[None]:
    """A namespace whose budgets are enforced."""
    labels = {"zonewise.io/budgets": "enforce"}
    await here.client.create(Namespace(metadata=ObjectMeta(name=namespace, labels=labels)))
    try:
        yield
    finally:
        await here.client.delete(Namespace, namespace)


def _namespace(here: BudgetScene, kind: Kind) -> str:
    return f"{here.namespace}-{kind.lower().replace(' ', '-')}"


def _allow_custom_owners(here: BudgetScene) -> None:
    """Let Zonewise read the custom kind, as the docs say."""
    name, installed = f"owners-{here.namespace}", here.installed.namespace
    resources = f"{OWNER.plural}.{OWNER.group},{OWNER.plural}.{OWNER.group}/scale"
    here.plane.kubectl("create", "clusterrole", name, "--verb=get", f"--resource={resources}")
    accounts = [f"--serviceaccount={installed}:{account}" for account in (NAME, WEBHOOK)]
    here.plane.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", *accounts)


class Answered(NamedTuple):
    """The answer to a deletion or eviction of a pod; ``user`` is the last part of its name."""

    user: str
    verb: str
    code: int
    pod: str
    minute: str


def _deletions(requests: Counter[tuple[str, str, int]], code: int) -> int:
    """How many deletions by workload controllers were answered so."""
    return sum(
        count
        for (user, verb, answer), count in requests.items()
        if user.endswith("-controller") and (verb, answer) == ("delete", code)
    )


def _answers(here: BudgetScene, namespace: str) -> list[Answered]:
    """Deletions and evictions of a namespace's pods."""
    answers = []
    for entry in here.plane.audited():
        what = entry["objectRef"]
        if entry["stage"] == "ResponseComplete" and what.get("namespace") == namespace:
            verb = "evict" if what.get("subresource") == "eviction" else entry["verb"]
            if what["resource"] == "pods" and verb in ("evict", "delete"):
                user = entry["user"]["username"].rpartition(":")[2]
                code = entry.get("responseStatus", {}).get("code", 0)
                minute = entry["requestReceivedTimestamp"][: len("2026-01-01T00:00")]
                answers.append(Answered(user, verb, code, what.get("name", ""), minute))
    return answers
