"""How the server and the client authenticate each other, as one TLS context.

The rules are those of every Kubernetes client; a kubeconfig that works elsewhere works here:

- a certificate authority of the kubeconfig replaces the system's, and any certificate in it is
  trusted as an anchor, be it a root, an intermediate or the server's own;
- only subject alternative names count, never the common name;
- certificates without the key identifiers that newer Python insists on are common in clusters
  and are accepted.

A context is built once per pair of authority and client certificate. A rotated certificate makes a
new context, which new connections use; connections that are open stay as they are.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.credentials import Certificate, FileContent


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Which server certificates are trusted.

    ``authority`` is PEM text, a file with it, or None for the system's authorities.
    """

    authority: bytes | FileContent | None = field(default=None, repr=False)
    server_name: str | None = None
    verify: bool = True

    def pem(self) -> bytes | None:
        """The authority's certificates now."""
        if isinstance(self.authority, FileContent):
            return self.authority.read()
        return self.authority


class TlsContexts:
    """The context for the current authority and a client certificate, built when one changes."""

    def __init__(self, trust: Trust, *, origin: str) -> None:
        self._trust = trust
        self._origin = origin
        self._key: tuple[bytes | None, Certificate | None] | None = None
        self._context: ssl.SSLContext | None = None

    def get(self, certificate: Certificate | None) -> ssl.SSLContext:
        """A context; the same one as long as nothing changed."""
        key = (self._trust.pem(), certificate)
        if self._context is None or key != self._key:
            self._context = make_context(
                authority=key[0],
                certificate=certificate,
                verify=self._trust.verify,
                origin=self._origin,
            )
            self._key = key
        return self._context


def make_context(
    *,
    authority: bytes | None = None,
    certificate: Certificate | None = None,
    verify: bool = True,
    origin: str,
) -> ssl.SSLContext:
    """A client's context; ``origin`` says in errors where the certificates came from."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.hostname_checks_common_name = False
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authority is None:
        context.load_default_certs()
    else:
        _trust_only(context, authority, origin)
    if certificate is not None:
        _present(context, certificate, origin)
    return context


def _trust_only(context: ssl.SSLContext, authority: bytes, origin: str) -> None:
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"the certificate authority of {origin} is not PEM text with certificates; "
            "put the cluster's CA certificate there"
        ) from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def _present(context: ssl.SSLContext, certificate: Certificate, origin: str) -> None:
    # OpenSSL's binding loads keys from files only; this one is private and removed at once.
    try:
        with tempfile.NamedTemporaryFile(prefix="zonewise-") as file:
            file.write(certificate.chain.rstrip() + b"\n" + certificate.key)
            file.flush()
            context.load_cert_chain(file.name, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"the client certificate of {origin} and its key do not work together; "
            "both must be PEM, unencrypted, and belong to each other"
        ) from error


def _no_password() -> bytes:
    raise ValueError("the key is encrypted")
