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
    """Unbound and finished pods are deleted at once; a bound pod's grace can only be shortened."""
    path = f"{api.core}/pods"
    api.create(path, pod("unbound"), expect="201 Created")
    api.delete(f"{path}/unbound", expect="200 OK")
    api.get(f"{path}/unbound", expect="404 NotFound")
    api.create(path, pod("bound", nodeName="n"), expect="201 Created")
    first = api.delete(f"{path}/bound", expect="200 OK")
    assert first.meta["deletionGracePeriodSeconds"] == 30
    api.get(f"{path}/bound", expect="200 OK")
    longer = api.delete(f"{path}/bound", {"gracePeriodSeconds": 60}, expect="200 OK")
    assert longer.meta["deletionGracePeriodSeconds"] == 30
    shorter = api.delete(f"{path}/bound", {"gracePeriodSeconds": 5}, expect="200 OK")
    assert shorter.meta["deletionGracePeriodSeconds"] == 5
    api.patch(f"{path}/bound", {"metadata": {"labels": {"late": "1"}}}, expect="200 OK")
    api.delete(f"{path}/bound", gracePeriodSeconds=0, expect="200 OK")
    api.get(f"{path}/bound", expect="404 NotFound")
    api.create(path, pod("done", nodeName="n"), expect="201 Created")
    api.patch(f"{path}/done/status", {"status": {"phase": "Succeeded"}}, expect="200 OK")
    api.delete(f"{path}/done", expect="200 OK")
    api.get(f"{path}/done", expect="404 NotFound")
    api.create(
        path, pod("own", nodeName="n", terminationGracePeriodSeconds=7), expect="201 Created"
    )
    assert api.delete(f"{path}/own").meta["deletionGracePeriodSeconds"] == 7
    api.create(path, pod("less", nodeName="n"), expect="201 Created")
    api.delete(f"{path}/less", {"gracePeriodSeconds": -1}, expect="200 OK")
    api.delete(f"{path}/less", {"gracePeriodSeconds": "x"}, expect="400 BadRequest")


def test_finalizers(api: Api) -> None:
    """A deleted object stays until its last finalizer is removed; none may be added."""
    path = f"{api.core}/configmaps"
    api.create(
        path,
        {"metadata": {"name": "a", "finalizers": ["zonewise.io/a", "zonewise.io/b"]}},
        expect="201 Created",
    )
    own = f"{path}/a"
    marked = api.delete(own, expect="200 OK")
    assert marked.meta["deletionTimestamp"]
    again = api.delete(own, expect="200 OK")
    assert again.version == marked.version
    api.patch(own, {"data": {"still": "writable"}}, expect="200 OK")
    added = ["zonewise.io/a", "zonewise.io/b", "zonewise.io/c"]
    api.patch(own, {"metadata": {"finalizers": added}}, expect="422 Invalid")
    api.patch(own, {"metadata": {"deletionTimestamp": None}}, expect="200 OK")
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/b"]}}, expect="200 OK")
    api.create(path, {"metadata": {"name": "a"}}, expect="409 AlreadyExists")
    api.patch(own, {"metadata": {"finalizers": []}}, expect="200 OK")
    api.get(own, expect="404 NotFound")


def test_propagation(api: Api) -> None:
    """The propagation policy becomes a finalizer, which the garbage collector reads."""
    path = f"{api.core}/configmaps"
    own = ["zonewise.io/test"]
    both = {"orphanDependents": True, "propagationPolicy": "Foreground"}
    cases: list[tuple[Obj, str, list[str]]] = [
        ({"propagationPolicy": "Background"}, "200 OK", []),
        ({"propagationPolicy": "Foreground"}, "200 OK", ["foregroundDeletion"]),
        ({"propagationPolicy": "Orphan"}, "200 OK", ["orphan"]),
        ({"orphanDependents": True}, "200 OK", ["orphan"]),
        ({"orphanDependents": False}, "202 Accepted", []),
        (both, "422 Invalid", []),
        ({"propagationPolicy": "Nonsense"}, "422 Invalid", []),
    ]
    for number, (options, expected, finalizers) in enumerate(cases):
        name = f"c{number}"
        api.create(path, {"metadata": {"name": name, "finalizers": own}}, expect="201 Created")
        answer = api.delete(f"{path}/{name}", options, dryRun="All", quiet=True, expect=expected)
        api.note("answer", [options, answer.status])
        if answer.status == 200:
            assert answer.meta["finalizers"] == [*own, *finalizers], options
            api.note("finalizers", finalizers)
    apps = api.group("apps/v1")
    queries: list[Obj] = [{"propagationPolicy": "Foreground"}, {"orphanDependents": "true"}]
    for query in queries:
        api.delete(f"{apps}/deployments/none", **query, expect="404 NotFound")


