"""Requests and answers over real sockets."""

import asyncio
import gc
import gzip
import json
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme
from tests.runtime.loopback import (
    VERSION,
    Reply,
    Seen,
    closed_port,
    pem,
    server_tls,
    silent,
    tcp,
    web,
)

from zonewise.api.errors import ConfigError, ConnectionFailed, ProtocolError, ZonewiseError
from zonewise.runtime.client.transport import HttpsTransport, Request, keepalive_socket
from zonewise.runtime.config.cluster import ClusterConfig, Impersonation
from zonewise.runtime.config.credentials import Credential, LocalCredentials
from zonewise.runtime.config.tls import Trust

CA = trustme.CA()
HTML = {"Content-Type": "text/html; charset=utf-8"}


async def ask(server: str | ClusterConfig, request: Request | None = None, **limits: Any) -> Any:
    """Status and body of one request."""
    config = ClusterConfig(server=server) if isinstance(server, str) else server
    transport = HttpsTransport(config, **limits)
    try:
        response = await transport.send(request or Request(method="GET", path="/version"))
        try:
            return response.status, await response.read()
        finally:
            await response.close()
    finally:
        await transport.close()


class Rotating:
    """Credentials that offer a new token after every rejection, up to a number."""

    def __init__(self, last: int) -> None:
        self.number = 1
        self.last = last

    async def current(self) -> Credential:
        return Credential(f"Bearer {self.number}")

    async def renew(self, rejected: Credential) -> Credential | None:
        if self.number == self.last:
            return None
        self.number += 1
        return await self.current()


def always(reply: Reply) -> Callable[[Seen], Reply]:
    return lambda _: reply


def accepts(token: str) -> Callable[[Seen], Reply]:
    def answer(request: Seen) -> Reply:
        return Reply(200 if request.header("Authorization") == f"Bearer {token}" else 401)

    return answer


async def test_a_request_arrives_as_it_was_given() -> None:
    """Method, path, query, headers and body reach the server; names are encoded once."""
    with web() as server:
        request = Request(
            method="PATCH",
            path="/apis/rbac/v1/clusterroles/system:a b?#%41",
            query={"labelSelector": "a in (b,c)", "force": "true"},
            headers={"Content-Type": "application/merge-patch+json", "accept": "text/plain"},
            body=b'{"a":1}',
        )
        status, body = await ask(f"{server.url}/prefix/", request)
    assert (status, json.loads(body)) == (200, VERSION)
    seen = server.seen[0]
    assert seen.method == "PATCH"
    assert seen.path == (
        "/prefix/apis/rbac/v1/clusterroles/system:a%20b%3F%23%2541"
        "?labelSelector=a+in+%28b%2Cc%29&force=true"
    )
    assert seen.body == b'{"a":1}'
    assert seen.all("Content-Type") == ["application/merge-patch+json"]
    assert seen.all("Accept") == ["text/plain"]
    assert str(seen.header("User-Agent")).startswith("zonewise/")
    assert seen.header("Authorization") is None


async def test_connections_are_reused() -> None:
    """One connection serves requests that follow each other."""
    ports = set()

    def talk(connection: socket.socket) -> None:
        ports.add(connection.getpeername())
        while connection.recv(1 << 16):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with tcp(talk) as port:
        transport = HttpsTransport(ClusterConfig(server=f"http://127.0.0.1:{port}"))
        for _ in range(3):
            response = await transport.send(Request(method="GET", path="/"))
            assert await response.read() == b"{}"
            await response.close()
        await transport.close()
    assert len(ports) == 1


def test_vanished_peers_are_found() -> None:
    """The kernel probes idle connections and drops a dead peer within a minute."""
    with keepalive_socket(
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    ) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count <= 60


async def test_impersonation_goes_on_every_request() -> None:
    """The user to act as is in the headers, with one header for each group."""
    acting = Impersonation(user="jane", groups=("a", "b"))
    with web() as server:
        await ask(ClusterConfig(server=server.url, impersonation=acting))
    assert server.seen[0].all("Impersonate-User") == ["jane"]
    assert server.seen[0].all("Impersonate-Group") == ["a", "b"]


async def test_compression_is_used_for_remote_servers_only() -> None:
    """On the loopback nothing is compressed; on others lists are and watches are not."""

    def encoding(config: ClusterConfig, *, stream: bool = False) -> str | None:
        return HttpsTransport(config).accept_encoding(stream=stream)

    far = ClusterConfig(server="https://10.0.0.1")
    assert encoding(far) == "gzip"
    assert encoding(far, stream=True) == "identity"
    assert encoding(ClusterConfig(server="https://10.0.0.1", compression=False)) == "identity"
    assert encoding(ClusterConfig(server="https://localhost:6443")) == "identity"
    with web() as server:
        await ask(server.url)
    assert server.seen[0].all("Accept-Encoding") == ["identity"]


