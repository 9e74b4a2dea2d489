"""Match conditions of webhooks: who is asked, who is not, and when nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.machinery.cel.match_conditions import ConditionFailed, condition_faults, conditions_of

REQUEST = {
    "operation": "UPDATE",
    "name": "x",
    "userInfo": {"username": "ann", "groups": ["a", "b"]},
    "dryRun": False,
}
POD = {"metadata": {"labels": {"a": "b"}}}


def hold(*expressions: str) -> bool:
    entries = [{"name": f"c{n}", "expression": text} for n, text in enumerate(expressions)]
    return conditions_of(entries).hold(request=REQUEST, object=POD, old_object=None)


@pytest.mark.parametrize(
    ("expressions", "answer"),
    [
        ((), True),
        (("true",), True),
        (("object.metadata.labels['a'] == 'b'", "request.operation != 'DELETE'"), True),
        (("'c' in request.userInfo.groups",), False),
        (("object.metadata.nothing == 1", "false"), False),
        (("oldObject == null",), True),
    ],
)
def test_all_conditions_must_hold(expressions: tuple[str, ...], answer: bool) -> None:
    """One that is false decides, even where another cannot be evaluated."""
    assert hold(*expressions) is answer


def test_what_cannot_be_told_is_an_error() -> None:
    """If nothing is false and something fails, the failure policy has to decide."""
    with pytest.raises(ConditionFailed, match="no such key: nothing"):
        hold("true", "object.metadata.nothing == 1")


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        ({"name": "a", "expression": "1 +"}, ("FieldValueInvalid", "at[0].expression")),
        ({"name": "a", "expression": "1"}, ("FieldValueInvalid", "at[0].expression")),
        ({"name": "a", "expression": ""}, ("FieldValueRequired", "at[0].expression")),
        ({"name": "", "expression": "true"}, ("FieldValueRequired", "at[0].name")),
        ({"name": "a b", "expression": "true"}, ("FieldValueInvalid", "at[0].name")),
        (
            {"name": "a", "expression": "request.nothing == 1"},
            ("FieldValueInvalid", "at[0].expression"),
        ),
    ],
)
def test_bad_conditions_are_refused_when_written(
    entry: dict[str, Any], cause: tuple[str, str]
) -> None:
    """Conditions that could never be evaluated are no part of a webhook."""
    assert [(fault.reason, fault.field) for fault in condition_faults([entry], "at")] == [cause]


def test_there_are_at_most_64() -> None:
    """One more is too many."""
    entries = [{"name": f"n{n}", "expression": "true"} for n in range(65)]
    assert [fault.reason for fault in condition_faults(entries, "at")] == ["FieldValueTooMany"]
    assert condition_faults(entries[:64], "at") == []


def test_the_authorizer_is_refused_in_words() -> None:
    """What we do not offer is said, not skipped."""
    entry = {"name": "a", "expression": "authorizer.requestResource.check('get').allowed()"}
    (fault,) = condition_faults([entry], "at")
    assert "authorizer is not supported" in fault.message
