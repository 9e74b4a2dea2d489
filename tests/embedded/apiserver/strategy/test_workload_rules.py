"""Pods and workloads are refused, changed and stored as by a real server.

The whole embedded server answers, in this process and without a socket, so rules see objects after
decoding, defaults and admission.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.embedded.apiserver.strategy import recorded_answers
from tests.embedded.apiserver.strategy.cases import Ask, answer

from zonewise.embedded.apiserver.request.call import Call, parse_query
from zonewise.embedded.apiserver.server import SYSTEM, ApiServer
from zonewise.embedded.apiserver.strategy.pod.warnings import pod_warnings

NAMESPACE = "rules-a"
BATCHES = 6
CORE = f"/api/v1/namespaces/{NAMESPACE}"
POD: dict[str, Any] = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "x"}]},
}
JOB: dict[str, Any] = {
    "metadata": {"name": "j"},
    "spec": {
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
        }
    },
}


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Ask]:
    """A fresh embedded server with a namespace that is ready for pods."""
    server = ApiServer(tmp_path, clock=lambda: 1_800_000_000.0, rng=random.Random(1), inline=True)
    await server.boot()

    async def send(method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        bare_path, _, query = path.partition("?")
        call = Call(
            method=method,
            path=bare_path,
            user=SYSTEM,
            query=parse_query(query),
            headers={"content-type": "application/json", "user-agent": "tests"},
            body=b"" if body is None else msgspec.json.encode(body),
        )
        response = await server.handle(call)
        decoded: dict[str, Any] = msgspec.json.decode(response.body)
        return response.status, decoded

    try:
        await send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await send("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "default"}})
        yield send
    finally:
        await server.close()


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_answers_are_a_real_servers(ask: Ask, batch: int) -> None:
    """Every object and every change gets the recorded status, reason, causes or object."""
    known = recorded_answers.load()
    wrong = {}
    for case in recorded_answers.CASES[batch::BATCHES]:
        response = await answer(ask, case, NAMESPACE)
        if recorded_answers.short(response) != known[case.label]:
            wrong[case.label] = (known[case.label], response)
    assert not wrong


def test_every_case_is_recorded_once() -> None:
    """Labels are unique, and each has an answer."""
    labels = [case.label for case in recorded_answers.CASES]
    assert len(labels) == len(set(labels))
    assert set(labels) == set(recorded_answers.load())


async def listed(ask: Ask, path: str, selector: str) -> list[str]:
    """The names that a field selector selects."""
    code, body = await ask("GET", f"{path}?fieldSelector={selector}", None)
    assert code == 200, body
    return [item["metadata"]["name"] for item in body["items"]]


async def test_fields_of_workloads_can_be_selected(ask: Ask) -> None:
    """Field selectors select controllers by replicas, jobs by successes, pods by node and phase."""
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    assert (await ask("POST", jobs, JOB))[0] == 201
    assert await listed(ask, jobs, "status.successful=0") == ["j"]
    assert await listed(ask, jobs, "status.successful=1") == []
    assert await listed(ask, f"{CORE}/replicationcontrollers", "status.replicas=0") == []
    code, refused = await ask(
        "GET",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets?fieldSelector=status.replicas=0",
        None,
    )
    assert (code, refused["reason"]) == (400, "BadRequest")
    assert (await ask("POST", f"{CORE}/pods", POD))[0] == 201
    assert await listed(ask, f"{CORE}/pods", "status.phase=Pending,spec.nodeName=") == ["p"]
    assert await listed(ask, f"{CORE}/pods", "spec.restartPolicy!=Always") == []


async def test_a_deleted_job_leaves_its_pods(ask: Ask) -> None:
    """Without a propagation policy deleting a job orphans its pods."""
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    assert (await ask("POST", path, JOB))[0] == 201
    code, gone = await ask("DELETE", f"{path}/j", None)
    assert code == 200
    assert gone["metadata"]["finalizers"] == ["orphan"]


def test_odd_pods_are_warned_of() -> None:
    """Deprecated or suspicious fields cause a warning each, and other pods none."""
    spec = {
        "containers": [
            {
                "name": "c",
                "image": "x",
                "env": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}],
                "ports": [{"containerPort": 80}, {"containerPort": 80}],
            }
        ],
        "nodeSelector": {"beta.kubernetes.io/os": "linux"},
    }
    warnings = list(pod_warnings({"metadata": {}, "spec": spec}))
    assert [line.partition(":")[0] for line in warnings] == [
        "spec.nodeSelector[beta.kubernetes.io/os]",
        "spec.containers[0].env[1]",
        "spec.containers[0].ports[1]",
    ]
    assert list(pod_warnings(POD)) == []


async def test_annotations_count_as_changes_of_deployments(ask: Ask) -> None:
    """A deployment's generation grows with its annotations, but not by a write of its status."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    body = {
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]},
        },
    }
    _, created = await ask("POST", path, body)
    created["metadata"]["annotations"] = {"x": "y"}
    _, changed = await ask("PUT", f"{path}/d", created)
    assert changed["metadata"]["generation"] == 2
    changed["metadata"]["annotations"] = {"x": "z"}
    _, status = await ask("PUT", f"{path}/d/status", changed)
    assert status["metadata"]["generation"] == 2
    assert status["metadata"]["annotations"] == {"x": "z"}
