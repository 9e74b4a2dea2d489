"""Pages over plain HTTP without authentication: metrics and health, read-only.

Such ports have no authentication, and on a node they are open to the network. So a request's header
is bounded in size and time (``zonewise.runtime.serving.connection``), a body is not read, and an
idle connection is closed after a minute or so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from zonewise.runtime.serving.connection import Connections, HeaderLimits, HttpRequest

PageHandler = Callable[[HttpRequest], Awaitable[web.Response]]

HEADERS = HeaderLimits(seconds=10.0, size=16 << 10, together=1 << 20)
IDLE_SECONDS = 75.0


async def page_server(
    pages: Mapping[str, PageHandler],
    *,
    otherwise: PageHandler | None = None,
    headers: HeaderLimits = HEADERS,
) -> web.ServerRunner:
    """A server that is set up, for sites to be added: pages by path, else ``otherwise`` or 404."""

    async def answer(request: HttpRequest) -> web.Response:
        page = pages.get(request.path, otherwise)
        if page is None:
            return web.Response(status=404, text="404 page not found\n")
        if request.method not in {"GET", "HEAD"}:
            allowed = {"Allow": "GET, HEAD"}
            return web.Response(status=405, text="405 method not allowed\n", headers=allowed)
        return await page(request)

    server = Connections(
        answer, headers, access_log=None, keepalive_timeout=IDLE_SECONDS, lingering_time=0
    )
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    return runner