async def test_compressed_answers_are_read() -> None:
    """A compressed body is returned decompressed."""
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    with web(
        lambda _: Reply(200, gzip.compress(b"[" + b"1," * 500_000 + b"1]"), headers)
    ) as server:
        status, body = await ask(server.url)
    assert status == 200
    assert len(body) == 1_000_003


async def test_a_body_is_bounded() -> None:
    """An answer above the limit is refused, compressed or not."""
    large = b"x" * (3 << 20)
    packed = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    for reply in (Reply(200, large), Reply(200, gzip.compress(large), packed)):
        with (
            web(always(reply)) as server,
            pytest.raises(ProtocolError, match="sent more than 2 MiB in one answer"),
        ):
            await ask(server.url, body_limit=2 << 20)


async def test_a_stream_is_given_as_it_comes() -> None:
    """Blocks of a stream arrive while the server is still sending."""
    second = asyncio.Event()
    loop = asyncio.get_running_loop()

    def parts() -> Iterator[bytes]:
        yield b"one\n"
        asyncio.run_coroutine_threadsafe(second.wait(), loop).result(30)
        yield b"two\n"

    with web(lambda _: Reply(parts=parts())) as server:
        transport = HttpsTransport(ClusterConfig(server=server.url))
        response = await transport.send(Request(method="GET", path="/watch", stream=True))
        chunks = response.chunks()
        assert await anext(chunks) == b"one\n"
        second.set()
        assert await anext(chunks) == b"two\n"
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)
        await response.close()
        await transport.close()


async def test_a_stream_outlives_the_request_timeout() -> None:
    """The timeout covers the header of a stream, not the silence in it."""
    resume = asyncio.Event()
    loop = asyncio.get_running_loop()

    def parts() -> Iterator[bytes]:
        yield b"one"
        asyncio.run_coroutine_threadsafe(resume.wait(), loop).result(30)
        yield b"two"

    with web(lambda _: Reply(parts=parts())) as server:
        transport = HttpsTransport(ClusterConfig(server=server.url), request_timeout=1)
        response = await transport.send(Request(method="GET", path="/watch", stream=True))
        loop.call_later(1.1, resume.set)
        assert b"".join([block async for block in response.chunks()]) == b"onetwo"
        await response.close()
        await transport.close()


@pytest.mark.parametrize("whole", [True, False])
async def test_a_cut_answer(whole: bool) -> None:
    """A connection that ends inside an answer is a failure, never a short answer."""
    reply = Reply(body=b"half", cut=True) if whole else Reply(parts=iter([b"half"]), cut=True)
    with web(lambda _: reply) as server:
        transport = HttpsTransport(ClusterConfig(server=server.url))
        response = await transport.send(Request(method="GET", path="/", stream=not whole))
        with pytest.raises(ConnectionFailed, match="ended the connection before"):
            if whole:
                await response.read()
            else:
                [block async for block in response.chunks()]
        await response.close()
        await transport.close()


async def test_rejected_credentials_are_renewed_once() -> None:
    """A 401 leads to one more request with new credentials, and no third one."""
    for token, last, status, requests in (("1", 9, 200, 1), ("2", 9, 200, 2), ("3", 9, 401, 2)):
        with web(accepts(token), tls=server_tls(CA)) as server:
            config = ClusterConfig(
                server=server.url, trust=Trust(authority=pem(CA)), credentials=Rotating(last)
            )
            got, _ = await ask(config, Request(method="POST", path="/", body=b"same"))
        assert (got, len(server.seen)) == (status, requests)
        assert {seen.body for seen in server.seen} == {b"same"}


async def test_a_renewal_that_fails_leaves_nothing_open() -> None:
    """If new credentials cannot be fetched, that error is raised and the connection is released."""

    class Failing(Rotating):
        async def renew(self, rejected: Credential) -> Credential | None:
            raise ConnectionFailed("no plugin today")

    with web(lambda _: Reply(401, b"x" * 100_000), tls=server_tls(CA)) as server:
        config = ClusterConfig(
            server=server.url, trust=Trust(authority=pem(CA)), credentials=Failing(1)
        )
        with pytest.raises(ConnectionFailed, match="no plugin today"):
            await ask(config)
    gc.collect()


