"""Certificates that we issue, and bundles of authorities that we maintain."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from zonewise.api.errors import ParseError
from zonewise.runtime.webhook.certificates import LIMIT, authorities, extend_bundle, holds, merged
from zonewise.runtime.webhook.issuer import EARLY, IssuedCertificate, hosts, issue, validity
from zonewise.runtime.webhook.server_context import ServerContext

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def test_a_certificate_says_what_was_asked_for() -> None:
    """Names, addresses and validity are in the certificate; the authority can sign nothing else."""
    pair = issue(["web.shop.svc", "10.0.0.1", "::1"], now=NOW, lifetime=90 * DAY)
    assert validity(pair.certificate) == (NOW - EARLY, NOW + 90 * DAY)
    assert hosts(pair.certificate) == {"web.shop.svc", "10.0.0.1", "::1"}
    authority = x509.load_pem_x509_certificate(pair.authority)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert constraints.ca and constraints.path_length == 0
    assert b"PRIVATE" not in pair.authority + pair.certificate and "PRIVATE" not in repr(pair)


def test_every_certificate_has_an_authority_of_its_own() -> None:
    """Two certificates never share an authority, so trusting one does not trust the other."""
    first, second = (issue(["a"], now=NOW, lifetime=DAY) for _ in range(2))
    assert first.authority != second.authority
    names = {x509.load_pem_x509_certificate(pair.authority).subject for pair in (first, second)}
    assert len(names) == 2


@pytest.mark.parametrize("trusted", [True, False])
def test_clients_that_trust_the_authority_accept_the_certificate(
    tmp_path: Path, trusted: bool
) -> None:
    """A TLS client that trusts the authority accepts it for its name; others refuse it."""
    now = datetime.now(UTC)
    pair = issue(["web.shop.svc"], now=now, lifetime=DAY)
    other = issue(["web.shop.svc"], now=now, lifetime=DAY)
    tls = ServerContext()
    tls.use(pair.certificate, pair.key)
    authority = (pair if trusted else other).authority.decode()
    client = ssl.create_default_context(cadata=authority)
    left, right = socket.socketpair()

    def serve() -> None:
        with right, suppress(OSError):
            tls.listening.wrap_socket(right, server_side=True).close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        with left:
            if trusted:
                client.wrap_socket(left, server_hostname="web.shop.svc").close()
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    client.wrap_socket(left, server_hostname="web.shop.svc")
    finally:
        server.join()


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_invalid_certificates_are_parse_errors(text: bytes) -> None:
    """Invalid data in a Secret is a parse error, not a crash."""
    with pytest.raises(ParseError, match="not PEM"):
        validity(text)


def authority(days: int) -> bytes:
    return issue(["a"], now=NOW, lifetime=days * DAY).authority


POOL = [authority(days) for days in (1, 2, 3, 10, 10, 20, 30, 40, 50, 60, 70, 80)]
SETS = st.lists(st.sampled_from(POOL), max_size=6, unique=True)


def test_bundles_are_compared_by_content() -> None:
    """Comments, spaces, duplicates and other text around authorities are ignored."""
    noisy = b"# mine\n\n" + POOL[3] + b"junk" + POOL[4].replace(b"\n", b"\r\n") + POOL[3]
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert authorities(noisy + broken) == (POOL[3], POOL[4])
    assert holds(noisy, POOL[4]) and not holds(noisy, POOL[5]) and holds(noisy, b"")


@settings(deadline=None)
@given(SETS, SETS, SETS, st.integers(0, 90))
def test_bundles_only_grow_but_for_what_expired(
    there: list[bytes], mine: list[bytes], theirs: list[bytes], days: int
) -> None:
    """Writes of any replica, in any order, remove no authority that is valid and needed."""
    now = NOW + days * DAY
    bundle = merged([b"".join(mine)], now=now)
    first = extend_bundle(b"".join(there), bundle, now=now)
    assert holds(first, bundle) and len(authorities(first)) <= max(LIMIT, len(mine))
    assert extend_bundle(first, bundle, now=now) == first
    others = merged([b"".join(theirs)], now=now)
    second = extend_bundle(first, others, now=now)
    if len({*authorities(first), *authorities(others)}) <= LIMIT:
        assert holds(second, bundle)
    valid = [certificate for certificate in authorities(first) if validity(certificate)[1] > now]
    assert set(authorities(first)) == set(valid)


def test_a_bundle_that_needs_no_change_is_left_as_it_is() -> None:
    """Comments in a bundle are no reason to write it."""
    bundle = b"# our own\n" + POOL[5]
    assert extend_bundle(bundle, POOL[5], now=NOW) == bundle


def test_pairs_compare_by_value() -> None:
    """A pair read again from the Secret equals the one that is served."""
    pair = issue(["a"], now=NOW, lifetime=DAY)
    assert pair == IssuedCertificate(pair.certificate, pair.key, pair.authority)
