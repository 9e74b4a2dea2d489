"""The keys of one embedded cluster: its CA, its serving certificate, its token key, its owner's
token and kubeconfig.

All are created once per data folder and stored there with mode 0600; the certificates are renewed
when they are about to expire. The serving certificate is created last, so if it exists, all keys
did: one that is missing, empty or altered is refused, because replacing it would silently
invalidate existing kubeconfigs and tokens. The kubeconfig is a file of its own, never merged into
the user's, and is written only when the server answers.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import os
import secrets
import ssl
from dataclasses import astuple, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from zonewise.api.errors import ConfigError
from zonewise.runtime.webhook.issuer import authority_of, pem, signed

AUTHORITY_DAYS = 3650
SERVING_DAYS = 397
RENEW_DAYS = 30
TOKEN_LENGTH = 16
KUBECONFIG = "kubeconfig"
NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "127.0.0.1",
    "::1",
)
"""Names in the serving certificate, whatever the server listens on."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key and its certificate, as PEM files."""

    key: Path
    certificate: Path


class Identity:
    """The keys in ``folder``; ``now`` is a UTC time."""

    def __init__(self, folder: Path, *, host: str, now: dt.datetime) -> None:
        self.folder = folder
        keys = folder / "keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        self._authority = KeyPair(keys / "ca.key", keys / "ca.crt")
        self._serving = KeyPair(keys / "serving.key", keys / "serving.crt")
        key_files = (*astuple(self._authority), keys / "tokens.key", keys / "owner.token")
        if self._serving.certificate.exists():
            for path in key_files:
                if not path.exists():
                    raise _bad_key_file(path, "missing")
        if _expires_soon(self._authority.certificate, now):
            key = ec.generate_private_key(ec.SECP256R1())
            lifetime = dt.timedelta(days=AUTHORITY_DAYS)
            authority = authority_of(key, "zonewise-ca", now=now, lifetime=lifetime)
            _save(self._authority, key, authority)
            self._serving.certificate.unlink(missing_ok=True)
        if not _key_matches(self._authority):
            raise _bad_key_file(self._authority.key, "not the key of ca.crt")
        self.token_key = _load_or_create_key(keys / "tokens.key")
        self.owner_token = _load_or_create_token(keys / "owner.token")
        if (
            _expires_soon(self._serving.certificate, now)
            or not _covers_host(self._serving, host)
            or not _key_matches(self._serving)
        ):
            self._sign_serving(host, now)

    @property
    def kubeconfig(self) -> Path:
        """The owner's kubeconfig, written when the server answers."""
        return self.folder / KUBECONFIG

    def last_port(self) -> int:
        """The port in the last kubeconfig, so that clients find the server again; 0 if none."""
        try:
            config = json.loads(self.kubeconfig.read_text())
            return int(config["clusters"][0]["cluster"]["server"].rpartition(":")[2])
        except (OSError, ValueError, LookupError, TypeError):
            return 0

    @property
    def authority_pem(self) -> str:
        """The CA's certificate."""
        return self._authority.certificate.read_text()

    def tls(self) -> ssl.SSLContext:
        """The TLS context of the server; clients may present a certificate of this CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._serving.certificate, self._serving.key)
        context.load_verify_locations(self._authority.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def write_kubeconfig(self, server: str) -> Path:
        """Write the owner's kubeconfig; it replaces an older one in one step.

        Its names are the cluster's own, so that kubeconfigs of two clusters can be merged.
        """
        authority = self._authority.certificate.read_bytes()
        name = f"zonewise-{hashlib.sha256(authority).hexdigest()[:8]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": base64.b64encode(authority).decode(),
                    },
                }
            ],
            "users": [{"name": name, "user": {"token": self.owner_token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        path = self.kubeconfig
        _write(path, json.dumps(config, indent=2).encode() + b"\n")
        return path

    def _sign_serving(self, host: str, now: dt.datetime) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        authority = x509.load_pem_x509_certificate(self._authority.certificate.read_bytes())
        certificate = signed(
            key,
            "zonewise-apiserver",
            dict.fromkeys((*NAMES, host)),
            (authority, _load_or_create_key(self._authority.key)),
            now=now,
            lifetime=dt.timedelta(days=SERVING_DAYS),
        )
        _save(self._serving, key, certificate)


def _expires_soon(path: Path, now: dt.datetime) -> bool:
    if not path.exists():
        return True
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise _bad_key_file(path, "damaged") from None
    return certificate.not_valid_after_utc - now < dt.timedelta(days=RENEW_DAYS)


def _covers_host(pair: KeyPair, host: str) -> bool:
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    covered = {str(name.value) for name in names}
    return host in covered


def _load_or_create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        _write(path, pem(ec.generate_private_key(ec.SECP256R1())))
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _bad_key_file(path, "damaged") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _bad_key_file(path, "not an EC key")
    return key


def _key_matches(pair: KeyPair) -> bool:
    """Whether the key file exists and has the certificate's key."""
    if not pair.key.exists():
        return False
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    return certificate.public_key() == _load_or_create_key(pair.key).public_key()


def _bad_key_file(path: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"{path} is {problem}: restore it from a copy, or delete the folder {path.parent} to create"
        " new keys; existing kubeconfigs and tokens are then no longer valid"
    )


def _load_or_create_token(path: Path) -> str:
    if not path.exists():
        _write(path, secrets.token_urlsafe(32).encode())
    token = path.read_bytes().strip()
    if len(token) < TOKEN_LENGTH or not token.isascii() or not token.decode().isprintable():
        raise _bad_key_file(path, "not a token" if token else "empty")
    return token.decode()


def _save(pair: KeyPair, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    _write(pair.key, pem(key))
    _write(pair.certificate, certificate.public_bytes(Encoding.PEM))


def _write(path: Path, data: bytes) -> None:
    new_path = path.with_name(path.name + ".new")
    descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new_path.replace(path)
