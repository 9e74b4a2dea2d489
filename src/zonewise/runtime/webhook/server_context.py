"""A server's TLS context whose certificate can be replaced while it serves.

The listening socket has one context for its whole life, and that context has no certificate. At a
ClientHello, a callback replaces it with the newest certificate's context for this one connection.
Replacing a certificate is thus the assignment of one reference: a handshake gets the old or the new
certificate with its own key, never a mixture, and open connections are unaffected.

OpenSSL calls the callback also for clients that do not name a host, as API servers do when they
call an address. Sessions are not resumed, so every new connection gets the current certificate.

With ``client_ca`` a client has to show a certificate that one of the authorities in that file has
issued. The file is looked at again for new connections, as credentials are; one that cannot be used
changes nothing.
"""

from __future__ import annotations

import os
import ssl
import tempfile

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.credentials import FileContent
from zonewise.runtime.process.logs import logger

_log = logger("webhook")


class ServerContext:
    """TLS for a listening socket; ``use`` gives it a certificate, again and again."""

    def __init__(self, client_ca: FileContent | None = None) -> None:
        self._client_ca = client_ca
        self._authorities = b"" if client_ca is None else client_ca.read(now=True)
        self._refused = b""
        self._served: bytes | None = None
        self._current: ssl.SSLContext | None = None
        # This context decides whether clients need a certificate, the one that replaces it which
        # authorities count.
        self.listening = self._context()
        self.listening.sni_callback = self.hello

    def use(self, certificate: bytes, key: bytes) -> None:
        """Show this certificate (PEM, with its chain) to new connections from now on.

        An invalid certificate, or one that does not fit its key, is refused and changes nothing.
        """
        fresh = self._context()
        served = certificate.rstrip() + b"\n" + key
        try:
            _load(fresh, served)
        except (ssl.SSLError, ValueError) as error:
            detail = getattr(error, "reason", None) or "not PEM"
            raise ConfigError(
                f"the serving certificate cannot be used ({detail.replace('_', ' ').lower()}); "
                "it must be PEM and fit its key"
            ) from None
        self._current, self._served = fresh, served

    def hello(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        """Give a new connection the current certificate, or an alert."""
        self._follow_client_ca()
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None

    def _follow_client_ca(self) -> None:
        if self._client_ca is None or self._served is None:
            return
        before, fresh = self._authorities, self._client_ca.read()
        if fresh == before:
            return
        self._authorities = fresh
        try:
            context = self._context()
        except ConfigError as error:
            self._authorities = before
            if fresh != self._refused:
                self._refused = fresh
                _log.error(f"{error}; the authorities before it still count")
            return
        _load(context, self._served)
        self._current = context

    def _context(self) -> ssl.SSLContext:
        context = _context()
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(cadata=self._authorities.decode("ascii"))
            except (ssl.SSLError, ValueError):
                raise ConfigError(
                    "--client-ca is not PEM text with certificates; put there the authority that"
                    " issued the API servers' client certificates"
                ) from None
        return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load from memory, where the system can, what the library only loads from files."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:
            file.write(pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.NamedTemporaryFile() as named:
        named.write(pem)
        named.flush()
        context.load_cert_chain(named.name)
