"""Watches: what is sent, in which order, and how a stream begins and ends."""

from __future__ import annotations

from typing import Any

from tests.contract.talking import Api

Obj = dict[str, Any]
START = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
START_MARKED = {**START, "allowWatchBookmarks": "true"}


def lease(name: str, holder: str = "a", **labels: str) -> Obj:
    """A Lease."""
    return {"metadata": {"name": name, "labels": labels}, "spec": {"holderIdentity": holder}}


def leases(api: Api) -> str:
    """Where Leases are."""
    return api.group("coordination.k8s.io/v1") + "/leases"


def test_order(api: Api) -> None:
    """Events come in the order of the writes, versions grow; no-ops and dry runs send none."""
    path = leases(api)
    begin = api.get(path).version
    watch = api.watch(path, resourceVersion=begin)
    api.create(path, lease("a"), expect="201 Created")
    api.patch(f"{path}/a", {"spec": {"holderIdentity": "b"}}, expect="200 OK")
    api.patch(f"{path}/a", {"spec": {"holderIdentity": "b"}}, expect="200 OK")
    api.create(path, lease("dry"), dryRun="All", expect="201 Created")
    api.delete(f"{path}/a", expect="200 OK")
    api.create(path, lease("end"), expect="201 Created")
    events = watch.take(4)
    assert [(event.type, event.name) for event in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "end"),
    ]
    versions = [event.version for event in events]
    assert versions == sorted(set(versions))
    again = api.watch(path, resourceVersion=versions[1])
    assert [event.type for event in again.take(2)] == ["DELETED", "ADDED"]


def test_start(api: Api) -> None:
    """A watch without a version begins with the existing objects."""
    path = leases(api)
    api.create(path, lease("a"), expect="201 Created")
    for query in ({}, {"resourceVersion": "0"}):
        watch = api.watch(path, **query)
        assert [event.type for event in watch.take(1)] == ["ADDED"]
    single = api.watch(path, fieldSelector="metadata.name=a")
    api.create(path, lease("b"), expect="201 Created")
    api.delete(f"{path}/a", expect="200 OK")
    assert [event.type for event in single.take(2)] == ["ADDED", "DELETED"]
    assert api.get(f"{path}/b", watch="1").meta["name"] == "b"
    old = api.watch(path.replace("/v1/", "/v1/watch/"), watch="0")
    assert [event.name for event in old.take(1)] == ["b"]


def test_initial_events(api: Api) -> None:
    """A watch that sends initial events ends them with a bookmark."""
    path = leases(api)
    api.create(path, lease("a"), expect="201 Created")
    api.create(path, lease("b"), expect="201 Created")
    watch = api.watch(path, **START_MARKED)
    events = watch.until(lambda event: event.type == "BOOKMARK")
    assert events[-1].object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    api.create(path, lease("c"), expect="201 Created")
    assert [event.name for event in watch.take(1)] == ["c"]
    empty = api.watch(path, labelSelector="none=here", **START_MARKED)
    assert [event.type for event in empty.take(1, marks=True)] == ["BOOKMARK"]
    unmarked = api.watch(path, **START)
    assert len(unmarked.take(3)) == 3
    off = api.watch(
        path,
        sendInitialEvents="false",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    )
    api.create(path, lease("d"), expect="201 Created")
    assert [event.name for event in off.take(1)] == ["d"]


def test_refused_options(api: Api) -> None:
    """Options that contradict each other are refused before a stream begins."""
    path = leases(api)
    for query, expected in (
        ({"sendInitialEvents": "true"}, "422 Invalid"),
        ({"resourceVersionMatch": "NotOlderThan"}, "422 Invalid"),
        ({"sendInitialEvents": "true", "resourceVersionMatch": "Exact"}, "422 Invalid"),
        ({"resourceVersion": "x"}, "500 Internal Server Error"),
        ({"labelSelector": "a in"}, "400 BadRequest"),
        ({"fieldSelector": "spec.x=1"}, "400 BadRequest"),
        ({"timeoutSeconds": "x"}, "400 BadRequest"),
    ):
        api.get(path, watch="1", expect=expected, **{"timeoutSeconds": "1", **query})


def test_selector_leave(api: Api) -> None:
    """An object that stops matching is DELETED with its old content; one that begins is ADDED."""
    path = leases(api)
    api.create(path, lease("a", "one", on="yes"), expect="201 Created")
    begin = api.get(path).version
    watch = api.watch(path, resourceVersion=begin, labelSelector="on=yes")
    left = api.patch(
        f"{path}/a",
        {"metadata": {"labels": {"on": "no"}}, "spec": {"holderIdentity": "two"}},
        expect="200 OK",
    )
    api.patch(f"{path}/a", {"spec": {"holderIdentity": "three"}}, expect="200 OK")
    api.patch(f"{path}/a", {"metadata": {"labels": {"on": "yes"}}}, expect="200 OK")
    api.delete(f"{path}/a", expect="200 OK")
    events = watch.take(3)
    assert [event.type for event in events] == ["DELETED", "ADDED", "DELETED"]
    assert events[0].object["spec"]["holderIdentity"] == "one"
    assert events[0].object["metadata"]["labels"] == {"on": "yes"}
    assert events[0].version == int(left.version)


def test_field_leave(api: Api) -> None:
    """A watch with a field selector gets the same events when a pod is bound."""
    path = f"{api.core}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}]}
    begin = api.get(path).version
    unbound = api.watch(path, resourceVersion=begin, fieldSelector="spec.nodeName=")
    bound = api.watch(path, resourceVersion=begin, fieldSelector="spec.nodeName=n")
    api.create(path, {"metadata": {"name": "p"}, "spec": spec}, expect="201 Created")
    target = {"target": {"kind": "Node", "name": "n"}, "metadata": {"name": "p"}}
    api.create(f"{path}/p/binding", target, expect="201 Created")
    api.brief = True
    assert [event.type for event in unbound.take(2)] == ["ADDED", "DELETED"]
    assert [event.type for event in bound.take(1)] == ["ADDED"]


def test_future(api: Api) -> None:
    """A watch from a future version waits for it or is refused, and skips nothing."""
    path = leases(api)
    api.create(path, lease("a"), expect="201 Created")
    ahead = str(int(api.get(path).version) + 1_000_000)
    answer = api.get(path, watch="1", resourceVersion=ahead, timeoutSeconds="1", quiet=True)
    assert answer.outcome in {"200 OK", "504 Timeout"}  # a real server's, ours
    assert b"ADDED" not in answer.text


def test_end(api: Api) -> None:
    """A watch ends when its time is over."""
    watch = api.watch(leases(api), timeoutSeconds="1")
    assert watch.rest() == []


def test_forced_deletion(api: Api) -> None:
    """The forced deletion of a bound pod sends MODIFIED before DELETED."""
    path = f"{api.core}/pods"
    api.brief = True
    begin = api.get(path).version
    watch = api.watch(path, resourceVersion=begin)
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}
    for name in ("p", "q"):
        api.create(path, {"metadata": {"name": name}, "spec": spec}, expect="201 Created")
    api.delete(f"{path}/p", {"gracePeriodSeconds": 0}, expect="200 OK")
    api.delete(f"{path}/q", expect="200 OK")
    api.delete(f"{path}/q", {"gracePeriodSeconds": 0}, expect="200 OK")
    kinds = [
        (event.type, event.name)
        for event in watch.until(lambda e: e[0] == "DELETED" and e.name == "q")
    ]
    assert kinds[2:4] == [("MODIFIED", "p"), ("DELETED", "p")]
