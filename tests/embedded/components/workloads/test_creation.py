"""Pods created from templates, in batches; templates compared and hashed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from zonewise.api.codec import encode
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.apps import ReplicaSet
from zonewise.embedded.components.workloads.creation import draft_pod, run_in_batches
from zonewise.embedded.components.workloads.deployments import templates
from zonewise.embedded.components.workloads.pacing import MAX_INTERVAL, MIN_INTERVAL, Pacing

TEMPLATE = msgspec.Raw(
    b'{"metadata":{"labels":{"app":"web"},"annotations":{"a":"b"},"finalizers":["x/y"],'
    b'"name":"no"},"spec":{"containers":[{"name":"main","secret":{"unknown":[1,null]}}]}}'
)
OWNER = ReplicaSet(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))


def test_a_pod_has_all_of_its_template() -> None:
    """Unknown fields are kept; name and namespace are set by the owner."""
    drafted = msgspec.json.decode(encode(draft_pod(TEMPLATE, OWNER)))
    assert drafted == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "web-",
            "namespace": "shop",
            "labels": {"app": "web"},
            "annotations": {"a": "b"},
            "finalizers": ["x/y"],
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "web",
                    "uid": "u",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {"containers": [{"name": "main", "secret": {"unknown": [1, None]}}]},
    }


def test_a_pod_may_have_a_name_and_more() -> None:
    """Metadata of a workload is added to the template, and a spec replaces it."""
    spec = msgspec.Raw(b'{"hostname":"web-0"}')
    pod = draft_pod(
        TEMPLATE, OWNER, name="web-0", labels={"app": "x", "n": "0"}, finalizers=["z"], spec=spec
    )
    assert (pod.metadata.name, pod.metadata.generate_name) == ("web-0", "")
    assert pod.metadata.labels == {"app": "x", "n": "0"}
    assert pod.metadata.finalizers == ("x/y", "z")
    assert bytes(pod.spec) == bytes(spec)


@pytest.mark.asyncio
async def test_batches_grow_after_success() -> None:
    """Pods are created in batches of one, two, four, and the rest; results keep their order."""
    running, sizes = 0, []

    async def work(number: int) -> int:
        nonlocal running
        running += 1
        sizes.append(running)
        await pause()
        running -= 1
        return number * 2

    async def pause() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    assert await run_in_batches(range(10), work) == [n * 2 for n in range(10)]
    assert sizes == [1, 1, 2, 1, 2, 3, 4, 1, 2, 3]


@pytest.mark.asyncio
async def test_the_first_bad_batch_is_the_last() -> None:
    """After a failed batch no further pods are created."""
    attempts = 0

    async def work(number: int) -> int:
        nonlocal attempts
        attempts += 1
        if number >= 5:
            raise ValueError(number)
        return number

    results = await run_in_batches(range(500), work)
    assert attempts == len(results) == 7
    assert results[:5] == [0, 1, 2, 3, 4]
    assert all(isinstance(outcome, ValueError) for outcome in results[5:])


def test_templates_are_compared_without_order_and_hash() -> None:
    """The pod-template-hash label does not count."""
    other = msgspec.Raw(
        b'{"spec":{"containers":[{"secret":{"unknown":[1,null]},"name":"main"}]},"metadata":'
        b'{"name":"no","finalizers":["x/y"],"labels":{"app":"web"},"annotations":{"a":"b"}}}'
    )
    marked = templates.add_hash_label(TEMPLATE, "12345")
    assert templates.equal_ignoring_hash(TEMPLATE, other)
    assert templates.equal_ignoring_hash(TEMPLATE, marked)
    assert b'"pod-template-hash":"12345"' in bytes(marked)
    assert not templates.equal_ignoring_hash(TEMPLATE, msgspec.Raw(b'{"spec":{}}'))
    bare = msgspec.Raw(b'{"metadata":{"creationTimestamp":null},"spec":{}}')
    assert templates.equal_ignoring_hash(bare, templates.add_hash_label(bare, "1"))


def test_hashes_differ_by_template_and_collision() -> None:
    """Equal templates have equal hashes; a collision changes the hash."""
    digest = templates.hash_template(TEMPLATE, None)
    assert digest == templates.hash_template(templates.add_hash_label(TEMPLATE, "x"), None)
    assert digest.isalnum() and len(digest) <= 10
    assert (
        len(
            {
                digest,
                templates.hash_template(TEMPLATE, 1),
                templates.hash_template(msgspec.Raw(b"{}"), None),
            }
        )
        == 3
    )


def test_large_workloads_pause_longer() -> None:
    """The pause grows with the number of pods, up to a limit."""
    now = 100.0
    pacing: Pacing[str] = Pacing(lambda: now)
    assert pacing.wait("a") <= 0
    for pods, rest in ((0, MIN_INTERVAL), (100_000, MAX_INTERVAL)):
        pacing.synced("a", pods)
        assert pacing.wait("a") == pytest.approx(rest)
    pacing.forget("a")
    assert pacing.wait("a") <= 0
