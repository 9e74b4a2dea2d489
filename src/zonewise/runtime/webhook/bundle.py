"""Sets of trusted authorities as PEM text, as a webhook configuration's ``caBundle`` holds them.

A bundle only ever grows, except for what has expired: several replicas write the same bundle, each
with its own view of what is needed, and one with an older view must not remove what another has
added. An authority is compared by its content, whatever spaces or comments surround it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

LIMIT = 8
"""No bundle holds more authorities than this; needed ones and those valid longest stay."""

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@lru_cache(maxsize=64)
def authorities(pem: bytes) -> tuple[bytes, ...]:
    """The certificates in a text, each in one normal form and once; nonsense is left out."""
    certificates: dict[bytes, None] = {}
    for block in _BLOCK.findall(pem):
        try:
            certificates[x509.load_pem_x509_certificate(block).public_bytes(Encoding.PEM)] = None
        except (ValueError, UnsupportedAlgorithm):
            continue
    return tuple(certificates)


def holds(bundle: bytes, required: bytes) -> bool:
    """Whether every authority of ``required`` is in the bundle."""
    return set(authorities(required)) <= set(authorities(bundle))


def merged(bundles: Iterable[bytes], *, now: datetime) -> bytes:
    """All authorities of several bundles that have not expired, the first bundle's first."""
    unique = dict.fromkeys(authority for bundle in bundles for authority in authorities(bundle))
    return b"".join(authority for authority in unique if _end(authority) > now)


def grown(bundle: bytes, required: bytes, *, now: datetime) -> bytes:
    """The bundle with what is required, without what has expired; the same if nothing changes."""
    needed = authorities(required)
    others = [
        authority
        for authority in authorities(bundle)
        if authority not in needed and _end(authority) > now
    ]
    others.sort(key=_end, reverse=True)
    remaining = {*needed, *others[: max(0, LIMIT - len(needed))]}
    order = [authority for authority in authorities(bundle) if authority in remaining]
    result = b"".join(dict.fromkeys([*order, *needed]))
    return bundle if set(authorities(bundle)) == remaining and bundle.strip() else result


@lru_cache(maxsize=64)
def _end(authority: bytes) -> datetime:
    return x509.load_pem_x509_certificate(authority).not_valid_after_utc
