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
from tests.contract.waiting import established, reached, until
from tests.runtime.loopback import Reply, closed_port

Obj = dict[str, Any]


@pytest.fixture
def translator() -> Iterator[Translator]:
    """A webhook that converts."""
    with translating() as one:
        yield one


def test_reads(api: Api, translator: Translator) -> None:
    """An object is seen in each version as the webhook makes it, wherever it is read."""
    first, second = define(api, translator.conversion())
    made = api.made(first, door(api, "a", "v1", {"l": "1"}, address="here:80", old="x"))
    seen = api.get(f"{second}/a")
    assert seen.body["spec"] == {"host": "here", "port": 80, "replicas": 1}
    assert seen.version == made.version
    api.made(second, door(api, "b", "v2", {"l": "2"}, host="there", port=443))
    assert api.get(f"{first}/b").body["spec"] == {"address": "there:443", "replicas": 1}
    assert api.get(second).names == ["a", "b"]
    api.get(first)
    api.get(second, limit=1)
    assert api.get(second, labelSelector="l=2").names == ["b"]
    assert api.get(second, fieldSelector="spec.host=here").names == ["a"]
    assert api.get(first, fieldSelector="spec.address=here:80").names == ["a"]
    assert api.get(second, fieldSelector="spec.address=here:80").status == 400
    api.get(f"{second}/a/scale")
    api.get(f"{second}/a/status")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    for path in (first, second):
        table = api.get(path, headers=accept, quiet=True).body
        api.note("cells", [row["cells"] for row in table["rows"]])
    accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    api.get(f"{second}/a", headers=accept)


def test_writes(api: Api, translator: Translator) -> None:
    """Every write of any version is stored in one and answered in its own."""
    first, second = define(api, translator.conversion())
    made = api.made(second, door(api, "a", "v2", host="h", port=1))
    own, other = f"{second}/a", f"{first}/a"
    assert made.body["spec"] == {"host": "h", "port": 1, "replicas": 1}
    same = api.put(own, made.body)
    api.note("unchanged", same.version == made.version)
    changed = api.put(own, {**same.body, "spec": {"host": "h", "port": 2, "replicas": 2}})
    assert changed.body["spec"]["port"] == 2
    api.patch(own, {"spec": {"port": 3}})
    api.patch(other, {"spec": {"old": "kept"}})
    api.get(other)
    api.patch(own, [{"op": "replace", "path": "/spec/host", "value": "i"}], "json")
    api.get(other)
    api.patch(f"{own}/status", {"status": {"seen": "yes"}})
    api.put(f"{own}/status", {**api.get(own, quiet=True).body, "status": {"seen": "no"}})
    api.patch(f"{own}/scale", {"spec": {"replicas": 7}})
    api.get(other)
    api.patch(own, {"spec": {"port": "text"}})
    api.create(second, door(api, "b", "v2", host="d"), dryRun="All")
    api.create(second, door(api, "a", "v2", host="d"))
    api.create(second, door(api, "c", "v1", address="d"))
    api.patch(own, {"metadata": {"finalizers": ["zonewise.io/wait"]}})
    api.delete(own)
    api.patch(own, {"metadata": {"finalizers": None}})
    api.get(other)
    api.made(first, door(api, "d", "v1", address="d"))
    assert api.delete(f"{second}/d").status == 200
    for number in range(3):
        api.made(first, door(api, f"e{number}", "v1", address=f"e{number}"), quiet=True)
    api.delete(second, fieldSelector="spec.host=e1")
    assert api.get(second).names == ["e0", "e2"]


def owners(api: Api, answer: Answer) -> None:
    """Note who owns what; the order depends on seconds."""
    fields = [
        (one["manager"], one["operation"], one["apiVersion"], one.get("subresource", ""), one)
        for one in answer.meta.get("managedFields", ())
    ]
    for *who, one in sorted(fields, key=lambda item: item[:4]):
        api.note(" ".join(who), sorted(owned(one["fieldsV1"], "")))


def test_applying(api: Api, translator: Translator) -> None:
    """Owners of fields keep them in the version they wrote them in, and lose them in any."""
    first, second = define(api, translator.conversion())
    owners(api, api.apply(f"{second}/a", door(api, "a", "v2", host="h", port=1)))
    owners(api, api.get(f"{first}/a"))
    assert api.apply(f"{first}/a", door(api, "a", "v1", address="i:2"), "two").status == 409
    owners(api, api.apply(f"{first}/a", door(api, "a", "v1", address="h:1"), "two"))
    moved = door(api, "a", "v1", address="i:2")
    owners(api, api.apply(f"{first}/a", moved, "two", force="true"))
    owners(api, api.apply(f"{second}/a", door(api, "a", "v2", replicas=3)))
    owners(api, api.apply(f"{second}/a", door(api, "a", "v2", replicas=3), "two"))
    owners(api, api.patch(f"{first}/a", {"spec": {"old": "x"}}))
    owners(api, api.patch(f"{second}/a", {"spec": {"host": "j", "port": 9}}))
    owners(api, api.apply(f"{first}/a", door(api, "a", "v1")))
    owners(api, api.apply(f"{second}/a", door(api, "a", "v2", host="j"), "three"))
    owners(api, api.apply(f"{first}/a", door(api, "a", "v1"), "three"))
    last = api.get(f"{second}/a")
    owners(api, last)
    copy = door(api, "b", "v1", address="k:1")
    copy["metadata"]["managedFields"] = last.meta["managedFields"]
    owners(api, api.made(first, copy))
    owners(api, api.apply(f"{second}/b", door(api, "b", "v2", host="l", port=1), "three"))


