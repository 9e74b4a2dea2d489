"""Answers byte by byte, for those who read them without a client library."""

from __future__ import annotations

import gzip
import http.client
import json
import ssl
from typing import Any

import pytest
from tests.contract.talking import Api

BIG = "abcdefgh" * 20_000


def indented(text: bytes) -> bytes:
    """The same JSON as people read it."""
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False).encode()


def compact(text: bytes) -> bytes:
    """The same JSON on one line."""
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


@pytest.mark.parametrize(
    ("pretty", "agent", "wide"),
    [
        ("", "contract/1", False),
        ("true", "contract/1", True),
        ("1", "contract/1", True),
        ("false", "curl/8.0", False),
        ("nonsense", "curl/8.0", False),
        ("", "curl/8.0", True),
        ("", "Wget/1.21", True),
        ("", "Mozilla/5.0 (X11)", True),
    ],
)
def test_indentation(api: Api, pretty: str, agent: str, wide: bool) -> None:
    """JSON is indented on request and for curl, wget and browsers; else it is one line."""
    path = f"{api.core}/configmaps"
    created = api.create(
        path, {"metadata": {"name": "a"}, "data": {"a": "über"}}, quiet=True, expect="201 Created"
    )
    assert created.text == compact(created.text)
    query: dict[str, Any] = {"pretty": pretty} if pretty else {}
    for url in (f"{path}/a", path, f"{path}/none", f"{api.core}/nothings", "/api/v1"):
        answer = api.get(url, headers={"User-Agent": agent}, quiet=True, **query)
        expected = indented(answer.text) if wide else compact(answer.text)
        assert answer.text == expected, url
    refused = api.get(
        path,
        token="none",
        headers={"User-Agent": agent},
        quiet=True,
        **query,
        expect="401 Unauthorized",
    )
    assert refused.text == (indented(refused.text) if wide else compact(refused.text))


def test_pages(api: Api) -> None:
    """Pages that are not objects are indented for every client, or for none."""
    for path in ("/version", "/"):
        answer = api.get(path, quiet=True, expect="200 OK")
        assert answer.text == indented(answer.text), path
    answer = api.get("/openapi/v3", headers={"User-Agent": "curl/8.0"}, quiet=True, expect="200 OK")
    assert answer.text == compact(answer.text).rstrip(b"\n")
    answer = api.get("/none", quiet=True, expect="404 Not Found")
    assert (answer.status, answer.text) == (404, b"404 page not found\n")


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip", True),
        ("deflate, gzip", True),
        ("", False),
        ("identity", False),
        ("gzip;q=1", False),
    ],
)
def test_compression(api: Api, accepted: str, packed: bool) -> None:
    """Answers to reads above 128 KiB are compressed for clients that take gzip; no others are."""
    path = f"{api.core}/configmaps"
    headers = {"Accept-Encoding": accepted} if accepted else {}
    api.create(path, {"metadata": {"name": "small"}}, quiet=True, expect="201 Created")
    small = api.get(f"{path}/small", headers=headers, quiet=True, expect="200 OK")
    assert small.headers["Content-Encoding"] is None
    big = {"metadata": {"name": "big"}, "data": {"a": BIG}}
    api.create(path, big, quiet=True, expect="201 Created")
    for url in (f"{path}/big", path):
        answer = api.get(url, headers=headers, quiet=True, expect="200 OK")
        assert answer.headers["Content-Encoding"] == ("gzip" if packed else None)
        text = gzip.decompress(answer.text) if packed else answer.text
        assert text == compact(text)
        assert BIG.encode() in text
        if packed:
            assert "Accept-Encoding" in answer.headers["Vary"]
            assert len(answer.text) < len(text) / 10


def test_a_watch_is_neither_indented_nor_compressed(api: Api) -> None:
    """Events of a watch are one line each, for every client."""
    path = f"{api.core}/configmaps"
    api.create(
        path, {"metadata": {"name": "big"}, "data": {"a": BIG}}, quiet=True, expect="201 Created"
    )
    headers = {"User-Agent": "curl/8.0", "Accept-Encoding": "gzip"}
    query = {
        "watch": "1",
        "pretty": "true",
        "timeoutSeconds": "1",
        "fieldSelector": "metadata.name=big",
    }
    answer = api.get(path, headers=headers, quiet=True, **query, expect="200 OK")
    assert answer.headers["Content-Encoding"] is None
    assert answer.text == compact(answer.text)


def test_no_server_is_named(api: Api) -> None:
    """No answer says which program or library gave it."""
    for answer in (
        api.get("/version", quiet=True),
        api.get("/none", quiet=True),
        api.get("/api/v1/nothings", quiet=True),
        api.get("/api/v1/namespaces", token="none", quiet=True),
    ):
        assert answer.headers["Server"] is None


def test_the_first_of_two_headers_counts(api: Api) -> None:
    """Of two Authorization headers the first decides."""
    token = api.create(f"{api.core}/serviceaccounts/default/token", {"spec": {}}, quiet=True).body[
        "status"
    ]["token"]
    path = f"{api.core}/configmaps"
    for proofs, status in (((token, "none"), 403), (("none", token), 401)):
        connection = api.server.connect(trusted=False)
        connection.putrequest("GET", path)
        for proof in proofs:
            connection.putheader("Authorization", f"Bearer {proof}")
        connection.endheaders()
        assert connection.getresponse().status == status
        connection.close()


@pytest.mark.parametrize(
    ("length", "good", "answer"),
    [(100, True, b"HTTP/1.1 100 "), (100, False, b"HTTP/1.1 401 "), (1 << 23, True, None)],
)
def test_who_asks_before_sending_is_answered(
    api: Api, length: int, good: bool, answer: bytes | None
) -> None:
    """Expect: 100-continue is answered at once, with a refusal where there is one already."""
    token = api.server.token if good else "none"
    connection = api.server.connect(trusted=good)
    connection.putrequest("POST", f"{api.core}/configmaps")
    if token:
        connection.putheader("Authorization", f"Bearer {token}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(length))
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert isinstance(connection.sock, ssl.SSLSocket)
    received = connection.sock.recv(4096)
    if answer is not None:
        assert received.startswith(answer)
    if answer == b"HTTP/1.1 100 ":
        assert received.endswith(b"\r\n\r\n")
        body = json.dumps({"metadata": {"name": "a"}}).encode()
        connection.send(body.ljust(length))
        response = http.client.HTTPResponse(connection.sock)
        response.begin()
        assert response.status == 201
        response.close()
    connection.close()
