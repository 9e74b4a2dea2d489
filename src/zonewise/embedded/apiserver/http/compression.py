"""Formats answers: indented or on one line, compressed or not.

A real server ends JSON with a newline, and indents it (without one) if ``pretty`` requests it or if
the user agent is curl, wget or a browser. Large answers to reads are compressed with gzip at its
fastest level for clients that accept it. A thread does that, as zlib releases the GIL, and once for
all clients that get the same bytes at about the same time.
"""

from __future__ import annotations

import asyncio
import zlib

import msgspec

from zonewise.api.errors import ApiError
from zonewise.embedded.apiserver.request.call import Answer, parse_query

TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
INTERACTIVE_AGENTS = ("curl", "Wget", "Mozilla/5.0")
LEVEL = 1
GZIP = 31  # zlib's wbits for a gzip header
RECENT_SECONDS = 1.0


def format_body(answer: Answer, query: str, agent: str) -> None:
    """Format an answer's body for its client."""
    body = answer.body
    if answer.verbatim or not body or not answer.content_type.startswith("application/json"):
        return
    if wants_indentation(query, agent):
        answer.body = msgspec.json.format(body, indent=2)
    elif not body.endswith(b"\n"):
        answer.body = body + b"\n"


def wants_indentation(query: str, agent: str) -> bool:
    """Whether a person is going to read the answer."""
    if "pretty" in query:
        try:
            pretty = parse_query(query).get("pretty")
        except ApiError:  # refused already; this only formats the refusal
            pretty = None
        if pretty:
            return pretty in TRUE
    return agent.startswith(INTERACTIVE_AGENTS)


class Compressor:
    """Compresses answers."""

    def __init__(self) -> None:
        self._recent: tuple[bytes, asyncio.Future[bytes]] | None = None

    async def compress(self, answer: Answer, accepted: str) -> None:
        """Compress an answer if its client accepts that."""
        if not any(token.strip() == "gzip" for token in accepted.split(",")):
            return
        recent = self._recent
        if recent is None or recent[0] is not answer.body:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(None, zlib.compress, answer.body, LEVEL, GZIP)
            recent = self._recent = (answer.body, future)
            loop.call_later(RECENT_SECONDS, self._drop_recent, recent)
        answer.body = await asyncio.shield(recent[1])
        compression_headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        answer.headers = {**answer.headers, **compression_headers}

    def _drop_recent(self, recent: tuple[bytes, asyncio.Future[bytes]]) -> None:
        if self._recent is recent:
            self._recent = None
