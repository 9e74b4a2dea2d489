"""Why a connection failed, in one sentence that names the server and what to do.

The network libraries report *what* happened to a socket in words for their authors; a user at a
terminal needs to know which server of which configuration it was, and what to check. Every
exception below HTTP passes through ``explain``; none of their texts, which may hold a URL with a
proxy's password, is shown unless it is known to be harmless.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from urllib.parse import urlsplit

import aiohttp

from zonewise.api.errors import ConfigError, ConnectionFailed, ProtocolError, ZonewiseError
from zonewise.runtime.config.cluster import ClusterConfig


def explain(
    error: BaseException, config: ClusterConfig, *, seconds: float | None = None
) -> ZonewiseError:
    """The error to raise instead of a network library's."""
    server = config.server + (f" ({config.origin})" if config.origin else "")
    match error:
        case aiohttp.ClientProxyConnectionError():
            return ConnectionFailed(
                f"cannot reach the proxy {_without_user(config.proxy)} on the way to {server}: "
                f"{_os_reason(error.os_error)}; check proxy-url or the HTTPS_PROXY variable"
            )
        case aiohttp.ClientHttpProxyError():
            return ConnectionFailed(
                f"the proxy {_without_user(config.proxy)} refused the way to {server} with status "
                f"{error.status}; check proxy-url or the HTTPS_PROXY variable"
            )
        case aiohttp.ClientConnectorCertificateError():
            return ConnectionFailed(_certificate(error.certificate_error, server, config))
        case aiohttp.ClientConnectorDNSError(host=host) if host == _host(config.proxy):
            return ConnectionFailed(
                f"cannot find the proxy {_without_user(config.proxy)} on the way to {server}; "
                "check proxy-url or the HTTPS_PROXY variable"
            )
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            return ConnectionFailed(
                f"cannot find the host {_host(config.server)} of {server}; "
                "check the server address and the DNS"
            )
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return ConnectionFailed(_handshake(error, server))
        case asyncio.TimeoutError():
            within = f" within {seconds:g} s" if seconds else ""
            return ConnectionFailed(
                f"{server} did not answer{within}; check that the API server runs and that no "
                "firewall is between, or allow more with --request-timeout"
            )
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return ConfigError(
                f"the server address {server} is not a URL; write it like https://host:6443"
            )
        case aiohttp.ClientResponseError():
            return ProtocolError(
                f"{server} does not speak HTTP as an API server does; "
                "check the server address and its port"
            )
        case aiohttp.ClientConnectorError(os_error=ConnectionResetError()):
            return ConnectionFailed(
                f"{server} hung up during the TLS handshake; check the server address and its "
                "port, and that nothing on the way cuts TLS"
            )
        case aiohttp.ClientConnectorError():
            return ConnectionFailed(
                f"cannot reach the API server {server}: {_os_reason(error)}; "
                "check that it runs and that the address is right"
            )
        case _:
            return ConnectionFailed(
                f"{server} ended the connection before its answer was complete; "
                "it may be restarting, try again"
            )


def _certificate(error: Exception, server: str, config: ClusterConfig) -> str:
    code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0
    match code:
        case 10:
            return (
                f"the certificate of {server} has expired; renew the API server's certificate "
                "and check this machine's clock"
            )
        case 9:
            return (
                f"the certificate of {server} is not valid yet; check the clocks of this machine "
                "and of the server"
            )
        case 62 | 64:
            name = config.trust.server_name or _host(config.server)
            return (
                f"the certificate of {server} is not for {name}; use an address the certificate "
                "names or set tls-server-name"
            )
        case _:
            return (
                f"the certificate of {server} is not signed by the certificate authority we "
                "trust; check certificate-authority in the kubeconfig"
            )


def _handshake(error: BaseException, server: str) -> str:
    inner = getattr(error, "os_error", error)
    detail = (getattr(inner, "reason", None) or "").replace("_", " ").lower()
    if detail in ("wrong version number", "http request", "record layer failure"):
        return f"{server} does not speak TLS; if it is a plain HTTP server, write http://"
    if "alert" in detail:
        return (
            f"{server} refused the TLS handshake ({detail}); check the client certificate "
            "of the kubeconfig user"
        )
    detail = f" ({detail})" if detail else ""
    return (
        f"the TLS handshake with {server} failed{detail}; check the server address and its port, "
        "and that nothing on the way cuts TLS"
    )


def _os_reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name is unknown"
    if error.errno == errno.ECONNREFUSED:
        return "connection refused"
    if error.errno == errno.ECONNRESET:
        return "the connection was reset"
    strerror = error.strerror or ""
    return strerror.lower() if strerror and "[" not in strerror else "no connection"


def _host(url: str | None) -> str | None:
    return urlsplit(url or "").hostname


def _without_user(url: str | None) -> str:
    parts = urlsplit(url or "")
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"
