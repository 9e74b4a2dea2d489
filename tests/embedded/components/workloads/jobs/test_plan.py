"""The plan for a Job: counting, ending, waiting, indexes and policies."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zonewise.api.meta import Condition, ObjectMeta
from zonewise.api.objects.pod import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from zonewise.api.values import times
from zonewise.embedded.components.workloads.jobs.objects import (
    Job,
    JobSpec,
    JobStatus,
    UncountedPods,
)
from zonewise.embedded.components.workloads.jobs.plan import (
    JobPlan,
    PodCreation,
    plan_job,
    settle_status,
)
from zonewise.embedded.components.workloads.jobs.pods import (
    COMPLETION_INDEX,
    FAILURE_COUNT,
    TRACKING_FINALIZER,
    Backoff,
    format_indexes,
    parse_indexes,
)
from zonewise.embedded.components.workloads.jobs.policies import FailurePolicy, SuccessPolicy

NOW = 1_750_000_000.0


def text(seconds: float) -> str:
    """A time as RFC 3339 text."""
    return times.format_time(times.from_epoch(seconds))


def job(status: JobStatus | None = None, *, leaving: bool = False, **spec: Any) -> Job:
    """A Job; policies and templates are given as plain values."""
    if "template" in spec:
        spec["template"] = msgspec.Raw(msgspec.json.encode(spec["template"]))
    for key, kind in (("pod_failure_policy", FailurePolicy), ("success_policy", SuccessPolicy)):
        if key in spec:
            spec[key] = msgspec.convert(spec[key], kind)
    spec = {"parallelism": 1, "completions": 1, "backoff_limit": 6, **spec}
    return Job(
        metadata=ObjectMeta(
            name="j", namespace="n", uid="j", deletion_timestamp=text(NOW) if leaving else None
        ),
        spec=JobSpec(**spec),
        status=status or JobStatus(),
    )


def pod(
    name: str,
    phase: str = "Running",
    *,
    index: int | None = None,
    at: float = NOW,
    tracked: bool = True,
    leaving: bool = False,
    code: int = 0,
    failures: int = 0,
    conditions: tuple[PodCondition, ...] = (),
) -> Pod:
    """A pod of the Job."""
    annotations = {} if index is None else {COMPLETION_INDEX: str(index)}
    if failures:
        annotations[FAILURE_COUNT] = str(failures)
    end = ContainerStateTerminated(exit_code=code, finished_at=text(at))
    state = ContainerState(terminated=end if phase in {"Succeeded", "Failed"} else None)
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="n",
            uid=name,
            annotations=annotations,
            finalizers=(TRACKING_FINALIZER,) if tracked else (),
            creation_timestamp=text(NOW - 60),
            deletion_timestamp=text(at) if leaving else None,
        ),
        status=PodStatus(
            phase=phase,
            conditions=conditions,
            container_statuses=(ContainerStatus(name="c", state=state),),
        ),
    )


def decide(owner: Job, *pods: Pod, backoff: Backoff | None = None, now: float = NOW) -> JobPlan:
    """The plan for a Job."""
    return plan_job(owner, pods, backoff=backoff or Backoff(), now=now)


def types(conditions: tuple[Condition, ...]) -> list[str]:
    """The types of conditions."""
    return [condition.type for condition in conditions]


def test_a_new_job_starts_as_many_pods_as_may_run() -> None:
    """The number of pods is limited by parallelism and by the remaining completions."""
    steps = decide(job(parallelism=3, completions=5))
    assert steps.create == (PodCreation(),) * 3
    assert (steps.status.active, steps.status.start_time) == (3, text(NOW))
    almost = job(JobStatus(succeeded=4, start_time=text(NOW)), parallelism=3, completions=5)
    assert len(decide(almost).create) == 1


def test_a_finished_pod_is_noted_released_then_counted() -> None:
    """A pod is noted as uncounted, loses its finalizer, and is counted: exactly once."""
    owner = job(parallelism=2, completions=2)
    done, other = pod("a", "Succeeded"), pod("b")
    steps = decide(owner, done, other)
    assert steps.status.uncounted_terminated_pods == UncountedPods(succeeded=("a",))
    assert (steps.status.succeeded, steps.release, steps.create) == (0, (done,), ())
    after = settle_status(steps, steps.status, [other], now=text(NOW))
    assert (after.succeeded, after.uncounted_terminated_pods) == (1, UncountedPods())
    # If the controller dies before the last step, the next pass makes it.
    again = decide(
        job(steps.status, parallelism=2, completions=2), pod("a", "Succeeded", tracked=False)
    )
    assert (again.status.succeeded, again.status.failed) == (1, 0)
    # If it dies before the finalizer is removed, the pod is not noted twice.
    before = decide(job(steps.status, parallelism=2, completions=2), done, other)
    assert before.status.uncounted_terminated_pods == UncountedPods(succeeded=("a",))


def test_a_job_is_decided_first_and_over_when_all_is_counted() -> None:
    """SuccessCriteriaMet comes with the last success, Complete when no pod is left."""
    steps = decide(job(), pod("a", "Succeeded"))
    assert types(steps.status.conditions) == ["SuccessCriteriaMet"]
    last = settle_status(steps, steps.status, [], now=text(NOW))
    assert types(last.conditions) == ["SuccessCriteriaMet", "Complete"]
    assert last.conditions[1].reason == "CompletionsReached"
    assert last.completion_time == text(NOW)
    waiting = decide(job(), pod("a", "Succeeded"), pod("b", leaving=True))
    assert "Complete" not in types(
        settle_status(waiting, waiting.status, [], now=text(NOW)).conditions
    )


def test_new_pods_wait_after_failures() -> None:
    """New pods wait ten seconds after the first failure, doubled each time, ten minutes at most."""
    steps = decide(job(), pod("a", "Failed", at=NOW - 4))
    assert (steps.create, steps.requeue_after) == ((), 6.0)
    assert steps.backoff == Backoff(1, NOW - 4)
    assert decide(job(), backoff=steps.backoff, now=NOW + 7).create == (PodCreation(),)
    assert [Backoff(n, NOW).remaining(NOW) for n in (1, 2, 3, 7, 8, 50)] == [
        10, 20, 40, 600, 600, 600,
    ]  # fmt: skip


def test_a_success_ends_the_waiting() -> None:
    """Only failures after the last success count."""
    early, late = pod("a", "Failed", at=NOW - 50), pod("c", "Failed", at=NOW - 5)
    between = pod("b", "Succeeded", at=NOW - 20)
    assert Backoff(3, NOW - 99).after([between], [early]) == Backoff()
    assert Backoff(3, NOW - 99).after([between], [early, late]) == Backoff(1, NOW - 5)


def test_too_many_failures_end_the_job() -> None:
    """With FailureTarget the running pods are deleted, Failed follows when they are gone."""
    owner = job(JobStatus(failed=1, start_time=text(NOW)), backoff_limit=1, parallelism=2)
    bad, other = pod("a", "Failed"), pod("b")
    steps = decide(owner, bad, other)
    target = steps.status.conditions[0]
    assert (target.type, target.reason) == ("FailureTarget", "BackoffLimitExceeded")
    assert target.message == "Job has reached the specified backoff limit"
    assert steps.delete == (other,)
    assert (steps.status.active, steps.status.terminating) == (0, 1)
    assert steps.status.uncounted_terminated_pods == UncountedPods(failed=("a", "b"))
    not_yet = settle_status(steps, steps.status, [], now=text(NOW))
    assert types(not_yet.conditions) == ["FailureTarget"]
    gone = decide(job(not_yet, backoff_limit=1))
    over = settle_status(gone, gone.status, [], now=text(NOW))
    assert types(over.conditions) == ["FailureTarget", "Failed"]
    assert (over.failed, over.completion_time) == (3, None)


def test_restarts_inside_pods_count_against_the_limit() -> None:
    """With OnFailure, restarts of containers count against the same limit."""
    template = {"spec": {"restartPolicy": "OnFailure"}}
    restarted = msgspec.structs.replace(
        pod("a"),
        status=PodStatus(
            phase="Running", container_statuses=(ContainerStatus(name="c", restart_count=2),)
        ),
    )
    assert decide(job(template=template, backoff_limit=3), restarted).final_condition is None
    ended = decide(job(template=template, backoff_limit=2), restarted)
    assert ended.final_condition is not None
    assert ended.final_condition.reason == "BackoffLimitExceeded"


def test_a_deadline_ends_the_job() -> None:
    """The deadline counts from the start, and the next check is at the deadline."""
    status = JobStatus(start_time=text(NOW - 30), active=1, ready=0)
    early = decide(job(status, active_deadline_seconds=40), pod("a"))
    assert (early.requeue_after, early.final_condition) == (10.0, None)
    late = decide(job(status, active_deadline_seconds=30), pod("a"))
    assert late.final_condition is not None
    assert late.final_condition.reason == "DeadlineExceeded"


def test_a_suspended_job_has_no_pods_and_starts_anew() -> None:
    """Suspending deletes pods without counting them; resuming sets a new start time."""
    status = JobStatus(start_time=text(NOW - 99), active=1)
    steps = decide(job(status, suspend=True), pod("a"))
    assert [item.metadata.name for item in steps.surplus] == ["a"]
    condition = steps.status.conditions[0]
    assert (condition.type, condition.status, condition.reason) == (
        "Suspended",
        "True",
        "JobSuspended",
    )
    assert steps.status.start_time is None
    assert [event.reason for event in steps.events] == ["Suspended"]
    back = decide(job(steps.status, suspend=False))
    assert (back.status.conditions[0].status, back.status.start_time) == ("False", text(NOW))
    assert [event.reason for event in back.events] == ["Resumed"]
    assert len(back.create) == 1


def test_indexes_are_given_once_and_completed_in_text() -> None:
    """The lowest free indexes are next; completed ones are written as ranges."""
    owner = job(
        JobStatus(completed_indexes="0"), completion_mode="Indexed", completions=6, parallelism=4
    )
    steps = decide(
        owner, pod("a", "Succeeded", index=1), pod("b", "Succeeded", index=2), pod("c", index=4)
    )
    assert steps.create == (PodCreation(3), PodCreation(5))
    assert (steps.status.completed_indexes, steps.status.succeeded) == ("0-2", 3)


def test_pods_with_a_taken_or_wrong_index_go() -> None:
    """Of two pods with one index the one that has progressed further stays."""
    owner = job(completion_mode="Indexed", completions=2, parallelism=2)
    steps = decide(
        owner, pod("a", "Pending", index=0), pod("b", index=0), pod("c", index=7), pod("d", index=1)
    )
    assert {pod.metadata.name for pod in steps.surplus} == {"a", "c"}


def test_an_index_fails_by_itself() -> None:
    """With a limit per index an index that failed too often is given up, and others continue."""
    spec: dict[str, Any] = {
        "completion_mode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoff_limit": 1 << 30,
        "backoff_limit_per_index": 1,
    }
    first = decide(job(**spec), pod("a", "Failed", index=0, at=NOW - 30), pod("b", index=1))
    # The next pod of the index records this failure; until it exists the failed pod is kept.
    assert first.create == (PodCreation(0, {FAILURE_COUNT: "1"}),)
    assert first.release == ()
    second = decide(
        job(**spec), pod("a", "Failed", index=0, failures=1, at=NOW - 30), pod("b", index=1)
    )
    assert (second.create, second.status.failed_indexes) == ((), "0")
    assert second.final_condition is None
    end = decide(
        job(JobStatus(failed_indexes="0", failed=2), **spec), pod("b", "Succeeded", index=1)
    )
    assert end.final_condition is not None
    assert end.final_condition.reason == "FailedIndexes"


def test_failure_rules() -> None:
    """A pod's end may fail the Job at once, or not count."""
    rules = {
        "rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
            {
                "action": "Ignore",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
        ]
    }
    fatal = decide(job(pod_failure_policy=rules), pod("a", "Failed", code=42))
    assert fatal.final_condition is not None
    assert fatal.final_condition.reason == "PodFailurePolicy"
    assert fatal.final_condition.message == (
        "Container c for pod n/a failed with exit code 42 matching FailJob rule at index 0"
    )
    disturbed = pod(
        "a",
        "Failed",
        code=137,
        conditions=(PodCondition(type="DisruptionTarget", status="True"),),
    )
    ignored = decide(job(pod_failure_policy=rules, backoff_limit=0), disturbed)
    assert ignored.final_condition is None
    assert ignored.status.uncounted_terminated_pods == UncountedPods()
    assert ignored.release == (disturbed,)


