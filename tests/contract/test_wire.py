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
    """JSON is indented for who asks for it and for people's programs; else it ends with a line."""
    path = f"{api.core}/configmaps"
    made = api.made(path, {"metadata": {"name": "a"}, "data": {"a": "über"}}, quiet=True)
    assert made.text == compact(made.text)
    query: dict[str, Any] = {"pretty": pretty} if pretty else {}
    for asked in (f"{path}/a", path, f"{path}/none", f"{api.core}/nothings", "/api/v1"):
        found = api.get(asked, headers={"User-Agent": agent}, quiet=True, **query)
        expected = indented(found.text) if wide else compact(found.text)
        assert found.text == expected, asked
    refused = api.get(path, token="none", headers={"User-Agent": agent}, quiet=True, **query)
    assert refused.status == 401
    assert refused.text == (indented(refused.text) if wide else compact(refused.text))


def test_pages(api: Api) -> None:
    """What is no object is indented for everybody, or not at all."""
    for path in ("/version", "/"):
        found = api.get(path, quiet=True)
        assert found.text == indented(found.text), path
    found = api.get("/openapi/v3", headers={"User-Agent": "curl/8.0"}, quiet=True)
    assert found.text == compact(found.text).rstrip(b"\n")
    found = api.get("/none", quiet=True)
    assert (found.status, found.text) == (404, b"404 page not found\n")


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
    api.made(path, {"metadata": {"name": "small"}}, quiet=True)
    small = api.get(f"{path}/small", headers=headers, quiet=True)
    assert small.headers["Content-Encoding"] is None
    big = {"metadata": {"name": "big"}, "data": {"a": BIG}}
    api.made(path, big, quiet=True)
    for asked in (f"{path}/big", path):
        found = api.get(asked, headers=headers, quiet=True)
        assert found.headers["Content-Encoding"] == ("gzip" if packed else None)
        text = gzip.decompress(found.text) if packed else found.text
        assert text == compact(text)
        assert BIG.encode() in text
        if packed:
            assert "Accept-Encoding" in found.headers["Vary"]
            assert len(found.text) < len(text) / 10


def test_a_watch_is_neither_indented_nor_compressed(api: Api) -> None:
    """Events of a watch are lines, whoever reads them."""
    path = f"{api.core}/configmaps"
    api.made(path, {"metadata": {"name": "big"}, "data": {"a": BIG}}, quiet=True)
    headers = {"User-Agent": "curl/8.0", "Accept-Encoding": "gzip"}
    query = {
        "watch": "1",
        "pretty": "true",
        "timeoutSeconds": "1",
        "fieldSelector": "metadata.name=big",
    }
    found = api.get(path, headers=headers, quiet=True, **query)
    assert found.headers["Content-Encoding"] is None
    assert found.text == compact(found.text)


def test_no_server_is_named(api: Api) -> None:
    """No answer says which program or library gave it."""
    for found in (
        api.get("/version", quiet=True),
        api.get("/none", quiet=True),
        api.get("/api/v1/nothings", quiet=True),
        api.get("/api/v1/namespaces", token="none", quiet=True),
    ):
        assert found.headers["Server"] is None


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
    said = connection.sock.recv(4096)
    if answer is not None:
        assert said.startswith(answer)
    if answer == b"HTTP/1.1 100 ":
        assert said.endswith(b"\r\n\r\n")
        body = json.dumps({"metadata": {"name": "a"}}).encode()
        connection.send(body.ljust(length))
        response = http.client.HTTPResponse(connection.sock)
        response.begin()
        assert response.status == 201
        response.close()
    connection.close()
