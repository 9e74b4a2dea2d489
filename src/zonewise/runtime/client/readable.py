"""Whether a server has a kind and lets us read it: found out by trying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zonewise.api.errors import Forbidden, NotFound
from zonewise.runtime.client.scope import Scope

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client


async def is_readable(client: Client, cls: type[Any]) -> bool:
    """Whether a list of the kind is neither forbidden nor unknown to the server."""
    try:
        async for _ in client.pages(Scope(cls), limit=1):
            break
    except (Forbidden, NotFound):
        return False
    return True
