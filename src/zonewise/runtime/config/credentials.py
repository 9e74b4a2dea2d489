"""Credentials: what is sent with each request, and how it is kept fresh for weeks.

Every source has two methods. ``current()`` is called before each request and must be cheap when
nothing changed. ``renew(rejected)`` is called after a 401, once per request, with the very
credential the server rejected; None means that there is nothing better to offer and the 401 stands.

What has to be fetched (from a plugin, from an issuer) is fetched once for all requests that wait
for it, success and failure alike: fifty watches do not run a hanging plugin fifty times in a row.

Files are read again when they change, because service account tokens, cert-manager and kubelet
certificates rotate under a running process. A file is looked at no more than once per ``REREAD``
seconds, or at once after a 401; a file that vanishes in the middle of a rotation leaves the last
good content in use.

Nothing here has a ``repr`` or a message that shows a secret.
"""

from __future__ import annotations

import asyncio
import base64
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zonewise.api.errors import ConfigError, ZonewiseError

REREAD = 10.0
FILE_LIMIT = 1 << 20

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate chain and its private key, both PEM."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credential:
    """What one request carries: an ``Authorization`` header, a client certificate, both or none."""

    authorization: str | None = field(default=None, repr=False)
    certificate: Certificate | None = None


class Credentials(Protocol):
    """A source of credentials."""

    async def current(self) -> Credential:
        """The credential to use now."""
        ...

    async def renew(self, rejected: Credential) -> Credential | None:
        """A credential that differs from the one the server just rejected, if there is one."""
        ...


class FileContent:
    """A small file that is read again when it changes."""

    def __init__(self, path: Path, *, purpose: str, clock: Clock = time.monotonic) -> None:
        self._path = path
        self._purpose = purpose
        self._clock = clock
        self._looked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._content: bytes | None = None

    def read(self, *, now: bool = False) -> bytes:
        """The content; ``now`` looks at the file even if that was done a moment ago."""
        moment = self._clock()
        if self._content is not None and not now and moment - self._looked_at < REREAD:
            return self._content
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._content is None or seen != self._seen:
                with self._path.open("rb") as file:
                    fresh = file.read(FILE_LIMIT)
                # A writer that truncates first leaves an empty file for a moment.
                if fresh.strip() or self._content is None:
                    self._content, self._seen = fresh, seen
        except OSError as error:
            if self._content is None:
                raise ConfigError(
                    f"cannot read the {self._purpose} {self._path}: {reason(error)}; "
                    "make the file readable or name another one"
                ) from error
        self._looked_at = moment
        assert self._content is not None
        return self._content


def reason(error: OSError) -> str:
    """The operating system's message, without the error number."""
    return (error.strerror or str(error) or type(error).__name__).lower()


class LocalCredentials:
    """Credentials that this machine holds: values from a kubeconfig, or files that may rotate.

    ``authorization`` is a whole header value and used when there is no token file, or as long as
    the token file is empty.
    """

    def __init__(
        self,
        *,
        authorization: str | None = None,
        token_file: FileContent | None = None,
        chain: bytes | FileContent | None = None,
        key: bytes | FileContent | None = None,
    ) -> None:
        self._authorization = authorization
        self._token_file = token_file
        self._chain = chain
        self._key = key

    def check(self) -> None:
        """Read every file once, so that a missing one is reported before anything is sent."""
        self._load(now=False)

    async def current(self) -> Credential:
        """What the files say, at most ``REREAD`` seconds ago."""
        return self._load(now=False)

    async def renew(self, rejected: Credential) -> Credential | None:
        """What the files say at this moment, if that is something new."""
        fresh = self._load(now=True)
        return None if fresh == rejected else fresh

    def _load(self, *, now: bool) -> Credential:
        authorization = self._authorization
        if self._token_file is not None:
            token = self._token_file.read(now=now).decode("utf-8", "replace").strip()
            if token:
                authorization = bearer(token)
        certificate = None
        if self._chain is not None and self._key is not None:
            certificate = Certificate(_content(self._chain, now), _content(self._key, now))
        return Credential(authorization, certificate)


class FetchedCredentials(ABC):
    """Credentials that cost something to get, and are kept until they end or are rejected.

    ``margin`` seconds before its end a credential is not used any more: it would end on the way.
    """

    def __init__(
        self,
        *,
        margin: float,
        clock: Clock,
        initial: Credential | None = None,
        expires: float = float("inf"),
    ) -> None:
        self._margin = margin
        self._clock = clock
        self._credential = initial
        self._expires = expires
        self._lock = asyncio.Lock()
        self._fetches = 0
        self._failure: ZonewiseError | None = None

    @abstractmethod
    async def fetch(self) -> tuple[Credential, float]:
        """A new credential and when it ends, by the clock that was given."""

    async def current(self) -> Credential:
        """The last credential, or a new one if it has ended."""
        before = self._fetches
        async with self._lock:
            if self._credential is None or self._clock() >= self._expires - self._margin:
                return await self._refetch(before)
            return self._credential

    async def renew(self, rejected: Credential) -> Credential | None:
        """A new credential, unless another request has fetched one since."""
        before = self._fetches
        async with self._lock:
            fresh = self._credential
            if fresh is None or fresh == rejected:
                fresh = await self._refetch(before)
            return None if fresh == rejected else fresh

    async def _refetch(self, before: int) -> Credential:
        if self._failure is not None and self._fetches != before:
            raise type(self._failure)(str(self._failure)) from self._failure
        self._failure = None
        try:
            self._credential, self._expires = await self.fetch()
        except ZonewiseError as error:
            self._failure = error
            raise
        finally:
            self._fetches += 1
        return self._credential


class CombinedCredentials:
    """A source that may lack a certificate, or a header, and local ones that fill the gap."""

    def __init__(self, first: Credentials, second: LocalCredentials) -> None:
        self._first = first
        self._second = second

    async def current(self) -> Credential:
        """The first source's answer, completed by the second's."""
        return _completed(await self._first.current(), await self._second.current())

    async def renew(self, rejected: Credential) -> Credential | None:
        """Both sources are renewed; one new part is enough."""
        await self._first.renew(rejected)
        await self._second.renew(rejected)
        fresh = await self.current()
        return None if fresh == rejected else fresh


def bearer(token: str) -> str:
    """The header value for a token; refuses what could smuggle in a second header."""
    if not token.isprintable() or not token.isascii():
        raise ConfigError(
            "the bearer token holds characters that no HTTP header can carry; "
            "fetch the token again and store it without line breaks"
        )
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    """The header value for a user name and password."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def _content(source: bytes | FileContent, now: bool) -> bytes:
    return source if isinstance(source, bytes) else source.read(now=now)


def _completed(first: Credential, second: Credential) -> Credential:
    authorization = first.authorization or second.authorization
    return Credential(authorization, first.certificate or second.certificate)
