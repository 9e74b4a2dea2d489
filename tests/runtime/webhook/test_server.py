"""The webhook server: calls, failures, limits, and certificates that change under way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import trustme
from tests.runtime.webhook.reviews import HANDLERS, SERVICE, pair, review

from zonewise.api.errors import ConfigError
from zonewise.runtime.serving.connection import HeaderLimits
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Allowed, Denied
from zonewise.runtime.webhook.server import (
    AdmissionDispatcher,
    Failed,
    Incoming,
    ReviewOutcome,
    WebhookLimits,
    WebhookServer,
    parse_duration,
)
from zonewise.runtime.webhook.server_context import ServerContext


class Counted:
    """Counts the calls that a dispatcher observed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ReviewOutcome]] = []

    def __call__(self, path: str, outcome: ReviewOutcome, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((path, outcome))


async def test_a_dispatcher_answers_without_a_network() -> None:
    """The embedded cluster gets the same answers in process."""
    dispatcher = AdmissionDispatcher(HANDLERS)
    body = json.loads(await dispatcher.answer("/name", review(object=SERVICE, dryRun=True)))
    assert body["response"] == {"uid": "u-1", "allowed": True, "warnings": ["dry"]}
    bad = {**SERVICE, "metadata": {"name": "bad"}}
    body = json.loads(await dispatcher.answer("/name", review(object=bad)))
    assert body["response"]["status"]["message"] == "bad is no name"


@pytest.mark.parametrize(
    ("path", "body", "code", "outcome", "sentence"),
    [
        ("/crash", review(), 500, "failed", "/crash failed; its log says why"),
        (
            "/cut",
            review(),
            500,
            "failed",
            "/cut could not decide: the API server did not answer",
        ),
        ("/none", review(), 404, "bad", "there is no webhook at /none"),
        ("/name", b"{", 400, "bad", "not JSON"),
    ],
)
async def test_failures_are_sentences(
    path: str, body: bytes, code: int, outcome: str, sentence: str
) -> None:
    """A failed call has an error message that shows nothing of the program."""
    counted = Counted()
    dispatcher = AdmissionDispatcher(HANDLERS, observe=counted)
    with pytest.raises(Failed) as caught:
        await dispatcher.answer(path, body)
    assert (caught.value.code, caught.value.outcome) == (code, outcome)
    assert sentence in str(caught.value) and "secret" not in str(caught.value)
    assert counted.calls == [(path if path in HANDLERS else "(unknown)", outcome)]


@pytest.mark.looptime
@pytest.mark.parametrize(("timeout", "expected"), [(None, 10), (5.0, 4.8), (0.2, 0.1), (60.0, 10)])
async def test_a_handler_has_the_time_the_caller_has(
    timeout: float | None, expected: float
) -> None:
    """A call times out shortly before its caller does, and never later than our own limit."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(Failed, match="did not decide within"):
        await AdmissionDispatcher(HANDLERS).answer("/hang", review(), timeout=timeout)
    assert loop.time() - begin == pytest.approx(expected)


@pytest.mark.looptime
async def test_only_so_many_run_and_wait() -> None:
    """The number of calls that run and wait is limited; further calls are refused at once."""
    running = most = 0

    async def slow(request: AdmissionRequest) -> AdmissionAnswer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return Allowed()

    dispatcher = AdmissionDispatcher({"/slow": slow}, limits=WebhookLimits(concurrent=3, waiting=6))
    calls = [asyncio.create_task(dispatcher.answer("/slow", review())) for _ in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    turned_away = [result for result in results if isinstance(result, Failed)]
    assert most == 3 and len(turned_away) == 11
    assert {failure.code for failure in turned_away} == {503}
    assert asyncio.get_running_loop().time() == 3
    assert json.loads(await dispatcher.answer("/slow", review()))["response"]["allowed"]


@pytest.mark.looptime
@pytest.mark.parametrize("instead", [Denied("busy", code=429), Allowed(warnings=("busy",))])
async def test_a_gate_never_fails(instead: AdmissionAnswer) -> None:
    """Of 600 calls at once to a gate that takes 500, some hang and some crash: none fails, and
    calls without a verdict get the configured answer.
    """
    calls = 0

    async def judge(request: AdmissionRequest) -> AdmissionAnswer:
        nonlocal calls
        calls += 1
        which = calls % 3
        await asyncio.sleep(60 if which == 1 else 1)
        if which == 2:
            raise RuntimeError("secret")
        return Allowed(warnings=("judged",))

    counted = Counted()
    dispatcher = AdmissionDispatcher(
        {"/gate": judge},
        limits=WebhookLimits(gated=500, concurrent=3, waiting=6),
        instead={"/gate": instead},
        observe=counted,
    )
    calls_at_once = [dispatcher.answer("/gate", review(), timeout=5.0) for _ in range(600)]
    answers = [json.loads(body)["response"] for body in await asyncio.gather(*calls_at_once)]
    judged = [answer for answer in answers if answer.get("warnings") == ["judged"]]
    others = [answer for answer in answers if answer not in judged]
    assert (len(judged), len(others)) == (166, 434)
    assert {answer["allowed"] for answer in others} == {isinstance(instead, Allowed)}
    if isinstance(instead, Denied):
        assert {answer["status"]["code"] for answer in others} == {429}
    outcomes = Counter(outcome for _, outcome in counted.calls)
    assert outcomes == {"allowed": 166, "late": 167, "failed": 167, "busy": 100}


@pytest.mark.looptime
@pytest.mark.parametrize(("timeout", "expected"), [(None, 5), (30.0, 5), (6.0, 3)])
async def test_a_gate_answers_long_before_its_caller_gives_up(
    timeout: float | None, expected: float
) -> None:
    """A call without a verdict is answered while half of the caller's time is left."""
    dispatcher = AdmissionDispatcher(HANDLERS, instead={"/hang": Denied("busy", code=429)})
    answer = json.loads(await dispatcher.answer("/hang", review(), timeout=timeout))
    assert answer["response"]["status"]["code"] == 429
    assert asyncio.get_running_loop().time() == expected


def padded(size: int) -> bytes:
    """A review of a Service with annotations of a given size."""
    return review(object={**SERVICE, "metadata": {"name": "a", "annotations": {"a": "x" * size}}})


@pytest.mark.looptime
async def test_only_so_many_bytes_are_read() -> None:
    """Large bodies are read when there is memory for them; small ones do not wait for that."""
    inside = most = 0

    async def slow(request: AdmissionRequest) -> AdmissionAnswer:
        await asyncio.sleep(1)
        return Allowed()

    def incoming(body: bytes) -> Incoming:
        async def read() -> bytes:
            nonlocal inside, most
            inside += len(body)
            most = max(most, inside)
            return body

        return Incoming(len(body), read)

    async def call(body: bytes) -> float:
        nonlocal inside
        await dispatcher.answer("/slow", incoming(body))
        inside -= len(body)
        return asyncio.get_running_loop().time()

    dispatcher = AdmissionDispatcher({"/slow": slow}, limits=WebhookLimits(bodies=250_000))
    large = [asyncio.create_task(call(padded(100_000))) for _ in range(5)]
    small = [asyncio.create_task(call(padded(10))) for _ in range(5)]
    assert await asyncio.gather(*small) == [1] * 5
    assert await asyncio.gather(*large) == [1, 1, 2, 2, 3]
    assert 200_000 < most < 250_000


@pytest.mark.looptime
async def test_cancelled_calls_give_back_their_memory() -> None:
    """Calls that time out, or never send their body, release their slot and their memory."""

    async def never() -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    dispatcher = AdmissionDispatcher(
        HANDLERS, limits=WebhookLimits(bodies=100_000, concurrent=1, waiting=2)
    )
    calls = [
        asyncio.create_task(dispatcher.answer("/name", Incoming(70_000, never), timeout=after))
        for after in (5.0, 0.9, 20.0)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Failed, match="too many calls wait already"):
        await dispatcher.answer("/name", Incoming(10, never))
    failures = await asyncio.gather(*calls, return_exceptions=True)
    assert [
        (failure.code, failure.outcome) for failure in failures if isinstance(failure, Failed)
    ] == [
        (408, "late"),
        (503, "busy"),
        (408, "late"),
    ]
    body = json.loads(await dispatcher.answer("/name", padded(90_000)))
    assert body["response"]["allowed"]


@pytest.mark.looptime
@pytest.mark.parametrize("sources", [["away"], ["away", "there", "yonder"], ["here"]])
async def test_slow_bodies_do_not_block_other_calls(sources: list[str]) -> None:
    """Bodies that are announced and do not arrive are dropped for the calls of others, also if they
    come from one or many addresses again and again: a gate judges all.
    """

    async def never() -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async def again(source: str, begin: float) -> None:
        await asyncio.sleep(begin)
        while True:
            with contextlib.suppress(Failed):
                await dispatcher.answer("/gate", Incoming(8 << 20, never, source), timeout=10)

    def incoming() -> Incoming:
        async def read() -> bytes:
            await asyncio.sleep(0.01)
            return body

        return Incoming(len(body), read, "here")

    async def judge(request: AdmissionRequest) -> AdmissionAnswer:
        return Denied("held", code=429)

    dispatcher = AdmissionDispatcher({"/gate": judge}, instead={"/gate": Denied("busy", code=429)})
    body = padded(100_000)
    slow = [
        asyncio.create_task(again(source, number / 4)) for source in sources for number in range(20)
    ]
    try:
        for _ in range(20):
            await asyncio.sleep(0.7)
            calls = [dispatcher.answer("/gate", incoming(), timeout=4) for _ in range(5)]
            answers = [json.loads(answer) for answer in await asyncio.gather(*calls)]
            messages = {answer["response"]["status"]["message"] for answer in answers}
            assert messages == {"held"}
    finally:
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    async with asyncio.timeout(0.1):
        await asyncio.gather(*(dispatcher.answer("/gate", incoming()) for _ in range(100)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("2.5s", 2.5),
        ("", None),
        ("x", None),
        ("0s", None),
    ],
)
def test_durations_of_callers(text: str, seconds: float | None) -> None:
    """Durations are read as Go writes them; invalid ones mean our own limit."""
    assert parse_duration(text) == seconds


Call = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def server(authority: trustme.CA) -> AsyncIterator[WebhookServer]:
    tls = ServerContext()
    tls.use(*pair(authority))
    dispatcher = AdmissionDispatcher(HANDLERS, limits=WebhookLimits(body=10_000, deadline=5))
    async with WebhookServer(dispatcher, tls=tls, listen="127.0.0.1:0") as running:
        yield running


def trusting(*authorities: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for authority in authorities:
        authority.configure_trust(context)
    return context


async def post(
    session: aiohttp.ClientSession, server: WebhookServer, path: str, body: bytes, **options: Any
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    url = f"https://127.0.0.1:{server.port}{path}"
    async with session.post(url, data=body, **{"headers": headers, **options}) as answer:
        return answer.status, await answer.json()


async def test_calls_over_https(server: WebhookServer, authority: trustme.CA) -> None:
    """A review over HTTPS is answered; failures are a Status that API servers can show."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trusting(authority))
    ) as session:
        status, body = await post(session, server, "/name?timeout=10s", review(object=SERVICE))
        assert status == 200 and body["response"]["allowed"]
        assert await post(session, server, "/crash", review()) == (
            500,
            {
                "apiVersion": "v1",
                "kind": "Status",
                "status": "Failure",
                "message": "/crash failed; its log says why",
                "code": 500,
            },
        )
        assert (await post(session, server, "/name", b"x" * 20_000))[0] == 413
        plain = {"Content-Type": "text/plain"}
        assert (await post(session, server, "/name", b"{}", headers=plain))[0] == 415
        async with session.get(f"https://127.0.0.1:{server.port}/name") as answer:
            assert answer.status == 405


async def test_a_new_certificate_reaches_new_connections_only(
    server: WebhookServer, authority: trustme.CA
) -> None:
    """Open connections keep the old certificate while new ones get the new one."""
    other = trustme.CA()
    old = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(authority), limit=1))
    new = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(other)))
    async with old, new:
        assert (await post(old, server, "/name", review(object=SERVICE)))[0] == 200
        server.tls.use(*pair(other))
        for _ in range(3):
            assert (await post(old, server, "/name", review(object=SERVICE)))[0] == 200
            assert (await post(new, server, "/name", review(object=SERVICE)))[0] == 200
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trusting(authority))
    ) as late:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await post(late, server, "/name", review(object=SERVICE))


@pytest.mark.parametrize("name", [None, "webhook.shop.svc"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_with_and_without_a_host_name(
    server: WebhookServer, authority: trustme.CA, name: str | None, version: ssl.TLSVersion
) -> None:
    """Clients that connect to an address, without SNI, are served too."""
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    context.check_hostname = name is not None
    _, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=context, server_hostname=name or ""
    )
    assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
    writer.close()
    await writer.wait_closed()


async def test_sessions_are_not_resumed(server: WebhookServer, authority: trustme.CA) -> None:
    """A client cannot carry its trust in an old certificate over to a new connection."""
    context = trusting(authority)
    session = None
    for _ in range(2):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        connection = writer.get_extra_info("ssl_object")
        assert not connection.session_reused
        session = connection.session or session
        writer.close()
        await writer.wait_closed()
    assert session is None or not session.has_ticket


async def test_without_a_certificate_the_handshake_fails() -> None:
    """Before the first certificate a TLS handshake fails."""
    tls = ServerContext()
    async with WebhookServer(AdmissionDispatcher({}), tls=tls, listen="127.0.0.1:0") as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting())


def test_a_bad_pair_changes_nothing(authority: trustme.CA) -> None:
    """A certificate with another's key, or an invalid one, is refused with an error."""
    tls = ServerContext()
    good, key = pair(authority)
    _, foreign = pair(authority)
    tls.use(good, key)
    before = tls._current
    for certificate, wrong in ((good, foreign), (b"", key), (b"nonsense", b"nonsense")):
        with pytest.raises(ConfigError, match="must be PEM and fit its key") as caught:
            tls.use(certificate, wrong)
        assert "PRIVATE" not in str(caught.value)
    assert tls._current is before


async def test_connections_are_not_kept_for_ever(authority: trustme.CA) -> None:
    """After some calls a connection is closed gracefully and the next call opens another."""
    tls = ServerContext()
    tls.use(*pair(authority))
    dispatcher = AdmissionDispatcher(HANDLERS, limits=WebhookLimits(calls=3))
    closing: list[str | None] = []
    async with (
        WebhookServer(dispatcher, tls=tls, listen="127.0.0.1:0") as server,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusting(authority), limit=1)
        ) as session,
    ):
        for _ in range(6):
            url = f"https://127.0.0.1:{server.port}/name"
            async with session.post(url, json=json.loads(review(object=SERVICE))) as answer:
                closing.append(answer.headers.get("Connection"))
    assert closing == [None, None, "close"] * 2


async def test_a_taken_port_is_a_sentence(server: WebhookServer) -> None:
    """The error about an address in use says what to do."""
    second = WebhookServer(
        AdmissionDispatcher({}), tls=server.tls, listen=f"127.0.0.1:{server.port}"
    )
    with pytest.raises(ConfigError, match="choose another address"):
        await second.start()


async def test_bodies_wait_for_room_outside(authority: trustme.CA) -> None:
    """A body is not read before there is memory for it; calls above the limit are refused."""
    leave, full, entered = asyncio.Event(), asyncio.Event(), 0

    async def gate(request: AdmissionRequest) -> AdmissionAnswer:
        nonlocal entered
        entered += 1
        if entered == 2:
            full.set()
        await leave.wait()
        return Allowed()

    tls = ServerContext()
    tls.use(*pair(authority))
    limits = WebhookLimits(bodies=2_000_000, concurrent=4, waiting=4)
    body = padded(900_000)
    async with (
        WebhookServer(
            AdmissionDispatcher({"/gate": gate}, limits=limits), tls=tls, listen="127.0.0.1:0"
        ) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(authority))) as session,
    ):
        calls = [asyncio.create_task(post(session, server, "/gate", body)) for _ in range(8)]
        await full.wait()
        while (refused := await post(session, server, "/gate", b"{}"))[0] != 503:
            pass
        assert "too many calls" in refused[1]["message"]
        assert entered == 2
        leave.set()
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
    assert entered == 8