async def test_a_401_without_anything_better_stands() -> None:
    """With fixed credentials a 401 is not retried."""
    with web(accepts("other")) as server:
        status, _ = await ask(
            ClusterConfig(server=server.url, credentials=LocalCredentials(authorization="Bearer t"))
        )
    assert (status, len(server.seen)) == (401, 1)


def moved(request: Seen) -> Reply:
    places = {"/old": "/new", "/out": "https://login.example/?next=1", "/loop": "/loop"}
    if request.path in places:
        return Reply(307, b"", {"Location": places[request.path]})
    return Reply(200, b"here")


async def test_redirects_stay_on_the_server() -> None:
    """Reads follow redirects on the same server; writes, other hosts and loops are refused."""
    config = LocalCredentials(authorization="Bearer hush")
    with web(moved) as server:
        cluster = ClusterConfig(server=server.url, credentials=config)
        assert await ask(cluster, Request(method="GET", path="/old")) == (200, b"here")
        for method, path in (("POST", "/old"), ("GET", "/out"), ("GET", "/loop")):
            with pytest.raises(ProtocolError, match="is not a Kubernetes API server: it redir"):
                await ask(cluster, Request(method=method, path=path))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(200, b"<html>", HTML), ProtocolError),
        (Reply(404, b"<html>", HTML), ProtocolError),
        (Reply(401, b"<html>", HTML), ProtocolError),
        (Reply(503, b"<html>", HTML), ConnectionFailed),
    ],
)
async def test_web_pages_are_no_answers(reply: Reply, kind: type[ZonewiseError]) -> None:
    """An HTML page is not an API server's answer; that of a gateway may be retried."""
    with web(lambda _: reply) as server, pytest.raises(kind, match="with a web page"):
        await ask(server.url)


async def test_other_answers_are_left_to_the_client() -> None:
    """Errors and plain text are passed on with their status."""
    for reply in (
        Reply(404, b"404 page not found\n", {"Content-Type": "text/plain"}),
        Reply(500, b"{}"),
        Reply(200, b"not json"),
        Reply(413, b"<html>", HTML),
    ):
        with web(always(reply)) as server:
            assert await ask(server.url) == (reply.status, reply.body)


async def test_a_server_that_is_not_there() -> None:
    """Errors about refused connections and unknown hosts name the server and what to do."""
    port = closed_port()
    with pytest.raises(ConnectionFailed, match=rf"127\.0\.0\.1:{port} \(x\): connection refused"):
        await ask(ClusterConfig(server=f"https://127.0.0.1:{port}", origin="x"))
    for host in ("nowhere.invalid", "x" * 64 + ".invalid"):
        with pytest.raises(ConnectionFailed, match=f"cannot find the host {host} of"):
            await ask(f"https://{host}")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_silent_server(scheme: str) -> None:
    """A server that accepts and never answers times out, in TLS and in HTTP."""
    with tcp(silent) as port:
        with pytest.raises(ConnectionFailed, match=r"did not answer within 0\.2 s; check"):
            await ask(f"{scheme}://127.0.0.1:{port}", request_timeout=0.2)
        with pytest.raises(ConnectionFailed, match=r"did not answer within 0\.1 s"):
            await ask(f"{scheme}://127.0.0.1:{port}", Request(method="GET", path="/", timeout=0.1))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_that_stalls(stream: bool) -> None:
    """The timeout covers a body that is read as a whole, such as that of a refused watch."""

    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        silent(connection)

    request = Request(method="GET", path="/", timeout=0.3, stream=stream)
    with tcp(talk) as port, pytest.raises(ConnectionFailed, match="did not answer within"):
        await ask(f"http://127.0.0.1:{port}", request)


async def test_a_slow_connect_has_its_own_limit() -> None:
    """A TLS handshake that never ends times out even without a request timeout."""
    with (
        tcp(silent) as port,
        pytest.raises(ConnectionFailed, match=r"did not answer within 0\.2 s"),
    ):
        await ask(f"https://127.0.0.1:{port}", request_timeout=0, connect_timeout=0.2)