def test_watching(api: Api, translator: Translator) -> None:
    """A watch shows the version it is of, in order, and selects by what it shows."""
    first, second = define(api, translator.conversion())
    start = api.made(first, door(api, "a", "v1", {"l": "1"}, address="a:1")).version
    watch = api.watch(second, resourceVersion=start)
    chosen = api.watch(second, resourceVersion=start, fieldSelector="spec.host=b")
    api.patch(f"{first}/a", {"spec": {"address": "b:2"}}, quiet=True)
    api.patch(f"{second}/a", {"spec": {"port": 3}}, quiet=True)
    api.patch(f"{first}/a", {"spec": {"address": "c:4"}}, quiet=True)
    api.delete(f"{first}/a", quiet=True)
    assert [one.type for one in watch.take(4)] == ["MODIFIED"] * 3 + ["DELETED"]
    assert [one.type for one in chosen.take(3)] == ["ADDED", "MODIFIED", "DELETED"]
    for name in ("d", "e"):
        api.made(first, door(api, name, "v1", address=f"{name}:1"), quiet=True)
    assert [one.object["spec"]["host"] for one in api.watch(second).take(2)] == ["d", "e"]


def test_patience(api: Api, translator: Translator) -> None:
    """A list of a version whose webhook fails is refused; a watch waits until it does not."""
    first, second = define(api, translator.conversion())
    api.made(first, door(api, "a", "v1", address="a:1"))
    watch = api.watch(second)
    assert [one.type for one in watch.take(1)] == ["ADDED"]
    translator.spoil = BAD["refused"]
    api.patch(f"{first}/a", {"spec": {"address": "b:2"}})
    asked = len(translator.asked)
    until(lambda: len(translator.asked) > asked)
    answer = api.get(second)
    assert answer.status == 500
    api.note("message", answer.body["message"])
    translator.spoil = None
    assert [one.object["spec"]["host"] for one in watch.take(1)] == ["b"]
    assert api.get(second).names == ["a"]


def test_reviews(api: Api, translator: Translator) -> None:
    """The webhook gets whole objects, defaulted as stored, in a review of the version it takes."""
    conversion = translator.conversion()
    conversion["webhook"]["conversionReviewVersions"] = ["v7", "v1beta1", "v1"]
    first, second = define(api, conversion)
    api.made(first, door(api, "a", "v1", address="a:1"), quiet=True)
    assert api.get(f"{second}/a", quiet=True).status == 200
    (review,) = [one for one in translator.reviews if one["request"]["objects"]][-1:]
    api.note("review", {**review, "request": {**review["request"], "uid": "some"}})
    assert review["apiVersion"] == "apiextensions.k8s.io/v1beta1"


def test_labels(api: Api, translator: Translator) -> None:
    """A webhook may change labels and annotations; the rest of metadata stays what it was."""

    def relabel(whole: Obj) -> Obj:
        for one in whole["response"]["convertedObjects"]:
            if one["apiVersion"].endswith("/v2"):
                one["metadata"]["labels"] = {"made": "up"}
                one["metadata"]["annotations"] = {"made": "up too"}
                one["metadata"]["generation"] = 77
                one["metadata"]["finalizers"] = ["zonewise.io/none"]
        return whole

    first, second = define(api, translator.conversion())
    translator.spoil = relabel
    api.made(first, door(api, "a", "v1", {"l": "1"}, address="a:1"))
    api.get(f"{second}/a")
    assert api.get(second, labelSelector="made=up").names == ["a"]
    assert api.get(second, labelSelector="l=1").names == []
    api.patch(f"{second}/a", {"spec": {"port": 5}})
    api.get(f"{first}/a")


def spoiled(**change: Any) -> Any:
    """An answer whose objects have these things changed; dots go deeper."""

    def spoil(whole: Obj) -> Obj:
        for one in whole["response"]["convertedObjects"]:
            for path, value in change.items():
                *parents, last = path.split("__")
                at = one
                for part in parents:
                    at = at[part]
                if value is None:
                    at.pop(last, None)
                else:
                    at[last] = value
        return whole

    return spoil


