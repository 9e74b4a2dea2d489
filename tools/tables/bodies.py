"""Invalid bodies, and the answer of a real server to each.

The answers are kept as test data: the message of a refusal, and the warnings where the same body
is sent again without strict validation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from tools.tables.server import Server

PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
SECRETS = "/api/v1/namespaces/default/secrets"
CUSTOM = "/apis/example.com/v1/namespaces/default/samples"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JSON = "application/json"
YAML = "application/yaml"

DEEP = {"type": "object", "properties": {"r": {"type": "string"}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "number": {"type": "integer"},
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"x": {"type": "string", "default": "dx"}},
                    },
                },
                "map": {"type": "object", "additionalProperties": DEEP},
                "kept": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": True,
                    "properties": {"q": DEEP},
                },
                "embedded": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "properties": {"spec": {"type": "object"}},
                },
                "maybe": {"type": "string", "nullable": True},
                "given": {"type": "string", "default": "dd"},
                "either": {"type": "string", "nullable": True, "default": "dd"},
                "free": {"x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}
NAMES = {"plural": "samples", "kind": "Sample"}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "samples.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": NAMES,
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
        ],
    },
}

SYNTAX = (
    b"",
    b" ",
    b"x",
    b"[",
    b"[]",
    b'"x"',
    b"5",
    b"true",
    b"{",
    b"{}}",
    b"{a:1}",
    b'{"a":1,}',
    b'{"a" 1}',
    b'{"a":1 "b":2}',
    b"[1 2]",
    b'{"a":"b',
    b'{"a":"\n"}',
    b'{"a":"\\x"}',
    b'{"a":"\\u12g4"}',
    b'{"a":01}',
    b'{"a":-}',
    b'{"a":1.}',
    b'{"a":1e}',
    b'{"a":tru}',
    b'{"a":nul',
    b"\xef\xbb\xbf{}",
    b"{'a':1}",
    b'{"apiVersion":"v1","kind":"Pod"} x',
    b'{"apiVersion":"v1","kind":"Pod","spec":{"x":}}',
)
META: tuple[dict[str, Any], ...] = (
    {"name": 1},
    {"labels": {"a": 1}},
    {"labels": []},
    {"creationTimestamp": "x"},
    {"creationTimestamp": 1},
    {"creationTimestamp": ""},
    {"creationTimestamp": "2026-01-01T00:00:00"},
    {"creationTimestamp": "2026-01-01T00:00:60Z"},
    {"creationTimestamp": "2026-01-01T00:00:00Zx"},
    {"ownerReferences": [{"x": 1}]},
    {"deletionGracePeriodSeconds": "x"},
    {"generation": 1.5},
    {"foo": 1, "bar": {"a": 1}},
)
SPECS: tuple[dict[str, Any], ...] = (
    {"terminationGracePeriodSeconds": "a"},
    {"terminationGracePeriodSeconds": 1.0},
    {"terminationGracePeriodSeconds": 1.5},
    {"terminationGracePeriodSeconds": 2**63},
    {"terminationGracePeriodSeconds": True},
    {"containers": {}},
    {"containers": [1]},
    {"containers": [{"name": 1}]},
    {"containers": [{"name": "x", "ports": [{"containerPort": 99999999999}]}]},
    {"containers": [{"name": "x", "resources": {"limits": {"cpu": "1x"}}}]},
    {"containers": [{"name": "x", "resources": {"limits": {"cpu": True}}}]},
    {"containers": [{"name": "x", "resources": {"limits": {"cpu": {}}}}]},
    {"containers": [{"name": 5, "resources": {"limits": {"cpu": ""}}}]},
    {"containers": [{"name": "x", "livenessProbe": {"httpGet": {"port": True}}}]},
    {"containers": [{"name": "x", "livenessProbe": {"httpGet": {"port": 1.5}}}]},
    {"containers": [{"name": "x", "livenessProbe": {"httpGet": {"port": {}}}}]},
    {"containers": [{"name": "x", "args": [1]}]},
    {"nodeSelector": {"a": 1}},
    {"nodeSelector": []},
    {"restartPolicy": 1},
    {"hostNetwork": "x"},
    {"volumes": [{"name": "a", "emptyDir": "x"}]},
    {"containers": [{"name": "x", "bar": 1, "Image": "x"}], "foo": 1, "hostnetwork": True},
    {"foo": 1, "hostNetwork": 1, "containers": "x"},
)
TIMES = (
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.1234567Z",
    "2026-13-01T00:00:00.000000Z",
    "2026-02-30T00:00:00.000000Z",
    "2026-01-01T25:00:00.000000Z",
    "2026-01-01 00:00:00.000000Z",
    "2026-01-01T00:00:00.000000",
    "x",
    "",
    5,
)
BYTES: tuple[Any, ...] = (
    "YQ",
    "Y",
    "YQ=",
    "YQ=a",
    "YQ==YQ==",
    "YWI==",
    "Y===",
    "====",
    "Y!==",
    1,
    {},
)
DUPLICATES = (
    b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b","labels":{"a":"1","a":"2"},'
    b'"foo":1,"foo":2},"spec":{"containers":[{"name":"x","image":"y","image":"z"}],"bar":1,'
    b'"containers":[{"name":"q","image":"r"}]},"kind":"Pod"}',
    b'{"apiVersion":"v1","kind":"Pod","metadata" : {"name":"\\u0061","n\\u0061me":"b"},'
    b'"spec":{"containers":[{"name":"x","image":"\\"y\\":"}]}}',
    b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"x",'
    b'"image":"y"}],"volumes":[{"name":"a","configMap":{"name":"c","name":"d"}}]}}',
)
TEXTS = (
    b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  name: b\n  foo: 1\n"
    b"spec:\n  containers:\n  - name: a\n    image: b\n    image: c\n",
    b"apiVersion: v1\nkind: Pod\nmetadata: {name: y}\nspec: {containers: [{name: a, image: b}]}\n",
    b"apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {b: 1}}\n",
    b"a: b: c",
    b"apiVersion: v1\nkind: Pod\nmetadata: {name: 012}\n",
    b"apiVersion: v1\nkind: Pod\nmetadata: {name: 2026-01-01x, labels: {a: 1e3}}\n",
)
RESOURCES: tuple[dict[str, Any], ...] = (
    {
        "metadata": {"name": "a", "foo": 1},
        "zz": 1,
        "spec": {
            "b": 1,
            "list": [{"w": 1}, {"x": None}],
            "map": {"k": {"z": 1}},
            "kept": {"anything": 1, "q": {"s": 1}},
            "embedded": {
                "apiVersion": "v1",
                "kind": "Foo",
                "metadata": {"name": "x", "bar": 1},
                "spec": {"u": 1},
                "status": 1,
            },
        },
        "status": {"x": 1},
    },
    {"metadata": {"name": 1}},
    {"metadata": {"name": "a", "labels": {"a": 1}}},
    {"metadata": {"name": "a", "creationTimestamp": "x"}},
    {"metadata": {"name": "a", "ownerReferences": [{"x": 1}]}},
    {"metadata": []},
    {
        "metadata": {"name": "a"},
        "spec": {"embedded": {"apiVersion": "v1", "kind": "x", "metadata": {"name": 1}}},
    },
)
CUSTOM_TEXTS = (
    b'{"apiVersion":"example.com/v1","kind":"Sample","metadata":{"name":"a","name":"b"},'
    b'"spec":{"b":1,"text":"x","text":"y","b":2}}',
    b'{"apiVersion":"example.com/v1","kind":"Sample"',
    b"[]",
)


def bodies() -> Iterator[tuple[str, str, bytes]]:
    """Path, media type and content of every body."""
    for text in (*SYNTAX, *DUPLICATES):
        yield PODS, JSON, text
    for meta in META:
        yield PODS, JSON, _json("v1", "Pod", {"metadata": {"name": "a", **meta}})
    for spec in SPECS:
        yield PODS, JSON, _json("v1", "Pod", {"metadata": {"name": "a"}, "spec": spec})
    for moment in TIMES:
        content = {"metadata": {"name": "a"}, "spec": {"renewTime": moment}}
        yield LEASES, JSON, _json("coordination.k8s.io/v1", "Lease", content)
    for data in BYTES:
        content = {"metadata": {"name": "a"}, "data": {"a": data}}
        yield SECRETS, JSON, _json("v1", "Secret", content)
    for text in TEXTS:
        yield PODS, YAML, text
    for content in RESOURCES:
        yield CUSTOM, JSON, _json("example.com/v1", "Sample", content)
    for text in CUSTOM_TEXTS:
        yield CUSTOM, JSON, text


def _json(api_version: str, kind: str, content: dict[str, Any]) -> bytes:
    return json.dumps({"apiVersion": api_version, "kind": kind, **content}).encode()


def refusals(server: Server) -> list[dict[str, Any]]:
    """Every body with the answer: status, message, and warnings without strict validation."""
    server.send("POST", DEFINITIONS, DEFINITION)
    try:
        _wait(lambda: server.exchange("GET", CUSTOM).status == 200)
        return [_refusal(server, *body) for body in bodies()]
    finally:
        server.send("DELETE", f"{DEFINITIONS}/samples.example.com")
        _wait(lambda: "example.com" not in json.dumps(server.get("/apis")))


def _refusal(server: Server, path: str, media: str, body: bytes) -> dict[str, Any]:
    strict = server.exchange("POST", f"{path}?dryRun=All&fieldValidation=Strict", body, media=media)
    loose = server.exchange("POST", f"{path}?dryRun=All", body, media=media)
    return {
        "path": path,
        "media": media,
        "body": body.decode("latin-1"),
        "code": strict.status,
        "message": strict.value.get("message", "") if strict.status == 400 else "",
        "warnings": loose.warnings,
    }


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        if time.monotonic() > deadline:
            raise ValueError("the API server did not follow its custom resource definitions")
        time.sleep(0.1)
