"""A CSI driver behind its socket that records its calls, for provisioners on a real cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from zonewise.api.errors import AlreadyExists
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.transport.client import TIMEOUT, CsiClient
from zonewise.csi.transport.methods import Method, Request, Response
from zonewise.runtime.client.client import Client


@dataclass
class Recording:
    """A driver behind its socket: its CreateVolume requests, and faults to answer first."""

    inner: CsiClient
    faults: list[Code] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout: float = TIMEOUT
    ) -> Response:
        """The answer, or the next fault."""
        if method.name == "CreateVolume":
            self.requests.append(request)
            if self.faults:
                raise CsiError(self.faults.pop(0), "no room here")
        return await self.inner.call(method, request, timeout=timeout)


async def post(client: Client, path: str, body: dict[str, Any]) -> None:
    """Create any object, if it is not there."""
    headers = {"Content-Type": "application/json"}
    with suppress(AlreadyExists):
        await client.raw("POST", path, body=msgspec.json.encode(body), headers=headers)
