"""Sequential requests to a real API server, for tests that compare ours with its answers."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tools.realkube import ControlPlane

from zonewise.runtime.client.transport import HttpsTransport, Request
from zonewise.runtime.config.cluster import load_config

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Answer(NamedTuple):
    """A status and a body."""

    status: int
    body: dict[str, Any]

    @property
    def body_without_owners(self) -> dict[str, Any]:
        """An object's body without its managedFields."""
        metadata = {k: v for k, v in self.body["metadata"].items() if k != "managedFields"}
        return {**self.body, "metadata": metadata}

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Reason and field of every cause of a refusal, sorted."""
        causes = (self.body.get("details") or {}).get("causes") or []
        return sorted((cause.get("reason", ""), cause.get("field", "")) for cause in causes)

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Field and message of every cause, sorted."""
        causes = (self.body.get("details") or {}).get("causes") or []
        return sorted((cause.get("field", ""), cause.get("message", "")) for cause in causes)


class RealServer:
    """An API server, called sequentially over persistent connections."""

    def __init__(self, plane: ControlPlane) -> None:
        self._transport = HttpsTransport(load_config(plane.kubeconfig))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, **query: str
    ) -> Answer:
        """Send one request; the body is encoded as JSON, which is YAML too."""
        request = Request(
            method=method,
            path=path,
            query=query,
            headers={"Content-Type": kind, "Accept": JSON} if body is not None else {},
            body=None if body is None else json.dumps(body).encode(),
        )
        response = await self._transport.send(request)
        try:
            content = await response.read()
        finally:
            await response.close()
        if not content.startswith(b"{"):  # an unknown path is answered in plain text
            return Answer(response.status, {"message": content.decode()})
        return Answer(response.status, json.loads(content))
