"""How a CSI call fails: a code of the protocol and one sentence.

The caller (a sidecar, a kubelet, our provisioner loop) reads the code and a person the sentence, so
both are chosen with care: ``ABORTED``, ``UNAVAILABLE`` and ``DEADLINE_EXCEEDED`` say "something may
still happen, retry with the same arguments", every other code says "nothing is under way".
``RESOURCE_EXHAUSTED`` moves a pod to another node, so it is given only when nothing is left over.

The numbers are gRPC's; this module does not import it, because the in-process transport has none.
"""

from __future__ import annotations

from enum import IntEnum

from zonewise.api.errors import ZonewiseError


class Code(IntEnum):
    """The codes that CSI uses."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CsiError(ZonewiseError):
    """A call that was answered by an error."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def invalid(message: str) -> CsiError:
    """A field is missing or not valid."""
    return CsiError(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> CsiError:
    """What the call is about does not exist."""
    return CsiError(Code.NOT_FOUND, message)


def precondition(message: str) -> CsiError:
    """The volume is not in the state that this call needs."""
    return CsiError(Code.FAILED_PRECONDITION, message)


def exhausted(message: str) -> CsiError:
    """No room where room is allowed to be taken; nothing was left behind."""
    return CsiError(Code.RESOURCE_EXHAUSTED, message)


def internal(message: str) -> CsiError:
    """Something is not as this driver left it, or it failed."""
    return CsiError(Code.INTERNAL, message)


def unavailable(message: str) -> CsiError:
    """What the call needs does not answer now; retry."""
    return CsiError(Code.UNAVAILABLE, message)


def aborted(message: str) -> CsiError:
    """Another call is working on the same object; retry."""
    return CsiError(Code.ABORTED, message)
