"""Service account tokens: their users and their expiry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from zonewise.embedded.apiserver.auth.tokens import AUDIENCE, BadToken, BoundObject, Tokens


class Clock:
    """A clock that a test moves."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock for one test."""
    return Clock()


def tokens(clock: Callable[[], float]) -> Tokens:
    """Tokens with their own key."""
    return Tokens(ec.generate_private_key(ec.SECP256R1()), clock=clock, new_id=lambda: "id-1")


def issue(issuer: Tokens, bound: BoundObject | None = None) -> str:
    """A token for an hour."""
    token, _ = issuer.issue(
        namespace="ns", account="robot", uid="u-1", audiences=(), seconds=3600, bound=bound
    )
    return token


def test_claims_come_back(clock: Clock) -> None:
    """A token has its subject, audience and expiry."""
    issuer = tokens(clock)
    claims = issuer.read(issue(issuer, BoundObject(kind="Pod", name="p", uid="u-2")))
    assert (claims.namespace, claims.account, claims.account_uid) == ("ns", "robot", "u-1")
    assert claims.audiences == (AUDIENCE,)
    assert claims.expires == int(clock.now) + 3600
    assert claims.bound == BoundObject(kind="Pod", name="p", uid="u-2")


def test_tokens_end(clock: Clock) -> None:
    """A token is refused from the second it expires."""
    issuer = tokens(clock)
    token = issue(issuer)
    clock.now += 3599
    issuer.read(token)
    clock.now += 1
    with pytest.raises(BadToken, match="expired"):
        issuer.read(token)


def test_foreign_and_forged_tokens_are_refused(clock: Clock) -> None:
    """Only unchanged tokens signed with this key are accepted."""
    issuer = tokens(clock)
    token = issue(issuer)
    with pytest.raises(BadToken):
        tokens(clock).read(token)
    head, body, signature = token.split(".")
    for forged in (
        f"{head}.{body[:-2]}AA.{signature}",
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"eyJhbGciOiJub25lIn0.{body}.",
        "",
        "a.b.c",
        "..",
        token + "x",
    ):
        with pytest.raises(BadToken):
            issuer.read(forged)


def test_key_set_names_the_key(clock: Clock) -> None:
    """The published key set has the public key under the id that tokens carry."""
    issuer = tokens(clock)
    (key,) = issuer.key_set()["keys"]
    assert key["kid"] == issuer.key_id
    assert "d" not in key, "the private part is not published"
