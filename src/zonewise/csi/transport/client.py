"""Clients of a driver: the same protocol in one process and, in tests, over a socket.

``CsiClient`` is what the provisioner loop and the kubelets are given. Both kinds raise ``CsiError``
with the code of the protocol, both are bounded by ``timeout``, and neither lets the two sides share
a message: the in-process one copies the request and the answer. It needs no gRPC, which would cost
a cluster in one process 8 MB.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from zonewise.csi.errors import Code, CsiError
from zonewise.csi.transport.calls import Calls
from zonewise.csi.transport.methods import Method, Request, Response

TIMEOUT = 10.0


class CsiClient(Protocol):
    """Calls a driver."""

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout: float = TIMEOUT
    ) -> Response:
        """The answer, or a ``CsiError``."""
        ...


class InProcessClient:
    """Calls the services of a driver in the same process, without a socket."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout: float = TIMEOUT
    ) -> Response:
        """The answer, or a ``CsiError``."""
        own_request = method.request_type()
        own_request.CopyFrom(request)
        try:
            async with asyncio.timeout(timeout):
                answer = await self._calls.call(method, own_request, timeout=timeout)
        except TimeoutError:
            raise CsiError(
                Code.DEADLINE_EXCEEDED, f"{method.name} took longer than {timeout:g} s"
            ) from None
        response = method.response_type()
        response.CopyFrom(answer)
        return response
