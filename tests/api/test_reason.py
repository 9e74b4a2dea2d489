"""Reasons: one form for events, conditions, explain and the dashboard."""

from __future__ import annotations

import msgspec
import pytest

from zonewise.api import ParseError, Reason


def test_a_reason_reads_as_sentences() -> None:
    """The text is the message, followed by what would fix it."""
    reason = Reason(
        code="InsufficientEndpoints",
        message="zone a needs 7 endpoints, has 6",
        object="Service/shop/web",
        numbers={"needs": 7, "has": 6},
        fix="scale the Service's pods to 7 or more",
    )
    assert str(reason) == (
        "zone a needs 7 endpoints, has 6. scale the Service's pods to 7 or more."
    )
    assert str(Reason(code="A", message="All is well.")) == "All is well."
    assert str(Reason(code="A", message="Done.", fix="Nothing!")) == "Done. Nothing!"


def test_equal_reasons_are_equal_values() -> None:
    """Reasons can be compared and put in a set."""
    reason = Reason(code="A", message="m", numbers={"x": 1})
    assert reason == Reason(code="A", message="m", numbers={"x": 1})
    assert reason != Reason(code="A", message="m", numbers={"x": 2})
    assert len({reason, Reason(code="A", message="m", numbers={"x": 1})}) == 1


@pytest.mark.parametrize("code", ["", "lower", "With Space", "A-b", "A" * 129, "Ä"])
def test_a_code_has_the_form_a_condition_demands(code: str) -> None:
    """Codes are CamelCase, because events and conditions carry them."""
    with pytest.raises(ParseError, match="CamelCase"):
        Reason(code=code, message="m")


def test_a_reason_needs_a_message() -> None:
    """A reason with an empty message is refused."""
    with pytest.raises(ParseError, match="no message"):
        Reason(code="A", message="")


def test_reasons_are_json() -> None:
    """The JSON form has the fields that were set."""
    reason = Reason(code="A", message="m", numbers={"share": "1/3"})
    assert msgspec.json.encode(reason) == b'{"code":"A","message":"m","numbers":{"share":"1/3"}}'
    assert msgspec.json.decode(msgspec.json.encode(reason), type=Reason) == reason
