"""Whatever is sent to the server: it answers with a refusal, and keeps running.

All tests here share one server process. An administrator's requests must never make it fail; those
of a user without permissions must also show nothing and change nothing. The stored objects before
and after are compared, and the memory is checked.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import ssl
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.embedded.apiserver.program import Answered, Program, running, say
from tests.system_guard import starts_programs

MIB = 1024 * 1024
GROWTH = 96 * 1024  # KiB that all these attacks together may leave behind
SPACE = "/api/v1/namespaces/default"
OPEN = re.compile(r"/(api|apis|version|healthz|livez|readyz|openapi)(/|\?|$)")
KNOWN = re.compile(
    r"strconv\.ParseUint|is not built|no such container|needs a running container"
    r"|This pod has more than one PodDisruptionBudget|unable to find api field|mergeKey|patch"
    r"|map: map\["
)
"""What a real server also answers with 500 or 501."""

quickly = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
@starts_programs
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The server for all attacks; it must survive them and stop gracefully."""
    with running(tmp_path_factory.mktemp("fuzz") / "data") as started:
        for path, content in SEEDS:
            started.ask("POST", path, content)
        before = started.memory()
        yield started
        hang_up()
        assert started.memory() - before < GROWTH


@pytest.fixture(scope="module")
def stranger(program: Program) -> str:
    """The token of a service account without permissions."""
    path = f"{SPACE}/serviceaccounts"
    program.ask("POST", path, {"metadata": {"name": "stranger"}})
    request: Any = program.ask("POST", f"{path}/stranger/token", {"spec": {}})
    token: str = request["status"]["token"]
    return token


POD = {
    "metadata": {"name": "victim", "labels": {"app": "victim"}},
    "spec": {"containers": [{"name": "a", "image": "example.com/a:1", "ports": []}]},
}
SEEDS: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{SPACE}/configmaps", {"metadata": {"name": "victim"}, "data": {"a": "b"}}),
    (f"{SPACE}/configmaps", {"metadata": {"name": "spare"}, "data": {"a": "b"}}),
    (f"{SPACE}/secrets", {"metadata": {"name": "victim"}, "stringData": {"a": "hidden-word"}}),
    (f"{SPACE}/services", {"metadata": {"name": "victim"}, "spec": {"ports": [{"port": 80}]}}),
)
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{SPACE}/pods", POD),
    (f"{SPACE}/configmaps", {"metadata": {"name": "x"}, "data": {"a": "b"}, "binaryData": {}}),
    (f"{SPACE}/services", {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}}),
    (
        "/apis/apps/v1/namespaces/default/deployments",
        {
            "metadata": {"name": "x"},
            "spec": {
                "selector": {"matchLabels": {"app": "victim"}},
                "template": {"metadata": {"labels": {"app": "victim"}}, "spec": POD["spec"]},
            },
        },
    ),
    (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "things", "kind": "Thing"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {
                            "openAPIV3Schema": {
                                "type": "object",
                                "x-kubernetes-validations": [{"rule": "self.a > 1"}],
                                "properties": {"a": {"type": "integer", "pattern": "^a+$"}},
                            }
                        },
                    }
                ],
            },
        },
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "x"},
            "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "nobody"}],
        },
    ),
    (
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"spec": {"user": "a", "resourceAttributes": {"verb": "get", "resource": "pods"}}},
    ),
    (f"{SPACE}/pods/victim/eviction", {"metadata": {"name": "victim"}}),
    (f"{SPACE}/pods/victim/binding", {"metadata": {"name": "victim"}, "target": {"name": "n"}}),
    (f"{SPACE}/serviceaccounts/default/token", {"spec": {"expirationSeconds": 600}}),
)
TYPES = (
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "text/plain",
    "application/json; charset=\x7f",
    "",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["", "-1", "9" * 40, "1e999", "\x00", "../..", "$patch", "a" * 300, "0x1"])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def judged(answer: Answered) -> Answered:
    """Send a request; the answer must not be a failure of the server."""
    if answer.status >= 500 and answer.body:
        status = answer.json()
        assert status["kind"] == "Status", answer
        assert answer.status in (500, 501) and KNOWN.search(status["message"]), answer
    return answer


