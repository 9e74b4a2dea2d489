"""The typed client: what it sends, what it reads, what it retries."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.memory_server import Answered, MemoryServer, refusal

from zonewise.api.errors import (
    AlreadyExists,
    ApiError,
    ConnectionFailed,
    Forbidden,
    LeadershipLost,
    NotFound,
    ProtocolError,
    ServerError,
    TooManyRequests,
)
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.exchange import retry_after
from zonewise.runtime.client.limiter import Limiter
from zonewise.runtime.client.transport import Request

pytestmark = pytest.mark.looptime

NODES = "/api/v1/nodes"


class Recorder:
    """A transport that gives every request the same answer and records the requests."""

    def __init__(self, *answers: Answered | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.moments: list[float] = []
        self.closed = False

    async def send(self, request: Request) -> Answered:
        self.requests.append(request)
        self.moments.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True

    @property
    def last(self) -> Request:
        return self.requests[-1]

    def body(self) -> Any:
        return json.loads(self.last.body or b"null")


def answer(value: Any, status: int = 200, **headers: str) -> Answered:
    return Answered(status, json.dumps(value).encode(), headers)


NODE = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a", "resourceVersion": "7"}}
POD = {"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "9"}}


async def test_get_gives_a_typed_object() -> None:
    """The body is decoded into the class that was requested."""
    transport = Recorder(answer(NODE))
    node = await Client(transport).get(Node, "a")
    assert isinstance(node, Node)
    assert node.metadata.resource_version == "7"
    assert (transport.last.method, transport.last.path) == ("GET", "/api/v1/nodes/a")


async def test_unknown_kinds_are_returned_whole() -> None:
    """A custom resource is read and replaced with all its fields."""
    widget = unstructured(Resource("example.com", "v1", "Widget", "widgets"))
    transport = Recorder(answer({"metadata": {"name": "w", "namespace": "n"}, "spec": {"x": [1]}}))
    item = await Client(transport).get(widget, "w", "n")
    assert item.get("spec", "x", 0) == 1
    assert transport.last.path == "/apis/example.com/v1/namespaces/n/widgets/w"
    await Client(transport).replace(item)
    assert transport.body() == {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w", "namespace": "n"},
        "spec": {"x": [1]},
    }


async def test_refusals_are_typed_and_keep_the_status() -> None:
    """An error has the class of its code, and the server's reason and details."""
    body = {
        "kind": "Status",
        "code": 404,
        "reason": "NotFound",
        "message": 'nodes "a" not found',
        "details": {"name": "a", "kind": "nodes"},
    }
    with pytest.raises(NotFound, match='nodes "a" not found') as caught:
        await Client(Recorder(answer(body, 404))).get(Node, "a")
    assert (caught.value.reason, caught.value.details.name) == ("NotFound", "a")
    with pytest.raises(Forbidden, match="go away"):
        await Client(Recorder(Answered(403, b"go away"))).get(Node, "a")
    with pytest.raises(AlreadyExists):
        await Client(Recorder(refusal(409, "AlreadyExists"))).create(
            Node(metadata=ObjectMeta(name="a"))
        )


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"metadata":{"name":1}}', b""])
async def test_an_answer_that_is_not_an_object_is_an_error(body: bytes) -> None:
    """A server that answers 200 with something else is not an API server."""
    with pytest.raises(ProtocolError, match="not what was requested"):
        await Client(Recorder(Answered(200, body))).get(Node, "a")


@pytest.mark.parametrize("body", [b"{}", b'{"error":"x"}', b'{"kind":"Status"}', b"null", b"<a>"])
async def test_an_answer_that_is_no_list_is_not_an_empty_list(body: bytes) -> None:
    """An empty page of a proxy does not look like an empty list."""
    with pytest.raises(ProtocolError, match="not what was requested"):
        await Client(Recorder(Answered(200, body))).list(Node)


async def test_lists_are_read_in_pages() -> None:
    """All pages make one list, with the version of the first."""
    server = MemoryServer()
    for number in range(25):
        server.put(NODES, f"node-{number}")
    listing = await Client(server).list(Node, limit=10)
    assert len(listing) == 25
    assert [node.metadata.name for node in listing][-1] == "node-24"
    assert listing.resource_version == "125"
    assert [seen.request.query.get("limit") for seen in server.seen] == ["10", "10", "10"]


