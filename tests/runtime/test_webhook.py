"""The webhook server: calls, failures, limits, and certificates that change under way."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import trustme
from tests.runtime.test_admission import SERVICE, review

from zonewise.api.core import Service
from zonewise.api.errors import ConfigError, ConnectionFailed
from zonewise.runtime.admission import AdmissionRequest, Allowed, Answer, Denied
from zonewise.runtime.servercontext import ServerContext
from zonewise.runtime.webhook import (
    Desk,
    Failed,
    Outcome,
    WebhookLimits,
    WebhookServer,
    parse_duration,
)


def pair(authority: trustme.CA) -> tuple[bytes, bytes]:
    made = authority.issue_cert("127.0.0.1", "webhook.shop.svc")
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    return chain, made.private_key_pem.bytes()


async def named(request: AdmissionRequest) -> Answer:
    service = request.new(Service)
    assert service is not None
    if service.metadata.name == "bad":
        return Denied("bad is no name")
    return Allowed(warnings=["dry" if request.dry_run else "wet"])


async def crash(request: AdmissionRequest) -> Answer:
    raise KeyError("a secret of the program")


async def unreachable(request: AdmissionRequest) -> Answer:
    raise ConnectionFailed("the API server did not answer")


async def hang(request: AdmissionRequest) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


HANDLERS = {"/name": named, "/crash": crash, "/cut": unreachable, "/hang": hang}


class Counted:
    """What a desk told about its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Outcome]] = []

    def __call__(self, path: str, outcome: Outcome, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((path, outcome))


async def test_a_desk_answers_without_a_network() -> None:
    """The embedded cluster gets the same answers in process."""
    desk = Desk(HANDLERS)
    body = json.loads(await desk.answer("/name", review(object=SERVICE, dryRun=True)))
    assert body["response"] == {"uid": "u-1", "allowed": True, "warnings": ["dry"]}
    bad = {**SERVICE, "metadata": {"name": "bad"}}
    body = json.loads(await desk.answer("/name", review(object=bad)))
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
    """What goes wrong fails the call with a sentence that tells no secrets of the program."""
    counted = Counted()
    desk = Desk(HANDLERS, observe=counted)
    with pytest.raises(Failed) as caught:
        await desk.answer(path, body)
    assert (caught.value.code, caught.value.outcome) == (code, outcome)
    assert sentence in str(caught.value) and "secret" not in str(caught.value)
    assert counted.calls == [(path if path in HANDLERS else "(unknown)", outcome)]


@pytest.mark.looptime
@pytest.mark.parametrize(("timeout", "expected"), [(None, 10), (5.0, 4.8), (0.2, 0.1), (60.0, 10)])
async def test_a_handler_has_the_time_the_caller_has(
    timeout: float | None, expected: float
) -> None:
    """A call is given up a little before its caller gives up, never later than our own limit."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(Failed, match="did not decide within"):
        await Desk(HANDLERS).answer("/hang", review(), timeout=timeout)
    assert loop.time() - begin == pytest.approx(expected)


@pytest.mark.looptime
async def test_only_so_many_run_and_wait() -> None:
    """A burst is worked off in turns; what is beyond the waiting room is turned away at once."""
    running = most = 0

    async def slow(request: AdmissionRequest) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return Allowed()

    desk = Desk({"/slow": slow}, limits=WebhookLimits(concurrent=3, waiting=6))
    calls = [asyncio.create_task(desk.answer("/slow", review())) for _ in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    turned_away = [result for result in results if isinstance(result, Failed)]
    assert most == 3 and len(turned_away) == 11
    assert {failure.code for failure in turned_away} == {503}
    assert asyncio.get_running_loop().time() == 3
    assert json.loads(await desk.answer("/slow", review()))["response"]["allowed"]


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
    """Times are read as Go writes them; nonsense means our own limit."""
    assert parse_duration(text) == seconds


Call = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def server(authority: trustme.CA) -> AsyncIterator[WebhookServer]:
    tls = ServerContext()
    tls.use(*pair(authority))
    desk = Desk(HANDLERS, limits=WebhookLimits(body=10_000, deadline=5))
    async with WebhookServer(desk, tls=tls, listen="127.0.0.1:0") as running:
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
    """A review over the wire is answered; failures come as a Status API servers can show."""
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
    """Open connections live on under the old certificate while new ones see the new one."""
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
    """Clients that call an address, and so name no host, are served too, by both versions."""
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


async def test_without_a_certificate_nobody_is_served() -> None:
    """Before the first certificate a handshake fails instead of showing anything."""
    tls = ServerContext()
    assert not tls.loaded
    async with WebhookServer(Desk({}), tls=tls, listen="127.0.0.1:0") as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting())


def test_a_bad_pair_changes_nothing(authority: trustme.CA) -> None:
    """A certificate with another's key, or no certificate at all, is refused with a sentence."""
    tls = ServerContext()
    good, key = pair(authority)
    _, foreign = pair(authority)
    tls.use(good, key)
    kept = tls._current
    for certificate, wrong in ((good, foreign), (b"", key), (b"nonsense", b"nonsense")):
        with pytest.raises(ConfigError, match="must be PEM and fit its key") as caught:
            tls.use(certificate, wrong)
        assert "PRIVATE" not in str(caught.value)
    assert tls._current is kept


async def test_connections_are_not_kept_for_ever(authority: trustme.CA) -> None:
    """After its calls a connection is closed in good order and the next call opens another."""
    tls = ServerContext()
    tls.use(*pair(authority))
    desk = Desk(HANDLERS, limits=WebhookLimits(calls=3))
    closing: list[str | None] = []
    async with (
        WebhookServer(desk, tls=tls, listen="127.0.0.1:0") as server,
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
    """An address in use says what to do."""
    second = WebhookServer(Desk({}), tls=server.tls, listen=f"127.0.0.1:{server.port}")
    with pytest.raises(ConfigError, match="choose another address"):
        await second.start()


async def test_stopping_lets_calls_end(authority: trustme.CA) -> None:
    """A call that is being answered when the server stops still gets its answer."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def gate(request: AdmissionRequest) -> Answer:
        entered.set()
        await leave.wait()
        return Allowed()

    tls = ServerContext()
    tls.use(*pair(authority))
    server = WebhookServer(Desk({"/gate": gate}), tls=tls, listen="127.0.0.1:0")
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
