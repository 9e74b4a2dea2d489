"""Calls webhooks over HTTPS.

One session for all webhooks; its connections are shared. A TLS context is created once for each
pair of authority and server name. A response is read up to ``ANSWER_LIMIT`` bytes, and the whole
call, from name lookup to the last byte, has the webhook's own timeout. Paths are cleaned and
redirects followed as Go's client does, since webhooks are tested with it: a 307 or 308 repeats the
request, any other redirect is a GET, at most ten are followed.

There is no service network in the process: a webhook behind a Service is called at the address and
port of one of its ready endpoints, with the name in its certificate.
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
REPEATING_REDIRECTS = frozenset({307, 308})
"""Redirects after which the same request is sent again."""


class WebhookCallError(Exception):
    """The webhook could not be called, or its response could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAddress:
    """The address of a webhook; ``display_url`` is for messages."""

    url: URL
    display_url: str
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A webhook's HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ServiceResolver:
    """Resolves Services to endpoints."""

    def __init__(
        self,
        get_object: Callable[[str, str, str], Obj | None],
        slices: Callable[[str, str], Iterable[Obj]],
        choose: Callable[[list[tuple[str, int]]], tuple[str, int]],
    ) -> None:
        self._get_object = get_object
        self._slices = slices
        self._choose = choose

    def resolve(self, reference: ServiceReference, query: str) -> WebhookAddress:
        """One ready endpoint of a webhook's Service."""
        namespace, name = reference.namespace, reference.name
        number = reference.port or HTTPS
        path = clean_path(reference.path or "")
        server_name = f"{name}.{namespace}.svc"
        display_url = f"https://{server_name}:{number}{path}"
        try:
            host, port = self._choose(self._ready_endpoints(namespace, name, number))
        except LookupError as error:
            raise WebhookCallError(f'Post "{display_url}{query}": {error}') from None
        host = f"[{host}]" if ":" in host else host
        return WebhookAddress(
            url=URL(f"https://{host}:{port}{path}", encoded=True),
            display_url=display_url,
            server_name=server_name,
        )

    def _ready_endpoints(
        self, namespace: str, name: str, port_number: int
    ) -> list[tuple[str, int]]:
        service = self._get_object("/services", namespace, name)
        if service is None:
            raise LookupError(f'service "{name}" not found')
        ports = service.get("spec", {}).get("ports") or ()
        port = next(
            (service_port for service_port in ports if service_port.get("port") == port_number),
            None,
        )
        if port is None:
            raise LookupError(f'no service port {port_number} found for service "{name}"')
        port_name = port.get("name") or ""
        endpoints = {
            (address, slice_port["port"])
            for slice in self._slices(namespace, name)
            for slice_port in slice.get("ports") or ()
            if (slice_port.get("name") or "") == port_name and slice_port.get("port")
            for endpoint in slice.get("endpoints") or ()
            if (endpoint.get("conditions") or {}).get("ready") is not False
            for address in endpoint.get("addresses") or ()
            if slice.get("addressType") != "FQDN"
        }
        if not endpoints:
            raise LookupError(
                f'no endpoints available for service "{name}" (this cluster has no service network:'
                " webhooks are called at an address of the service's EndpointSlices)"
            )
        return sorted(endpoints)