async def test_an_expired_page_makes_one_whole_list() -> None:
    """If the server no longer has the state of the first page, all is read again in one request."""
    server = MemoryServer()
    for number in range(25):
        server.put(NODES, f"node-{number}")

    def compact(_: Request) -> None:
        server.put(NODES, "late")
        server.compact()

    server.faults = [lambda _: None, compact]
    listing = await Client(server).list(Node, limit=10)
    assert len(listing) == 26
    assert listing.resource_version == "126"
    assert "limit" not in server.seen[-1].request.query


async def test_a_list_says_which_objects() -> None:
    """Namespace, selectors, page size and freshness are in the request."""
    transport = Recorder(answer({"kind": "PodList", "metadata": {"resourceVersion": "1"}}))
    client = Client(transport)
    listing = await client.list(
        Pod,
        "ns",
        label_selector="a=b",
        field_selector="spec.nodeName=n",
        limit=0,
        resource_version="5",
    )
    assert listing.items == ()
    assert transport.last.path == "/api/v1/namespaces/ns/pods"
    assert transport.last.query == {
        "labelSelector": "a=b",
        "fieldSelector": "spec.nodeName=n",
        "resourceVersion": "5",
        "resourceVersionMatch": "NotOlderThan",
    }


async def test_a_list_with_null_items_is_empty() -> None:
    """Go sends null for an empty list."""
    transport = Recorder(answer({"kind": "PodList", "metadata": {}, "items": None}))
    assert len(await Client(transport).list(Pod)) == 0


async def test_the_collector_rests_while_a_large_list_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The garbage collector is off while a large body is decoded, and on for a small one."""
    states: list[bool] = []
    from zonewise.api.codec import Decoder

    real = Decoder.decode

    def spying(self: Decoder[Any], data: Any) -> Any:
        states.append(gc.isenabled())
        return real(self, data)

    monkeypatch.setattr(Decoder, "decode", spying)
    small = {"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [NODE]}
    await Client(Recorder(answer(small))).list(Node)
    large = {**small, "items": [NODE] * 20_000}
    await Client(Recorder(answer(large))).list(Node)
    assert states == [True, False]
    assert gc.isenabled()


async def test_create_sends_the_whole_object() -> None:
    """A created object carries its kind, and our name as the manager of its fields."""
    transport = Recorder(answer(POD, 201))
    client = Client(transport, field_manager="me")
    await client.create(EndpointSlice(metadata=ObjectMeta(name="p", namespace="ns")), dry_run=True)
    assert transport.last.method == "POST"
    assert transport.last.path == "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
    assert transport.last.query == {"fieldManager": "me", "dryRun": "All"}
    assert transport.last.headers["Content-Type"] == "application/json"
    assert transport.body()["kind"] == "EndpointSlice"


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
    ],
)
async def test_patches_say_what_they_are(kind: Any, content_type: str) -> None:
    """Each kind of patch has its media type, and Structs in the body are encoded."""
    transport = Recorder(answer(POD))
    body = {"metadata": ObjectMeta(resource_version="5", labels={"a": "b"})}
    await Client(transport).patch(Pod, "p", "ns", body, kind=kind, subresource="status")
    assert transport.last.method == "PATCH"
    assert transport.last.path == "/api/v1/namespaces/ns/pods/p/status"
    assert transport.last.headers["Content-Type"] == content_type
    assert transport.body() == {"metadata": {"resourceVersion": "5", "labels": {"a": "b"}}}


async def test_apply_fills_in_kind_and_name() -> None:
    """To apply an object, only the fields that we own must be given."""
    transport = Recorder(answer(POD))
    await Client(transport).apply(
        Pod, "p", "ns", {"metadata": {"labels": {"a": "b"}}}, force=True, field_manager="other"
    )
    assert transport.last.headers["Content-Type"] == "application/apply-patch+yaml"
    assert transport.last.query == {"fieldManager": "other", "force": "true"}
    assert transport.body() == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "labels": {"a": "b"}},
    }


async def test_deletions_can_be_conditional() -> None:
    """Uid, version, grace and propagation are sent; the object or None comes back."""
    transport = Recorder(answer({"kind": "Pod", **POD}))
    client = Client(transport)
    gone = await client.delete(
        Pod, "p", "ns", uid="u", resource_version="9", grace_period=0, propagation="Foreground"
    )
    assert gone is not None
    assert gone.metadata.name == "p"
    assert transport.body() == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "9"},
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Foreground",
    }
    transport = Recorder(answer({"kind": "Status", "status": "Success"}))
    assert await Client(transport).delete(Pod, "p", "ns", dry_run=True) is None
    assert transport.body() == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "dryRun": ["All"],
    }
    assert transport.last.query == {}


async def test_a_refused_eviction_is_an_answer() -> None:
    """A budget's 429 is raised at once, whatever Retry-After says."""
    transport = Recorder(refusal(429, "TooManyRequests", headers={"Retry-After": "10"}))
    with pytest.raises(TooManyRequests):
        await Client(transport).evict("p", "ns", uid="u", grace_period=5, dry_run=True)
    assert len(transport.requests) == 1
    assert transport.last.path == "/api/v1/namespaces/ns/pods/p/eviction"
    assert transport.body()["kind"] == "Eviction"
    assert transport.body()["deleteOptions"] == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 5,
        "dryRun": ["All"],
    }