def replied(**change: Any) -> Any:
    """An answer whose response has these things changed."""

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
    """An answer that is none fails reads and writes of the other version, never of the stored."""
    first, second = define(api, translator.conversion())
    api.made(first, door(api, "a", "v1", address="a:1"))
    translator.spoil = BAD[what]
    api.patch(f"{first}/a", {"spec": {"address": "b:2"}})
    api.get(f"{first}/a")
    for answer in (
        api.get(f"{second}/a"),
        api.create(second, door(api, "b", "v2", host="b")),
        api.patch(f"{second}/a", {"spec": {"port": 9}}),
        api.delete(f"{second}/a"),
    ):
        assert answer.status == 500
        message = answer.body["message"].replace(str(translator.port), "PORT")
        message = re.sub(r"/v[12], Kind=", "/vN, Kind=", message)  # a real one's cache decides
        api.note("message", message.partition("uid=")[0].partition(" (e.g. ")[0])
    assert api.delete(f"{first}/a").status == 200


def test_unreachable(api: Api) -> None:
    """A webhook that is not there is named with its address; the stored version is served."""
    config = {"url": f"https://127.0.0.1:{closed_port()}/convert"}
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
    }
    first, second = define(api, conversion)
    api.made(first, door(api, "a", "v1", address="a:1"))
    answer = api.get(f"{second}/a")
    assert answer.status == 500
    assert "connect: connection refused" in answer.body["message"]
    assert f'failed: Post "{config["url"]}?timeout=30s": dial tcp' in answer.body["message"]
    api.delete(f"{first}/a")
    service = {"namespace": api.ns, "name": "none", "path": "/convert"}
    patch = {
        "spec": {"conversion": {"webhook": {"clientConfig": {"url": None, "service": service}}}}
    }
    own = f"{DEFINITIONS}/doors.{api.ns}.example"
    changed = api.patch(own, patch)
    assert changed.body["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] == 443
    api.made(first, door(api, "b", "v1", address="b:1"))
    reached(api, f"{second}/b", 500)
    assert api.get(f"{second}/b").status == 500


def test_storage_version(api: Api, translator: Translator) -> None:
    """What was stored in an older version stays readable, and is rewritten by any write."""
    first, second = define(api, translator.conversion())
    own = f"{DEFINITIONS}/doors.{api.ns}.example"
    made = api.made(first, door(api, "a", "v1", address="a:1"))
    moved = [version("v1", PLAIN), version("v2", SPLIT, storage=True)]
    assert api.patch(own, {"spec": {"versions": moved}}, quiet=True).body["status"][
        "storedVersions"
    ] == ["v1", "v2"]
    waiting = door(api, "p", "v2", color="blue")
    until(lambda: api.create(second, waiting, dryRun="All", quiet=True).body["spec"].get("color"))
    assert api.get(f"{second}/a").body["spec"] == {"host": "a", "port": 1, "replicas": 1}
    api.get(f"{first}/a")
    rewritten = api.put(f"{first}/a", made.body)
    api.note("rewritten", rewritten.version != made.version)
    assert api.get(f"{second}/a").body["spec"]["color"] == "red"
    dropped = api.patch(own, {"spec": {"versions": [version("v2", SPLIT, storage=True)]}})
    assert dropped.status == 422


def test_names_alone(api: Api) -> None:
    """With the strategy None a version is a name and a schema: what it does not know is gone."""
    first, second = define(api, {"strategy": "None"})
    api.made(first, door(api, "a", "v1", address="a:1", old="x"))
    api.get(f"{second}/a")
    api.made(second, door(api, "b", "v2", host="b", port=1))
    api.get(f"{second}/b")
    api.get(f"{first}/b")
    api.get(second)
    api.patch(f"{second}/a", {"spec": {"host": "h"}})
    api.get(f"{first}/a")
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
    """A definition says how to convert in a way that can be done."""
    api.create(DEFINITIONS, definition(api, STANZAS[what]), dryRun="All")


def test_bundles(api: Api) -> None:
    """A bundle that is none passes until the kind is served, and while it was one before."""
    config = {"url": "https://a.example", "caBundle": "bm9uZQ=="}
    stanza: Obj = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
    }
    api.made(DEFINITIONS, definition(api, stanza))
    own = f"{DEFINITIONS}/doors.{api.ns}.example"

    def conditions() -> list[Obj]:
        found: list[Obj] = api.get(own, quiet=True).body["status"].get("conditions") or []
        return found

    until(lambda: "InvalidCABundle" in [one["reason"] for one in conditions()])
    api.note("conditions", conditions())
    patch = {"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": None}}}}}
    assert api.patch(own, patch, quiet=True).status == 200
    established(api, own)
    client: Obj = {"clientConfig": {"caBundle": "bm9uZQ=="}}
    assert api.patch(own, {"spec": {"conversion": {"webhook": client}}}).status == 422
