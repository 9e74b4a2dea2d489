"""The keys of one embedded cluster: its CA, its serving certificate, its token key, its owner's
token and kubeconfig.

All are made once per data folder and kept there with mode 0600; the certificates are made anew when
they are about to end. The kubeconfig is a file of its own, never merged into the user's, and
appears only when the server answers.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zonewise.api.errors import ConfigError

AUTHORITY_DAYS = 3650
SERVING_DAYS = 397
RENEW_DAYS = 30
KUBECONFIG = "kubeconfig"


@dataclass(frozen=True, slots=True)
class Pair:
    """A key and its certificate, as PEM files."""

    key: Path
    certificate: Path


class Identity:
    """The keys in ``folder``; ``now`` is a UTC time."""

    def __init__(self, folder: Path, *, host: str, now: dt.datetime) -> None:
        self.folder = folder
        keys = folder / "keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        self._authority = Pair(keys / "ca.key", keys / "ca.crt")
        self._serving = Pair(keys / "serving.key", keys / "serving.crt")
        if _ends_soon(self._authority.certificate, now):
            key = ec.generate_private_key(ec.SECP256R1())
            _save(self._authority, key, _authority(key, now))
            self._serving.certificate.unlink(missing_ok=True)
        self.token_key = _key(keys / "tokens.key")
        self.owner_token = _secret(keys / "owner.token")
        if _ends_soon(self._serving.certificate, now) or not _names(self._serving, host):
            self._sign_serving(host, now)

    @property
    def kubeconfig(self) -> Path:
        """Where the owner's kubeconfig is once the server answers."""
        return self.folder / KUBECONFIG

    def last_port(self) -> int:
        """The port of the last kubeconfig written here, so that clients find the server again."""
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
        """The server's side of a connection; clients may show a certificate of this CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._serving.certificate, self._serving.key)
        context.load_verify_locations(self._authority.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def client_pair(
        self, user: str, groups: tuple[str, ...], now: dt.datetime
    ) -> tuple[bytes, bytes]:
        """A new client certificate and its key, PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, user),
            ]
        )
        certificate = self._sign(key, subject, now, [ExtendedKeyUsageOID.CLIENT_AUTH], [])
        return certificate.public_bytes(Encoding.PEM), _pem(key)

    def write_kubeconfig(self, server: str) -> Path:
        """Write the owner's kubeconfig; it replaces an older one in one step."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "zonewise",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": base64.b64encode(
                            self._authority.certificate.read_bytes()
                        ).decode(),
                    },
                }
            ],
            "users": [{"name": "zonewise", "user": {"token": self.owner_token}}],
            "contexts": [
                {"name": "zonewise", "context": {"cluster": "zonewise", "user": "zonewise"}}
            ],
            "current-context": "zonewise",
        }
        path = self.kubeconfig
        _write(path, json.dumps(config, indent=2).encode() + b"\n")
        return path

    def _sign_serving(self, host: str, now: dt.datetime) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.DNSName(name)
            for name in ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        ]
        for address in dict.fromkeys(("127.0.0.1", "::1", host)):
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(address)))
            except ValueError:
                names.append(x509.DNSName(address))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zonewise-apiserver")])
        certificate = self._sign(key, subject, now, [ExtendedKeyUsageOID.SERVER_AUTH], names)
        _save(self._serving, key, certificate)

    def _sign(
        self,
        key: ec.EllipticCurvePrivateKey,
        subject: x509.Name,
        now: dt.datetime,
        usages: list[x509.ObjectIdentifier],
        names: list[x509.GeneralName],
    ) -> x509.Certificate:
        authority = x509.load_pem_x509_certificate(self._authority.certificate.read_bytes())
        signer = _key(self._authority.key)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=SERVING_DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(signer, hashes.SHA256())


def _authority(key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zonewise-ca")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _ends_soon(path: Path, now: dt.datetime) -> bool:
    if not path.exists():
        return True
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ConfigError(
            f"{path} is damaged: delete the folder {path.parent} to make new keys"
        ) from None
    return certificate.not_valid_after_utc - now < dt.timedelta(days=RENEW_DAYS)


def _names(pair: Pair, host: str) -> bool:
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {str(name.value) for name in names}
    return host in known


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        _write(path, _pem(ec.generate_private_key(ec.SECP256R1())))
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except ValueError:
        raise ConfigError(
            f"{path} is damaged: delete the folder {path.parent} to make new keys"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is no EC key: delete the folder {path.parent} to make new keys")
    return key


def _secret(path: Path) -> str:
    if not path.exists():
        _write(path, secrets.token_urlsafe(32).encode())
    return path.read_text().strip()


def _save(pair: Pair, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    _write(pair.key, _pem(key))
    _write(pair.certificate, certificate.public_bytes(Encoding.PEM))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".new")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
