"""Which servers are trusted, and how we authenticate with certificates."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from tests.runtime.loopback import Web, pem, server_tls, web

from zonewise.api.errors import ConfigError, ConnectionFailed
from zonewise.runtime.client.transport import HttpsTransport, Request
from zonewise.runtime.config.cluster import ClusterConfig
from zonewise.runtime.config.credentials import Certificate, FileContent, LocalCredentials
from zonewise.runtime.config.tls import TlsContexts, Trust, make_context

CA = trustme.CA()


def certificate(authority: trustme.CA, name: str = "me") -> Certificate:
    issued = authority.issue_cert(common_name=name)
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    return Certificate(chain, issued.private_key_pem.bytes())


async def get(config: ClusterConfig) -> int:
    transport = HttpsTransport(config)
    try:
        response = await transport.send(Request(method="GET", path="/version"))
        await response.read()
        await response.close()
        return response.status
    finally:
        await transport.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Web]:
    """A server that requires client certificates of ``CA``."""
    with web(tls=server_tls(CA, clients=CA)) as running:
        yield running


async def test_a_client_certificate_is_presented(server: Web) -> None:
    """The server identifies us by our certificate, from memory or from files."""
    mine = certificate(CA, "jane")
    config = ClusterConfig(
        server=server.url,
        trust=Trust(authority=pem(CA)),
        credentials=LocalCredentials(chain=mine.chain, key=mine.key),
    )
    assert await get(config) == 200
    peer = server.seen[-1].peer
    assert peer is not None
    assert ((("commonName", "jane"),)) in peer["subject"]


async def test_no_client_certificate_where_one_is_needed(server: Web) -> None:
    """If a server requires a certificate and there is none, the error is one sentence."""
    config = ClusterConfig(server=server.url, trust=Trust(authority=pem(CA)))
    with pytest.raises(ConnectionFailed, match=r"client certificate|ended the connection"):
        await get(config)


async def test_a_rotated_certificate_makes_new_connections(server: Web, tmp_path: Path) -> None:
    """New connections of a running transport use rotated files."""
    moment = 0.0
    chain, key = tmp_path / "crt", tmp_path / "key"

    def write(new: Certificate) -> None:
        chain.write_bytes(new.chain)
        key.write_bytes(new.key)

    write(certificate(CA, "first"))
    transport = HttpsTransport(
        ClusterConfig(
            server=server.url,
            trust=Trust(authority=pem(CA)),
            credentials=LocalCredentials(
                chain=FileContent(chain, purpose="client certificate", clock=lambda: moment),
                key=FileContent(key, purpose="client key", clock=lambda: moment),
            ),
        )
    )
    names = []
    for name in ("first", "second"):
        write(certificate(CA, name))
        moment += 60
        response = await transport.send(Request(method="GET", path="/version"))
        await response.read()
        await response.close()
        peer = server.seen[-1].peer
        assert peer is not None
        names += [value for part in peer["subject"] for key, value in part if key == "commonName"]
    await transport.close()
    assert names == ["first", "second"]


async def test_another_authority_is_not_trusted(server: Web) -> None:
    """A server of an unknown authority is refused, and the error says what to check."""
    config = ClusterConfig(server=server.url, trust=Trust(authority=pem(trustme.CA())))
    with pytest.raises(ConnectionFailed, match=r"not signed by .*; check certificate-authority"):
        await get(config)


async def test_the_system_does_not_know_a_cluster(server: Web) -> None:
    """Without an authority the system's are used, which do not know this one."""
    with pytest.raises(ConnectionFailed, match="not signed by"):
        await get(ClusterConfig(server=server.url))


async def test_verification_can_be_switched_off() -> None:
    """insecure-skip-tls-verify accepts every certificate."""
    with web(tls=server_tls(CA, "other.example")) as strange:
        assert await get(ClusterConfig(server=strange.url, trust=Trust(verify=False))) == 200


async def test_the_name_must_match() -> None:
    """A certificate for another name is refused, unless tls-server-name has that name."""
    with web(tls=server_tls(CA, "kube.example")) as other:
        believed = Trust(authority=pem(CA))
        with pytest.raises(ConnectionFailed, match=r"is not for 127\.0\.0\.1; .*tls-server-name"):
            await get(ClusterConfig(server=other.url, trust=believed))
        named = Trust(authority=pem(CA), server_name="kube.example")
        assert await get(ClusterConfig(server=other.url, trust=named)) == 200


async def test_an_expired_certificate() -> None:
    """Expired and untrusted certificates have different errors."""
    from datetime import UTC, datetime

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    CA.issue_cert("127.0.0.1", not_after=past).configure_cert(context)
    with (
        web(tls=context) as old,
        pytest.raises(ConnectionFailed, match="has expired; renew"),
    ):
        await get(ClusterConfig(server=old.url, trust=Trust(authority=pem(CA))))


async def test_an_intermediate_is_an_anchor() -> None:
    """A bundle may have an intermediate authority without its root."""
    middle = CA.create_child_ca()
    with web(tls=server_tls(middle)) as server:
        trust = Trust(authority=middle.cert_pem.bytes())
        assert await get(ClusterConfig(server=server.url, trust=trust)) == 200


def test_a_context_is_made_once(tmp_path: Path) -> None:
    """If nothing changed, the same context and so the same connections are used."""
    path = tmp_path / "ca"
    path.write_bytes(pem(CA))
    moment = 0.0
    authority = FileContent(path, purpose="certificate authority", clock=lambda: moment)
    contexts = TlsContexts(Trust(authority=authority), origin="test")
    mine = certificate(CA)
    first = contexts.get(mine)
    assert contexts.get(Certificate(mine.chain, mine.key)) is first
    assert contexts.get(certificate(CA)) is not first
    again = contexts.get(mine)
    path.write_bytes(pem(CA) + pem(trustme.CA()))
    moment = 60.0
    assert contexts.get(mine) is not again


@pytest.mark.parametrize(
    "authority", [b"", b"nonsense", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\n"]
)
def test_an_authority_that_is_not_a_certificate(authority: bytes) -> None:
    """The error says where the invalid data came from."""
    with pytest.raises(ConfigError, match="certificate authority of context dev is not PEM"):
        make_context(authority=authority, origin="context dev")


def test_a_key_of_another_certificate() -> None:
    """A certificate and a key must be valid and belong together."""
    first, second = certificate(CA), certificate(CA)
    for pair in (
        Certificate(first.chain, second.key),
        Certificate(b"", first.key),
        Certificate(first.chain, b"nonsense"),
    ):
        with pytest.raises(ConfigError, match="client certificate of test and its key"):
            make_context(certificate=pair, origin="test")


def test_an_encrypted_key_does_not_ask() -> None:
    """A key with a password is refused; nothing waits for input."""
    from cryptography.hazmat.primitives import serialization

    mine = certificate(CA)
    key = serialization.load_pem_private_key(mine.key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hush"),
    )
    with pytest.raises(ConfigError, match="unencrypted"):
        make_context(certificate=Certificate(mine.chain, key), origin="test")


def test_no_key_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary file for a key is deleted when the context is made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make_context(certificate=certificate(CA), origin="test")
    assert list(tmp_path.iterdir()) == []
