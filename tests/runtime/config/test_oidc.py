"""ID tokens that are refreshed at their issuer."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme
from tests.runtime.loopback import Reply, Seen, closed_port, pem, server_tls, silent, tcp, web

from zonewise.api.errors import ConfigError, ConnectionFailed, ZonewiseError
from zonewise.runtime.config.credentials import Credential
from zonewise.runtime.config.oidc import OidcCredentials

CA = trustme.CA()
NOW = 1_700_000_000.0


def token(expires: float, name: str = "") -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': expires, 'name': name})}.sig"


class Issuer:
    """An issuer that returns tokens, or what a test sets."""

    def __init__(self) -> None:
        self.url = ""
        self.refreshes: list[Seen] = []
        self.discovery: dict[str, Any] = {}
        self.reply: Reply | None = None
        self.discovery_reply: Reply | None = None

    def answer(self, request: Seen) -> Reply:
        if request.path == "/realm/.well-known/openid-configuration":
            if self.discovery_reply is not None:
                return self.discovery_reply
            document = {"token_endpoint": f"{self.url}/token", **self.discovery}
            return Reply(body=json.dumps(document).encode())
        self.refreshes.append(request)
        if self.reply is not None:
            return self.reply
        number = len(self.refreshes)
        tokens = {"id_token": token(NOW + 3600, f"n{number}"), "refresh_token": f"r{number}"}
        return Reply(body=json.dumps(tokens).encode())

    def forms(self) -> list[dict[str, str]]:
        return [
            {key: value for key, [value] in parse_qs(seen.body.decode()).items()}
            for seen in self.refreshes
        ]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer with a certificate of ``CA``."""
    issuing = Issuer()
    with web(issuing.answer, tls=server_tls(CA)) as running:
        issuing.url = f"{running.url}/realm"
        yield issuing


def source(issuer: str, *, now: float = NOW, timeout: float | None = None, **config: str) -> Any:
    fields = {
        "idp-issuer-url": issuer,
        "client-id": "cli",
        "idp-certificate-authority-data": base64.b64encode(pem(CA)).decode(),
        "refresh-token": "r0",
        **{key.replace("_", "-"): value for key, value in config.items()},
    }
    return OidcCredentials(
        {key: value for key, value in fields.items() if value},
        user="u",
        timeout=timeout,
        environ={},
        clock=lambda: now,
    )


def header(expires: float, name: str = "") -> Credential:
    return Credential(f"Bearer {token(expires, name)}")


async def test_a_token_that_is_good_is_used(issuer: Issuer) -> None:
    """The issuer is not asked as long as the token is valid."""
    credentials = source(issuer.url, id_token=token(NOW + 11))
    assert await credentials.current() == header(NOW + 11)
    assert issuer.refreshes == []


async def test_a_token_that_ends_is_refreshed_once(issuer: Issuer) -> None:
    """Shortly before its end the token is refreshed, once for all requests that wait."""
    credentials = source(issuer.url, id_token=token(NOW + 9))
    got = await asyncio.gather(*(credentials.current() for _ in range(4)))
    assert set(got) == {header(NOW + 3600, "n1")}
    assert issuer.forms() == [
        {"grant_type": "refresh_token", "refresh_token": "r0", "client_id": "cli"}
    ]


async def test_a_rotated_refresh_token_is_remembered(issuer: Issuer) -> None:
    """The issuer's next refresh token replaces the one from the file, in memory."""
    credentials = source(issuer.url)
    first = await credentials.current()
    second = await credentials.renew(first)
    assert second == header(NOW + 3600, "n2")
    assert [form["refresh_token"] for form in issuer.forms()] == ["r0", "r1"]
    assert await credentials.renew(first) == second
    assert len(issuer.refreshes) == 2


@pytest.mark.parametrize("broken", ["", "nonsense", "a.b.c", "a.!!.c", "a.e30.c"])
async def test_a_token_without_an_expiry_is_refreshed(issuer: Issuer, broken: str) -> None:
    """A token that is not a JWT, or has no expiry, is treated as expired."""
    assert await source(issuer.url, id_token=broken).current() == header(NOW + 3600, "n1")


