"""Custom resources whose versions a webhook converts into each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.talking import Answer, Api, owned
from tests.contract.translating import (
    DEFINITIONS,
    PLAIN,
    SPLIT,
    Translator,
    define,
    definition,
    door,
    translating,
    version,
)
from tests.contract.waiting import until, wait_for_status, wait_until_established
from tests.runtime.loopback import Reply, closed_port

Obj = dict[str, Any]


@pytest.fixture
def translator() -> Iterator[Translator]:
    """A webhook that converts."""
    with translating() as running:
        yield running


def test_reads(api: Api, translator: Translator) -> None:
    """An object is read in each version as the webhook converts it, by every verb."""
    first, second = define(api, translator.conversion())
    created = api.create(
        first, door(api, "a", "v1", {"l": "1"}, address="here:80", old="x"), expect="201 Created"
    )
    seen = api.get(f"{second}/a", expect="200 OK")
    assert seen.body["spec"] == {"host": "here", "port": 80, "replicas": 1}
    assert seen.version == created.version
    api.create(
        second, door(api, "b", "v2", {"l": "2"}, host="there", port=443), expect="201 Created"
    )
    assert api.get(f"{first}/b").body["spec"] == {"address": "there:443", "replicas": 1}
    assert api.get(second).names == ["a", "b"]
    api.get(first, expect="200 OK")
    api.get(second, limit=1, expect="200 OK")
    assert api.get(second, labelSelector="l=2").names == ["b"]
    assert api.get(second, fieldSelector="spec.host=here").names == ["a"]
    assert api.get(first, fieldSelector="spec.address=here:80").names == ["a"]
    api.get(second, fieldSelector="spec.address=here:80", expect="400 BadRequest")
    api.get(f"{second}/a/scale", expect="200 OK")
    api.get(f"{second}/a/status", expect="200 OK")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    for path in (first, second):
        table = api.get(path, headers=accept, quiet=True).body
        api.note("cells", [row["cells"] for row in table["rows"]])
    accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    api.get(f"{second}/a", headers=accept, expect="200 OK")


def test_writes(api: Api, translator: Translator) -> None:
    """A write in any version is stored in one version and answered in its own."""
    first, second = define(api, translator.conversion())
    created = api.create(second, door(api, "a", "v2", host="h", port=1), expect="201 Created")
    own, other = f"{second}/a", f"{first}/a"
    assert created.body["spec"] == {"host": "h", "port": 1, "replicas": 1}
    same = api.put(own, created.body, expect="200 OK")
    api.note("unchanged", same.version == created.version)
    changed = api.put(
        own, {**same.body, "spec": {"host": "h", "port": 2, "replicas": 2}}, expect="200 OK"
    )
    assert changed.body["spec"]["port"] == 2
    api.patch(own, {"spec": {"port": 3}}, expect="200 OK")
    api.patch(other, {"spec": {"old": "kept"}}, expect="200 OK")
    api.get(other, expect="200 OK")
    api.patch(own, [{"op": "replace", "path": "/spec/host", "value": "i"}], "json", expect="200 OK")
    api.get(other, expect="200 OK")
    api.patch(f"{own}/status", {"status": {"seen": "yes"}}, expect="200 OK")
    api.put(
        f"{own}/status",
        {**api.get(own, quiet=True).body, "status": {"seen": "no"}},
        expect="200 OK",
    )
    api.patch(f"{own}/scale", {"spec": {"replicas": 7}}, expect="200 OK")
    api.get(other, expect="200 OK")
    api.patch(own, {"spec": {"port": "text"}}, expect="422 Invalid")
    api.create(second, door(api, "b", "v2", host="d"), dryRun="All", expect="201 Created")
    api.create(second, door(api, "a", "v2", host="d"), expect="409 AlreadyExists")
    api.create(second, door(api, "c", "v1", address="d"), expect="400 BadRequest")
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/wait"]}}, expect="200 OK")
    api.delete(own, expect="200 OK")
    api.patch(own, {"metadata": {"finalizers": None}}, expect="200 OK")
    api.get(other, expect="404 NotFound")
    api.create(first, door(api, "d", "v1", address="d"), expect="201 Created")
    api.delete(f"{second}/d", expect="200 OK")
    for number in range(3):
        api.create(
            first,
            door(api, f"e{number}", "v1", address=f"e{number}"),
            quiet=True,
            expect="201 Created",
        )
    api.delete(second, fieldSelector="spec.host=e1", expect="200 OK")
    assert api.get(second).names == ["e0", "e2"]


def owners(api: Api, answer: Answer) -> None:
    """Note the owners of fields, sorted: the server's order depends on seconds."""
    fields = [
        (
            entry["manager"],
            entry["operation"],
            entry["apiVersion"],
            entry.get("subresource", ""),
            entry,
        )
        for entry in answer.meta.get("managedFields", ())
    ]
    for *who, entry in sorted(fields, key=lambda item: item[:4]):
        api.note(" ".join(who), sorted(owned(entry["fieldsV1"], "")))


