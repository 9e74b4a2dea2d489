"""Lists: pages, versions, selectors, and refusals of invalid ones."""

from __future__ import annotations

from tests.contract.talking import Api

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def configs(api: Api, *names: str) -> str:
    """Some ConfigMaps, and where they are."""
    path = f"{api.core}/configmaps"
    for name in names:
        meta = {"name": name, "labels": {"page": "yes", "odd": str(ord(name[0]) % 2)}}
        api.create(path, {"metadata": meta}, expect="201 Created")
    return path


def test_pages(api: Api) -> None:
    """All pages are of the version of the first; remaining items are counted without a selector."""
    path = configs(api, "a", "b", "c", "d", "e")
    mine = {"labelSelector": "page=yes"}
    first = api.get(path, limit=2, **mine, expect="200 OK")
    assert "remainingItemCount" not in first.meta
    token = first.meta["continue"]
    api.delete(f"{path}/d", expect="200 OK")
    api.patch(f"{path}/c", {"data": {"late": "1"}}, expect="200 OK")
    second = api.get(path, limit=2, **{"continue": token}, **mine, expect="200 OK")
    assert second.names == ["c", "d"]
    assert second.version == first.version
    third = api.get(path, limit=2, **{"continue": second.meta["continue"]}, **mine, expect="200 OK")
    assert third.names == ["e"]
    assert "continue" not in third.meta
    api.get(path, limit=0, **mine, expect="200 OK")
    api.get(path, limit=-1, **mine, expect="200 OK")
    api.get(path, limit="x", **mine, expect="400 BadRequest")
    whole = api.get(path, limit=1, quiet=True, expect="200 OK")
    assert whole.meta["remainingItemCount"] >= 3


def test_page_without_limit(api: Api) -> None:
    """A continued list without a limit gives all remaining items."""
    path = configs(api, "a", "b", "c", "d")
    first = api.get(path, limit=1, labelSelector="page=yes", expect="200 OK")
    token = first.meta["continue"]
    rest = api.get(path, labelSelector="page=yes", **{"continue": token}, expect="200 OK")
    assert rest.names == ["b", "c", "d"]
    again = api.get(path, labelSelector="page=yes,odd=0", **{"continue": token}, expect="200 OK")
    assert again.names == ["b", "d"]


def test_impossible_pages(api: Api) -> None:
    """An invalid continue token, or one together with a version, is refused."""
    path = f"{api.core}/secrets"
    for name in ("a", "b", "c"):
        api.create(path, {"metadata": {"name": name}}, expect="201 Created")
    first = api.get(path, limit=1, expect="200 OK")
    assert first.meta["remainingItemCount"] == 2
    token = {"continue": first.meta["continue"]}
    api.get(path, limit=1, **{"continue": "nonsense"}, expect="400 BadRequest")
    api.get(path, limit=1, resourceVersion="1", **token, expect="400 BadRequest")
    api.get(path, limit=1, resourceVersion="0", **token, expect="200 OK")
    api.wait_until_caught_up(path)
    assert api.get(path, limit=1, resourceVersion="0").names == ["a", "b", "c"]


def test_versions(api: Api) -> None:
    """A list is of the newest version, of at least a version, or of exactly one."""
    path = configs(api, "a", "b")
    mine = {"labelSelector": "page=yes"}
    then = api.get(path, **mine).version
    api.delete(f"{path}/a", expect="200 OK")
    api.wait_until_caught_up(path)
    assert api.get(path, resourceVersion=then, **mine).names == ["b"]
    api.get(path, resourceVersion="0", **mine, expect="200 OK")
    exact = api.get(
        path, resourceVersion=then, resourceVersionMatch="Exact", **mine, expect="200 OK"
    )
    assert exact.names == ["a", "b"]
    assert exact.version == then
    newer = api.get(
        path, resourceVersion=then, resourceVersionMatch="NotOlderThan", **mine, expect="200 OK"
    )
    assert newer.names == ["b"]
    limited = api.get(path, resourceVersion=then, limit=1, **mine, expect="200 OK")
    api.note("limited", limited.names)
    future = str(int(then) + 1_000_000)
    late = api.get(path, resourceVersion=future, **mine, expect="504 Timeout")
    assert ("ResourceVersionTooLarge", "") in late.causes
    api.get(f"{path}/b", resourceVersion=future, expect="504 Timeout")
    api.get(path, resourceVersion="x", **mine, expect="400 BadRequest")
    api.get(f"{path}/b", resourceVersion="x", expect="500 Internal Server Error")
    api.get(path, resourceVersionMatch="Exact", expect="422 Invalid")
    api.get(path, resourceVersionMatch="Exact", resourceVersion="0", expect="422 Invalid")
    api.get(path, resourceVersionMatch="Some", resourceVersion="1", expect="422 Invalid")
    api.get(path, sendInitialEvents="true", expect="422 Invalid")
    api.get(
        path,
        resourceVersion=then,
        resourceVersionMatch="Exact",
        **{"continue": "x"},
        expect="422 Invalid",
    )


