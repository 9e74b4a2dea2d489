"""Deletions: grace, finalizers, propagation and the end of namespaces."""

from __future__ import annotations

from typing import Any

from tests.contract.samples import POD_SPEC
from tests.contract.talking import Api

Obj = dict[str, Any]


def pod(name: str, **spec: Any) -> Obj:
    """A pod."""
    return {"metadata": {"name": name}, "spec": {**POD_SPEC, **spec}}


def test_grace(api: Api) -> None:
    """Unbound and finished pods go at once; bound ones stay; grace can only be shortened."""
    path = f"{api.core}/pods"
    api.made(path, pod("unbound"))
    api.delete(f"{path}/unbound")
    assert api.get(f"{path}/unbound").status == 404
    api.made(path, pod("bound", nodeName="n"))
    first = api.delete(f"{path}/bound")
    assert first.meta["deletionGracePeriodSeconds"] == 30
    assert api.get(f"{path}/bound").status == 200
    longer = api.delete(f"{path}/bound", {"gracePeriodSeconds": 60})
    assert longer.meta["deletionGracePeriodSeconds"] == 30
    shorter = api.delete(f"{path}/bound", {"gracePeriodSeconds": 5})
    assert shorter.meta["deletionGracePeriodSeconds"] == 5
    api.patch(f"{path}/bound", {"metadata": {"labels": {"late": "1"}}})
    api.delete(f"{path}/bound", gracePeriodSeconds=0)
    assert api.get(f"{path}/bound").status == 404
    api.made(path, pod("done", nodeName="n"))
    api.patch(f"{path}/done/status", {"status": {"phase": "Succeeded"}})
    api.delete(f"{path}/done")
    assert api.get(f"{path}/done").status == 404
    api.made(path, pod("own", nodeName="n", terminationGracePeriodSeconds=7))
    assert api.delete(f"{path}/own").meta["deletionGracePeriodSeconds"] == 7
    api.made(path, pod("less", nodeName="n"))
    api.delete(f"{path}/less", {"gracePeriodSeconds": -1})
    api.delete(f"{path}/less", {"gracePeriodSeconds": "x"})


def test_finalizers(api: Api) -> None:
    """A marked object lives until its last finalizer is gone; none may be added."""
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "a", "finalizers": ["zonewise.io/a", "zonewise.io/b"]}})
    own = f"{path}/a"
    marked = api.delete(own)
    assert marked.meta["deletionTimestamp"]
    again = api.delete(own)
    assert again.version == marked.version
    api.patch(own, {"data": {"still": "writable"}})
    added = ["zonewise.io/a", "zonewise.io/b", "zonewise.io/c"]
    assert api.patch(own, {"metadata": {"finalizers": added}}).status == 422
    api.patch(own, {"metadata": {"deletionTimestamp": None}})
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/b"]}})
    assert api.create(path, {"metadata": {"name": "a"}}).status == 409
    api.patch(own, {"metadata": {"finalizers": []}})
    assert api.get(own).status == 404


def test_propagation(api: Api) -> None:
    """What becomes of dependents is written into finalizers, for the collector to read."""
    path = f"{api.core}/configmaps"
    held = ["zonewise.io/test"]
    cases: list[Obj] = [
        {"propagationPolicy": "Background"},
        {"propagationPolicy": "Foreground"},
        {"propagationPolicy": "Orphan"},
        {"orphanDependents": True},
        {"orphanDependents": False},
        {"orphanDependents": True, "propagationPolicy": "Foreground"},
        {"propagationPolicy": "Nonsense"},
    ]
    for number, options in enumerate(cases):
        name = f"c{number}"
        api.made(path, {"metadata": {"name": name, "finalizers": held}})
        answer = api.delete(f"{path}/{name}", options, dryRun="All", quiet=True)
        api.note("answer", [options, answer.status])
        if answer.status == 200:
            first = [one for one in answer.meta["finalizers"] if one not in held]
            api.note("finalizers", first)
    apps = api.group("apps/v1")
    queries: list[Obj] = [{"propagationPolicy": "Foreground"}, {"orphanDependents": "true"}]
    for query in queries:
        api.delete(f"{apps}/deployments/none", **query)