@pytest.mark.parametrize(
    ("scheme", "greeting", "says"),
    [
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak TLS"),
        ("https", b"\x15\x03\x01\x00\x02\x02\x28", "refused the TLS handshake"),
        ("https", b"", "hung up during the TLS handshake"),
        ("http", b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP|ended the connection"),
        ("http", b"", "ended the connection"),
        ("http", b"\x15\x03\x01\x00\x02\x02\x28", "does not speak HTTP|ended the connection"),
    ],
)
async def test_servers_that_speak_something_else(scheme: str, greeting: bytes, says: str) -> None:
    """A server that is not a web server, or a wrong port, is an error of one sentence."""

    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(greeting)

    with tcp(talk) as port, pytest.raises(ZonewiseError, match=says) as error:
        await ask(f"{scheme}://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in str(error.value)


async def test_the_way_through_a_proxy() -> None:
    """A request goes through proxy-url, with its password, to the server."""

    def proxy(request: Seen) -> Reply:
        return Reply(
            body=json.dumps([request.path, request.header("Proxy-Authorization")]).encode()
        )

    with web(proxy) as between:
        config = ClusterConfig(
            server="http://kube.invalid:80", proxy=f"http://me:hush@127.0.0.1:{between.port}"
        )
        _, body = await ask(config)
    assert json.loads(body) == ["http://kube.invalid/version", "Basic bWU6aHVzaA=="]


async def test_a_tunnel_through_a_proxy() -> None:
    """For an https server a proxy only opens a tunnel; it does not see the request."""
    requests: list[bytes] = []
    with web(tls=server_tls(CA, "kube.invalid")) as server:

        def talk(connection: socket.socket) -> None:
            requests.append(connection.recv(1 << 16))
            with socket.create_connection(("127.0.0.1", server.port)) as onward:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                pipe(connection, onward)

        with tcp(talk) as port:
            config = ClusterConfig(
                server="https://kube.invalid",
                trust=Trust(authority=pem(CA)),
                proxy=f"http://127.0.0.1:{port}",
            )
            status, _ = await ask(config)
    assert status == 200
    assert requests[0].startswith(b"CONNECT kube.invalid:443")


async def test_proxies_that_fail() -> None:
    """A proxy that is not there or refuses is named, without its password."""
    port = closed_port()
    config = ClusterConfig(server="https://kube.invalid", proxy=f"http://me:hush@127.0.0.1:{port}")
    with pytest.raises(ConnectionFailed, match="cannot reach the proxy http://127") as error:
        await ask(config)
    assert "hush" not in str(error.value)
    config = ClusterConfig(server="https://10.0.0.1", proxy="http://me:hush@proxy.invalid:1")
    with pytest.raises(ConnectionFailed, match=r"cannot find the proxy http://proxy\.invalid:1 on"):
        await ask(config)
    with web(lambda _: Reply(407, b"")) as refusing:
        config = ClusterConfig(server="https://kube.invalid", proxy=refusing.url)
        with pytest.raises(ConnectionFailed, match=r"refused the way to .* with status 407"):
            await ask(config)


async def test_no_credentials_in_errors_or_repr() -> None:
    """No error and no repr contains credentials."""
    config = ClusterConfig(
        server=f"https://127.0.0.1:{closed_port()}",
        credentials=LocalCredentials(authorization="Bearer hush"),
    )
    request = Request(method="POST", path="/", body=b"hush")
    with pytest.raises(ConnectionFailed) as error:
        await ask(config, request)
    assert "hush" not in str(error.value) + repr(config) + repr(request)


async def test_a_bad_certificate_of_ours_is_a_configuration_error() -> None:
    """An unusable client certificate is reported with its origin, before connecting."""
    config = ClusterConfig(
        server="https://127.0.0.1:1",
        origin="context dev of x",
        credentials=LocalCredentials(chain=b"no", key=b"no"),
    )
    with pytest.raises(ConfigError, match="client certificate of context dev of x"):
        await ask(config)


@pytest.mark.parametrize("server", ["https://", "nonsense", "ftp://127.0.0.1"])
async def test_an_invalid_address_is_a_configuration_error(server: str) -> None:
    """A configuration made by hand with an invalid address is refused."""
    with pytest.raises(ConfigError, match="is not a URL; write it like https://host:6443"):
        await ask(server)


async def test_a_closed_transport_can_be_closed_again() -> None:
    """Closing twice, or before the first request, does no harm."""
    with web(always(Reply(200))) as server:
        transport = HttpsTransport(ClusterConfig(server=server.url))
        await transport.close()
        response = await transport.send(Request(method="GET", path="/version"))
        assert response.status == 200
        await response.close()
        await transport.close()
        await transport.close()


def pipe(client: socket.socket, server: socket.socket) -> None:
    """Carry bytes both ways until one side ends."""
    ends = {client: server, server: client}
    while True:
        for ready in select.select(list(ends), [], [])[0]:
            data = ready.recv(1 << 16)
            if not data:
                return
            ends[ready].sendall(data)
