"""Leases: for leader election, and for heartbeats of nodes. Times are MicroTime."""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Object
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct


class LeaseSpec(Struct):
    """The holder of a lease, since when, and for how long without renewal."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Object):
    """A lock that expires unless it is renewed."""

    resource: ClassVar = Resource("coordination.k8s.io", "v1", "Lease", "leases")

    spec: LeaseSpec = LeaseSpec()