def test_applying(api: Api, translator: Translator) -> None:
    """Fields are owned in the version they were written in, and taken over in any version."""
    first, second = define(api, translator.conversion())
    owners(
        api, api.apply(f"{second}/a", door(api, "a", "v2", host="h", port=1), expect="201 Created")
    )
    owners(api, api.get(f"{first}/a", expect="200 OK"))
    api.apply(f"{first}/a", door(api, "a", "v1", address="i:2"), "two", expect="409 Conflict")
    owners(
        api, api.apply(f"{first}/a", door(api, "a", "v1", address="h:1"), "two", expect="200 OK")
    )
    moved = door(api, "a", "v1", address="i:2")
    owners(api, api.apply(f"{first}/a", moved, "two", force="true", expect="200 OK"))
    owners(api, api.apply(f"{second}/a", door(api, "a", "v2", replicas=3), expect="200 OK"))
    owners(api, api.apply(f"{second}/a", door(api, "a", "v2", replicas=3), "two", expect="200 OK"))
    owners(api, api.patch(f"{first}/a", {"spec": {"old": "x"}}, expect="200 OK"))
    owners(api, api.patch(f"{second}/a", {"spec": {"host": "j", "port": 9}}, expect="200 OK"))
    owners(api, api.apply(f"{first}/a", door(api, "a", "v1"), expect="200 OK"))
    owners(api, api.apply(f"{second}/a", door(api, "a", "v2", host="j"), "three", expect="200 OK"))
    owners(api, api.apply(f"{first}/a", door(api, "a", "v1"), "three", expect="200 OK"))
    last = api.get(f"{second}/a", expect="200 OK")
    owners(api, last)
    copy = door(api, "b", "v1", address="k:1")
    copy["metadata"]["managedFields"] = last.meta["managedFields"]
    owners(api, api.create(first, copy, expect="201 Created"))
    owners(
        api,
        api.apply(
            f"{second}/b", door(api, "b", "v2", host="l", port=1), "three", expect="409 Conflict"
        ),
    )


def test_watching(api: Api, translator: Translator) -> None:
    """A watch of a version sends objects in it, in order, and selects by their converted fields."""
    first, second = define(api, translator.conversion())
    start = api.create(
        first, door(api, "a", "v1", {"l": "1"}, address="a:1"), expect="201 Created"
    ).version
    watch = api.watch(second, resourceVersion=start)
    chosen = api.watch(second, resourceVersion=start, fieldSelector="spec.host=b")
    api.patch(f"{first}/a", {"spec": {"address": "b:2"}}, quiet=True, expect="200 OK")
    api.patch(f"{second}/a", {"spec": {"port": 3}}, quiet=True, expect="200 OK")
    api.patch(f"{first}/a", {"spec": {"address": "c:4"}}, quiet=True, expect="200 OK")
    api.delete(f"{first}/a", quiet=True, expect="200 OK")
    assert [event.type for event in watch.take(4)] == ["MODIFIED"] * 3 + ["DELETED"]
    assert [event.type for event in chosen.take(3)] == ["ADDED", "MODIFIED", "DELETED"]
    for name in ("d", "e"):
        api.create(
            first, door(api, name, "v1", address=f"{name}:1"), quiet=True, expect="201 Created"
        )
    assert [event.object["spec"]["host"] for event in api.watch(second).take(2)] == ["d", "e"]


