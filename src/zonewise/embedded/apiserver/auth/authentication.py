"""Authentication: a bearer token or a client certificate; there are no anonymous requests.

Three credentials are accepted: the owner's token of this data folder, a token of a service account,
a certificate signed by this server's own CA (common name = user, organizations = groups, as
in Kubernetes). A token is checked before a certificate. Verified tokens are cached for seconds
only: the objects they are bound to may be deleted at any time.
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
CACHE_SECONDS = 5.0
CACHE_SIZE = 4096

GetObject = Callable[[str, str, str], Obj | None]
"""Storage, namespace, name -> the object."""


class Authenticator:
    """Turns credentials into users."""

    def __init__(
        self,
        *,
        tokens: Tokens,
        owners: dict[str, User],
        get_object: GetObject,
        clock: Callable[[], float],
    ) -> None:
        self._tokens = tokens
        self._owners = {
            hashlib.sha256(token.encode(errors="surrogateescape")).digest(): user
            for token, user in owners.items()
        }
        self._get_object = get_object
        self._clock = clock
        self._cached_users: dict[bytes, tuple[float, User]] = {}
        self._certificates: dict[bytes, User] = {}

    def authenticate(self, authorization: str, certificate: bytes | None) -> User:
        """The user, or 401."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return self._authenticate_token(token.strip())
        if certificate:
            return self._authenticate_certificate(certificate)
        raise status_errors.unauthorized()

    def review(self, token: str, audiences: tuple[str, ...]) -> tuple[User, tuple[str, ...]]:
        """The user of a token and the audiences it is valid for; raises BadToken."""
        owner = self._find_owner(hashlib.sha256(token.encode(errors="surrogateescape")).digest())
        if owner:
            return owner, audiences
        claims = self._tokens.read(token)
        accepted = tuple(
            audience for audience in audiences or (AUDIENCE,) if audience in claims.audiences
        )
        if not accepted:
            raise BadToken("this token is for another audience")
        return self._service_account_user(claims), accepted

    def _authenticate_token(self, token: str) -> User:
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        owner = self._find_owner(digest)
        if owner:
            return owner
        now = self._clock()
        cached = self._cached_users.get(digest)
        # A clock that was set back must not extend the cache time.
        if cached and 0 <= now - cached[0] < CACHE_SECONDS:
            return cached[1]
        try:
            claims = self._tokens.read(token)
            if AUDIENCE not in claims.audiences:
                raise BadToken("this token is for another audience")
            user = self._service_account_user(claims)
        except BadToken:
            self._cached_users.pop(digest, None)
            raise status_errors.unauthorized() from None
        if len(self._cached_users) >= CACHE_SIZE:
            self._cached_users.clear()
        self._cached_users[digest] = (min(now, claims.expires - CACHE_SECONDS), user)
        return user

    def _find_owner(self, digest: bytes) -> User | None:
        owner = None
        for owner_digest, user in self._owners.items():
            if hmac.compare_digest(owner_digest, digest):
                owner = user
        return owner

    def _service_account_user(self, claims: Claims) -> User:
        account = self._get_object("/serviceaccounts", claims.namespace, claims.account)
        if not account or account["metadata"]["uid"] != claims.account_uid:
            raise BadToken("the service account of this token no longer exists")
        extra: list[tuple[str, tuple[str, ...]]] = []
        if claims.bound:
            namespace = "" if claims.bound.kind == "Node" else claims.namespace
            bound_object = self._get_object(
                f"/{claims.bound.kind.lower()}s", namespace, claims.bound.name
            )
            if not bound_object or bound_object["metadata"]["uid"] != claims.bound.uid:
                raise BadToken(f"the {claims.bound.kind} this token is bound to no longer exists")
            key = f"authentication.kubernetes.io/{claims.bound.kind.lower()}"
            extra += [(f"{key}-name", (claims.bound.name,)), (f"{key}-uid", (claims.bound.uid,))]
        extra.append(("authentication.kubernetes.io/credential-id", (f"JTI={claims.token_id}",)))
        return User(
            f"system:serviceaccount:{claims.namespace}:{claims.account}",
            ("system:serviceaccounts", f"system:serviceaccounts:{claims.namespace}", AUTHENTICATED),
            claims.account_uid,
            tuple(sorted(extra)),
        )

    def _authenticate_certificate(self, der: bytes) -> User:
        cached = self._certificates.get(der)
        if cached:
            return cached
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
        if len(self._certificates) >= CACHE_SIZE:
            self._certificates.clear()
        self._certificates[der] = user
        return user
