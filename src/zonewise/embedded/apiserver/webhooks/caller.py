"""Asking a webhook over HTTPS.

One session for all webhooks; its connections are kept and shared. A TLS context is made once for
each pair of authority and server name. An answer is read up to ``ANSWER_LIMIT`` bytes, and the
whole of it, from name lookup to the last byte, has the webhook's own timeout. Paths are cleaned and
redirects followed as Go's client does, since people's webhooks were tried with that: a 307 or 308
gets the question again, any other redirect a GET, and after ten it is enough.

There is no service network in a process: a webhook behind a Service is called at the address and
port of one of its ready endpoints, under the name its certificate is made for.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import posixpath
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from zonewise.api.errors import ConfigError
from zonewise.api.objects.admissionregistration import ServiceReference, WebhookClientConfig
from zonewise.runtime.config.tls import make_context

Obj = dict[str, Any]

ANSWER_LIMIT = 3 * 1024 * 1024
CONNECTION_LIMIT = 100
CONTEXT_LIMIT = 256
REDIRECT_LIMIT = 10
HTTPS = 443
REDIRECTS = frozenset({301, 302, 303, 307, 308})
REPEATED = frozenset({307, 308})
"""Redirects after which the same request is sent again."""


class Unanswered(Exception):
    """The webhook could not be called, or its answer could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAddress:
    """Where to call; ``shown`` is the URL for messages."""

    url: URL
    shown: str
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A webhook's HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Services:
    """Finds the endpoints of a Service."""

    def __init__(
        self,
        look: Callable[[str, str, str], Obj | None],
        slices: Callable[[str, str], Iterable[Obj]],
        choose: Callable[[list[tuple[str, int]]], tuple[str, int]],
    ) -> None:
        self._look = look
        self._slices = slices
        self._choose = choose

    def address(self, reference: ServiceReference, query: str) -> WebhookAddress:
        """One ready endpoint of the Service a webhook names."""
        namespace, name = reference.namespace, reference.name
        number = reference.port or HTTPS
        path = cleaned(reference.path or "")
        server_name = f"{name}.{namespace}.svc"
        shown = f"https://{server_name}:{number}{path}"
        try:
            host, port = self._choose(self._ready(namespace, name, number))
        except LookupError as error:
            raise Unanswered(f'Post "{shown}{query}": {error}') from None
        host = f"[{host}]" if ":" in host else host
        return WebhookAddress(
            url=URL(f"https://{host}:{port}{path}", encoded=True),
            shown=shown,
            server_name=server_name,
        )

    def _ready(self, namespace: str, name: str, number: int) -> list[tuple[str, int]]:
        service = self._look("/services", namespace, name)
        if service is None:
            raise LookupError(f'service "{name}" not found')
        ports = service.get("spec", {}).get("ports") or ()
        port = next((one for one in ports if one.get("port") == number), None)
        if port is None:
            raise LookupError(f'no service port {number} found for service "{name}"')
        wanted = port.get("name") or ""
        found = {
            (address, one["port"])
            for slice in self._slices(namespace, name)
            for one in slice.get("ports") or ()
            if (one.get("name") or "") == wanted and one.get("port")
            for endpoint in slice.get("endpoints") or ()
            if (endpoint.get("conditions") or {}).get("ready") is not False
            for address in endpoint.get("addresses") or ()
            if slice.get("addressType") != "FQDN"
        }
        if not found:
            raise LookupError(
                f'no endpoints available for service "{name}" (this cluster has no service network:'
                " webhooks are called at an address of the service's EndpointSlices)"
            )
        return sorted(found)


