"""Service account tokens: JSON web tokens signed with the server's own EC key.

A token names its service account by uid and may be bound to a pod or a secret; it is valid only as
long as those objects exist with those uids, so deleting one of them revokes every token that was
issued for it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Obj = dict[str, Any]

ISSUER = "https://kubernetes.default.svc.cluster.local"
AUDIENCE = ISSUER
MIN_SECONDS = 600
MAX_SECONDS = 2**32
_COORDINATE_BYTES = 32


class BadToken(Exception):
    """A token that is foreign, not valid now, or whose objects are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundObject:
    """The object that a token is bound to: it is valid while the object exists."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of a token."""

    namespace: str
    account: str
    account_uid: str
    audiences: tuple[str, ...]
    expires: int
    token_id: str
    bound: BoundObject | None = None


class Tokens:
    """Signs and reads tokens; the clock is in seconds since 1970."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._key = key
        self._public = key.public_key()
        self._clock = clock
        self._new_id = new_id
        der = self._public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.key_id = _encode_base64(hashlib.sha256(der).digest())

    def issue(
        self,
        *,
        namespace: str,
        account: str,
        uid: str,
        audiences: tuple[str, ...],
        seconds: int,
        bound: BoundObject | None,
    ) -> tuple[str, int]:
        """A signed token and the time it expires."""
        now = int(self._clock())
        private: Obj = {"namespace": namespace, "serviceaccount": {"name": account, "uid": uid}}
        if bound:
            private[bound.kind.lower()] = {"name": bound.name, "uid": bound.uid}
        claims = {
            "aud": list(audiences or (AUDIENCE,)),
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": self._new_id(),
            "kubernetes.io": private,
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{account}",
        }
        header = {"alg": "ES256", "kid": self.key_id}
        signed = ".".join(_encode_base64(msgspec.json.encode(part)) for part in (header, claims))
        der = self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        r, s = decode_dss_signature(der)
        raw = r.to_bytes(_COORDINATE_BYTES, "big") + s.to_bytes(_COORDINATE_BYTES, "big")
        return f"{signed}.{_encode_base64(raw)}", now + seconds

    def read(self, token: str) -> Claims:
        """The claims of a token; raises BadToken unless it is valid."""
        head, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        try:
            raw = _decode_base64(signature)
            header = msgspec.json.decode(_decode_base64(head))
            claims = msgspec.json.decode(_decode_base64(body))
            if header["alg"] != "ES256" or len(raw) != 2 * _COORDINATE_BYTES:
                raise BadToken("this token was not signed here")
            der = encode_dss_signature(
                int.from_bytes(raw[:_COORDINATE_BYTES], "big"),
                int.from_bytes(raw[_COORDINATE_BYTES:], "big"),
            )
            self._public.verify(der, f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256()))
            return self._check_claims(claims)
        except InvalidSignature:
            raise BadToken("this token was not signed here") from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise BadToken("this is not a service account token") from None

    def _check_claims(self, claims: Obj) -> Claims:
        now = self._clock()
        if claims["iss"] != ISSUER:
            raise BadToken(f"this token is of another issuer: {claims['iss']}")
        if now >= claims["exp"]:
            raise BadToken("this token has expired")
        if now + 60 < claims["nbf"]:
            raise BadToken("this token is not valid yet")
        private = claims["kubernetes.io"]
        bound = next(
            (
                BoundObject(kind=kind, name=private[key]["name"], uid=private[key]["uid"])
                for key, kind in (("pod", "Pod"), ("secret", "Secret"), ("node", "Node"))
                if key in private
            ),
            None,
        )
        return Claims(
            namespace=private["namespace"],
            account=private["serviceaccount"]["name"],
            account_uid=private["serviceaccount"]["uid"],
            audiences=tuple(claims["aud"]),
            expires=int(claims["exp"]),
            token_id=claims.get("jti", ""),
            bound=bound,
        )

    def key_set(self) -> Obj:
        """The public key as a JSON web key set, for clients that verify tokens themselves."""
        numbers = self._public.public_numbers()
        return {
            "keys": [
                {
                    "use": "sig",
                    "kty": "EC",
                    "kid": self.key_id,
                    "crv": "P-256",
                    "alg": "ES256",
                    "x": _encode_base64(numbers.x.to_bytes(_COORDINATE_BYTES, "big")),
                    "y": _encode_base64(numbers.y.to_bytes(_COORDINATE_BYTES, "big")),
                }
            ]
        }


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
