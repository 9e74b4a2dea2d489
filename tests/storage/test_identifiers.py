"""Ids: what they contain, how long they are, and which texts are not ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.storage.identifiers import ID_LIMIT, StorageId, StoredKind, is_uuid, parse_id

UUID = "0123456789abcdef" * 2


def test_texts() -> None:
    """An id has its kind, its uuid, and the location of its journal if there are several."""
    assert str(StorageId(StoredKind.VOLUME, UUID)) == f"vol-{UUID}"
    assert str(StorageId(StoredKind.SNAPSHOT, UUID, 255, "c-1")) == f"snap-{UUID}-ff-c-1"


@given(
    st.sampled_from(StoredKind),
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**64 - 1),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64),
)
def test_there_and_back(stored: StoredKind, number: int, pool: int, cluster: str) -> None:
    """Every id fits the protocol's limit and is read as it was written."""
    for identifier in (
        StorageId(stored, f"{number:032x}"),
        StorageId(stored, f"{number:032x}", pool, cluster),
    ):
        text = str(identifier)
        assert len(text.encode()) <= ID_LIMIT
        assert parse_id(text, stored) == identifier
        (other,) = set(StoredKind) - {stored}
        assert parse_id(text, other) is None


@given(st.text(max_size=200))
def test_garbage_is_unknown(text: str) -> None:
    """Any text is an id of ours or unknown, and raises no error."""
    for stored in StoredKind:
        parsed = parse_id(text, stored)
        assert parsed is None or str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reallyfakevolumeid",
        f"vol-{UUID.upper()}",
        f"vol-{UUID}\n",
        f"vol-{UUID}-",
        f"vol-{UUID}-1",
        f"vol-{UUID}-01-c",
        f"vol-{UUID}-1-ü",
        f"vol-{UUID}-1-{'c' * 100}",
        f"vol-{UUID[:-1]}",
    ],
)
def test_nearly_an_id(text: str) -> None:
    """A text that only resembles an id is unknown."""
    assert parse_id(text, StoredKind.VOLUME) is None


def test_no_id_that_could_not_be_read() -> None:
    """An id that would be too long, or could not be read again, is never made."""
    for uuid, cluster in (("x", ""), (UUID, "c" * 100), (UUID, "a b")):
        with pytest.raises(ValueError, match="is not an id"):
            StorageId(StoredKind.VOLUME, uuid, 1, cluster)


def test_uuids() -> None:
    """A uuid is 32 lower-case hex digits."""
    assert is_uuid(UUID)
    assert not any(map(is_uuid, ("", UUID + "0", UUID.upper(), UUID + "\n")))
