"""Refusals of CSI calls: a code of the protocol and a reason.

The codes are the protocol's, by name, so that no decision depends on gRPC. What each means to the
caller is decided here once:

============================  =================================================================
``INVALID_ARGUMENT``          a field is missing or bad, an unusable class, a bad source
``NOT_FOUND``                 the source, volume, snapshot or node does not exist
``ALREADY_EXISTS``            the name is taken by something that is not compatible
``RESOURCE_EXHAUSTED``        no pool there has room; *nothing is left behind*, choose a new node
``FAILED_PRECONDITION``       in use, published elsewhere, has dependents
``OUT_OF_RANGE``              a size that is not possible
``ABORTED``                   an operation is pending, or an unknown page token: retry
``UNAVAILABLE``               the backend does not answer: retry, it may have happened
``PERMISSION_DENIED``         the key is valid, but has no permission for this
``UNAUTHENTICATED``           the key is not valid
``INTERNAL``                  the journal and the pool contradict each other
``UNIMPLEMENTED``             not offered
============================  =================================================================

A provisioner takes every code but ``ABORTED``, ``UNAVAILABLE``, ``CANCELLED`` and
``DEADLINE_EXCEEDED`` as "certainly nothing is running": a driver that answers any other code has
finished, or undone, what it began.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from zonewise.api.errors import ZonewiseError
from zonewise.api.reason import Reason


class CsiCode(Enum):
    """The code of an answer, by its name in the protocol."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    ABORTED = "ABORTED"
    UNAVAILABLE = "UNAVAILABLE"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    INTERNAL = "INTERNAL"
    UNIMPLEMENTED = "UNIMPLEMENTED"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal, with its code and its reason."""

    code: CsiCode
    reason: Reason

    def __str__(self) -> str:
        return str(self.reason)


class StorageError(ZonewiseError):
    """A refusal, raised to the caller."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(str(refusal))

    @property
    def code(self) -> CsiCode:
        """The protocol's code."""
        return self.refusal.code

    @property
    def reason(self) -> Reason:
        """The reason of the refusal."""
        return self.refusal.reason


def invalid(code: str, message: str, *, path: str = "", fix: str = "") -> StorageError:
    """The error for a field or parameter that cannot be used; ``path`` says which."""
    text = f"{path}: {message}" if path else message
    return StorageError(Refusal(CsiCode.INVALID_ARGUMENT, Reason(code=code, message=text, fix=fix)))
