"""Credentials from an OpenID Connect issuer: an ID token, and a refresh token to get the next.

The ID token is used until shortly before its own expiry; then the issuer's token endpoint, found by
discovery over HTTPS, gives the next one. New tokens stay in this process: the kubeconfig belongs to
the user and is never written. With an issuer that rotates refresh tokens, this invalidates the
token in the file; the error then says to log in again.

The issuer's answers are bounded, redirects are not followed, and no token appears in any message.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from zonewise.api.errors import ConfigError, ConnectionFailed
from zonewise.runtime.config.credentials import (
    Clock,
    Credential,
    FetchedCredentials,
    FileContent,
    bearer,
)
from zonewise.runtime.config.egress import proxy_for
from zonewise.runtime.config.tls import make_context

TIMEOUT = 30.0
ANSWER_LIMIT = 1 << 20
MARGIN = 10.0


T = TypeVar("T")


class _Claims(msgspec.Struct):
    exp: float = 0.0


class _Discovery(msgspec.Struct):
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Tokens(msgspec.Struct):
    id_token: str = ""
    refresh_token: str = ""
    error: str = ""


class OidcCredentials(FetchedCredentials):
    """The ID token of a kubeconfig's ``auth-provider``, refreshed as it expires."""

    def __init__(
        self,
        config: Mapping[str, str],
        *,
        user: str,
        timeout: float | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Clock = time.time,
    ) -> None:
        token = config.get("id-token", "")
        super().__init__(
            margin=MARGIN,
            clock=clock,
            initial=Credential(bearer(token)) if token else None,
            expires=_expiry(token),
        )
        self._issuer = config["idp-issuer-url"].rstrip("/")
        self._client = config["client-id"]
        self._secret = config.get("client-secret", "")
        self._refresh_token = config.get("refresh-token", "")
        self._authority = _authority(config, user)
        self._user = user
        self._timeout = TIMEOUT if timeout is None else timeout
        self._environ = environ

    async def renew(self, rejected: Credential) -> Credential | None:
        """The next ID token, if there is a way to get one."""
        return await super().renew(rejected) if self._refresh_token else None

    async def fetch(self) -> tuple[Credential, float]:
        """Exchange the refresh token for the next ID token."""
        if not self._refresh_token:
            raise self._fault("has expired and there is no refresh token", "log in again")
        try:
            async with asyncio.timeout(self._timeout or None):
                tokens = await self._exchange()
        except TimeoutError:
            raise ConnectionFailed(
                f'the OIDC issuer {self._issuer} of user "{self._user}" did not answer within '
                f"{self._timeout:g} s; check that it can be reached from here"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(
                f'cannot reach the OIDC issuer {self._issuer} of user "{self._user}" '
                f"({type(error).__name__}); check idp-issuer-url and idp-certificate-authority"
            ) from error
        if not tokens.id_token:
            raise self._fault("could not be refreshed: the issuer sent none", "log in again")
        self._refresh_token = tokens.refresh_token or self._refresh_token
        return Credential(bearer(tokens.id_token)), _expiry(tokens.id_token)

    async def _exchange(self) -> _Tokens:
        context = make_context(authority=self._authority, origin=f'user "{self._user}"')
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "application/json"},
        ) as session:
            discovery = await self._discover(session)
            form = {"grant_type": "refresh_token", "refresh_token": self._refresh_token}
            headers = {}
            if not self._secret:
                form["client_id"] = self._client
            elif "client_secret_basic" in discovery.token_endpoint_auth_methods_supported:
                # Both halves are form-encoded before they are joined (RFC 6749, 2.3.1).
                pair = f"{quote(self._client, safe='')}:{quote(self._secret, safe='')}"
                headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
            else:
                form |= {"client_id": self._client, "client_secret": self._secret}
            endpoint = self._https(discovery.token_endpoint, "token endpoint")
            async with session.post(
                endpoint,
                data=form,
                headers=headers,
                allow_redirects=False,
                proxy=proxy_for(endpoint, self._environ),
            ) as answer:
                body = await _body(answer)
                if answer.status >= 500:
                    raise ConnectionFailed(
                        f'the OIDC issuer {self._issuer} of user "{self._user}" answered '
                        f"{answer.status}; try again later"
                    )
                tokens = self._decoded(body, _Tokens)
                if answer.status != 200 or tokens.error:
                    word = tokens.error if tokens.error.isidentifier() else str(answer.status)
                    raise self._fault(
                        f"could not be refreshed: the issuer answered {word[:60]}", "log in again"
                    )
                return tokens

    async def _discover(self, session: aiohttp.ClientSession) -> _Discovery:
        url = self._https(self._issuer, "issuer") + "/.well-known/openid-configuration"
        proxy = proxy_for(url, self._environ)
        async with session.get(url, allow_redirects=False, proxy=proxy) as answer:
            if answer.status != 200:
                raise self._fault(
                    f"could not be refreshed: {url} answered {answer.status}",
                    "check idp-issuer-url",
                )
            return self._decoded(await _body(answer), _Discovery)

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConnectionFailed(
                f'the OIDC issuer {self._issuer} of user "{self._user}" answered something that '
                "is not OpenID Connect; check idp-issuer-url"
            ) from None

    def _https(self, url: str, what: str) -> str:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise self._fault(
                f'could not be refreshed: the {what} "{url[:200]}" is not an https address',
                "check idp-issuer-url",
            )
        return url

    def _fault(self, what: str, advice: str) -> ConfigError:
        return ConfigError(f'the OIDC token of user "{self._user}" {what}; {advice}')


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = b""
    while len(body) < ANSWER_LIMIT and (block := await answer.content.readany()):
        body += block
    return body


def _expiry(token: str) -> float:
    """The expiry in an ID token; the past if it is not a JWT or has none."""
    try:
        payload = token.split(".")[1]
        claims = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        return msgspec.json.decode(claims, type=_Claims).exp
    except (IndexError, binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        return 0.0


def _authority(config: Mapping[str, str], user: str) -> bytes | None:
    data = config.get("idp-certificate-authority-data", "")
    if data:
        try:
            return base64.b64decode("".join(data.split()), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(
                f'user "{user}": idp-certificate-authority-data is not base64; copy it again'
            ) from None
    path = config.get("idp-certificate-authority", "")
    return FileContent(Path(path), purpose="certificate authority").read() if path else None