async def test_the_client_secret_goes_where_the_issuer_wants_it(issuer: Issuer) -> None:
    """The client secret is by default in a header, both halves encoded; in the form if the issuer
    supports only that.
    """
    await source(issuer.url, client_secret="s:/?").current()
    expected = base64.b64encode(b"cli:s%3A%2F%3F").decode()
    assert issuer.refreshes[0].header("Authorization") == f"Basic {expected}"
    issuer.discovery = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    await source(issuer.url, client_secret="s:/?").current()
    assert issuer.refreshes[1].header("Authorization") is None
    assert issuer.forms()[1]["client_secret"] == "s:/?"


async def test_an_authority_file(issuer: Issuer, tmp_path: Path) -> None:
    """The issuer's authority may be a file."""
    path = tmp_path / "ca"
    path.write_bytes(pem(CA))
    credentials = source(
        issuer.url,
        idp_certificate_authority_data="",
        idp_certificate_authority=str(path),
    )
    assert await credentials.current() == header(NOW + 3600, "n1")


async def test_without_a_refresh_token(issuer: Issuer) -> None:
    """An expired token without a refresh token needs a new login; a rejected one is not renewed."""
    with pytest.raises(ConfigError, match=r"has expired and there is no refresh token; log in"):
        await source(issuer.url, refresh_token="").current()
    credentials = source(issuer.url, refresh_token="", id_token=token(NOW + 60))
    assert await credentials.renew(await credentials.current()) is None


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (Reply(400, b'{"error": "invalid_grant"}'), ConfigError, "answered invalid_grant; log in"),
        (Reply(403, b'{"error": "hush hush"}'), ConfigError, "answered 403; log in again"),
        (Reply(400, b"<html>"), ConnectionFailed, "not OpenID Connect"),
        (Reply(200, b"<html>"), ConnectionFailed, "not OpenID Connect"),
        (Reply(200, b"{}"), ConfigError, "the issuer sent none; log in again"),
        (Reply(503, b"later"), ConnectionFailed, "answered 503; try again later"),
        (Reply(302, b"", {"Location": "https://evil.example"}), ConnectionFailed, "not OpenID"),
    ],
)
async def test_issuers_that_refuse(
    issuer: Issuer, reply: Reply, kind: type[ZonewiseError], says: str
) -> None:
    """A refusal of the issuer needs a login; a temporary failure may be retried."""
    issuer.reply = reply
    with pytest.raises(kind, match=says) as error:
        await source(issuer.url).current()
    assert "r0" not in str(error.value)


async def test_the_token_endpoint_must_be_https(issuer: Issuer) -> None:
    """Neither the issuer nor the token endpoint may use http."""
    issuer.discovery = {"token_endpoint": "http://127.0.0.1/token"}
    with pytest.raises(ConfigError, match=r"the token endpoint .* is not an https address"):
        await source(issuer.url).current()
    with pytest.raises(ConfigError, match=r"the issuer .* is not an https address"):
        await source("http://127.0.0.1/realm").current()


async def test_a_wrong_issuer(issuer: Issuer) -> None:
    """A wrong address and a broken issuer have different errors."""
    issuer.discovery_reply = Reply(404, b"no")
    with pytest.raises(ConfigError, match="answered 404; check idp-issuer-url"):
        await source(issuer.url).current()
    issuer.discovery_reply = Reply(200, b"hello")
    with pytest.raises(ConnectionFailed, match="not OpenID Connect; check idp-issuer-url"):
        await source(issuer.url).current()


async def test_an_issuer_that_cannot_be_reached(issuer: Issuer) -> None:
    """Refused, untrusted and silent issuers have an error of one sentence each, in time."""
    with pytest.raises(ConnectionFailed, match="cannot reach the OIDC issuer"):
        await source(f"https://127.0.0.1:{closed_port()}").current()
    with pytest.raises(ConnectionFailed, match="check idp-issuer-url and idp-certificate"):
        await source(issuer.url, idp_certificate_authority_data="").current()
    with tcp(silent) as port:
        waiting = source(f"https://127.0.0.1:{port}", timeout=0.2)
        with pytest.raises(ConnectionFailed, match=r"did not answer within 0\.2 s"):
            await waiting.current()


def test_an_authority_that_is_not_base64() -> None:
    """Invalid data is reported when the user is chosen."""
    with pytest.raises(ConfigError, match="idp-certificate-authority-data is not base64"):
        source("https://i", idp_certificate_authority_data="%%")
