"""Requests to an API server, one after the other, over one connection."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit


class Refused(Exception):
    """The API server refused; code, message and causes (reason, field) are its own."""

    def __init__(self, code: int, status: Mapping[str, Any]) -> None:
        self.code = code
        self.message: str = status.get("message", "")
        causes = (status.get("details") or {}).get("causes") or ()
        self.causes = {(cause.get("reason"), cause.get("field")) for cause in causes}
        super().__init__(f"{code}: {self.message}")


class Answer(NamedTuple):
    """Status, decoded content and the texts of the warnings."""

    status: int
    value: Any
    warnings: list[str]


class Server:
    """A connection to an API server with a bearer token."""

    def __init__(self, url: str, token: str, authority: Path) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        self._connection = http.client.HTTPSConnection(
            urlsplit(url).netloc, context=context, timeout=60
        )
        self._headers = {"Authorization": f"Bearer {token}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def get(self, path: str, accept: str = "application/json") -> Any:
        """What is at a path."""
        return self.send("GET", path, accept=accept)

    def send(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        accept: str = "application/json",
        media: str = "application/json",
    ) -> Any:
        """The decoded answer; raises Refused for anything but success."""
        answer = self.exchange(method, path, body, accept=accept, media=media)
        if answer.status >= 300:
            raise Refused(answer.status, answer.value)
        return answer.value

    def exchange(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        accept: str = "application/json",
        media: str = "application/json",
    ) -> Answer:
        """The whole answer, whatever it is."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {**self._headers, "Accept": accept, "Content-Type": media}
        try:
            self._connection.request(method, path, content, headers)
            answer = self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError):
            # The server closed an idle connection; the request was not processed.
            self._connection.close()
            self._connection.request(method, path, content, headers)
            answer = self._connection.getresponse()
        text = answer.read()
        try:
            value = json.loads(text)
        except ValueError:
            value = {"message": text.decode("utf-8", "replace")}
        warnings = answer.headers.get_all("Warning") or []
        texts = [json.loads(line.removeprefix("299 - ")) for line in warnings]
        return Answer(answer.status, value, texts)