def test_success_rules() -> None:
    """Some indexes may be enough; the pods that still run are deleted and not counted."""
    rules = {"rules": [{"succeededIndexes": "0,2-3", "succeededCount": 1}]}
    owner = job(completion_mode="Indexed", completions=4, parallelism=4, success_policy=rules)
    steps = decide(owner, pod("a", "Succeeded", index=2), pod("b", index=0))
    target = steps.status.conditions[0]
    assert (target.type, target.reason, target.message) == (
        "SuccessCriteriaMet",
        "SuccessPolicy",
        "Matched rules at index 0",
    )
    assert [item.metadata.name for item in steps.delete] == ["b"]
    assert steps.status.uncounted_terminated_pods == UncountedPods()


def test_terminating_pods_are_replaced_only_when_failed() -> None:
    """A terminating pod is not counted as failed, and no new pod is created for it."""
    leaving = pod("a", leaving=True)
    eager = decide(job(), leaving, backoff=Backoff(), now=NOW + 11)
    assert len(eager.create) == 1
    patient = decide(job(pod_replacement_policy="Failed"), leaving)
    assert (patient.create, patient.release, patient.status.terminating) == ((), (), 1)


def test_pods_of_a_terminating_job_lose_their_finalizer() -> None:
    """A terminating Job creates no pod any more, and every pod of it loses the finalizer."""
    steps = decide(job(leaving=True), pod("a"), pod("b", "Succeeded"))
    assert steps.create == ()
    assert len(steps.release) == 2


