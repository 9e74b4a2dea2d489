"""Serving certificates that are renewed automatically, shared by all replicas of a webhook.

**Where.** One Secret holds the certificate in use (``tls.crt``, ``tls.key``, ``ca.crt``), during a
rotation also the next one (``next.crt``, ``next.key``, ``next-ca.crt``), and the authorities of
former ones (``old-ca.crt``). Every write of it carries the resourceVersion that was read, so of
several replicas that try to begin or to finish a rotation exactly one does; the others read what it
wrote. API servers trust the ``caBundle`` of webhook configurations.

**The order** of a rotation is what makes it safe:

1. *stage*: a new pair is written into the Secret as the next one. No replica serves it.
2. *publish*: every replica makes sure that each configuration trusts the authorities of the
   certificate in use, of the next and of former ones. Bundles only grow.
3. *settle*: API servers read configurations with a delay, so nothing happens for ``settle``
   seconds after a replica has seen the new authority in all of them.
4. *promote*: the next pair becomes the one in use. Replicas serve it when they see it, each after
   it has seen for itself that all configurations trust it.
5. Former authorities stay trusted until they expire, because a replica that cannot reach the API
   server keeps serving the former certificate. Their keys do not exist any more (``issuer``).

So no replica ever serves a certificate whose authority is not in the bundles it has read. Rotation
begins when two thirds of a certificate's life are over; a replica has the last third to notice. The
very first certificate, and one that follows an expired one, skip step 3: nothing works before it.

**A Secret that is managed elsewhere** (cert-manager, an administrator) is only read, with
``managed=False``: steps 2, 3 and the serving rule stay the same if it has a ``ca.crt``; without one
its authority is managed elsewhere too.

One task does everything in sequence: a pass, then a pause of about ``poll`` seconds. A pass that
fails is logged and repeated; the certificate in use stays in use meanwhile, and ``problem`` reports
to the readiness probe when it is missing or about to expire.

**Bundles** are sets of trusted authorities as PEM text, as a configuration's ``caBundle`` has them.
A bundle only ever grows, except for what has expired: several replicas write the same bundle, each
with its own view of what is needed, and one with an older view must not remove what another has
added. An authority is compared by its content, whatever spaces or comments surround it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from zonewise.api.errors import Conflict, NotFound, ParseError, ZonewiseError
from zonewise.api.meta import Object, ObjectMeta
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.api.resource import Resource
from zonewise.api.struct import field
from zonewise.runtime.election.election import utcnow
from zonewise.runtime.process.logs import logger
from zonewise.runtime.webhook import issuer
from zonewise.runtime.webhook.issuer import IssuedCertificate, issue, validity

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

ConfigurationKind = type[MutatingWebhookConfiguration] | type[ValidatingWebhookConfiguration]

_log = logger("certificates")


class CertificateSecret(Object):
    """The parts of a Secret we read and write; values are base64."""

    resource: ClassVar = Resource("", "v1", "Secret", "secrets")

    type: str = "Opaque"
    data: dict[str, str] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationTiming:
    """How long certificates are valid and how long replicas wait."""

    lifetime: timedelta = timedelta(days=90)
    renew_at: float = 2 / 3
    settle: float = 60.0
    poll: float = 10.0


@dataclass(frozen=True, slots=True)
class StoredPair:
    """What the Secret holds."""

    current: IssuedCertificate | None = None
    staged: IssuedCertificate | None = None
    former: bytes = b""
    version: str = ""

    def trusted(self, *, now: datetime) -> bytes:
        """The authorities that API servers have to trust."""
        pairs = [pair.authority for pair in (self.current, self.staged) if pair is not None]
        return merged([*pairs, self.former], now=now)


class Certificates:
    """One replica's care for the certificate; ``run`` it as a task."""

    def __init__(
        self,
        client: Client,
        *,
        secret: str,
        namespace: str,
        hosts: Sequence[str],
        configurations: Sequence[tuple[ConfigurationKind, str]],
        serve: Callable[[bytes, bytes], None],
        managed: bool = True,
        timing: RotationTiming | None = None,
        now: Callable[[], datetime] = utcnow,
        rng: random.Random | None = None,
    ) -> None:
        self.serving = asyncio.Event()
        """Set once there is a certificate to serve."""
        self.served: IssuedCertificate | None = None
        self._client = client
        self._secret = secret
        self._namespace = namespace
        self._hosts = frozenset(hosts)
        self._configurations = tuple(configurations)
        self._serve = serve
        self._managed = managed
        self._timing = timing or RotationTiming()
        self._now = now
        self._rng = rng or random.SystemRandom()
        self._trusted_since: dict[bytes, float] = {}

    async def run(self) -> None:
        """Keep a good certificate served until cancelled."""
        while True:
            pause = self._timing.poll
            try:
                pause = await self.step()
            except Conflict:
                # Another replica was quicker; what it wrote is read at once, but not in step.
                pause = min(pause, 1.0)
            except ZonewiseError as error:
                _log.warning("cannot manage the certificate", error=str(error))
            await asyncio.sleep(pause * self._rng.uniform(1.0, 1.2))

    def problem(self) -> str | None:
        """Why this webhook must not be called now; a readiness check."""
        if self.served is None:
            return "there is no serving certificate yet"
        _, end = validity(self.served.certificate)
        return f"the serving certificate expired at {end:%F %T}Z" if end <= self._now() else None

    async def step(self) -> float:
        """One pass: stage, publish, serve, promote, as far as it goes; seconds until the next."""
        stored = await self._read()
        if self._managed and self._due(stored):
            stored = await self._stage(stored)
        if stored is None:
            raise ParseError(
                f"Secret {self._namespace}/{self._secret} does not exist or has no tls.crt and "
                "tls.key; create it, or let the webhook manage its certificate"
            )
        await self._publish(stored)
        self._use(stored)
        if stored.staged is None:
            return self._timing.poll
        left = self._seconds_until_trusted(stored.staged, hurry=not self._usable(stored.current))
        if left > 0:
            return min(left, self._timing.poll)
        await self._promote(stored, stored.staged)
        return 0.0

    async def _read(self) -> StoredPair | None:
        try:
            secret = await self._client.get(CertificateSecret, self._secret, self._namespace)
        except NotFound:
            return None
        version = secret.metadata.resource_version
        try:
            return replace(_stored(secret.data or {}), version=version)
        except ParseError as error:
            if not self._managed:
                raise
            _log.error("the certificate in the Secret is replaced", error=str(error))
            return StoredPair(version=version)

    def _due(self, stored: StoredPair | None) -> bool:
        """Whether a new pair has to be made."""
        if stored is None or stored.staged is not None:
            return stored is None
        if stored.current is None or not self._hosts <= issuer.hosts(stored.current.certificate):
            return True
        begin, end = validity(stored.current.certificate)
        issued = begin + issuer.EARLY
        return self._now() >= issued + (end - issued) * self._timing.renew_at

    async def _stage(self, stored: StoredPair | None) -> StoredPair:
        hosts = self._hosts
        if stored is not None and stored.current is not None:
            known = issuer.hosts(stored.current.certificate)
            # While an update with other hosts is rolled out, replicas must not rotate in turns.
            hosts = hosts if hosts <= known else hosts | known
        pair = issue(sorted(hosts), now=self._now(), lifetime=self._timing.lifetime)
        after = replace(stored or StoredPair(), staged=pair)
        _log.info("a new certificate is made", kept_in=self._secret)
        return await self._write(after)

    async def _promote(self, stored: StoredPair, staged: IssuedCertificate) -> None:
        old = stored.current.authority if stored.current else b""
        former = merged([old, stored.former], now=self._now())
        _log.info("the new certificate is taken into use", kept_in=self._secret)
        after = await self._write(replace(stored, current=staged, staged=None, former=former))
        self._use(after)

    async def _write(self, stored: StoredPair) -> StoredPair:
        """Put a state in the place of the one it follows, or raise ``Conflict``."""
        data = _data(stored)
        if stored.version:
            body = {"metadata": {"resourceVersion": stored.version}, "data": data}
            name, namespace = self._secret, self._namespace
            secret = await self._client.patch(CertificateSecret, name, namespace, body)
        else:
            meta = ObjectMeta(name=self._secret, namespace=self._namespace)
            present = {key: value for key, value in data.items() if value is not None}
            secret = await self._client.create(CertificateSecret(metadata=meta, data=present))
        return replace(stored, version=secret.metadata.resource_version)

    async def _publish(self, stored: StoredPair) -> None:
        """Let every configuration trust what is stored, and record since when it does."""
        trusted = stored.trusted(now=self._now())
        if not self._managed and stored.current is not None and not stored.current.authority:
            return
        for cls, name in self._configurations:
            try:
                await self._publish_to(cls, name, trusted)
            except NotFound:
                # Without the configuration the webhook is not called.
                continue
            except ZonewiseError:
                self._trusted_since.clear()
                raise
        now = asyncio.get_running_loop().time()
        pairs = (pair for pair in (stored.current, stored.staged) if pair is not None)
        self._trusted_since = {
            pair.authority: self._trusted_since.get(pair.authority, now) for pair in pairs
        }

    async def _publish_to(self, cls: ConfigurationKind, name: str, trusted: bytes) -> None:
        configuration = await self._client.get(cls, name)
        changes: list[dict[str, str]] = []
        for index, webhook in enumerate(configuration.webhooks):
            path = f"/webhooks/{index}/clientConfig/caBundle"
            bundle = _decoded(webhook.client_config.ca_bundle or "")
            better = extend_bundle(bundle, trusted, now=self._now())
            if better != bundle:
                changes.append({"op": "add", "path": path, "value": _encoded(better)})
            if not holds(bundle, trusted):
                self._trusted_since.clear()
        if changes:
            version = configuration.metadata.resource_version
            same = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
            await self._client.patch(cls, name, None, [same, *changes], kind="json")
            _log.info("the bundle of trusted authorities has changed", configuration=name)

    def _use(self, stored: StoredPair) -> None:
        """Serve what is in use, if it is new and all configurations trust it."""
        pair = stored.current
        if pair is None or pair == self.served or not self._usable(pair):
            return
        if (
            pair.authority
            and self._seconds_until_trusted(pair, hurry=not self._usable(self.served)) > 0
        ):
            return
        self._serve(pair.certificate, pair.key)
        self.served = pair
        self.serving.set()
        _log.info("a certificate is served", until=str(validity(pair.certificate)[1]))

    def _seconds_until_trusted(self, pair: IssuedCertificate, *, hurry: bool) -> float:
        """Seconds until all API servers surely trust a pair's authority."""
        since = self._trusted_since.get(pair.authority)
        if since is None:
            return self._timing.poll
        wait = 0.0 if hurry else self._timing.settle
        return since + wait - asyncio.get_running_loop().time()

    def _usable(self, pair: IssuedCertificate | None) -> bool:
        if pair is None:
            return False
        begin, end = validity(pair.certificate)
        return begin <= self._now() < end