REUSED: list[ssl.SSLSocket] = []


def attack(program: Program, request: bytes) -> Answered:
    """Send a request, on the connection of the last one if it is still open."""
    answer = Answered(0, b"", b"")
    if REUSED:
        answer = say(REUSED[0], request)
    if answer.status == 0:
        hang_up()
        REUSED.append(program.connect())
        answer = say(REUSED[0], request)
    if answer.ends:
        hang_up()
    return judged(answer)


def hang_up() -> None:
    """Close the open connection."""
    while REUSED:
        REUSED.pop().close()


def state(program: Program) -> dict[str, Any]:
    """The versions of all objects."""
    versions = {}
    for kind in ("configmaps", "secrets", "services", "pods", "namespaces", "serviceaccounts"):
        for item in program.ask("GET", f"/api/v1/{kind}")["items"]:
            meta = item["metadata"]
            versions[f"{kind} {meta.get('namespace')}/{meta['name']}"] = meta["resourceVersion"]
    for kind in ("clusterroles", "clusterrolebindings", "roles", "rolebindings"):
        for item in program.ask("GET", f"/apis/rbac.authorization.k8s.io/v1/{kind}")["items"]:
            meta = item["metadata"]
            versions[f"{kind} {meta.get('namespace')}/{meta['name']}"] = meta["resourceVersion"]
    return versions


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The positions in a value where something could be replaced."""
    paths = [path] if path else []
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            paths += places(item, (*path, key))
    return paths


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at one position."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@quickly
@given(st.data())
def test_odd_values(program: Program, data: st.DataObject) -> None:
    """An object with any value at any position is stored or refused, by every method."""
    path, body = data.draw(st.sampled_from(BODIES))
    for _ in range(data.draw(st.integers(1, 3))):
        body = replaced(body, data.draw(st.sampled_from(places(body))), data.draw(values))
        if not isinstance(body, dict):
            break
    text = json.dumps(body).encode()
    query = data.draw(st.sampled_from(["", "?dryRun=All", "?fieldValidation=Strict"]))
    kind = data.draw(st.sampled_from(TYPES[:2]))
    attack(program, program.render("POST", path + query, text, headers=(("Content-Type", kind),)))
    for patch in TYPES[3:7]:
        sent = program.render(
            "PATCH",
            f"{SPACE}/configmaps/victim?fieldManager=f&dryRun=All",
            text,
            headers=(("Content-Type", patch),),
        )
        attack(program, sent)


@quickly
@given(st.data())
def test_odd_bytes(program: Program, data: st.DataObject) -> None:
    """A body that is not JSON, YAML, UTF-8 or protobuf is refused with a 4xx."""
    path, body = data.draw(st.sampled_from(BODIES))
    text = bytearray(json.dumps(body).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    kind = data.draw(st.sampled_from(TYPES))
    method = data.draw(st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]))
    target = path if method == "POST" else f"{SPACE}/configmaps/spare?fieldManager=f"
    headers = (("Content-Type", kind),)
    attack(program, program.render(method, target, bytes(text), headers=headers))


@quickly
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.sampled_from([0, 1, 2, 3, 5, 6, 7]),
            st.binary(max_size=12),
            st.integers(0, 2**66),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_broken_protobuf(
    program: Program, fields: list[tuple[int, int, bytes, int]], head: bool
) -> None:
    """Protobuf with wrong tags, lengths and types is refused."""
    raw = b"k8s\x00" if head else b""
    for number, kind, content, length in fields:
        raw += varint(number << 3 | kind) + varint(length % 40) + content
    for path in (f"{SPACE}/configmaps", f"{SPACE}/pods", f"{SPACE}/pods/victim/eviction"):
        headers = (("Content-Type", "application/vnd.kubernetes.protobuf"),)
        answer = attack(program, program.render("POST", path, raw, headers=headers))
        assert 400 <= answer.status < 500 or (fields and answer.status == 201), answer


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


NASTY = (
    "..", ".", "", "%2e%2e", "%2E%2E", "%2f", "%2F..%2f", "%00", "%", "%zz", "%ff%fe", "%c0%ae",
    "a" * 300, "*", "victim", "default", "pods", "secrets", "namespaces", "api", "apis", "v1",
    "status", "log", "watch", "proxy", "exec", "apps", ";a=b", "a b", "ä", "%u002e", "~", "@",
    "kube-system", "configmaps", "..;", "\\..\\", "%5c..%5c", "$(id)", "{}",
    "rbac.authorization.k8s.io",
)  # fmt: skip
QUERIES = (
    "", "?", "?watch=1&timeoutSeconds=1", "?limit=-1", "?limit=99999999999999999999",
    "?continue=AAAA", "?resourceVersion=x", "?resourceVersion=-1", "?labelSelector=((((",
    "?fieldSelector=a=b=c", "?%ff=%ff", "?dryRun=None", "?fieldValidation=x", "?timeoutSeconds=x",
    "?a=b&" + "c=d&" * 1200, "?watch=1&timeoutSeconds=1&resourceVersion=99999999999",
    "?sendInitialEvents=true&watch=1&timeoutSeconds=1", "?labelSelector=" + "a," * 500, "?&&&===",
    "?pretty=1&stream=%00", "?fieldManager=" + "x" * 200, "?force=x", "?gracePeriodSeconds=-5",
    "?resourceVersion=1&resourceVersionMatch=Exact", "?propagationPolicy=x",
    "?limit=1&continue=%00",
)  # fmt: skip


@quickly
@given(st.data())
def test_path_tricks(program: Program, stranger: str, data: st.DataObject) -> None:
    """No spelling of a path makes the server fail, leave its root, or show anything."""
    start = data.draw(st.sampled_from(["", "/api/v1", "/apis/apps/v1", SPACE, "//", "/apis"]))
    rest = data.draw(st.lists(st.sampled_from(NASTY), min_size=1, max_size=6))
    path = "/".join([start, *rest]) + data.draw(st.sampled_from(QUERIES))
    path = path.replace(" ", "%20")
    method = data.draw(st.sampled_from(METHODS))
    if method in ("GET", "HEAD", "OPTIONS", "TRACE", "BREW"):
        attack(program, program.render(method, path))
    answer = attack(program, program.render(method, path, token=stranger))
    if 200 <= answer.status < 300:
        assert OPEN.match(path), (path, answer)
        assert b"hidden-word" not in answer.body and b'"items"' not in answer.body
    assert b"aGlkZGVuLXdvcmQ" not in answer.body


@quickly
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["Accept", "Accept-Encoding", "Impersonate-User", "Impersonate-Group", "X", "Host",
                 "Impersonate-Extra-a", "Impersonate-Uid", "User-Agent", "Content-Type", "Range",
                 "Authorization", "Cookie", "Upgrade", "Connection", "Expect", "If-None-Match"]
            ),
            st.text(
                alphabet=string.printable.replace("\r", "").replace("\n", "") + "ä\x01\x7f",
                max_size=60,
            ),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_odd_headers(program: Program, headers: list[tuple[str, str]]) -> None:
    """Headers with any content are read or refused."""
    for path in (f"{SPACE}/configmaps/victim", f"{SPACE}/pods?limit=1"):
        attack(program, program.render("GET", path, headers=tuple(headers)))


def raw_attacks() -> dict[str, bytes]:
    """Requests that no client library sends; ``@`` stands for valid credentials."""
    get = b"GET /api/v1/namespaces/default/configmaps/victim HTTP/1.1\r\nHost: x\r\n@"
    post = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n@"
    smuggled = b"GET /api/v1/secrets HTTP/1.1\r\nHost: x\r\n\r\n"
    size = b"Content-Length: %d\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    return {
        "length and chunks": post + size % 5 + chunked + b"\r\n0\r\n\r\n" + smuggled,
        "chunks and length": post + chunked + size % 5 + b"\r\n0\r\n\r\n" + smuggled,
        "two lengths": post + size % 0 + size % 43 + b"\r\n" + smuggled,
        "a list of lengths": post + b"Content-Length: 0, 43\r\n\r\n" + smuggled,
        "negative length": post + b"Content-Length: -1\r\n\r\n",
        "signed length": post + b"Content-Length: +5\r\n\r\nhello",
        "length in words": post + b"Content-Length: five\r\n\r\nhello",
        "huge length": post + b"Content-Length: 99999999999999999999999\r\n\r\n",
        "unknown coding": post + b"Transfer-Encoding: xchunked\r\n\r\n" + smuggled,
        "coding twice": post + chunked + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "space before colon": post + b"Content-Length : 5\r\n\r\nhello",
        "chunk size in words": post + chunked + b"\r\nzz\r\nhello\r\n0\r\n\r\n",
        "huge chunk size": post + chunked + b"\r\nffffffffffffffffff\r\nhello\r\n",
        "negative chunk size": post + chunked + b"\r\n-5\r\nhello\r\n0\r\n\r\n",
        "chunk without end": post + chunked + b"\r\n5\r\nhelloXX0\r\n\r\n",
        "long chunk extension": post + chunked + b"\r\n5;" + b"a" * 100_000 + b"\r\nhello\r\n",
        "folded header": get + b"X: a\r\n b\r\n\r\n",
        "header without colon": get + b"nonsense\r\n\r\n",
        "header without name": get + b": a\r\n\r\n",
        "NUL in a header": get + b"X: a\x00b\r\n\r\n",
        "bare CR in a header": get + b"X: a\rAuthorization: b\r\n\r\n",
        "bare LF": get.replace(b"\r\n", b"\n") + b"\n",
        "long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n@\r\n",
        "long header": get + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        "many headers": get + b"".join(b"X-%d: a\r\n" % n for n in range(40_000)) + b"\r\n",
        "no version": b"GET /api/v1/secrets\r\n@\r\n",
        "old version": b"GET /api/v1/secrets HTTP/0.9\r\n@\r\n",
        "new version": b"GET /api/v1/secrets HTTP/9.9\r\n@\r\n",
        "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "no path": b"GET  HTTP/1.1\r\nHost: x\r\n@\r\n",
        "whole address": b"GET https://other.example/api/v1/secrets HTTP/1.1\r\nHost: x\r\n@\r\n",
        "authority form": b"CONNECT other.example:443 HTTP/1.1\r\nHost: x\r\n@\r\n",
        "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n@\r\n",
        "no host": b"GET /version HTTP/1.1\r\n@\r\n",
        "two hosts": get + b"Host: y\r\n\r\n",
        "websocket": get + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        "h2c": get + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
        "expectation": post + b"Expect: 200-maybe\r\nContent-Length: 2\r\n\r\n{}",
        "odd method": b"G\x00T / HTTP/1.1\r\nHost: x\r\n@\r\n",
        "raw UTF-8": "GET /api/v1/ä HTTP/1.1\r\nHost: x\r\n@\r\n".encode(),
        "gzip that is none": post + b"Content-Encoding: gzip\r\n" + size % 5 + b"\r\nhello",
        "deflate that is none": post + b"Content-Encoding: deflate\r\n" + size % 5 + b"\r\nhello",
        "nothing": b"\r\n\r\n\r\n",
        "noise": bytes(range(256)) * 20,
    }


@pytest.mark.parametrize("name", sorted(raw_attacks()))
def test_malformed_requests(program: Program, name: str) -> None:
    """A malformed request is refused or the connection closed, and smuggles no second one."""
    proof = f"Authorization: Bearer {program.token}\r\n".encode()
    request = raw_attacks()[name]
    with program.connect() as link:
        link.settimeout(1)
        with contextlib.suppress(TimeoutError):
            answer = judged(say(link, request.replace(b"@", proof)))
            assert b"hidden-word" not in answer.body and b"aGlkZGVuLXdvcmQ" not in answer.body
    with program.connect() as link:
        link.settimeout(1)
        with contextlib.suppress(TimeoutError):
            answer = judged(say(link, request.replace(b"@", b"")))
            assert not 200 <= answer.status < 300, answer


def test_huge_bodies(program: Program) -> None:
    """More than 3 MiB is refused, announced or in chunks, and leaves no memory in use."""
    path, before = f"{SPACE}/configmaps", program.memory()
    headers = (("Content-Type", "application/json"),)
    body = json.dumps({"metadata": {"name": "huge"}, "data": {"a": "x" * (4 * MIB)}}).encode()
    assert attack(program, program.render("POST", path, body, headers=headers)).status == 413
    head = program.render("POST", path, headers=headers)
    head = head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    pieces = [b"%x\r\n%b\r\n" % (65536, b" " * 65536)] * 96
    assert attack(program, head + b"".join(pieces) + b"0\r\n\r\n").status == 413
    for _ in range(20):
        assert attack(program, program.render("POST", path, body, headers=headers)).status == 413
    assert program.memory() - before < 48 * 1024


def nested() -> dict[str, tuple[str, bytes]]:
    """Content type and body of very deeply nested values."""
    deep = 200_000
    aliases = b"a: &a [x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
    )
    field = b""
    for _ in range(2_000):
        field = b"\x0a" + varint(len(field)) + field
    return {
        "lists": ("application/json", b"[" * deep),
        "closed lists": ("application/json", b'{"data":' + b"[" * deep + b"]" * deep + b"}"),
        "objects": ("application/json", b'{"a":' * deep + b"1" + b"}" * deep),
        "yaml lists": ("application/yaml", b"[" * 50_000),
        "yaml objects": ("application/yaml", b"{a: " * 50_000),
        "yaml indents": ("application/yaml", b"".join(b" " * n + b"a:\n" for n in range(1_500))),
        "yaml aliases": ("application/yaml", aliases),
        "yaml tags": ("application/yaml", b"!!python/object/apply:os.system ['true']"),
        "merge patch": ("application/merge-patch+json", b'{"a":' * deep + b"1" + b"}" * deep),
        "json patch": ("application/json-patch+json", b"[" * deep + b"]" * deep),
        "long pointer": (
            "application/json-patch+json",
            b'[{"op":"add","path":"' + b"/a" * 100_000 + b'","value":1}]',
        ),
        "copies": (
            "application/json-patch+json",
            json.dumps(
                [{"op": "add", "path": "/data/b", "value": "x" * 1000}]
                + [{"op": "copy", "from": "/data", "path": f"/data/c{n}"} for n in range(60)]
            ).encode(),
        ),
        "strategic": (
            "application/strategic-merge-patch+json",
            b'{"metadata":' * 5_000 + b"1" + b"}" * 5_000,
        ),
        "apply": ("application/apply-patch+yaml", b"{a: " * 50_000),
        "protobuf": ("application/vnd.kubernetes.protobuf", b"k8s\x00" + field),
        "selector": ("application/json", b'{"metadata":{"name":"' + b"(" * 100_000 + b'"}}'),
    }


@pytest.mark.parametrize("name", sorted(nested()))
def test_deep_nesting(program: Program, name: str) -> None:
    """Values that nest or expand without end are refused at little cost."""
    kind, body = nested()[name]
    headers, before = (("Content-Type", kind),), program.memory()
    victim = f"{SPACE}/configmaps/victim?fieldManager=f"
    for method, path in (("POST", f"{SPACE}/configmaps"), ("PATCH", victim), ("PUT", victim)):
        answer = attack(program, program.render(method, path, body, headers=headers))
        assert 400 <= answer.status < 500 or (answer.status, name) == (500, "strategic"), answer
    assert program.memory() - before < 64 * 1024


def test_bad_credentials(program: Program, stranger: str) -> None:
    """Forged, truncated, unsigned and foreign credentials are refused: 401, or no connection."""
    head, claims, signature = stranger.split(".")
    nobody = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    for token in (
        "x", "a.b.c", "....", f"{head}.{claims}.", f"{nobody}.{claims}.", f"{head}.{claims}",
        f"{head}.{claims}.{signature[:-4]}AAAA", f"{head}.{claims[:-3]}AAA.{signature}",
        stranger * 20, "\x00", program.token[:-1], program.token + "x", "ä",
    ):  # fmt: skip
        answer = attack(program, program.render("GET", f"{SPACE}/secrets", token=token))
        assert answer.status in (400, 401), (token, answer)
    for value in ("Basic YTpi", "Bearer", "Bearer  ", "Negotiate x", "bearer", ""):
        headers = (("Authorization", value),)
        request = program.render("GET", f"{SPACE}/secrets", token="", headers=headers)
        assert attack(program, request).status == 401, value
    context = program.context()
    other = trustme.CA().issue_cert(
        common_name="system:masters", organization_name="system:masters"
    )
    other.configure_cert(context)
    with contextlib.suppress(ssl.SSLError, ConnectionError), program.connect(context) as link:
        request = program.render("GET", f"{SPACE}/secrets", token="")
        assert say(link, request).status in (0, 401)


def test_stranger_changes_and_sees_nothing(program: Program, stranger: str) -> None:
    """A user without permissions gets 403 for every verb of every resource, existing or not."""
    before = state(program)
    groups = ["/api/v1"] + [
        f"/apis/{group['preferredVersion']['groupVersion']}"
        for group in program.ask("GET", "/apis")["groups"]
    ]
    body = b'{"metadata":{"name":"victim","namespace":"default"}}'
    with program.connect() as link:
        for root in groups:
            for resource in program.ask("GET", root)["resources"]:
                name, _, below = resource["name"].partition("/")
                if name.startswith("selfsubject"):
                    continue
                space = "/namespaces/default" if resource["namespaced"] else ""
                item = f"{root}{space}/{name}/victim{'/' + below if below else ''}"
                whole = item if below else f"{root}{space}/{name}"
                for method, path in (
                    ("GET", whole), ("GET", item), ("GET", f"{whole}?watch=1"), ("POST", whole),
                    ("PUT", item), ("PATCH", item), ("DELETE", item), ("DELETE", whole),
                    ("GET", f"{root}/{name}"),
                ):  # fmt: skip
                    headers = (("Content-Type", "application/merge-patch+json"),)
                    sent = body if method in ("POST", "PUT", "PATCH") else b""
                    request = program.render(method, path, sent, token=stranger, headers=headers)
                    answer = judged(say(link, request))
                    assert answer.status == 403, (method, path, answer)
    assert state(program) == before


@quickly
@given(st.data())
def test_stranger_cannot_become_another(
    program: Program, stranger: str, data: st.DataObject
) -> None:
    """Impersonation, in any combination of headers, needs permission."""
    names = ("Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-a")
    who = st.sampled_from(["zonewise-owner", "system:masters", "system:admin", "", " ", "*"])
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), who), min_size=1, max_size=5))
    path = data.draw(st.sampled_from([f"{SPACE}/secrets", "/api/v1/nodes", "/metrics"]))
    answer = attack(program, program.render("GET", path, token=stranger, headers=tuple(pairs)))
    assert 400 <= answer.status < 500, answer


def test_still_there(program: Program) -> None:
    """After all attacks the server accepts and shows objects as before."""
    path = f"{SPACE}/configmaps"
    created = program.ask("POST", path, {"metadata": {"name": "after"}, "data": {"a": "b"}})
    assert program.ask("GET", f"{path}/after") == created
    assert program.ask("GET", f"{path}/victim")["data"]["a"] == "b"
    assert program.ask("GET", f"{SPACE}/secrets/victim")["data"] == {"a": "aGlkZGVuLXdvcmQ="}


def test_folder_is_private(program: Program) -> None:
    """Keys and tokens are readable by their owner only."""
    for path in [program.folder / "kubeconfig", *Path(program.folder).rglob("*.key")]:
        assert path.stat().st_mode & 0o077 == 0, path
