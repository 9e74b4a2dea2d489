"""A ``CsiClient`` through a driver's unix socket, as kubelets and sidecars call it."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio

from zonewise.csi.errors import Code, CsiError
from zonewise.csi.transport.client import TIMEOUT
from zonewise.csi.transport.methods import Method, Request, Response


class SocketClient:
    """Calls a driver through its unix socket."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.aio.insecure_channel(
            f"unix:{path}", options=[("grpc.default_authority", "localhost")]
        )

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout: float = TIMEOUT
    ) -> Response:
        """The answer, or a ``CsiError``."""
        stub = self._channel.unary_unary(
            method.path,
            request_serializer=method.request_type.SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        try:
            answer = await stub(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            number = error.code().value[0]
            code = Code(number) if number in Code._value2member_map_ else Code.UNKNOWN
            raise CsiError(code, error.details() or "") from None
        assert isinstance(answer, method.response_type)
        return answer

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()
