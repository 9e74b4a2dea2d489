"""Certificates for our own servers, and reading their fields.

``issue`` makes an authority, signs one serving certificate with it, and discards the authority's
key: no one, not even with read access to the Secret, can ever sign another certificate under this
authority. A new certificate therefore always has a new authority, and rotating is mostly making API
servers trust the new authority in time (``zonewise.runtime.webhook.certificates``).

Keys are EC P-256. Certificates begin to be valid an hour early, for clocks that are behind. Keys
and serial numbers come from the system's randomness; the moment is an argument.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zonewise.api.errors import ParseError

EARLY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A serving certificate with its key and the authority that signed it, all PEM.

    ``authority`` may be empty: clients then trust the certificate's issuer already.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


def issue(names: Iterable[str], *, now: datetime, lifetime: timedelta) -> IssuedCertificate:
    """A new serving certificate for these names and addresses, from a new authority."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = f"zonewise authority {secrets.token_hex(8)}"
    authority = authority_of(authority_key, name, now=now, lifetime=lifetime)
    certificate = signed(
        key, "zonewise webhook", names, (authority, authority_key), now=now, lifetime=lifetime
    )
    return IssuedCertificate(
        certificate.public_bytes(serialization.Encoding.PEM),
        pem(key),
        authority.public_bytes(serialization.Encoding.PEM),
    )


def authority_of(
    key: ec.EllipticCurvePrivateKey, name: str, *, now: datetime, lifetime: timedelta
) -> x509.Certificate:
    """The certificate of an authority, signed by itself."""
    public = key.public_key()
    return (
        _builder(_name(name), _name(name), public, now - EARLY, now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def signed(
    key: ec.EllipticCurvePrivateKey,
    name: str,
    hosts: Iterable[str],
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    *,
    now: datetime,
    lifetime: timedelta,
) -> x509.Certificate:
    """A serving certificate for these hosts by an authority, given with its key."""
    issuer, signer = authority
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        _builder(_name(name), issuer.subject, key.public_key(), now - EARLY, now + lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(by, critical=False)
        .sign(signer, hashes.SHA256())
    )


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """From when until when the first certificate of a PEM chain is valid."""
    loaded = _load(certificate)
    return loaded.not_valid_before_utc, loaded.not_valid_after_utc


def hosts(certificate: bytes) -> frozenset[str]:
    """The names and addresses the first certificate of a PEM chain is for."""
    try:
        names = _load(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    known = (x509.DNSName, x509.IPAddress)
    return frozenset(str(name.value) for name in names.value if isinstance(name, known))


@lru_cache(maxsize=64)
def _load(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ParseError("the certificate is not PEM of X.509") from error


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
