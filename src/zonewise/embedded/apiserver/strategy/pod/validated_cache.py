"""Cache of specs that passed validation before.

Pods of one template are the same in all but their names, and an update mostly leaves the spec as it
was. Validating a spec costs hundreds of checks; recognising that its very bytes passed costs one
hash. Only valid specs are cached, so a fault is always found again, with its path. The digest is a
cryptographic one: a client that can choose a spec cannot make it pass for another.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

REMEMBERED = 4096
LARGEST = 64 * 1024

_encode = msgspec.json.Encoder().encode


class ValidatedCache:
    """A bounded set of digests; when it is full, the older half is dropped."""

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}

    def digest(self, *parts: Any) -> bytes | None:
        """The digest of these JSON values; None where they are too large to be remembered."""
        text = _encode(parts)
        return blake2b(text, digest_size=16).digest() if len(text) <= LARGEST else None

    def __contains__(self, digest: bytes | None) -> bool:
        return digest in self._digests

    def add(self, digest: bytes | None) -> None:
        """Remember that all was good."""
        if digest is None:
            return
        if len(self._digests) >= REMEMBERED:
            for old in list(self._digests)[: REMEMBERED // 2]:
                del self._digests[old]
        self._digests[digest] = None
