"""Match conditions of webhooks: called, not called, or an error."""

from __future__ import annotations

import pytest

from zonewise.embedded.machinery.cel.match_conditions import (
    ConditionFailed,
    compile_condition,
    compile_conditions,
)
from zonewise.embedded.machinery.cel.syntax import CompileError

REQUEST = {
    "operation": "UPDATE",
    "name": "x",
    "userInfo": {"username": "ann", "groups": ["a", "b"]},
    "dryRun": False,
}
POD = {"metadata": {"labels": {"a": "b"}}}


def hold(*expressions: str) -> bool:
    entries = [{"name": f"c{n}", "expression": text} for n, text in enumerate(expressions)]
    return compile_conditions(entries).evaluate(request=REQUEST, object=POD, old_object=None)


@pytest.mark.parametrize(
    ("expressions", "answer"),
    [
        ((), True),
        (("true",), True),
        (("object.metadata.labels['a'] == 'b'", "request.operation != 'DELETE'"), True),
        (("'c' in request.userInfo.groups",), False),
        (("object.metadata.nothing == 1", "false"), False),
        (("oldObject == null",), True),
        (("namespaceObject == null",), True),
        (("authorizer.group('').check('get').allowed()", "false"), False),
    ],
)
def test_all_conditions_must_hold(expressions: tuple[str, ...], answer: bool) -> None:
    """A false condition decides, even if another one fails."""
    assert hold(*expressions) is answer


def test_a_failing_condition_is_an_error() -> None:
    """If no condition is false and one fails, the failure policy decides."""
    with pytest.raises(ConditionFailed, match="no such key: nothing"):
        hold("true", "object.metadata.nothing == 1")
    with pytest.raises(ConditionFailed, match="authorizer is not supported"):
        hold("true", "authorizer.group('').check('get').allowed()")


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1 +", "compilation failed"),
        ("1", "must evaluate to bool but got int"),
        ("object.spec.enabled", "must evaluate to bool but got dyn"),
        ("request.nothing == 1", "compilation failed"),
        ("authorizer.requestResource.check('get').allowed()", "authorizer is not supported"),
    ],
)
def test_invalid_conditions_are_refused(expression: str, why: str) -> None:
    """An expression that is not a boolean, or uses unknown names, is not compiled."""
    with pytest.raises(CompileError, match=why):
        compile_condition(expression)