async def test_a_busy_server_is_asked_again() -> None:
    """429 is retried after the pause that the server names, for reads and writes."""
    busy = refusal(429, "TooManyRequests", headers={"Retry-After": "3"})
    transport = Recorder(busy, busy, answer(NODE))
    await Client(transport).get(Node, "a")
    assert len(transport.requests) == 3
    assert transport.moments[1] - transport.moments[0] >= 3
    transport = Recorder(busy, answer(POD, 201))
    await Client(transport).create(Pod(metadata=ObjectMeta(name="p", namespace="ns")))
    assert len(transport.requests) == 2


CALLS: dict[str, tuple[Callable[[Client], Any], bool]] = {
    "get": (lambda client: client.get(Node, "a"), True),
    "replace": (lambda client: client.replace(Node(metadata=ObjectMeta(name="a"))), True),
    "apply": (lambda client: client.apply(Node, "a", None, {}), True),
    "delete": (lambda client: client.delete(Node, "a"), True),
    "create": (lambda client: client.create(Node(metadata=ObjectMeta(name="a"))), False),
    "patch": (lambda client: client.patch(Node, "a", None, {}), False),
}


@pytest.mark.parametrize("call", CALLS)
async def test_only_what_may_be_repeated_is_repeated_after_503(call: str) -> None:
    """After a 503 a write may have been done, so a create or a patch is not sent again."""
    make, repeated = CALLS[call]
    transport = Recorder(
        refusal(503, "ServiceUnavailable", headers={"Retry-After": "1"}), answer(NODE)
    )
    if repeated:
        await make(Client(transport))
        assert len(transport.requests) == 2
    else:
        with pytest.raises(ServerError):
            await make(Client(transport))
        assert len(transport.requests) == 1


async def test_a_server_error_without_a_pause_is_final() -> None:
    """A 500 without Retry-After is raised at once."""
    transport = Recorder(refusal(500, "InternalError"))
    with pytest.raises(ServerError):
        await Client(transport).get(Node, "a")
    assert len(transport.requests) == 1


async def test_waiting_is_bounded() -> None:
    """Neither many short pauses nor one long pause keep a caller waiting for ever."""
    transport = Recorder(refusal(429, "TooManyRequests", headers={"Retry-After": "1"}))
    with pytest.raises(TooManyRequests):
        await Client(transport).get(Node, "a")
    assert len(transport.requests) == 5
    transport = Recorder(refusal(429, "TooManyRequests", headers={"Retry-After": "200"}))
    with pytest.raises(TooManyRequests) as caught:
        await Client(transport).get(Node, "a")
    assert len(transport.requests) == 1
    assert caught.value.retry_after == 200