class Caller:
    """Calls webhooks; close it when no more calls are made."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[tuple[str | None, str | None], ssl.SSLContext] = {}

    async def ask(self, config: WebhookClientConfig, body: bytes, seconds: float) -> bytes:
        """The body of the answer."""
        whole = f"{max(1, math.ceil(seconds))}s"
        address = self._address(config, f"?timeout={whole}")
        url = address.url.extend_query(timeout=whole)
        shown = f'Post "{address.shown}?timeout={whole}"'
        context = self._context(config.ca_bundle, address)
        try:
            async with asyncio.timeout(seconds):
                return await self._post(url, address, context, body)
        except TimeoutError:
            raise Unanswered(f"{shown}: context deadline exceeded") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"{shown}: {_why(error, address)}") from None

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(
        self, url: URL, address: WebhookAddress, context: ssl.SSLContext, body: bytes
    ) -> bytes:
        method, data = "POST", body
        named = URL(address.shown, encoded=True)  # what redirects are relative to
        for _ in range(REDIRECT_LIMIT):
            reply = await self._send(method, url, address, context, data)
            status, target = reply.status, reply.headers.get("Location", "")
            if status not in REDIRECTS or not target:
                break
            named = named.join(URL(target))
            if named.scheme not in {"http", "https"} or not named.host:
                raise Unanswered(f'unsupported redirect to "{target}"')
            url = named
            if (named.host, named.port) == _origin(address):
                url = named.with_host(address.url.host or "").with_port(address.url.port)
            if status not in REPEATED:
                method, data = "GET", b""
        else:
            raise Unanswered(f'Post "{address.shown}": stopped after {REDIRECT_LIMIT} redirects')
        if status == 200:
            return reply.body
        raise Unanswered(_refused(reply))

    async def _send(
        self, method: str, url: URL, address: WebhookAddress, context: ssl.SSLContext, body: bytes
    ) -> Reply:
        headers = {"Accept": "application/json"}
        if body:
            headers["Content-Type"] = "application/json"
        if address.server_name:
            headers["Host"] = address.server_name
        async with self._open().request(
            method,
            url,
            data=body or None,
            headers=headers,
            ssl=context,
            server_hostname=address.server_name,
            allow_redirects=False,
        ) as response:
            return Reply(response.status, response.headers, await _bounded(response.content))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTION_LIMIT),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"User-Agent": "kube-apiserver-admission"},
            )
        return self._session

    def _address(self, config: WebhookClientConfig, query: str) -> WebhookAddress:
        if config.service is not None:
            return self._services.address(config.service, query)
        text = config.url or ""
        try:
            url = URL(text, encoded=True)
        except ValueError:
            raise Unanswered(f'"{text}" is not a URL') from None
        if url.scheme != "https" or not url.host:
            raise Unanswered(f'webhooks are called over https only, not at "{text}"')
        url = url.with_path(cleaned(url.raw_path), encoded=True)
        return WebhookAddress(url=url, shown=str(url))

    def _context(self, bundle: str | None, address: WebhookAddress) -> ssl.SSLContext:
        key = (bundle, address.server_name)
        found = self._contexts.get(key)
        if found is None:
            try:
                authority = base64.b64decode(bundle, validate=True) if bundle else None
                found = make_context(authority=authority, origin=address.shown)
            except (binascii.Error, ValueError, ConfigError):
                raise Unanswered("unable to load root certificates: caBundle is not PEM") from None
            if len(self._contexts) >= CONTEXT_LIMIT:
                self._contexts.clear()
            self._contexts[key] = found
        return found


def cleaned(path: str) -> str:
    """A path without empty steps, dots and a slash at its end."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _origin(address: WebhookAddress) -> tuple[str | None, int | None]:
    named = URL(address.shown, encoded=True)
    return named.host, named.port


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        size += len(part)
        if size > ANSWER_LIMIT:
            raise Unanswered(f"the answer is longer than {ANSWER_LIMIT} bytes")
        parts.append(part)
    return b"".join(parts)


def _why(error: Exception, address: WebhookAddress) -> str:
    place = f"{address.url.host}:{address.url.port}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = str(error.certificate_error)
        return f"tls: failed to verify certificate: x509: {why}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"dial tcp: lookup {address.url.host}: no such host"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return f"dial tcp {place}: connect: connection refused"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return f"{place}: {str(error) or type(error).__name__}"


def _refused(reply: Reply) -> str:
    kind = reply.headers.get("Content-Type", "")
    text = not kind or kind.startswith("text/")
    said = reply.body[:200].decode("utf-8", "replace").strip() if text else "unknown"
    if reply.status == 404:
        return "the server could not find the requested resource"
    if reply.status >= 500:
        return f'an error on the server ("{said}") has prevented the request from succeeding'
    return f"the server answered {reply.status} instead of 200 ({said})"
