"""Lists: pages, versions, selectors and what an expired or impossible wish is answered."""

from __future__ import annotations

from tests.contract.talking import Api

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def configs(api: Api, *names: str) -> str:
    """Some ConfigMaps, and where they are."""
    path = f"{api.core}/configmaps"
    for name in names:
        meta = {"name": name, "labels": {"page": "yes", "odd": str(ord(name[0]) % 2)}}
        api.made(path, {"metadata": meta})
    return path


def test_pages(api: Api) -> None:
    """All pages show the moment of the first; the rest is counted unless selected."""
    path = configs(api, "a", "b", "c", "d", "e")
    mine = {"labelSelector": "page=yes"}
    first = api.get(path, limit=2, **mine)
    assert "remainingItemCount" not in first.meta
    token = first.meta["continue"]
    api.delete(f"{path}/d")
    api.patch(f"{path}/c", {"data": {"late": "1"}})
    second = api.get(path, limit=2, **{"continue": token}, **mine)
    assert second.names == ["c", "d"]
    assert second.version == first.version
    third = api.get(path, limit=2, **{"continue": second.meta["continue"]}, **mine)
    assert third.names == ["e"]
    assert "continue" not in third.meta
    api.get(path, limit=0, **mine)
    api.get(path, limit=-1, **mine)
    api.get(path, limit="x", **mine)
    whole = api.get(path, limit=1, quiet=True)
    assert whole.meta["remainingItemCount"] >= 3


def test_page_without_limit(api: Api) -> None:
    """A continued list without a limit gives all the rest."""
    path = configs(api, "a", "b", "c", "d")
    first = api.get(path, limit=1, labelSelector="page=yes")
    token = first.meta["continue"]
    rest = api.get(path, labelSelector="page=yes", **{"continue": token})
    assert rest.names == ["b", "c", "d"]
    again = api.get(path, labelSelector="page=yes,odd=0", **{"continue": token})
    assert again.names == ["b", "d"]


def test_impossible_pages(api: Api) -> None:
    """A token that is none, or comes with a version, is refused."""
    path = f"{api.core}/secrets"
    for name in ("a", "b", "c"):
        api.made(path, {"metadata": {"name": name}})
    first = api.get(path, limit=1)
    assert first.meta["remainingItemCount"] == 2
    token = {"continue": first.meta["continue"]}
    assert api.get(path, limit=1, **{"continue": "nonsense"}).status == 400
    assert api.get(path, limit=1, resourceVersion="1", **token).status == 400
    api.get(path, limit=1, resourceVersion="0", **token)
    api.caught_up(path)
    assert api.get(path, limit=1, resourceVersion="0").names == ["a", "b", "c"]


def test_versions(api: Api) -> None:
    """A list is of now, of at least some version, or of exactly one."""
    path = configs(api, "a", "b")
    mine = {"labelSelector": "page=yes"}
    then = api.get(path, **mine).version
    api.delete(f"{path}/a")
    api.caught_up(path)
    assert api.get(path, resourceVersion=then, **mine).names == ["b"]
    assert api.get(path, resourceVersion="0", **mine).status == 200
    exact = api.get(path, resourceVersion=then, resourceVersionMatch="Exact", **mine)
    assert exact.names == ["a", "b"]
    assert exact.version == then
    newer = api.get(path, resourceVersion=then, resourceVersionMatch="NotOlderThan", **mine)
    assert newer.names == ["b"]
    limited = api.get(path, resourceVersion=then, limit=1, **mine)
    api.note("limited", limited.names)
    future = str(int(then) + 1_000_000)
    late = api.get(path, resourceVersion=future, **mine)
    assert late.status == 504
    assert ("ResourceVersionTooLarge", "") in late.causes
    assert api.get(f"{path}/b", resourceVersion=future).status == 504
    api.get(path, resourceVersion="x", **mine)
    api.get(f"{path}/b", resourceVersion="x")
    api.get(path, resourceVersionMatch="Exact")
    api.get(path, resourceVersionMatch="Exact", resourceVersion="0")
    api.get(path, resourceVersionMatch="Some", resourceVersion="1")
    api.get(path, sendInitialEvents="true")
    api.get(path, resourceVersion=then, resourceVersionMatch="Exact", **{"continue": "x"})


