"""Authentication: a bearer token or a client certificate; there are no anonymous requests.

Three credentials are accepted: the owner's token of this data folder, a token of a service account,
a certificate signed by this server's own CA (common name = user, organizations = groups, as
Kubernetes reads them). A token is checked before a certificate. Verified tokens are cached for
seconds only: what they are bound to may be deleted at any moment.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from zonewise.embedded.apiserver.auth.tokens import AUDIENCE, BadToken, Claims, Tokens
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import User

Obj = dict[str, Any]

AUTHENTICATED = "system:authenticated"
REMEMBER_SECONDS = 5.0
REMEMBERED = 4096

Look = Callable[[str, str, str], Obj | None]
"""Storage key, namespace, name -> that object."""


class Authenticator:
    """Turns credentials into users."""

    def __init__(
        self,
        *,
        tokens: Tokens,
        owners: dict[str, User],
        look: Look,
        clock: Callable[[], float],
    ) -> None:
        self._tokens = tokens
        self._owners = {
            hashlib.sha256(token.encode(errors="surrogateescape")).digest(): user
            for token, user in owners.items()
        }
        self._look = look
        self._clock = clock
        self._remembered: dict[bytes, tuple[float, User]] = {}
        self._certificates: dict[bytes, User] = {}

    def authenticate(self, authorization: str, certificate: bytes | None) -> User:
        """The user, or 401."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return self._by_token(token.strip())
        if certificate:
            return self._by_certificate(certificate)
        raise status_errors.unauthorized()

    def review(self, token: str, audiences: tuple[str, ...]) -> tuple[User, tuple[str, ...]]:
        """The user of a token and the audiences it is good for; raises BadToken."""
        owner = self._owner(hashlib.sha256(token.encode(errors="surrogateescape")).digest())
        if owner:
            return owner, audiences
        claims = self._tokens.read(token)
        good = tuple(one for one in audiences or (AUDIENCE,) if one in claims.audiences)
        if not good:
            raise BadToken("this token is for another audience")
        return self._account(claims), good

    def _by_token(self, token: str) -> User:
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        owner = self._owner(digest)
        if owner:
            return owner
        now = self._clock()
        known = self._remembered.get(digest)
        # A clock that was set back must not extend the cache time.
        if known and 0 <= now - known[0] < REMEMBER_SECONDS:
            return known[1]
        try:
            claims = self._tokens.read(token)
            if AUDIENCE not in claims.audiences:
                raise BadToken("this token is for another audience")
            user = self._account(claims)
        except BadToken:
            self._remembered.pop(digest, None)
            raise status_errors.unauthorized() from None
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        self._remembered[digest] = (min(now, claims.expires - REMEMBER_SECONDS), user)
        return user

    def _owner(self, digest: bytes) -> User | None:
        found = None
        for known, user in self._owners.items():
            if hmac.compare_digest(known, digest):
                found = user
        return found

    def _account(self, claims: Claims) -> User:
        account = self._look("/serviceaccounts", claims.namespace, claims.account)
        if not account or account["metadata"]["uid"] != claims.account_uid:
            raise BadToken("the service account of this token is gone")
        extra: list[tuple[str, tuple[str, ...]]] = []
        if claims.bound:
            place = "" if claims.bound.kind == "Node" else claims.namespace
            held = self._look(f"/{claims.bound.kind.lower()}s", place, claims.bound.name)
            if not held or held["metadata"]["uid"] != claims.bound.uid:
                raise BadToken(f"the {claims.bound.kind} this token is bound to is gone")
            key = f"authentication.kubernetes.io/{claims.bound.kind.lower()}"
            extra += [(f"{key}-name", (claims.bound.name,)), (f"{key}-uid", (claims.bound.uid,))]
        extra.append(("authentication.kubernetes.io/credential-id", (f"JTI={claims.token_id}",)))
        return User(
            f"system:serviceaccount:{claims.namespace}:{claims.account}",
            (
                "system:serviceaccounts",
                f"system:serviceaccounts:{claims.namespace}",
                AUTHENTICATED,
            ),
            claims.account_uid,
            tuple(sorted(extra)),
        )

    def _by_certificate(self, der: bytes) -> User:
        known = self._certificates.get(der)
        if known:
            return known
        subject = x509.load_der_x509_certificate(der).subject
        names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not names:
            raise status_errors.unauthorized()
        groups = [
            str(attribute.value)
            for attribute in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        ]
        fingerprint = hashlib.sha256(der).hexdigest()
        user = User(
            str(names[0].value),
            (*groups, AUTHENTICATED),
            "",
            (("authentication.kubernetes.io/credential-id", (f"X509SHA256={fingerprint}",)),),
        )
        if len(self._certificates) >= REMEMBERED:
            self._certificates.clear()
        self._certificates[der] = user
        return user