def test_options(api: Api) -> None:
    """Options come in the body or in the URL; a body of another kind is refused."""
    path = f"{api.core}/configmaps"
    api.create(path, {"metadata": {"name": "a"}}, expect="201 Created")
    own = f"{path}/a"
    api.delete(own, {"kind": "Pod", "apiVersion": "v1"}, expect="400 BadRequest")
    api.delete(
        own, {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}, expect="200 OK"
    )
    api.delete(
        own,
        {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]},
        expect="200 OK",
    )
    api.delete(own, {"preconditions": {"uid": "x", "resourceVersion": "1"}}, expect="409 Conflict")
    api.delete(own, {"dryRun": "All"}, expect="400 BadRequest")
    api.ask("DELETE", own, b"[]", expect="400 BadRequest")
    api.ask("DELETE", own, b"{", expect="400 BadRequest")
    api.delete(own, {"unknown": 1, "dryRun": ["All"]}, expect="200 OK")
    api.delete(own, gracePeriodSeconds="x", expect="400 BadRequest")
    api.delete(own, propagationPolicy="Nonsense", expect="422 Invalid")
    api.delete(f"{own}-not", {"preconditions": {"uid": "x"}}, expect="404 NotFound")
    api.ask(
        "DELETE",
        own,
        b"kind: DeleteOptions\ndryRun: [All]\n",
        type="application/yaml",
        expect="200 OK",
    )
    api.get(own, expect="200 OK")
    both = {"propagationPolicy": "Background"}
    api.delete(own, both, dryRun="All", expect="200 OK")
    api.get(own, expect="404 NotFound")  # with a body, the URL's options are not looked at


def test_collections(api: Api) -> None:
    """A collection is deleted by selectors; what one deletion refuses is refused here, too."""
    path = f"{api.core}/secrets"
    for name in ("a", "b", "c"):
        api.create(
            path, {"metadata": {"name": name, "labels": {"name": name}}}, expect="201 Created"
        )
    api.delete(path, labelSelector="name in (a", expect="400 BadRequest")
    api.delete(path, fieldSelector="data.x=1", expect="400 BadRequest")
    api.delete(path, {"propagationPolicy": "Nonsense"}, expect="422 Invalid")
    api.delete(path, {"dryRun": ["All"]}, labelSelector="name", expect="200 OK")
    api.delete(path, fieldSelector="metadata.name=a", expect="200 OK")
    api.delete(path, labelSelector="name=b", expect="200 OK")
    assert api.get(path).names == ["c"]
    api.delete(path, expect="200 OK")
    assert api.get(path).names == []


def test_terminating_namespace(api: Api) -> None:
    """Nothing is created in a terminating namespace; its objects can still be changed."""
    name = f"{api.ns}-going"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}}, expect="201 Created")
    path = f"/api/v1/namespaces/{name}/configmaps"
    meta = {"name": "held", "finalizers": ["zonewise.io/test"]}
    api.create(path, {"metadata": meta}, expect="201 Created")
    api.brief = True
    gone = api.delete(f"/api/v1/namespaces/{name}", expect="200 OK")
    assert gone.body["status"]["phase"] == "Terminating"
    late = api.create(path, {"metadata": {"name": "late"}}, expect="403 Forbidden")
    assert ("NamespaceTerminating", "metadata.namespace") in late.causes
    api.create(path, {"metadata": {"name": "late"}}, dryRun="All", expect="403 Forbidden")
    api.apply(
        f"{path}/late",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}},
        expect="400 BadRequest",
    )
    api.patch(f"{path}/held", {"data": {"x": "1"}}, quiet=True, expect="200 OK")
    api.create("/api/v1/namespaces", {"metadata": {"name": name}}, expect="409 AlreadyExists")
    api.delete(f"/api/v1/namespaces/{name}", quiet=True, expect="200 OK")
    api.patch(f"{path}/held", {"metadata": {"finalizers": None}}, quiet=True, expect="200 OK")


def test_missing_namespace(api: Api) -> None:
    """Nothing is created in a namespace that does not exist; lists of it are empty."""
    path = f"/api/v1/namespaces/{api.ns}-not/configmaps"
    missing = api.create(path, {"metadata": {"name": "a"}}, expect="404 NotFound")
    assert missing.body["details"]["kind"] == "namespaces"
    assert api.get(path).names == []
    api.delete(f"/api/v1/namespaces/{api.ns}-not", expect="404 NotFound")
    for name in ("default", "kube-system", "kube-public"):
        api.delete(f"/api/v1/namespaces/{name}", dryRun="All", quiet=True, expect="403 Forbidden")
    meta = {"name": "Bad_Name"}
    api.create("/api/v1/namespaces", {"metadata": meta}, expect="422 Invalid")
    api.get(f"/api/v1/namespaces/{api.ns}", expect="200 OK")
    body = {"metadata": {"name": api.ns}, "spec": {"finalizers": ["zonewise.io/test"]}}
    api.put(f"/api/v1/namespaces/{api.ns}/finalize", body, expect="200 OK")


def test_dry_twice(api: Api) -> None:
    """A dry run that is requested twice is one dry run."""
    path = f"{api.core}/configmaps"
    api.create(path, {"metadata": {"name": "a"}}, expect="201 Created")
    api.delete(f"{path}/a", {"dryRun": ["All", "All"]}, expect="200 OK")
    api.delete(f"{path}/a", {"dryRun": ["All", "Some"]}, expect="422 Invalid")
    api.get(f"{path}/a", expect="200 OK")
