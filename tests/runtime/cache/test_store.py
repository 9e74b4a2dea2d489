"""The store of one kind: order, differences, indexes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.runtime.cache.store import ListDifference, Store
from zonewise.runtime.client.versions import newer, older


def node(name: str, version: int, *, zone: str = "", uid: str = "1") -> Node:
    labels = {"zone": zone} if zone else {}
    return Node(
        metadata=ObjectMeta(name=name, resource_version=str(version), uid=uid, labels=labels)
    )


def by_zone(item: Node) -> Iterable[str]:
    return (item.metadata.labels["zone"],) if "zone" in item.metadata.labels else ()


def summary(item: Node | None) -> str | None:
    return f"{item.metadata.name}@{item.metadata.resource_version}" if item else None


class Watcher:
    """Records every change that is reported to it."""

    def __init__(self, store: Store[Node]) -> None:
        self.changes: list[tuple[str | None, str | None]] = []
        self.end = store.on_change(self.note)

    def note(self, old: Node | None, new: Node | None) -> None:
        self.changes.append((summary(old), summary(new)))


def test_versions_are_numbers() -> None:
    """Ten is newer than nine; a version that is not a number is newer if it differs."""
    assert newer("10", "9")
    assert not newer("9", "10")
    assert not newer("9", "9")
    assert newer("1", "")
    assert newer("abc", "abd")
    assert not newer("abc", "abc")
    assert not newer("", "9")
    assert older("9", "10")
    assert not older("10", "10")
    assert not older("9", "")


def test_changes_are_applied_once_and_never_backwards() -> None:
    """A repeated or older change does nothing and is not reported."""
    store: Store[Node] = Store()
    watcher = Watcher(store)
    assert store.apply(node("a", 5))
    assert not store.apply(node("a", 5))
    assert not store.apply(node("a", 4))
    assert store.apply(node("a", 7))
    assert not store.remove(node("a", 6))
    assert store.remove(node("a", 8))
    assert watcher.changes == [(None, "a@5"), ("a@5", "a@7"), ("a@7", None)]
    assert store.resource_version == "8"
    assert len(store) == 0


def test_an_older_change_does_not_bring_a_deleted_object_back() -> None:
    """An object deleted at version 8 does not return with version 6, but does with version 9."""
    store: Store[Node] = Store()
    store.apply(node("a", 5))
    store.remove(node("a", 8))
    assert not store.apply(node("a", 6))
    assert store.get(("", "a")) is None
    assert store.apply(node("a", 9))


def test_bookmarks_only_move_forward() -> None:
    """A bookmark raises the version to resume from and never lowers it."""
    store: Store[Node] = Store()
    store.bookmark("10")
    store.bookmark("9")
    assert store.resource_version == "10"


def test_a_list_becomes_exact_differences() -> None:
    """After a lost connection, listeners get what was added, changed and deleted, nothing else."""
    store: Store[Node] = Store()
    store.replace([node("same", 1), node("changed", 2), node("gone", 3)], "3")
    watcher = Watcher(store)
    watcher.changes.clear()
    before = store.get(("", "same"))
    result = store.replace([node("same", 1), node("changed", 9), node("new", 8)], "10")
    assert result == ListDifference(added=1, updated=1, removed=1)
    assert watcher.changes == [("changed@2", "changed@9"), (None, "new@8"), ("gone@3", None)]
    assert store.get(("", "same")) is before
    assert store.resource_version == "10"


def test_an_object_made_anew_is_reported_as_deleted_and_added() -> None:
    """The same name with another uid is another object."""
    store: Store[Node] = Store()
    store.replace([node("a", 1, uid="1")], "1")
    watcher = Watcher(store)
    watcher.changes.clear()
    store.replace([node("a", 9, uid="2")], "9")
    assert watcher.changes == [("a@1", None), (None, "a@9")]
    store.apply(node("a", 12, uid="3"))
    assert watcher.changes[2:] == [("a@9", None), (None, "a@12")]


def test_a_list_is_true_even_if_older() -> None:
    """The objects of a cluster restored from a backup replace newer ones."""
    store: Store[Node] = Store()
    store.replace([node("a", 90), node("b", 95)], "100")
    store.replace([node("a", 40)], "50")
    assert [summary(item) for item in store] == ["a@40"]
    assert store.resource_version == "50"
    assert store.apply(node("a", 51))


def test_synced_after_the_first_list() -> None:
    """A store is synced once a complete list was applied, even an empty one."""
    store: Store[Node] = Store()
    assert [store.apply(node("a", 1)), store.synced] == [True, False]
    store.replace([], "5")
    assert store.synced
    assert len(store) == 0


def test_a_late_listener_gets_all_objects_first() -> None:
    """A listener gets the same whether it subscribes before or after the list."""
    store: Store[Node] = Store()
    store.replace([node("a", 1), node("b", 2)], "2")
    watcher = Watcher(store)
    assert watcher.changes == [(None, "a@1"), (None, "b@2")]
    watcher.end()
    store.apply(node("a", 3))
    assert len(watcher.changes) == 2


def test_an_index_follows_changes() -> None:
    """An object is found under its present values only."""
    store: Store[Node] = Store({"zone": by_zone})
    store.replace([node("a", 1, zone="x"), node("b", 2, zone="x"), node("c", 3)], "3")
    assert [item.metadata.name for item in store.by("zone", "x")] == ["a", "b"]
    store.apply(node("a", 4, zone="y"))
    assert [item.metadata.name for item in store.by("zone", "x")] == ["b"]
    assert [summary(item) for item in store.by("zone", "y")] == ["a@4"]
    store.apply(node("a", 5, zone="y"))
    assert [summary(item) for item in store.by("zone", "y")] == ["a@5"]
    store.remove(node("b", 6))
    assert store.by("zone", "x") == ()
    assert store.index_values("zone") == ("y",)


def test_an_index_can_come_late_and_repeat_values() -> None:
    """An index added to a full store knows everything, and a value given twice counts once."""
    store: Store[Node] = Store()
    store.replace([node("a", 1, zone="x"), node("b", 2, zone="x")], "2")

    def twice(item: Node) -> Iterable[str]:
        return (*by_zone(item), *by_zone(item))

    store.add_index("twice", twice)
    store.add_index("twice", twice)
    assert len(store.by("twice", "x")) == 2
    store.apply(node("a", 3, zone="x"))
    store.apply(node("b", 4))
    assert [summary(item) for item in store.by("twice", "x")] == ["a@3"]
    store.remove(node("a", 5))
    assert store.index_values("twice") == ()
    with pytest.raises(ValueError, match="another function"):
        store.add_index("twice", by_zone)
    with pytest.raises(KeyError):
        store.by("unknown", "x")


def test_reading_while_changing_is_safe() -> None:
    """An iteration sees the store as it was when the iteration began."""
    store: Store[Node] = Store()
    store.replace([node("a", 1), node("b", 2)], "2")
    seen = []
    for item in store:
        seen.append(item.metadata.name)
        store.apply(node(f"new-{item.metadata.name}", 3 + len(seen)))
    assert seen == ["a", "b"]
    assert len(store) == 4
    assert ("", "new-a") in store
    assert dict(store.items()).keys() == set(store.keys())
    assert len(store.values()) == 4


def test_a_compact_store_gives_equal_objects() -> None:
    """Objects that are read equal those that were stored, typed or not."""
    first = node("a", 1, zone="x")
    store: Store[Node] = Store({"zone": by_zone}, compact=True)
    store.apply(first)
    assert store.get(("", "a")) == first
    assert store.values() == (first,) == tuple(store)
    assert store.items() == ((("", "a"), first),)
    assert store.by("zone", "x") == (first,)
    assert not store.apply(node("a", 1, zone="y"))

    widget = unstructured(Resource("example.com", "v1", "Widget", "widgets"))
    item = widget({"metadata": {"name": "w", "resourceVersion": "3"}, "spec": {"big": 1 << 60}})
    loose: Store[Unstructured] = Store(compact=True)
    loose.apply(item)
    assert loose.get(("", "w")) == item
    assert type(loose.values()[0]) is widget


def test_a_list_that_breaks_off_removes_nothing() -> None:
    """Objects are stored as they come; only a complete list removes others."""
    store: Store[Node] = Store()
    store.replace([node("a", 1), node("b", 2)], "2")
    relist = store.relist()
    relist.put(node("a", 5))
    assert [summary(item) for item in store] == ["a@5", "b@2"]
    relist = store.relist()
    relist.put(node("a", 5))
    relist.put(node("c", 6))
    relist.drop(("", "c"))
    assert relist.finish("7") == ListDifference(added=1, updated=0, removed=2)
    assert [summary(item) for item in store] == ["a@5"]


NAMES = st.sampled_from("abcde")
ZONES = st.sampled_from(["", "x", "y", "z"])
WRITES = st.lists(
    st.tuples(st.sampled_from(["put", "delete"]), NAMES, ZONES), min_size=1, max_size=30
)


@settings(max_examples=200, deadline=None)
@given(
    writes=WRITES,
    disorder=st.lists(st.integers(0, 10_000), max_size=30),
    lists=st.sets(st.integers(0, 30), max_size=4),
    compact=st.booleans(),
)
def test_repeated_and_late_events_leave_the_store_equal_to_the_server(
    writes: list[tuple[str, str, str]], disorder: list[int], lists: set[int], compact: bool
) -> None:
    """Old events mixed in anywhere change nothing; changes are in order; indexes agree."""
    store: Store[Node] = Store({"zone": by_zone}, compact=compact)
    applied: list[tuple[Node | None, Node | None]] = []
    store.on_change(lambda old, new: applied.append((old, new)))
    server: dict[str, Node] = {}
    history: list[tuple[str, Node]] = []
    stale = iter(disorder)
    for step, (verb, name, zone) in enumerate(writes):
        version = 10 + step
        if verb == "put":
            uid = server[name].metadata.uid if name in server else str(version)
            server[name] = node(name, version, zone=zone, uid=uid)
            history.append(("put", server[name]))
        elif name in server:
            uid = server.pop(name).metadata.uid
            history.append(("delete", node(name, version, uid=uid)))
        if step in lists:
            store.replace(server.values(), str(version))
        elif history:
            kind, item = history[-1]
            (store.apply if kind == "put" else store.remove)(item)
        for _ in range(2):
            if history and (position := next(stale, None)) is not None:
                kind, item = history[position % len(history)]
                (store.apply if kind == "put" else store.remove)(item)

    assert {item.metadata.name: item for item in store} == server
    for zone in ("x", "y", "z"):
        expected = {name for name, item in server.items() if zone in by_zone(item)}
        assert {item.metadata.name for item in store.by("zone", zone)} == expected
    last: dict[str, Node | None] = {}
    newest: dict[str, int] = {}
    for old, new in applied:
        subject = new or old
        assert subject is not None
        name = subject.metadata.name
        assert last.get(name) == old, "each change starts where the one before ended"
        last[name] = new
        if new is not None:
            assert int(new.metadata.resource_version) > newest.get(name, 0)
            newest[name] = int(new.metadata.resource_version)
