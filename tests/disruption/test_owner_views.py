"""How many pods a Job requests, as budgets count it."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.disruption.owner_views import count_job_pods
from zonewise.disruption.owners import owner_of

JOB = unstructured(Resource("batch", "v1", "Job", "jobs"))
Obj = dict[str, Any]


@pytest.mark.parametrize(
    ("spec", "status", "count"),
    [
        ({"parallelism": 3, "completions": 9}, {}, 3),
        ({"parallelism": 3, "completions": 9}, {"succeeded": 7}, 2),
        ({"parallelism": 3, "completions": 9}, {"succeeded": 9}, 0),
        ({"parallelism": 3, "completions": 9}, {"succeeded": 4, "failedIndexes": "0,3-5"}, 1),
        ({"parallelism": 3, "completions": 9}, {"failedIndexes": "x,5-3,,-,1-"}, 3),
        ({"parallelism": 3}, {}, 3),
        ({"parallelism": 3}, {"succeeded": 1}, None),
        ({"parallelism": 3, "completions": 9, "suspend": True}, {}, 0),
        ({"parallelism": 0, "completions": 9}, {}, 0),
        ({}, {}, None),
        ({"parallelism": "3"}, {}, None),
        ({"parallelism": 3, "completions": 9}, {"succeeded": -1}, None),
    ],
)
def test_a_job_requests_what_it_runs_at_a_time(spec: Obj, status: Obj, count: int | None) -> None:
    """As many as run at a time, at the end as many as are missing; None are counted as they are."""
    job = JOB({"metadata": {"name": "j", "namespace": "n"}, "spec": spec, "status": status})
    assert count_job_pods(job) == count
    assert owner_of(job).replicas == count


@pytest.mark.parametrize("kind", ["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"])
@pytest.mark.parametrize(("status", "count"), [("True", 0), ("False", 3)])
def test_a_job_that_has_ended_requests_none(kind: str, status: str, count: int) -> None:
    """A Job that is complete or has failed wants no pods, whatever is left of them."""
    conditions = [{"type": kind, "status": status}]
    spec = {"parallelism": 3, "completions": 9}
    job = JOB({"metadata": {}, "spec": spec, "status": {"conditions": conditions}})
    assert count_job_pods(job) == count
