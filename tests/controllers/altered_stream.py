"""An answer whose stream a test alters on the way to the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeAlias

from zonewise.runtime.client.transport import Response

Alteration: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


class AlteredStream:
    """The server's answer, with other pieces of the body."""

    def __init__(self, response: Response, alter: Alteration) -> None:
        self._response = response
        self._alter = alter

    @property
    def status(self) -> int:
        """The server's status."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The server's headers."""
        return self._response.headers

    async def read(self) -> bytes:
        """The whole body."""
        return await self._response.read()

    def chunks(self) -> AsyncIterator[bytes]:
        """The altered pieces of the body."""
        return self._alter(self._response.chunks())

    async def close(self) -> None:
        """Give the connection back."""
        await self._response.close()
