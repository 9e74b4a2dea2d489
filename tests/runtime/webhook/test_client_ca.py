"""A webhook that answers only clients with a certificate of a given authority."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from tests.runtime.webhook.reviews import HANDLERS, SERVICE, pair, review

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.credentials import FileContent
from zonewise.runtime.webhook.server import AdmissionDispatcher, WebhookServer
from zonewise.runtime.webhook.server_context import ServerContext


class Clock:
    """A clock that advances at each reading, so that files are always read again."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1000
        return self.now


class RunningServer:
    """A running server, its authority, and the file with those of its clients."""

    def __init__(self, port: int, serving: trustme.CA, file: Path) -> None:
        self.port = port
        self.serving = serving
        self.file = file

    async def ask(self, clients: trustme.CA | None) -> int:
        """Ask with a certificate of an authority; the status, or 0 without an answer."""
        trust = ssl.create_default_context()
        self.serving.configure_trust(trust)
        if clients is not None:
            clients.issue_cert("api-server").configure_cert(trust)
        connector = aiohttp.TCPConnector(ssl=trust)
        headers = {"Content-Type": "application/json"}
        url = f"https://127.0.0.1:{self.port}/name"
        async with aiohttp.ClientSession(connector=connector) as session:
            try:
                body = review(object=SERVICE)
                async with session.post(url, data=body, headers=headers) as answer:
                    return answer.status
            except aiohttp.ClientError:
                return 0


@asynccontextmanager
async def run_server(tmp_path: Path, *authorities: trustme.CA) -> AsyncIterator[RunningServer]:
    """Run a server that requires certificates of these authorities."""
    file = tmp_path / "ca.pem"
    file.write_bytes(b"".join(authority.cert_pem.bytes() for authority in authorities))
    serving = trustme.CA()
    tls = ServerContext(FileContent(file, purpose="authority of clients", clock=Clock()))
    tls.use(*pair(serving))
    dispatcher = AdmissionDispatcher(HANDLERS)
    async with WebhookServer(dispatcher, tls=tls, listen="127.0.0.1:0") as server:
        yield RunningServer(server.port, serving, file)


async def test_only_clients_of_the_authority_are_answered(tmp_path: Path) -> None:
    """A certificate of any authority in the file is required; clients without one get no answer."""
    first, second, other = trustme.CA(), trustme.CA(), trustme.CA()
    async with run_server(tmp_path, first, second) as server:
        assert await server.ask(first) == await server.ask(second) == 200
        assert await server.ask(None) == await server.ask(other) == 0


async def test_the_file_is_read_again(tmp_path: Path) -> None:
    """New connections use the new file; a file that cannot be used changes nothing."""
    old, new = trustme.CA(), trustme.CA()
    async with run_server(tmp_path, old) as server:
        assert await server.ask(old) == 200
        server.file.write_bytes(new.cert_pem.bytes())
        assert (await server.ask(old), await server.ask(new)) == (0, 200)
        server.file.write_text("not a certificate")
        assert (await server.ask(old), await server.ask(new)) == (0, 200)
        server.file.unlink()
        assert (await server.ask(old), await server.ask(new)) == (0, 200)


@pytest.mark.parametrize("content", ["", "not a certificate"])
def test_a_file_without_certificates_is_refused(tmp_path: Path, content: str) -> None:
    """A webhook does not start with a file that has no authority."""
    file = tmp_path / "ca.pem"
    file.write_text(content)
    with pytest.raises(ConfigError, match="--client-ca is not PEM text"):
        ServerContext(FileContent(file, purpose="authority of clients"))
    with pytest.raises(ConfigError, match="cannot read the authority of clients"):
        ServerContext(FileContent(tmp_path / "none", purpose="authority of clients"))