async def test_requests_without_an_answer_are_not_repeated() -> None:
    """Only the caller knows whether a write without an answer may be sent again."""
    transport = Recorder(ConnectionFailed("cut"))
    with pytest.raises(ConnectionFailed):
        await Client(transport).patch(Node, "a", None, {})
    assert len(transport.requests) == 1


async def test_the_fence_stops_writes_and_only_writes() -> None:
    """A replica that lost its lease can read, and sends no write, not even a retry."""
    leading = True

    def fence() -> None:
        if not leading:
            raise LeadershipLost("not leading")

    transport = Recorder(answer(NODE))
    client = Client(transport, fence=fence)
    await client.patch(Node, "a", None, {})
    leading = False
    await client.get(Node, "a")
    for make, _ in CALLS.values():
        before = len(transport.requests)
        try:
            await make(client)
        except LeadershipLost:
            assert len(transport.requests) == before
        else:
            assert transport.last.method == "GET"
    with pytest.raises(LeadershipLost):
        await client.evict("p", "ns")
    with pytest.raises(LeadershipLost):
        await client.raw("POST", "/x", body=b"{}")

    leading = True
    busy = Recorder(refusal(429, "TooManyRequests", headers={"Retry-After": "5"}))
    client = Client(busy, fence=fence)
    writing = asyncio.create_task(client.patch(Node, "a", None, {}))
    await asyncio.sleep(1)
    leading = False
    with pytest.raises(LeadershipLost):
        await writing
    assert len(busy.requests) == 1


async def test_the_fence_is_asked_after_the_rate_limit() -> None:
    """The fence is checked after waiting for the rate limit, right before the request."""
    checks: list[float] = []
    loop = asyncio.get_running_loop()
    transport = Recorder(answer(NODE))
    client = Client(
        transport,
        limiter=Limiter(rate=0.1, burst=1),
        fence=lambda: checks.append(loop.time()),
    )
    await client.patch(Node, "a", None, {})
    await client.patch(Node, "a", None, {})
    assert checks == [0, 10] == transport.moments


async def test_the_server_says_what_it_is() -> None:
    """The version of the server is read; something that is no API server is an error."""
    kubernetes = Recorder(answer({"gitVersion": "v1.36.4", "major": "1"}))
    assert (await Client(kubernetes).server_version()).git_version == "v1.36.4"
    for body in (b"{}", b"[]", b'{"gitVersion":5}'):
        with pytest.raises(ProtocolError):
            await Client(Recorder(Answered(200, body))).server_version()


async def test_raw_gives_everything() -> None:
    """Any path can be requested; headers and body are returned unchanged."""
    transport = Recorder(answer({"a": 1}, 200, ETag="x"))
    got = await Client(transport).raw("GET", "/openapi/v3", query={"q": "1"}, timeout=5)
    assert (got.status, got.headers["ETag"], got.json()) == (200, "x", {"a": 1})
    assert transport.last.timeout == 5
    with pytest.raises(ProtocolError, match="not JSON"):
        (await Client(Recorder(Answered(200, b"ok"))).raw("GET", "/healthz")).json()
    with pytest.raises(ApiError):
        await Client(Recorder(Answered(418, b"teapot"))).raw("GET", "/")


async def test_warnings_are_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's warnings are logged without repetition."""
    warned = Answered(200, json.dumps(NODE).encode(), {"Warning": '299 - "v1 is deprecated"'})
    client = Client(Recorder(warned))
    for _ in range(3):
        await client.get(Node, "a")
    assert capsys.readouterr().err.count("v1 is deprecated") == 1


async def test_a_client_closes_its_transport() -> None:
    """Leaving the ``async with`` block closes the connections."""
    transport = Recorder(answer(NODE))
    async with Client(transport) as client:
        await client.get(Node, "a")
    assert transport.closed


def test_retry_after_is_seconds_or_a_date() -> None:
    """Seconds count up to a limit, a date means a short pause, anything else none."""
    assert retry_after("7") == 7
    assert retry_after("999999") == 300
    assert retry_after("Wed, 21 Oct 2026 07:28:00 GMT") == 1
    assert retry_after("soon") is None
    assert retry_after("") is None
    assert retry_after(None) is None
