"""Budgets, evictions and Jobs: kube-controller-manager and our controllers do the same."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.kubernetes.sides import Obj, Side, both, timeless, until

from tools import realkube as real

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

JOB = "batch.kubernetes.io/job-name"
POD: Obj = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "containers": [{"name": "c", "image": "c"}],
        "nodeSelector": {"example.com/nowhere": "yes"},
    },
}


@pytest.fixture(scope="module")
def ours() -> Iterator[Path]:
    """Our cluster without nodes; its kubeconfig."""
    with embedded("--workload-removal=delete", content="--empty") as kubeconfig:
        yield kubeconfig


def replicas(count: int, app: str = "web") -> Obj:
    """A workload of so many pods."""
    return {
        "replicas": count,
        "selector": {"matchLabels": {"app": app}},
        "template": {**POD, "metadata": {"labels": {"app": app}}},
    }


def limit(app: str = "web", **spec: Any) -> Obj:
    """A budget for the pods of a workload."""
    return {"selector": {"matchLabels": {"app": app}}, **spec}


async def test_budgets_count_alike(realkube: real.ControlPlane, ours: Path) -> None:
    """Both clusters count budgets alike: whole numbers and percentages, ready, unready and missing
    pods, scaling.
    """

    async def scene(there: Side) -> Any:
        limits: dict[str, tuple[Obj, tuple[int, ...], tuple[int, ...]]] = {
            "least": ({"minAvailable": 2}, (3, 2, 3, 1), (3, 2, 2, 0)),
            "least-part": ({"minAvailable": "34%"}, (3, 2, 3, 1), (3, 2, 2, 0)),
            "most": ({"maxUnavailable": 1}, (3, 2, 3, 1), (3, 2, 2, 0)),
            "most-part": ({"maxUnavailable": "1%"}, (3, 2, 3, 1), (3, 2, 2, 0)),
            "none": ({"maxUnavailable": 0}, (3, 3, 3, 0), (3, 3, 2, 0)),
        }
        seen = []
        for name, (spec, all_ready, one_missing) in limits.items():
            await there.make("replicasets", name, replicas(3, name))
            await there.make("poddisruptionbudgets", name, limit(name, **spec))
            pods = await there.ready(3, app=name)
            seen.append(await there.budget(name, *all_ready))
            await there.become(pods[0], "Running")
            seen.append(await there.budget(name, *one_missing))
        patch = {"spec": {"replicas": 4}}
        await there.send("PATCH", "replicasets/most", patch, form="merge-patch+json")
        seen.append(await there.budget("most", 4, 3, 2, 0))
        return seen

    await both(realkube.kubeconfig, ours, "budgets-count", scene)


async def test_budgets_that_are_odd(realkube: real.ControlPlane, ours: Path) -> None:
    """Both clusters count alike bare pods, pods of Jobs, two controllers under one budget, and a
    budget without pods.
    """

    async def scene(there: Side) -> Any:
        spec = {"completions": 1, "template": job_template()}
        await there.make("jobs", "once", spec)
        pod = (await there.living(1))[0]
        await there.make("poddisruptionbudgets", "jobs", limit(maxUnavailable=1))

        async def failed() -> Obj | None:
            budget = await there.send("GET", "poddisruptionbudgets/jobs")
            conditions = budget["status"].get("conditions") or []
            return (
                budget["status"]
                if conditions[:1] and conditions[0]["reason"] == "SyncFailed"
                else None
            )

        seen = [timeless(await until(failed, what="SyncFailed"))]
        await there.become(pod, "Running", ready=True)
        seen.append(await there.evict(pod))
        bare = {**POD, "metadata": {"name": "bare", "labels": {"alone": "yes"}}}
        await there.send("POST", "pods", bare)
        alone = {"selector": {"matchLabels": {"alone": "yes"}}}
        await there.make("poddisruptionbudgets", "alone", {**alone, "maxUnavailable": 1})
        await there.make("poddisruptionbudgets", "all", {"selector": {}, "minAvailable": 0})
        nobody = {"selector": {"matchLabels": {"no": "body"}}, "minAvailable": 0}
        await there.make("poddisruptionbudgets", "nobody", nobody)
        seen += [
            await there.budget("alone", 0, 0, 0, 0),
            await there.budget("all", 2, 0, 1, 1),
            await there.budget("nobody", 0, 0, 0, 0),
        ]
        await until(
            lambda: _there(there.event_reasons("PodDisruptionBudget"), "UnmanagedPods", "NoPods")
        )
        return seen, sorted(await there.event_reasons("PodDisruptionBudget"))

    await both(realkube.kubeconfig, ours, "budgets-odd", scene)


async def _there(events: Awaitable[set[tuple[str, str]]], *reasons: str) -> bool | None:
    return set(reasons) <= {reason for _, reason in await events} or None


async def test_evictions_are_answered_alike(realkube: real.ControlPlane, ours: Path) -> None:
    """Both clusters answer evictions alike: granted, refused with numbers, unready pods, policies,
    dry runs, two budgets, versions.
    """

    async def scene(there: Side) -> Any:
        await there.make("replicasets", "web", replicas(3))
        pods = await there.ready(3)
        seen: list[Any] = [
            (await there.evict(pods[0], preconditions={"resourceVersion": "1"}))[0],
            (await there.evict(pods[0], preconditions={"uid": "other"}))[0],
        ]
        await there.make("poddisruptionbudgets", "web", limit(maxUnavailable=1))
        await there.budget("web", 3, 2, 3, 1)
        seen += [
            await there.evict(pods[0], dryRun=["All"]),
            await there.budget("web", 3, 2, 3, 1),
            await there.evict(pods[0]),
        ]
        fresh = await there.living(1)
        await there.budget("web", 3, 2, 2, 0)
        seen += [await there.evict(pods[1]), await there.evict(fresh[0])]
        fresh = await there.living(1)
        await there.become(fresh[0], "Running")
        seen.append(await there.evict(fresh[0]))
        fresh = await there.living(1)
        await there.become(fresh[0], "Running")
        await there.become(pods[1], "Running")
        await there.budget("web", 3, 2, 1, 0)
        seen.append(await there.evict(pods[1]))
        policy = {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}
        await there.send("PATCH", "poddisruptionbudgets/web", policy, form="merge-patch+json")
        await there.budget("web", 3, 2, 1, 0)
        seen.append(await there.evict(pods[1]))
        await there.make("poddisruptionbudgets", "second", limit(minAvailable=1))
        seen.append(await there.evict(pods[2]))
        return seen

    await both(realkube.kubeconfig, ours, "evictions", scene)


def job_template(**spec: Any) -> Obj:
    """The pod template of a Job."""
    return {**POD, "spec": {**POD["spec"], "restartPolicy": "Never", **spec}}


def describe_pod(pod: Obj) -> Obj:
    """The fields of a pod that its Job chose."""
    meta = pod["metadata"]
    job = meta["labels"][JOB]
    return {
        "prefix": meta["generateName"],
        "labels": sorted(meta["labels"]),
        "annotations": meta.get("annotations"),
        "finalizers": meta.get("finalizers"),
        "hostname": pod["spec"].get("hostname"),
        "variables": pod["spec"]["containers"][0].get("env"),
        "owner": [(owner["kind"], owner["name"] == job) for owner in meta["ownerReferences"]],
    }


async def test_jobs_end_alike(realkube: real.ControlPlane, ours: Path) -> None:
    """Jobs end alike in both clusters: complete, failed by limit, by deadline and by rule, enough
    by rule, suspended and resumed.
    """

    async def scene(there: Side) -> Any:
        seen: list[Any] = []
        two = {"completions": 2, "parallelism": 2, "template": job_template()}
        await there.make("jobs", "good", two)
        pods = await there.living(2, **{JOB: "good"})
        seen += [describe_pod(pod) for pod in pods]
        for pod in pods:
            await there.become(pod, "Succeeded")
        seen.append(await there.job("good", "Complete"))

        await there.make("jobs", "bad", {**two, "backoffLimit": 0})
        pods = await there.living(2, **{JOB: "bad"})
        await there.become(pods[0], "Failed", code=1)
        seen.append(await there.job("bad", "Failed"))

        await there.make("jobs", "late", {**two, "activeDeadlineSeconds": 2})
        await there.living(2, **{JOB: "late"})
        seen.append(await there.job("late", "Failed"))

        rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
        await there.make("jobs", "fatal", {**two, "podFailurePolicy": {"rules": [rule]}})
        pods = await there.living(2, **{JOB: "fatal"})
        await there.become(pods[0], "Failed", code=42)
        await there.become(pods[1], "Succeeded")
        status = await there.job("fatal", "Failed")
        for condition in status["conditions"]:
            condition["message"] = condition["message"].replace(pods[0]["metadata"]["name"], "POD")
        seen.append(status)

        indexed = {**two, "completions": 3, "parallelism": 3, "completionMode": "Indexed"}
        enough = {"rules": [{"succeededIndexes": "1-2", "succeededCount": 1}]}
        await there.make("jobs", "enough", {**indexed, "successPolicy": enough})
        pods = await there.living(3, **{JOB: "enough"})
        seen += [describe_pod(pod) for pod in pods]
        await there.become(pods[1], "Succeeded")
        seen.append(await there.job("enough", "Complete"))

        await there.make("jobs", "held", {**two, "suspend": True})
        seen.append(await there.job("held", "Suspended"))
        await there.send(
            "PATCH", "jobs/held", {"spec": {"suspend": False}}, form="merge-patch+json"
        )
        pods = await there.living(2, **{JOB: "held"})
        for pod in pods:
            await there.become(pod, "Succeeded")
        seen.append(await there.job("held", "Complete"))
        await until(lambda: _there(there.event_reasons("Job"), "Resumed", "BackoffLimitExceeded"))
        left = await there.send("GET", "pods")
        unfinished = [pod for pod in left["items"] if pod["metadata"].get("finalizers")]
        return seen, sorted(await there.event_reasons("Job")), unfinished

    await both(realkube.kubeconfig, ours, "jobs-end", scene)
