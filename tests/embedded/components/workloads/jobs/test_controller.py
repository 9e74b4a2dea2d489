"""Jobs on a cluster in virtual time: pods run, fail and are counted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.embedded.components.workloads.jobs.controller import JobController
from zonewise.embedded.components.workloads.jobs.objects import Job
from zonewise.embedded.components.workloads.jobs.pods import COMPLETION_INDEX, TRACKING_FINALIZER

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS = {"kubelets": Kubelets, "job-controller": JobController}
PATH = "/apis/batch/v1/namespaces/default/jobs"


async def start(
    cluster: VirtualCluster, *, command: list[str], name: str = "j", **spec: Any
) -> None:
    """Start a Job whose pods run a command on one node."""
    await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
    policy = spec.pop("restartPolicy", "Never")
    template = {
        "spec": {
            "nodeName": "n1",
            "restartPolicy": policy,
            "containers": [{"name": "c", "image": "c", "command": command}],
        }
    }
    body = {"metadata": {"name": name}, "spec": {"template": template, **spec}}
    await cluster.client.raw("POST", PATH, body=msgspec.json.encode(body))


def current(cluster: VirtualCluster, name: str = "j") -> Job | None:
    """The Job as the cache has it."""
    return cluster.program.cache.store(Job).get(("default", name))


def conditions(cluster: VirtualCluster) -> list[tuple[str, str]]:
    """Types and reasons of the Job's conditions."""
    job = current(cluster)
    return (
        []
        if job is None
        else [(condition.type, condition.reason) for condition in job.status.conditions]
    )


def ended(cluster: VirtualCluster) -> bool:
    """Whether the Job is over."""
    return any(kind in {"Complete", "Failed"} for kind, _ in conditions(cluster))


async def reasons(cluster: VirtualCluster) -> set[str]:
    """The reasons of all events."""
    answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
    return {item["reason"] for item in msgspec.json.decode(answer.body)["items"]}


async def test_a_job_completes() -> None:
    """All pods run, are counted once and lose their finalizer, with conditions and events."""
    async with virtual_cluster(PARTS) as cluster:
        most = 0

        def watch(_: Pod | None, __: Pod | None) -> None:
            nonlocal most
            running = [p for p in pods if p.status.phase not in {"Succeeded", "Failed"}]
            most = max(most, len(running))

        pods = cluster.program.cache.store(Pod)
        pods.on_change(watch)
        await start(cluster, command=["sleep", "3"], completions=5, parallelism=2)
        await until(lambda: ended(cluster))
        assert conditions(cluster) == [
            ("SuccessCriteriaMet", "CompletionsReached"),
            ("Complete", "CompletionsReached"),
        ]
        job = current(cluster)
        assert job is not None
        assert (job.status.succeeded, job.status.failed, job.status.active) == (5, 0, 0)
        assert job.status.completion_time is not None
        assert len(pods) == 5
        assert most == 2
        await until(lambda: all(TRACKING_FINALIZER not in pod.metadata.finalizers for pod in pods))
        await asyncio.sleep(1)
        assert {"SuccessfulCreate", "Completed"} <= await reasons(cluster)


async def test_failing_pods_are_replaced_ever_later_until_the_limit() -> None:
    """A Job with a limit of two replaces its failing pod after 10 and after 20 seconds, then it
    fails.
    """
    async with virtual_cluster(PARTS) as cluster:
        await start(cluster, command=["false"], backoffLimit=2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: ended(cluster))
        assert 30 <= loop.time() - began <= 40
        assert conditions(cluster) == [
            ("FailureTarget", "BackoffLimitExceeded"),
            ("Failed", "BackoffLimitExceeded"),
        ]
        job = current(cluster)
        assert job is not None
        assert job.status.failed == 3
        assert len(cluster.program.cache.store(Pod)) == 3


async def test_an_exit_code_ends_the_job() -> None:
    """The failure policy ends the Job, and the other pods are deleted."""
    async with virtual_cluster(PARTS) as cluster:
        rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
        script = ["sh", "-c", "sleep 2; exit 42"]
        await start(cluster, command=script, podFailurePolicy={"rules": [rule]})
        await until(lambda: ended(cluster))
        assert conditions(cluster)[-1] == ("Failed", "PodFailurePolicy")


