"""One cluster to talk to, and as whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from zonewise.runtime.credentials import Credentials, LocalCredentials
from zonewise.runtime.tls import Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """Act as somebody else, if we may."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Where the API server is, how it is recognised, and who we are to it.

    ``origin`` says where this came from, for sentences: ``context dev of ~/.kube/config``.
    """

    server: str
    origin: str = ""
    namespace: str = "default"
    trust: Trust = field(default_factory=Trust)
    credentials: Credentials = field(default_factory=LocalCredentials, repr=False)
    impersonation: Impersonation | None = None
    proxy: str | None = field(default=None, repr=False)
    compression: bool = True