def test_patience(api: Api, translator: Translator) -> None:
    """With a failing webhook a list is refused, and a watch waits until the webhook works."""
    first, second = define(api, translator.conversion())
    api.create(first, door(api, "a", "v1", address="a:1"), expect="201 Created")
    watch = api.watch(second)
    assert [event.type for event in watch.take(1)] == ["ADDED"]
    translator.spoil = BAD["refused"]
    api.patch(f"{first}/a", {"spec": {"address": "b:2"}}, expect="200 OK")
    count = len(translator.requests)
    until(lambda: len(translator.requests) > count)
    answer = api.get(second, expect="500 Internal Server Error")
    api.note("message", answer.body["message"])
    translator.spoil = None
    assert [event.object["spec"]["host"] for event in watch.take(1)] == ["b"]
    assert api.get(second).names == ["a"]


def test_reviews(api: Api, translator: Translator) -> None:
    """The webhook gets complete objects with defaults, in a review of a version that it accepts."""
    conversion = translator.conversion()
    conversion["webhook"]["conversionReviewVersions"] = ["v7", "v1beta1", "v1"]
    first, second = define(api, conversion)
    api.create(first, door(api, "a", "v1", address="a:1"), quiet=True, expect="201 Created")
    api.get(f"{second}/a", quiet=True, expect="200 OK")
    (review,) = [review for review in translator.reviews if review["request"]["objects"]][-1:]
    api.note("review", {**review, "request": {**review["request"], "uid": "some"}})
    assert review["apiVersion"] == "apiextensions.k8s.io/v1beta1"


def test_labels(api: Api, translator: Translator) -> None:
    """A webhook may change labels and annotations; changes of other metadata are ignored."""

    def relabel(whole: Obj) -> Obj:
        for obj in whole["response"]["convertedObjects"]:
            if obj["apiVersion"].endswith("/v2"):
                obj["metadata"]["labels"] = {"made": "up"}
                obj["metadata"]["annotations"] = {"made": "up too"}
                obj["metadata"]["generation"] = 77
                obj["metadata"]["finalizers"] = ["zonewise.io/none"]
        return whole

    first, second = define(api, translator.conversion())
    translator.spoil = relabel
    api.create(first, door(api, "a", "v1", {"l": "1"}, address="a:1"), expect="201 Created")
    api.get(f"{second}/a", expect="200 OK")
    assert api.get(second, labelSelector="made=up").names == ["a"]
    assert api.get(second, labelSelector="l=1").names == []
    api.patch(f"{second}/a", {"spec": {"port": 5}}, expect="200 OK")
    api.get(f"{first}/a", expect="200 OK")


def spoiled(**change: Any) -> Any:
    """An answer whose objects have these fields changed; ``a__b`` is a nested field."""

    def spoil(whole: Obj) -> Obj:
        for obj in whole["response"]["convertedObjects"]:
            for path, value in change.items():
                *parents, last = path.split("__")
                at = obj
                for part in parents:
                    at = at[part]
                if value is None:
                    at.pop(last, None)
                else:
                    at[last] = value
        return whole

    return spoil


def replied(**change: Any) -> Any:
    """An answer whose response has these fields changed."""

    def spoil(whole: Obj) -> Obj:
        whole["response"].update(change)
        return whole

    return spoil