_CURRENT = ("tls.crt", "tls.key", "ca.crt")
_STAGED = ("next.crt", "next.key", "next-ca.crt")
_FORMER = "old-ca.crt"


def _stored(data: Mapping[str, str]) -> StoredPair:
    current, staged = _pair(data, _CURRENT), _pair(data, _STAGED)
    return StoredPair(current=current, staged=staged, former=_decoded(data.get(_FORMER, "")))


def _pair(data: Mapping[str, str], names: tuple[str, str, str]) -> IssuedCertificate | None:
    certificate, key, authority = (_decoded(data.get(name, "")) for name in names)
    if not certificate and not key:
        return None
    validity(certificate)
    return IssuedCertificate(certificate, key, authority)


def _data(stored: StoredPair) -> dict[str, str | None]:
    """The Secret's data; None removes a key in a merge patch."""
    data: dict[str, str | None] = {}
    for names, pair in ((_CURRENT, stored.current), (_STAGED, stored.staged)):
        parts = (pair.certificate, pair.key, pair.authority) if pair else (b"", b"", b"")
        data |= {name: _encoded(part) or None for name, part in zip(names, parts, strict=True)}
    return data | {_FORMER: _encoded(stored.former) or None}


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ParseError("a value is not base64") from error


LIMIT = 8
"""No bundle holds more authorities than this; needed ones and those valid longest stay."""

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@lru_cache(maxsize=64)
def authorities(pem: bytes) -> tuple[bytes, ...]:
    """The certificates in a text, each in one normal form and once; other text is ignored."""
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
    return b"".join(authority for authority in unique if _read_expiry(authority) > now)


def extend_bundle(bundle: bytes, required: bytes, *, now: datetime) -> bytes:
    """The bundle with what is required, without what has expired; the same if nothing changes."""
    needed = authorities(required)
    others = [
        authority
        for authority in authorities(bundle)
        if authority not in needed and _read_expiry(authority) > now
    ]
    others.sort(key=_read_expiry, reverse=True)
    remaining = {*needed, *others[: max(0, LIMIT - len(needed))]}
    order = [authority for authority in authorities(bundle) if authority in remaining]
    result = b"".join(dict.fromkeys([*order, *needed]))
    return bundle if set(authorities(bundle)) == remaining and bundle.strip() else result


@lru_cache(maxsize=64)
def _read_expiry(authority: bytes) -> datetime:
    return x509.load_pem_x509_certificate(authority).not_valid_after_utc
