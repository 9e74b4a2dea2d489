"""The transport to an embedded API server in the same process.

Controllers that run beside the server use the same client as everywhere; only the transport is
different. Permission, admission and validation are the same as for a request over the network,
without socket, TLS and a second encoding: the answer's bytes are the stored bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from multidict import CIMultiDict

from zonewise.embedded.apiserver.request.call import Answer, Call, ImpersonatedUser, User
from zonewise.runtime.client.transport import Request, Response

Handle = Callable[[Call], Awaitable[Answer]]


class LocalTransport:
    """A ``Transport`` for the calls of one user."""

    def __init__(self, handle: Handle, user: User) -> None:
        self._handle = handle
        self._user = user

    async def send(self, request: Request) -> Response:
        """Send a request to the server."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        impersonated_user = headers.get("impersonate-user")
        call = Call(
            method=request.method,
            path=request.path,
            user=self._user,
            query=request.query,
            headers=headers,
            body=request.body or b"",
            impersonate=ImpersonatedUser(user=impersonated_user) if impersonated_user else None,
            in_process=True,
        )
        return _LocalResponse(await self._handle(call))

    async def close(self) -> None:
        """Nothing to close."""


class _LocalResponse:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._headers: CIMultiDict[str] = CIMultiDict(
            {"Content-Type": answer.content_type, **answer.headers}
        )
        for warning in answer.warnings:
            self._headers.add("Warning", f'299 - "{warning}"')

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    async def read(self) -> bytes:
        if self._answer.stream is None:
            return self._answer.body
        return b"".join([part async for part in self._answer.stream])

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._answer.stream is None:
            yield self._answer.body
            return
        async for part in self._answer.stream:
            yield part

    async def close(self) -> None:
        if self._answer.stream is not None:
            await self._answer.stream.aclose()