def test_selectors(api: Api) -> None:
    """Label selectors have five forms; field selectors of unsupported fields are refused."""
    path = configs(api, "a", "b", "c")
    for text in ("odd=1", "odd==1", "odd!=1,page", "odd in (0,1)", "odd notin (1)", "!odd", "none"):
        api.get(
            path,
            labelSelector=f"{text},page=yes" if text != "!odd" else "!odd,page",
            expect="200 OK",
        )
    for text, expected in (
        ("odd in", "400 BadRequest"),
        ("=", "400 BadRequest"),
        ("odd=(", "400 BadRequest"),
        ("odd in ()", "200 OK"),
        ("_x=1", "400 BadRequest"),
        ("odd>1", "200 OK"),
        ("odd>x", "400 BadRequest"),
        ("odd=a b", "400 BadRequest"),
    ):
        api.get(path, labelSelector=text, expect=expected)
    for text, expected in (
        ("metadata.name=a", "200 OK"),
        ("metadata.name!=a,metadata.name!=kube-root-ca.crt", "200 OK"),
        (f"metadata.namespace={api.ns},metadata.name=b", "200 OK"),
        ("metadata.namespace=other", "200 OK"),
        ("data.x=1", "400 BadRequest"),
        ("metadata.name", "400 BadRequest"),
        ("metadata.name=a=b", "400 BadRequest"),
        ("", "200 OK"),
    ):
        api.get(path, fieldSelector=text, labelSelector="page=yes", expect=expected)


def test_pod_fields(api: Api) -> None:
    """Pods can be selected by node, phase, restart policy, scheduler and address."""
    path = f"{api.core}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n", "restartPolicy": "Never"}
    api.create(path, {"metadata": {"name": "p"}, "spec": spec}, expect="201 Created")
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
    ):
        api.get(path, fieldSelector=text, expect="200 OK")
    api.get(path, fieldSelector="spec.unschedulable=true", expect="400 BadRequest")
    api.get(
        "/api/v1/nodes", fieldSelector="spec.unschedulable=true,metadata.name=none", expect="200 OK"
    )
    api.get(
        "/api/v1/namespaces",
        fieldSelector=f"status.phase=Active,metadata.name={api.ns}",
        expect="200 OK",
    )
    api.get(f"{api.core}/secrets", fieldSelector="type=Opaque", expect="200 OK")
    api.get(
        f"{api.core}/events",
        fieldSelector="involvedObject.name=p,reason=x,type=Normal",
        expect="200 OK",
    )
    api.get(
        f"{api.core}/services",
        fieldSelector="spec.clusterIP=None,spec.type=ClusterIP",
        expect="200 OK",
    )
    api.get(
        f"{api.group('apps/v1')}/replicasets",
        fieldSelector="status.replicas=0",
        expect="400 BadRequest",
    )


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
    """Parameters of lists and watches are validated, also those without an effect."""
    path = f"{api.core}/configmaps"
    newer = {"resourceVersionMatch": "NotOlderThan", "watch": "1"}
    for query, expected in (
        ({"timeoutSeconds": "x"}, "400 BadRequest"),
        ({"timeoutSeconds": "-1"}, "200 OK"),
        ({"limit": "x"}, "400 BadRequest"),
        ({"limit": "x", "watch": "1"}, "400 BadRequest"),
        ({"timeoutSeconds": "x", "watch": "1"}, "400 BadRequest"),
        ({"continue": "x", "watch": "1"}, "422 Invalid"),
        ({"resourceVersionMatch": "Exact", "watch": "1"}, "422 Invalid"),
        (newer, "422 Invalid"),
        ({"resourceVersionMatch": "NotOlderThan", "continue": "x", "watch": "1"}, "422 Invalid"),
    ):
        answer = api.get(path, quiet=True, expect=expected, **query)
        api.note(f"{query}", [answer.status, answer.causes if answer.status >= 400 else []])
