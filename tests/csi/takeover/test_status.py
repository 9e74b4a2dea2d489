"""The status of a takeover, written and read again."""

from __future__ import annotations

import pytest

from zonewise.api.reason import Reason
from zonewise.csi.takeover.status import TakeoverStatus
from zonewise.storage.takeover.warnings import VolumeUse, find_away_from_home

MIB = 1 << 20


def test_a_status_is_read_as_written() -> None:
    """Every field survives writing and reading."""
    reason = Reason(code="AwayFromHome", message="pod x is away", object="Pod/n/x", fix="Wait.")
    status = TakeoverStatus({"a": ("b", "c")}, "wrong", (reason,), (reason,))
    assert TakeoverStatus.parse(status.to_text()) == status


def test_a_status_is_never_larger_than_a_config_map() -> None:
    """Of thousands of pods away from home the first are listed, and the others are counted."""
    domain = {"zone": "z" * 63}
    uses = [
        VolumeUse("v" * 253, f"{'n' * 63}/{number:0253}", "n" * 253, domain, {"zone": "y" * 63})
        for number in range(3000)
    ]
    away = find_away_from_home(uses)
    text = TakeoverStatus({"a": ("b",)}, "", away, away).to_text()
    assert len(text) < MIB
    parsed = TakeoverStatus.parse(text)
    assert (
        parsed.away_from_home == away[: len(parsed.away_from_home)]
        and len(parsed.away_from_home) + parsed.further_away_from_home == 3000
    )
    assert len(parsed.warnings) + parsed.further_warnings == 3000
    assert TakeoverStatus.parse(parsed.to_text()) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        '{"takeover": []}',
        '{"takeover": {"a": 1}, "error": ""}',
        '{"takeover": {}, "error": "", "furtherAwayFromHome": Infinity}',
        '{"takeover": {}, "error": "", "warnings": [{"reason": "no code", "message": ""}]}',
    ],
)
def test_an_invalid_status_is_empty(text: str) -> None:
    """A text that is no status reads as an empty one, without an error."""
    assert TakeoverStatus.parse(text) == TakeoverStatus()
