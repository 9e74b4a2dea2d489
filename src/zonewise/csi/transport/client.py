"""Who calls a driver: the same protocol over a socket and in one process.

``CsiClient`` is what the provisioner loop and the kubelets are given. Both kinds raise ``CsiError``
with the code of the protocol, both are bounded by ``timeout``, and neither lets the two sides share
a message: the in-process one copies the request and the answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from zonewise.csi.status import Code, CsiError
from zonewise.csi.transport.calls import Calls
from zonewise.csi.transport.methods import Answered, Asked, Method

TIMEOUT = 10.0


class CsiClient(Protocol):
    """Calls a driver."""

    async def call(
        self, method: Method[Asked, Answered], request: Asked, *, timeout: float = TIMEOUT
    ) -> Answered:
        """The answer, or a ``CsiError``."""
        ...


class InProcessClient:
    """Calls the services of a driver in the same process, without a socket."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def call(
        self, method: Method[Asked, Answered], request: Asked, *, timeout: float = TIMEOUT
    ) -> Answered:
        """The answer, or a ``CsiError``."""
        copy = method.asked()
        copy.CopyFrom(request)
        try:
            async with asyncio.timeout(timeout):
                answer = await self._calls.call(method, copy, timeout=timeout)
        except TimeoutError:
            raise CsiError(
                Code.DEADLINE_EXCEEDED, f"{method.name} took longer than {timeout:g} s"
            ) from None
        own = method.answered()
        own.CopyFrom(answer)
        return own


class SocketClient:
    """Calls a driver through its unix socket."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.aio.insecure_channel(
            f"unix:{path}", options=[("grpc.default_authority", "localhost")]
        )

    async def call(
        self, method: Method[Asked, Answered], request: Asked, *, timeout: float = TIMEOUT
    ) -> Answered:
        """The answer, or a ``CsiError``."""
        stub = self._channel.unary_unary(
            method.path,
            request_serializer=method.asked.SerializeToString,
            response_deserializer=method.answered.FromString,
        )
        try:
            answer = await stub(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            number = error.code().value[0]
            code = Code(number) if number in Code._value2member_map_ else Code.UNKNOWN
            raise CsiError(code, error.details() or "") from None
        assert isinstance(answer, method.answered)
        return answer

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()