@pytest.mark.parametrize("beginning", [b"", b"POST /name HTTP/1.1\r\nHost: here\r\n"])
async def test_connections_without_a_request_end(authority: trustme.CA, beginning: bytes) -> None:
    """Of 150 connections that begin a request and never finish it, none stays open."""
    tls = ServerContext()
    tls.use(*pair(authority))
    limits = WebhookLimits(headers=HeaderLimits(seconds=1.0))
    context = trusting(authority)
    async with WebhookServer(
        AdmissionDispatcher({}, limits=limits), tls=tls, listen="127.0.0.1:0"
    ) as server:
        links = [
            await asyncio.open_connection("127.0.0.1", server.port, ssl=context) for _ in range(150)
        ]
        for _, writer in links:
            writer.write(beginning)
        for reader, writer in links:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.transport.abort()


async def test_stopping_lets_calls_end(authority: trustme.CA) -> None:
    """A call that is running when the server stops still gets its answer."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def gate(request: AdmissionRequest) -> AdmissionAnswer:
        entered.set()
        await leave.wait()
        return Allowed()

    tls = ServerContext()
    tls.use(*pair(authority))
    server = WebhookServer(AdmissionDispatcher({"/gate": gate}), tls=tls, listen="127.0.0.1:0")
    await server.start()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trusting(authority))
    ) as session:
        call = asyncio.create_task(post(session, server, "/gate", review()))
        await entered.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        leave.set()
        assert (await call)[0] == 200
        await stopping
