"""Keys and certificates of one throw-away cluster: an authority, a server, any number of users.

Elliptic curve keys throughout: making them costs a millisecond. Everything is valid from an hour
ago, for clocks that disagree, until a week from now, which no test cluster outlives.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BEFORE = datetime.timedelta(hours=1)
AFTER = datetime.timedelta(days=7)


def private_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file only its owner can read, from its first byte on."""
    path.touch(mode=0o600)
    path.write_bytes(content)


def subject(name: str, groups: Iterable[str] = ()) -> x509.Name:
    """Kubernetes reads the user from the common name and the groups from the organizations."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """A certificate authority whose key and certificate lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self._key = private_key()
        self._name = subject("zonewise test authority")
        self.certificate_file = folder / "ca.crt"
        self.key_file = folder / "ca.key"
        builder = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
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
        certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.certificate_file.write_bytes(self.pem)
        write_private(self.key_file, private_pem(self._key))

    def server(self, names: Iterable[str], addresses: Iterable[str]) -> tuple[bytes, bytes]:
        """Certificate and key, as PEM, of a server reached under these names and addresses."""
        alternatives = x509.SubjectAlternativeName(
            [
                *map(x509.DNSName, names),
                *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
            ]
        )
        return self._issue(subject("kube-apiserver"), ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def user(self, name: str, groups: Iterable[str] = ()) -> tuple[bytes, bytes]:
        """Certificate and key, as PEM, that authenticate a user of some groups."""
        return self._issue(subject(name, groups), ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self,
        name: x509.Name,
        usage: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None,
    ) -> tuple[bytes, bytes]:
        key = private_key()
        builder = self._builder(name, key).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BEFORE)
            .not_valid_after(now + AFTER)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(authority_key, False)
        )