def test_options(api: Api) -> None:
    """Options come in the body or in the URL; a body of another kind is refused."""
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "a"}})
    own = f"{path}/a"
    api.delete(own, {"kind": "Pod", "apiVersion": "v1"})
    api.delete(own, {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]})
    api.delete(own, {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]})
    api.delete(own, {"preconditions": {"uid": "x", "resourceVersion": "1"}})
    api.delete(own, {"dryRun": "All"})
    api.ask("DELETE", own, b"[]")
    api.ask("DELETE", own, b"{")
    api.delete(own, {"unknown": 1, "dryRun": ["All"]})
    api.delete(own, gracePeriodSeconds="x")
    api.delete(own, propagationPolicy="Nonsense")
    api.delete(f"{own}-not", {"preconditions": {"uid": "x"}})
    api.ask("DELETE", own, b"kind: DeleteOptions\ndryRun: [All]\n", type="application/yaml")
    assert api.get(own).status == 200
    both = {"propagationPolicy": "Background"}
    assert api.delete(own, both, dryRun="All").status == 200
    assert api.get(own).status == 404  # with a body, the URL's options are not looked at


def test_collections(api: Api) -> None:
    """A collection takes selectors, limits nothing, and refuses what one deletion refuses."""
    path = f"{api.core}/secrets"
    for name in ("a", "b", "c"):
        api.made(path, {"metadata": {"name": name, "labels": {"name": name}}})
    api.delete(path, labelSelector="name in (a")
    api.delete(path, fieldSelector="data.x=1")
    api.delete(path, {"propagationPolicy": "Nonsense"})
    api.delete(path, {"dryRun": ["All"]}, labelSelector="name")
    api.delete(path, fieldSelector="metadata.name=a")
    api.delete(path, labelSelector="name=b")
    assert api.get(path).names == ["c"]
    api.delete(path)
    assert api.get(path).names == []


def test_terminating_namespace(api: Api) -> None:
    """Nothing is created in a namespace that goes; what is there can still be changed."""
    name = f"{api.ns}-going"
    api.made("/api/v1/namespaces", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{name}/configmaps"
    held = {"name": "held", "finalizers": ["zonewise.io/test"]}
    api.made(path, {"metadata": held})
    api.brief = True
    gone = api.delete(f"/api/v1/namespaces/{name}")
    assert gone.body["status"]["phase"] == "Terminating"
    late = api.create(path, {"metadata": {"name": "late"}})
    assert late.status == 403
    assert ("NamespaceTerminating", "metadata.namespace") in late.causes
    assert api.create(path, {"metadata": {"name": "late"}}, dryRun="All").status == 403
    api.apply(f"{path}/late", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})
    changed = api.patch(f"{path}/held", {"data": {"x": "1"}}, quiet=True)
    assert changed.status == 200
    assert api.create("/api/v1/namespaces", {"metadata": {"name": name}}).status == 409
    api.delete(f"/api/v1/namespaces/{name}", quiet=True)
    assert api.patch(f"{path}/held", {"metadata": {"finalizers": None}}, quiet=True).status == 200


def test_missing_namespace(api: Api) -> None:
    """Nothing is created in a namespace that does not exist; lists of it are empty."""
    path = f"/api/v1/namespaces/{api.ns}-not/configmaps"
    missing = api.create(path, {"metadata": {"name": "a"}})
    assert (missing.status, missing.reason) == (404, "NotFound")
    assert missing.body["details"]["kind"] == "namespaces"
    assert api.get(path).names == []
    api.delete(f"/api/v1/namespaces/{api.ns}-not")
    for name in ("default", "kube-system", "kube-public"):
        assert api.delete(f"/api/v1/namespaces/{name}", dryRun="All", quiet=True).status == 403
    meta = {"name": "Bad_Name"}
    api.create("/api/v1/namespaces", {"metadata": meta})
    api.get(f"/api/v1/namespaces/{api.ns}")
    body = {"metadata": {"name": api.ns}, "spec": {"finalizers": ["zonewise.io/test"]}}
    api.put(f"/api/v1/namespaces/{api.ns}/finalize", body)


def test_dry_twice(api: Api) -> None:
    """Who says twice that nothing is to happen is understood."""
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "a"}})
    api.delete(f"{path}/a", {"dryRun": ["All", "All"]})
    api.delete(f"{path}/a", {"dryRun": ["All", "Some"]})
    api.get(f"{path}/a")
