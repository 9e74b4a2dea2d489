"""The status of a takeover, as it is kept and read again."""

from __future__ import annotations

import pytest

from zonewise.api.reason import Reason
from zonewise.csi.takeover import TakeoverStatus
from zonewise.storage.takeover.warnings import VolumeUse, find_away_from_home

MIB = 1 << 20


def test_what_was_kept_comes_back() -> None:
    """Every field of it."""
    reason = Reason(code="AwayFromHome", message="pod x is away", object="Pod/n/x", fix="Wait.")
    status = TakeoverStatus({"a": ("b", "c")}, "wrong", (reason,), (reason,))
    assert TakeoverStatus.parse(status.to_text()) == status


def test_a_status_is_never_larger_than_a_config_map() -> None:
    """Of thousands of pods away from home the first are kept, and the others are counted."""
    domain = {"zone": "z" * 63}
    uses = [
        VolumeUse("v" * 253, f"{'n' * 63}/{place:0253}", "n" * 253, domain, {"zone": "y" * 63})
        for place in range(3000)
    ]
    away = find_away_from_home(uses)
    text = TakeoverStatus({"a": ("b",)}, "", away, away).to_text()
    assert len(text) < MIB
    kept = TakeoverStatus.parse(text)
    assert (
        kept.away_from_home == away[: len(kept.away_from_home)]
        and len(kept.away_from_home) + kept.further_away_from_home == 3000
    )
    assert len(kept.warnings) + kept.further_warnings == 3000
    assert TakeoverStatus.parse(kept.to_text()) == kept


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
def test_what_cannot_be_read_is_nothing(text: str) -> None:
    """Whoever wrote into the ConfigMap, the status is empty, and nobody fails over it."""
    assert TakeoverStatus.parse(text) == TakeoverStatus()
