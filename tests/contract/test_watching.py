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
    api.made(path, lease("a"))
    api.patch(f"{path}/a", {"spec": {"holderIdentity": "b"}})
    api.patch(f"{path}/a", {"spec": {"holderIdentity": "b"}})
    api.create(path, lease("dry"), dryRun="All")
    api.delete(f"{path}/a")
    api.made(path, lease("end"))
    events = watch.take(4)
    assert [(one.type, one.name) for one in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "end"),
    ]
    versions = [one.version for one in events]
    assert versions == sorted(set(versions))
    again = api.watch(path, resourceVersion=versions[1])
    assert [one.type for one in again.take(2)] == ["DELETED", "ADDED"]


def test_start(api: Api) -> None:
    """Without a version a watch begins with what is there; versions of that are its own."""
    path = leases(api)
    api.made(path, lease("a"))
    for query in ({}, {"resourceVersion": "0"}):
        watch = api.watch(path, **query)
        assert [one.type for one in watch.take(1)] == ["ADDED"]
    single = api.watch(path, fieldSelector="metadata.name=a")
    api.made(path, lease("b"))
    api.delete(f"{path}/a")
    assert [one.type for one in single.take(2)] == ["ADDED", "DELETED"]
    assert api.get(f"{path}/b", watch="1").meta["name"] == "b"
    old = api.watch(path.replace("/v1/", "/v1/watch/"), watch="0")
    assert [one.name for one in old.take(1)] == ["b"]


def test_initial_events(api: Api) -> None:
    """A watch that sends what is there first ends that with a bookmark."""
    path = leases(api)
    api.made(path, lease("a"))
    api.made(path, lease("b"))
    watch = api.watch(path, **START_MARKED)
    events = watch.until(lambda one: one.type == "BOOKMARK")
    assert events[-1].object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    api.made(path, lease("c"))
    assert [one.name for one in watch.take(1)] == ["c"]
    empty = api.watch(path, labelSelector="none=here", **START_MARKED)
    assert [one.type for one in empty.take(1, marks=True)] == ["BOOKMARK"]
    unmarked = api.watch(path, **START)
    assert len(unmarked.take(3)) == 3
    off = api.watch(
        path,
        sendInitialEvents="false",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    )
    api.made(path, lease("d"))
    assert [one.name for one in off.take(1)] == ["d"]


def test_refused_options(api: Api) -> None:
    """Options that contradict each other are refused before a stream begins."""
    path = leases(api)
    for query in (
        {"sendInitialEvents": "true"},
        {"resourceVersionMatch": "NotOlderThan"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"},
        {"resourceVersion": "x"},
        {"labelSelector": "a in"},
        {"fieldSelector": "spec.x=1"},
        {"timeoutSeconds": "x"},
    ):
        api.get(path, watch="1", **{"timeoutSeconds": "1", **query})


def test_selector_leave(api: Api) -> None:
    """What stops matching is deleted: old content, new version; what begins to match is added."""
    path = leases(api)
    api.made(path, lease("a", "one", on="yes"))
    begin = api.get(path).version
    watch = api.watch(path, resourceVersion=begin, labelSelector="on=yes")
    left = api.patch(
        f"{path}/a", {"metadata": {"labels": {"on": "no"}}, "spec": {"holderIdentity": "two"}}
    )
    api.patch(f"{path}/a", {"spec": {"holderIdentity": "three"}})
    api.patch(f"{path}/a", {"metadata": {"labels": {"on": "yes"}}})
    api.delete(f"{path}/a")
    events = watch.take(3)
    assert [one.type for one in events] == ["DELETED", "ADDED", "DELETED"]
    assert events[0].object["spec"]["holderIdentity"] == "one"
    assert events[0].object["metadata"]["labels"] == {"on": "yes"}
    assert events[0].version == int(left.version)


def test_field_leave(api: Api) -> None:
    """A field selector's watch is told the same way when a pod is bound."""
    path = f"{api.core}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}]}
    begin = api.get(path).version
    unbound = api.watch(path, resourceVersion=begin, fieldSelector="spec.nodeName=")
    bound = api.watch(path, resourceVersion=begin, fieldSelector="spec.nodeName=n")
    api.made(path, {"metadata": {"name": "p"}, "spec": spec})
    target = {"target": {"kind": "Node", "name": "n"}, "metadata": {"name": "p"}}
    assert api.create(f"{path}/p/binding", target).status == 201
    api.brief = True
    assert [one.type for one in unbound.take(2)] == ["ADDED", "DELETED"]
    assert [one.type for one in bound.take(1)] == ["ADDED"]


def test_future(api: Api) -> None:
    """A watch from a version that is yet to come waits for it or is refused, never skips."""
    path = leases(api)
    api.made(path, lease("a"))
    ahead = str(int(api.get(path).version) + 1_000_000)
    refused = api.get(path, watch="1", resourceVersion=ahead, timeoutSeconds="1", quiet=True)
    assert refused.status in {200, 504}
    assert b"ADDED" not in refused.text


def test_end(api: Api) -> None:
    """A watch ends when its time is over."""
    watch = api.watch(leases(api), timeoutSeconds="1")
    assert watch.rest() == []


def test_forced_deletion(api: Api) -> None:
    """Forcing a bound pod away sends the mark before the end."""
    path = f"{api.core}/pods"
    api.brief = True
    begin = api.get(path).version
    watch = api.watch(path, resourceVersion=begin)
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}
    for name in ("p", "q"):
        api.made(path, {"metadata": {"name": name}, "spec": spec})
    api.delete(f"{path}/p", {"gracePeriodSeconds": 0})
    api.delete(f"{path}/q")
    api.delete(f"{path}/q", {"gracePeriodSeconds": 0})
    kinds = [
        (one.type, one.name) for one in watch.until(lambda e: e[0] == "DELETED" and e.name == "q")
    ]
    assert kinds[2:4] == [("MODIFIED", "p"), ("DELETED", "p")]