async def test_an_indexed_job_gives_every_index_a_pod() -> None:
    """Pods have their index in a label, an annotation, a variable and the host name."""
    async with virtual_cluster(PARTS) as cluster:
        await start(
            cluster, command=["sleep", "1"], completions=3, parallelism=3, completionMode="Indexed"
        )
        await until(lambda: ended(cluster))
        job = current(cluster)
        assert job is not None
        assert (job.status.completed_indexes, job.status.succeeded) == ("0-2", 3)
        pods = sorted(
            cluster.program.cache.store(Pod), key=lambda pod: pod.metadata.labels[COMPLETION_INDEX]
        )
        assert [pod.metadata.annotations[COMPLETION_INDEX] for pod in pods] == ["0", "1", "2"]
        assert [pod.spec.hostname for pod in pods] == ["j-0", "j-1", "j-2"]
        assert all(pod.metadata.name.startswith(f"j-{index}-") for index, pod in enumerate(pods))
        name = pods[0].metadata.name
        whole = await cluster.client.raw("GET", f"/api/v1/namespaces/default/pods/{name}")
        assert b'"JOB_COMPLETION_INDEX"' in whole.body


async def test_a_deadline_deletes_running_pods() -> None:
    """The Job fails at its deadline, and its pods are deleted."""
    async with virtual_cluster(PARTS) as cluster:
        await start(cluster, command=["sleep", "infinity"], activeDeadlineSeconds=20)
        await until(lambda: ended(cluster))
        assert conditions(cluster)[-1] == ("Failed", "DeadlineExceeded")
        assert not cluster.program.cache.store(Pod).values()
        assert "SuccessfulDelete" in await reasons(cluster)


async def test_a_suspended_job_waits() -> None:
    """There are no pods while suspended; they are created when the Job is resumed."""
    async with virtual_cluster(PARTS) as cluster:
        await start(cluster, command=["sleep", "1"], suspend=True)
        await until(lambda: conditions(cluster) == [("Suspended", "JobSuspended")])
        await asyncio.sleep(5)
        assert not cluster.program.cache.store(Pod).values()
        await cluster.client.patch(Job, "j", "default", {"spec": {"suspend": False}})
        await until(lambda: ended(cluster))
        assert conditions(cluster)[0] == ("Suspended", "JobResumed")
        assert conditions(cluster)[-1] == ("Complete", "CompletionsReached")


async def test_a_finished_job_expires() -> None:
    """With ttlSecondsAfterFinished the Job and its pods are deleted."""
    async with virtual_cluster(PARTS) as cluster:
        await start(cluster, command=["true"], ttlSecondsAfterFinished=30)
        await until(lambda: ended(cluster))
        await asyncio.sleep(20)
        assert current(cluster) is not None
        await until(lambda: current(cluster) is None)
        await until(lambda: not cluster.program.cache.store(Pod).values())


async def test_pods_of_a_deleted_job_lose_their_finalizer() -> None:
    """If only the Job is deleted, its pods stay, without the finalizer."""
    async with virtual_cluster(PARTS) as cluster:
        await start(cluster, command=["sleep", "infinity"])
        pods = cluster.program.cache.store(Pod)
        await until(lambda: any(pod.status.phase == "Running" for pod in pods))
        await cluster.client.delete(Job, "j", "default", propagation="Orphan")
        await until(lambda: current(cluster) is None)
        await until(lambda: all(not pod.metadata.finalizers for pod in pods))
        assert [pod.metadata.owner_references for pod in pods] == [()]


async def test_a_restarted_controller_counts_no_pod_twice() -> None:
    """A restarted controller reads from the objects which pods were counted."""
    async with virtual_cluster({"kubelets": Kubelets}) as cluster:
        await start(cluster, command=["sleep", "2"], completions=4, parallelism=2)
        for _ in range(8):
            part = JobController(cluster.program.context("job-controller"))
            work = asyncio.create_task(part.run())
            await asyncio.sleep(1.3)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        job = await cluster.client.get(Job, "j", "default")
        assert job.status.succeeded == 4
        assert job.status.conditions[-1].type == "Complete"
        assert len(cluster.program.cache.store(Pod)) == 4