@given(st.frozensets(st.integers(0, 40)))
def test_index_texts_can_be_read_back(indexes: frozenset[int]) -> None:
    """Written indexes are read as the same indexes."""
    assert parse_indexes(format_indexes(indexes), 41) == indexes


@pytest.mark.parametrize(
    ("indexes", "expected"), [((1, 3, 4, 5), "1,3-5"), ((0, 1), "0,1"), ((), ""), ((7,), "7")]
)
def test_index_texts(indexes: tuple[int, ...], expected: str) -> None:
    """Two neighbours are listed, three are a range."""
    assert format_indexes(indexes) == expected


PHASES = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])


@settings(max_examples=200)
@given(
    st.lists(st.tuples(PHASES, st.booleans(), st.booleans(), st.integers(0, 6)), max_size=8),
    st.integers(0, 5),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_invariants_of_a_plan(
    shape: list[tuple[str, bool, bool, int]],
    parallelism: int,
    completions: int,
    indexed: bool,
    seed: int,
) -> None:
    """Never more pods than desired, no pod counted twice, and the order of pods does not matter."""
    pods = [
        pod(
            f"p{n}",
            phase,
            tracked=tracked,
            leaving=leaving,
            index=index if indexed else None,
            at=NOW - 900,
        )
        for n, (phase, tracked, leaving, index) in enumerate(shape)
    ]
    mode = "Indexed" if indexed else "NonIndexed"
    owner = job(
        parallelism=parallelism, completions=completions, completion_mode=mode, backoff_limit=4
    )
    steps = decide(owner, *pods)
    going = len(steps.delete) + len(steps.surplus)
    active = sum(phase in {"Pending", "Running"} and not leaving for phase, _, leaving, _ in shape)
    if steps.create:
        assert active - going + len(steps.create) <= min(parallelism, completions)
    assert steps.status.active == active - going + len(steps.create)
    noted = steps.status.uncounted_terminated_pods
    assert noted is not None
    uids = noted.succeeded + noted.failed
    assert len(set(uids)) == len(uids)
    assert set(uids) <= {item.metadata.uid for item in steps.release}
    given_births = [birth.index for birth in steps.create if birth.index is not None]
    assert len(set(given_births)) == len(given_births)
    random.Random(seed).shuffle(pods)
    assert decide(owner, *pods) == steps
