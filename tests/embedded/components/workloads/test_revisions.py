"""The revisions of sets: names, numbers, equality, limits."""

from __future__ import annotations

import msgspec
import pytest
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.apps import ControllerRevision, DaemonSet
from zonewise.embedded.components.workloads import revisions

TEMPLATE = {
    "metadata": {"labels": {"app": "web"}, "annotations": {"note": "a < b & c"}},
    "spec": {"containers": [{"name": "main", "image": "app:1"}]},
}

DATA = b'{"x":1}'


def revision(name: str, number: int, data: bytes) -> ControllerRevision:
    """A stored revision."""
    return ControllerRevision(
        metadata=ObjectMeta(name=name, uid=name), data=msgspec.Raw(data), revision=number
    )


def test_a_patch_is_written_as_kubernetes_writes_it() -> None:
    """Members are sorted and HTML is escaped: equal data gives equal bytes and names."""
    assert revisions.make_patch(msgspec.json.encode(TEMPLATE)) == (
        b'{"spec":{"template":{"$patch":"replace","metadata":{"annotations":{"note":'
        b'"a \\u003c b \\u0026 c"},"labels":{"app":"web"}},'
        b'"spec":{"containers":[{"image":"app:1","name":"main"}]}}}}'
    )


def test_a_template_can_be_restored() -> None:
    """What a revision brings back is the template it was made from."""
    text = msgspec.json.encode(TEMPLATE)
    assert msgspec.json.decode(revisions.template_of(revisions.make_patch(text))) == TEMPLATE


@pytest.mark.parametrize(
    ("data", "collisions", "expected"),
    [(b"", None, "65bb57b6b5"), (b"a", None, "d8bfb88b"), (b"a", 0, "5ddbd9db46")],
)
def test_names_are_hashed(data: bytes, collisions: int | None, expected: str) -> None:
    """The hash is FNV-1 of the data and the count, in letters that spell no words."""
    assert revisions.compute_hash(data, collisions) == expected


def test_the_newest_equal_revision_is_chosen_and_gets_the_next_number() -> None:
    """An equal last revision is kept; an equal older one gets the next number; else a new one is
    created.
    """
    older, two = revision("a", 1, b'{"x":1}'), revision("b", 2, b'{"x":2}')
    assert revisions.find_revision([], b'{"x":1}') == (None, 1)
    assert revisions.find_revision([older, two], b'{"x":2}') == (two, 2)
    assert revisions.find_revision([older, two], b'{"x":1}') == (older, 3)
    assert revisions.find_revision([older, two], b'{"x":3}') == (None, 3)


def test_data_is_compared_without_order() -> None:
    """The order of members in stored data does not matter."""
    there = revision("a", 1, b'{ "y": 2, "x": "<" }')
    assert revisions.find_revision([there], b'{"x":"\\u003c","y":2}') == (there, 1)


def test_history_is_ordered_by_number_then_age() -> None:
    """Equal numbers are ordered by creation and name."""
    several = [revision("b", 1, b"{}"), revision("a", 1, b"{}"), revision("c", 0, b"{}")]
    assert [item.metadata.name for item in revisions.sort_revisions(several)] == ["c", "a", "b"]


def test_the_oldest_unused_revisions_are_deleted() -> None:
    """Revisions in use stay and do not count."""
    several = [revision(name, number, b"{}") for number, name in enumerate("abcd")]
    gone = revisions.select_surplus(several, lambda item: item.metadata.name == "a", keep=1)
    assert [item.metadata.name for item in gone] == ["b", "c"]
    assert revisions.select_surplus(several, lambda _: False, keep=9) == []


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_collision_is_counted_and_a_repetition_is_not() -> None:
    """The same revision is recorded once; another revision of that name increases the count."""
    async with virtual_cluster({}) as cluster:
        client = cluster.client
        owner = DaemonSet(metadata=ObjectMeta(name="agent", namespace="default", uid="u"))

        async def record(data: bytes, collisions: int | None) -> tuple[str, int | None]:
            created, count = await revisions.create_revision(
                client, owner, data, 1, labels={}, hash_label="hash", collisions=collisions
            )
            return created.metadata.name, count

        first = await record(DATA, None)
        assert first == ("agent-" + revisions.compute_hash(DATA, None), None)
        assert await record(DATA, None) == first
        await client.delete(ControllerRevision, first[0], "default")
        other = ControllerRevision(
            metadata=ObjectMeta(name=first[0], namespace="default"),
            data=msgspec.Raw(b'{"x":2}'),
            revision=7,
        )
        await client.create(other)
        assert await record(DATA, None) == ("agent-" + revisions.compute_hash(DATA, 1), 1)