def test_selectors(api: Api) -> None:
    """Label selectors have five forms; field selectors know few fields and say so."""
    path = configs(api, "a", "b", "c")
    for text in ("odd=1", "odd==1", "odd!=1,page", "odd in (0,1)", "odd notin (1)", "!odd", "none"):
        api.get(path, labelSelector=f"{text},page=yes" if text != "!odd" else "!odd,page")
    for text in ("odd in", "=", "odd=(", "odd in ()", "_x=1", "odd>1", "odd>x", "odd=a b"):
        api.get(path, labelSelector=text)
    for text in (
        "metadata.name=a",
        "metadata.name!=a,metadata.name!=kube-root-ca.crt",
        f"metadata.namespace={api.ns},metadata.name=b",
        "metadata.namespace=other",
        "data.x=1",
        "metadata.name",
        "metadata.name=a=b",
        "",
    ):
        api.get(path, fieldSelector=text, labelSelector="page=yes")


def test_pod_fields(api: Api) -> None:
    """Pods are found by node, phase, restart policy, scheduler, account and address."""
    path = f"{api.core}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n", "restartPolicy": "Never"}
    api.made(path, {"metadata": {"name": "p"}, "spec": spec})
    for text in (
        "spec.nodeName=n",
        "spec.nodeName!=n",
        "spec.nodeName=",
        "status.phase=Pending",
        "status.phase!=Pending",
        "spec.restartPolicy=Never",
        "spec.schedulerName=default-scheduler",
        "status.podIP=",
        "status.nominatedNodeName=",
        "spec.hostNetwork=false",
        "spec.unschedulable=true",
    ):
        api.get(path, fieldSelector=text)
    api.get("/api/v1/nodes", fieldSelector="spec.unschedulable=true,metadata.name=none")
    api.get("/api/v1/namespaces", fieldSelector=f"status.phase=Active,metadata.name={api.ns}")
    api.get(f"{api.core}/secrets", fieldSelector="type=Opaque")
    api.get(f"{api.core}/events", fieldSelector="involvedObject.name=p,reason=x,type=Normal")
    api.get(f"{api.core}/services", fieldSelector="spec.clusterIP=None,spec.type=ClusterIP")
    api.get(f"{api.group('apps/v1')}/replicasets", fieldSelector="status.replicas=0")


def test_tables_by_page(api: Api) -> None:
    """A table is paged like a list, and a watch of it begins with its columns."""
    path = configs(api, "a", "b", "c")
    accept = {"Accept": TABLE}
    first = api.get(path, headers=accept, limit=2, labelSelector="page=yes", quiet=True).body
    assert [row["cells"][0] for row in first["rows"]] == ["a", "b"]
    more = {"continue": first["metadata"]["continue"]}
    second = api.get(path, headers=accept, labelSelector="page=yes", quiet=True, **more).body
    assert [row["cells"][0] for row in second["rows"]] == ["c"]
    version = second["metadata"]["resourceVersion"]
    watch = api.watch(path, accept=TABLE, resourceVersion=version, labelSelector="page=yes")
    configs(api, "d")
    event = next(iter(watch)).object
    assert event["kind"] == "Table"
    assert event["columnDefinitions"]


def test_parameters(api: Api) -> None:
    """Parameters of lists and watches are read, also those that make no difference."""
    path = f"{api.core}/configmaps"
    for query in (
        {"timeoutSeconds": "x"},
        {"timeoutSeconds": "-1"},
        {"limit": "x"},
        {"limit": "x", "watch": "1"},
        {"timeoutSeconds": "x", "watch": "1"},
        {"continue": "x", "watch": "1"},
        {"resourceVersionMatch": "Exact", "watch": "1"},
        {"resourceVersionMatch": "NotOlderThan", "watch": "1"},
        {"resourceVersionMatch": "NotOlderThan", "continue": "x", "watch": "1"},
    ):
        answer = api.get(path, quiet=True, **query)
        api.note(f"{query}", [answer.status, answer.causes if answer.status >= 400 else []])