BAD: dict[str, Any] = {
    "refused": replied(result={"status": "Failure", "message": "no such door"}),
    "silent": replied(result={"status": "Failure"}),
    "undecided": replied(result={}),
    "nothing": replied(convertedObjects=[]),
    "too many": replied(convertedObjects=[{}, {}]),
    "another uid": replied(uid="other"),
    "no response": lambda whole: {**whole, "response": None},
    "another review": lambda whole: {**whole, "apiVersion": "apiextensions.k8s.io/v1beta1"},
    "another version": spoiled(apiVersion="other.example/v2"),
    "another kind": spoiled(kind="Window"),
    "another name": spoiled(metadata__name="other"),
    "another namespace": spoiled(metadata__namespace="other"),
    "another object": spoiled(metadata__uid="other"),
    "a bad label": spoiled(metadata__labels={"a": "not good!"}),
    "a bad annotation": spoiled(metadata__annotations={"not good!": ""}),
    "labels of numbers": spoiled(metadata__labels={"a": 1}),
    "an error": lambda _: Reply(status=500, body=b"broken"),
    "not found": lambda _: Reply(status=404, body=b"none"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_answers(api: Api, translator: Translator, what: str) -> None:
    """An invalid answer fails reads and writes in the other version, never in the stored one."""
    first, second = define(api, translator.conversion())
    api.create(first, door(api, "a", "v1", address="a:1"), expect="201 Created")
    translator.spoil = BAD[what]
    api.patch(f"{first}/a", {"spec": {"address": "b:2"}}, expect="200 OK")
    api.get(f"{first}/a", expect="200 OK")
    failed: Any = {"expect": "500 Internal Server Error"}
    for answer in (
        api.get(f"{second}/a", **failed),
        api.create(second, door(api, "b", "v2", host="b"), **failed),
        api.patch(f"{second}/a", {"spec": {"port": 9}}, **failed),
        api.delete(f"{second}/a", **failed),
    ):
        message = answer.body["message"].replace(str(translator.port), "PORT")
        message = re.sub(r"/v[12], Kind=", "/vN, Kind=", message)  # a real one's cache decides
        api.note("message", message.partition("uid=")[0].partition(" (e.g. ")[0])
    api.delete(f"{first}/a", expect="200 OK")


def test_unreachable(api: Api) -> None:
    """The error of an unreachable webhook names its address; the stored version is served."""
    config = {"url": f"https://127.0.0.1:{closed_port()}/convert"}
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
    }
    first, second = define(api, conversion)
    api.create(first, door(api, "a", "v1", address="a:1"), expect="201 Created")
    answer = api.get(f"{second}/a", expect="500 Internal Server Error")
    assert "connect: connection refused" in answer.body["message"]
    assert f'failed: Post "{config["url"]}?timeout=30s": dial tcp' in answer.body["message"]
    api.delete(f"{first}/a", expect="200 OK")
    service = {"namespace": api.ns, "name": "none", "path": "/convert"}
    patch = {
        "spec": {"conversion": {"webhook": {"clientConfig": {"url": None, "service": service}}}}
    }
    own = f"{DEFINITIONS}/doors.{api.ns}.example"
    changed = api.patch(own, patch, expect="200 OK")
    assert changed.body["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] == 443
    api.create(first, door(api, "b", "v1", address="b:1"), expect="201 Created")
    wait_for_status(api, f"{second}/b", 500)
    api.get(f"{second}/b", expect="500 Internal Server Error")


def test_storage_version(api: Api, translator: Translator) -> None:
    """An object stored in an older version stays readable, and any write stores the new version."""
    first, second = define(api, translator.conversion())
    own = f"{DEFINITIONS}/doors.{api.ns}.example"
    created = api.create(first, door(api, "a", "v1", address="a:1"), expect="201 Created")
    moved = [version("v1", PLAIN), version("v2", SPLIT, storage=True)]
    assert api.patch(own, {"spec": {"versions": moved}}, quiet=True).body["status"][
        "storedVersions"
    ] == ["v1", "v2"]
    waiting = door(api, "p", "v2", color="blue")
    until(lambda: api.create(second, waiting, dryRun="All", quiet=True).body["spec"].get("color"))
    assert api.get(f"{second}/a").body["spec"] == {"host": "a", "port": 1, "replicas": 1}
    api.get(f"{first}/a", expect="200 OK")
    rewritten = api.put(f"{first}/a", created.body, expect="200 OK")
    api.note("rewritten", rewritten.version != created.version)
    assert api.get(f"{second}/a").body["spec"]["color"] == "red"
    api.patch(
        own, {"spec": {"versions": [version("v2", SPLIT, storage=True)]}}, expect="422 Invalid"
    )


def test_names_alone(api: Api) -> None:
    """With the strategy None, fields that are not in a version's schema are dropped."""
    first, second = define(api, {"strategy": "None"})
    api.create(first, door(api, "a", "v1", address="a:1", old="x"), expect="201 Created")
    api.get(f"{second}/a", expect="200 OK")
    api.create(second, door(api, "b", "v2", host="b", port=1), expect="201 Created")
    api.get(f"{second}/b", expect="200 OK")
    api.get(f"{first}/b", expect="200 OK")
    api.get(second, expect="200 OK")
    api.patch(f"{second}/a", {"spec": {"host": "h"}}, expect="200 OK")
    api.get(f"{first}/a", expect="200 OK")
    assert api.get(first, fieldSelector="spec.address=a:1").names == []


STANZAS: dict[str, Obj] = {
    "no webhook": {"strategy": "Webhook"},
    "empty webhook": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": []}},
    "no versions": {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {"url": "https://a.example"}, "conversionReviewVersions": []},
    },
    "strange versions": {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {"url": "https://a.example"},
            "conversionReviewVersions": ["v7", "v7", "B_d"],
        },
    },
    "neither": {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {}, "conversionReviewVersions": ["v1"]},
    },
    "both": {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {
                "url": "https://a.example",
                "service": {"namespace": "a", "name": "b"},
            },
            "conversionReviewVersions": ["v1"],
        },
    },
    "bad url": {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {"url": "http://me@a.example/x?y=z#w"},
            "conversionReviewVersions": ["v1"],
        },
    },
    "bad service": {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {"service": {"namespace": "", "name": "b", "port": 0, "path": "x//Y"}},
            "conversionReviewVersions": ["v1"],
        },
    },
    "no bundle": {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {"url": "https://a.example", "caBundle": "Cg=="},
            "conversionReviewVersions": ["v1", "v1beta1"],
        },
    },
    "for none": {
        "strategy": "None",
        "webhook": {
            "clientConfig": {"url": "https://a.example"},
            "conversionReviewVersions": ["v1"],
        },
    },
    "unknown": {"strategy": "Magic"},
    "nothing": {},
}


