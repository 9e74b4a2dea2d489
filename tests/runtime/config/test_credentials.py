"""Credentials on this machine, and how they stay fresh."""

import asyncio
from pathlib import Path

import pytest

from zonewise.api.errors import ConfigError, ConnectionFailed, ZonewiseError
from zonewise.runtime.config.credentials import (
    Certificate,
    CombinedCredentials,
    Credential,
    FetchedCredentials,
    FileContent,
    LocalCredentials,
    basic,
    bearer,
)


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_a_file_is_read_again_after_a_while(tmp_path: Path, time: Time) -> None:
    """A rotated file is seen ten seconds later, without a restart."""
    path = tmp_path / "token"
    path.write_bytes(b"one")
    content = FileContent(path, purpose="token file", clock=time)
    assert content.read() == b"one"
    path.write_bytes(b"second")
    assert content.read() == b"one"
    time.now += 9.9
    assert content.read() == b"one"
    time.now += 0.1
    assert content.read() == b"second"


def test_a_file_can_be_read_at_once(tmp_path: Path, time: Time) -> None:
    """After a rejection the file is read without waiting for the interval."""
    path = tmp_path / "token"
    path.write_bytes(b"one")
    content = FileContent(path, purpose="token file", clock=time)
    content.read()
    path.write_bytes(b"second")
    assert content.read(now=True) == b"second"
    assert content.read() == b"second"


def test_a_replaced_link_is_a_change(tmp_path: Path, time: Time) -> None:
    """Mounted secrets rotate by moving a link; equal size and time do not hide that."""
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode())
    link = tmp_path / "token"
    link.symlink_to("one")
    content = FileContent(link, purpose="token file", clock=time)
    assert content.read() == b"one"
    link.unlink()
    link.symlink_to("two")
    assert content.read(now=True) == b"two"


@pytest.mark.parametrize("fault", ["missing", "empty"])
def test_a_file_in_the_middle_of_a_rotation(tmp_path: Path, time: Time, fault: str) -> None:
    """A file that vanishes or is emptied leaves the last good content in use."""
    path = tmp_path / "token"
    path.write_bytes(b"good")
    content = FileContent(path, purpose="token file", clock=time)
    content.read()
    path.unlink()
    if fault == "empty":
        path.write_bytes(b"")
    assert content.read(now=True) == b"good"
    path.write_bytes(b"better")
    assert content.read(now=True) == b"better"


def test_a_file_that_was_never_there(tmp_path: Path) -> None:
    """The first read must succeed; its error says what the file is for."""
    content = FileContent(tmp_path / "no", purpose="service account token")
    with pytest.raises(ConfigError, match=r"service account token .*/no: no such file"):
        content.read()


async def test_token_file_wins_over_token(tmp_path: Path, time: Time) -> None:
    """A token file takes precedence over a fixed token unless it is empty."""
    path = tmp_path / "token"
    path.write_bytes(b"")
    source = LocalCredentials(
        authorization=bearer("fixed"),
        token_file=FileContent(path, purpose="token file", clock=time),
    )
    assert (await source.current()).authorization == "Bearer fixed"
    path.write_bytes(b" filed \n")
    time.now += 10
    assert (await source.current()).authorization == "Bearer filed"


async def test_renewal_offers_only_something_new(tmp_path: Path, time: Time) -> None:
    """After a 401 the file is read at once; the same token again is not tried."""
    path = tmp_path / "token"
    path.write_bytes(b"one")
    source = LocalCredentials(token_file=FileContent(path, purpose="token file", clock=time))
    rejected = await source.current()
    assert await source.renew(rejected) is None
    path.write_bytes(b"second")
    renewed = await source.renew(rejected)
    assert renewed == Credential("Bearer second")
    assert await source.current() == renewed


async def test_rotated_certificate_files(tmp_path: Path, time: Time) -> None:
    """Certificate and key are read again like tokens."""
    chain, key = tmp_path / "crt", tmp_path / "key"
    chain.write_bytes(b"c1")
    key.write_bytes(b"k1")
    source = LocalCredentials(
        chain=FileContent(chain, purpose="client certificate", clock=time),
        key=FileContent(key, purpose="client key", clock=time),
    )
    assert (await source.current()).certificate == Certificate(b"c1", b"k1")
    chain.write_bytes(b"c22")
    key.write_bytes(b"k22")
    time.now += 10
    assert (await source.current()).certificate == Certificate(b"c22", b"k22")


async def test_without_a_source_requests_are_anonymous() -> None:
    """Without any source a request carries nothing, and a 401 is final."""
    source = LocalCredentials()
    assert await source.current() == Credential()
    assert await source.renew(Credential()) is None


class Fetching(FetchedCredentials):
    """A source that fetches when a test lets it, and may fail."""

    def __init__(self, error: ZonewiseError | None = None) -> None:
        super().__init__(margin=0, clock=lambda: 0.0)
        self.error = error
        self.count = 0
        self.go = asyncio.Event()

    async def fetch(self) -> tuple[Credential, float]:
        await self.go.wait()
        self.count += 1
        if self.error is not None:
            raise self.error
        return Credential(f"Bearer {self.count}"), float("inf")


async def test_one_fetch_serves_all_who_wait() -> None:
    """However many requests wait, the source is asked once."""
    source = Fetching()
    waiting = [asyncio.create_task(source.current()) for _ in range(5)]
    await asyncio.sleep(0)
    source.go.set()
    assert set(await asyncio.gather(*waiting)) == {Credential("Bearer 1")}


async def test_one_failure_serves_all_who_wait() -> None:
    """Requests that waited for a failed fetch fail with it; later ones fetch again."""
    source = Fetching(ConnectionFailed("no"))
    waiting = [asyncio.create_task(source.current()) for _ in range(5)]
    await asyncio.sleep(0)
    source.go.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["no"] * 5
    assert {type(result) for result in results} == {ConnectionFailed}
    assert source.count == 1
    source.error = None
    assert await source.current() == Credential("Bearer 2")


async def test_a_cancelled_fetch_is_taken_over() -> None:
    """If the request that fetches is cancelled, the next one fetches."""
    source = Fetching()
    first, second = (asyncio.create_task(source.current()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    source.go.set()
    assert await second == Credential("Bearer 1")
    assert first.cancelled()


async def test_combined_sources_fill_gaps() -> None:
    """A header from one source and a certificate from another are combined."""
    local = LocalCredentials(authorization="local", chain=b"c", key=b"k")
    first = LocalCredentials(authorization="Bearer first")
    combined = CombinedCredentials(first, local)
    both = Credential("Bearer first", Certificate(b"c", b"k"))
    assert await combined.current() == both
    assert await combined.renew(both) is None
    assert await combined.renew(Credential("old")) == both


@pytest.mark.parametrize("token", ["a\nb", "a\r\nX-Evil: 1", "a\x00", "tökén"])
def test_tokens_that_no_header_can_carry(token: str) -> None:
    """A token cannot inject a header, and the error does not show it."""
    with pytest.raises(ConfigError) as error:
        bearer(token)
    assert token not in str(error.value)


def test_basic() -> None:
    """A user name and password become one header value."""
    assert basic("Aladdin", "open sesame") == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


def test_no_secret_in_repr() -> None:
    """The repr of credentials shows no secret."""
    text = repr(Credential("Bearer hush", Certificate(b"hush", b"hush")))
    assert "hush" not in text