class WebhookCaller:
    """Calls webhooks; close it after the last call."""

    def __init__(self, services: ServiceResolver) -> None:
        self._services = services
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[tuple[str | None, str | None], ssl.SSLContext] = {}

    async def call(self, config: WebhookClientConfig, body: bytes, seconds: float) -> bytes:
        """Call a webhook; the body of its response."""
        timeout = f"{max(1, math.ceil(seconds))}s"
        address = self._address(config, f"?timeout={timeout}")
        url = address.url.extend_query(timeout=timeout)
        request_text = f'Post "{address.display_url}?timeout={timeout}"'
        context = self._context(config.ca_bundle, address)
        try:
            async with asyncio.timeout(seconds):
                return await self._post(url, address, context, body)
        except TimeoutError:
            raise WebhookCallError(f"{request_text}: context deadline exceeded") from None
        except (aiohttp.ClientError, OSError) as error:
            raise WebhookCallError(f"{request_text}: {_describe_error(error, address)}") from None

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(
        self, url: URL, address: WebhookAddress, context: ssl.SSLContext, body: bytes
    ) -> bytes:
        method, data = "POST", body
        display_url = URL(address.display_url, encoded=True)  # the base of redirects
        for _ in range(REDIRECT_LIMIT):
            reply = await self._send(method, url, address, context, data)
            status, location = reply.status, reply.headers.get("Location", "")
            if status not in REDIRECTS or not location:
                break
            display_url = display_url.join(URL(location))
            if display_url.scheme not in {"http", "https"} or not display_url.host:
                raise WebhookCallError(f'unsupported redirect to "{location}"')
            url = display_url
            if (display_url.host, display_url.port) == _origin(address):
                url = display_url.with_host(address.url.host or "").with_port(address.url.port)
            if status not in REPEATING_REDIRECTS:
                method, data = "GET", b""
        else:
            raise WebhookCallError(
                f'Post "{address.display_url}": stopped after {REDIRECT_LIMIT} redirects'
            )
        if status == 200:
            return reply.body
        raise WebhookCallError(_describe_refusal(reply))

    async def _send(
        self, method: str, url: URL, address: WebhookAddress, context: ssl.SSLContext, body: bytes
    ) -> Reply:
        headers = {"Accept": "application/json"}
        if body:
            headers["Content-Type"] = "application/json"
        if address.server_name:
            headers["Host"] = address.server_name
        async with self._session_or_new().request(
            method,
            url,
            data=body or None,
            headers=headers,
            ssl=context,
            server_hostname=address.server_name,
            allow_redirects=False,
        ) as response:
            return Reply(response.status, response.headers, await _read_bounded(response.content))

    def _session_or_new(self) -> aiohttp.ClientSession:
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
            return self._services.resolve(config.service, query)
        text = config.url or ""
        try:
            url = URL(text, encoded=True)
        except ValueError:
            raise WebhookCallError(f'"{text}" is not a URL') from None
        if url.scheme != "https" or not url.host:
            raise WebhookCallError(f'webhooks are called over https only, not at "{text}"')
        url = url.with_path(clean_path(url.raw_path), encoded=True)
        return WebhookAddress(url=url, display_url=str(url))

    def _context(self, bundle: str | None, address: WebhookAddress) -> ssl.SSLContext:
        key = (bundle, address.server_name)
        context = self._contexts.get(key)
        if context is None:
            try:
                authority = base64.b64decode(bundle, validate=True) if bundle else None
                context = make_context(authority=authority, origin=address.display_url)
            except (binascii.Error, ValueError, ConfigError):
                raise WebhookCallError(
                    "unable to load root certificates: caBundle is not PEM"
                ) from None
            if len(self._contexts) >= CONTEXT_LIMIT:
                self._contexts.clear()
            self._contexts[key] = context
        return context


def clean_path(path: str) -> str:
    """A path without empty segments, dots and a slash at its end."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _origin(address: WebhookAddress) -> tuple[str | None, int | None]:
    display_url = URL(address.display_url, encoded=True)
    return display_url.host, display_url.port


async def _read_bounded(content: aiohttp.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        size += len(part)
        if size > ANSWER_LIMIT:
            raise WebhookCallError(f"the answer is longer than {ANSWER_LIMIT} bytes")
        parts.append(part)
    return b"".join(parts)


def _describe_error(error: Exception, address: WebhookAddress) -> str:
    address_text = f"{address.url.host}:{address.url.port}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = str(error.certificate_error)
        return f"tls: failed to verify certificate: x509: {reason}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"dial tcp: lookup {address.url.host}: no such host"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return f"dial tcp {address_text}: connect: connection refused"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return f"{address_text}: {str(error) or type(error).__name__}"


def _describe_refusal(reply: Reply) -> str:
    content_type = reply.headers.get("Content-Type", "")
    is_text = not content_type or content_type.startswith("text/")
    answer_text = reply.body[:200].decode("utf-8", "replace").strip() if is_text else "unknown"
    if reply.status == 404:
        return "the server could not find the requested resource"
    if reply.status >= 500:
        return f'an error on the server ("{answer_text}") has prevented the request from succeeding'
    return f"the server answered {reply.status} instead of 200 ({answer_text})"