@pytest.mark.parametrize("what", STANZAS)
def test_stanzas(api: Api, what: str) -> None:
    """A definition whose conversion cannot be done is refused."""
    expected = "201 Created" if what == "no bundle" else "422 Invalid"
    api.create(DEFINITIONS, definition(api, STANZAS[what]), dryRun="All", expect=expected)


def test_bundles(api: Api) -> None:
    """An invalid CA bundle is accepted until the kind is served, and refused after that."""
    config = {"url": "https://a.example", "caBundle": "bm9uZQ=="}
    stanza: Obj = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
    }
    api.create(DEFINITIONS, definition(api, stanza), expect="201 Created")
    own = f"{DEFINITIONS}/doors.{api.ns}.example"

    def conditions() -> list[Obj]:
        current: list[Obj] = api.get(own, quiet=True).body["status"].get("conditions") or []
        return current

    until(lambda: "InvalidCABundle" in [condition["reason"] for condition in conditions()])
    api.note("conditions", conditions())
    patch = {"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": None}}}}}
    api.patch(own, patch, quiet=True, expect="200 OK")
    wait_until_established(api, own)
    client: Obj = {"clientConfig": {"caBundle": "bm9uZQ=="}}
    api.patch(own, {"spec": {"conversion": {"webhook": client}}}, expect="422 Invalid")
