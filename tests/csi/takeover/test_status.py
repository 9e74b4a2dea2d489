"""The status of a takeover, as it is kept and read again."""

from __future__ import annotations

import pytest

from zonewise.api.reason import Reason
from zonewise.csi.takeover import TakeoverStatus


def test_what_was_kept_comes_back() -> None:
    """Every field of it."""
    reason = Reason(code="AwayFromHome", message="pod x is away", object="Pod/n/x", fix="Wait.")
    status = TakeoverStatus({"a": ("b", "c")}, "wrong", (reason,), (reason,))
    assert TakeoverStatus.read(status.text()) == status


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        '{"takeover": []}',
        '{"takeover": {"a": 1}, "error": ""}',
        '{"takeover": {}, "error": "", "warnings": [{"reason": "no code", "message": ""}]}',
    ],
)
def test_what_cannot_be_read_is_nothing(text: str) -> None:
    """Whoever wrote into the ConfigMap, the status is empty, and nobody fails over it."""
    assert TakeoverStatus.read(text) == TakeoverStatus()
