"""Expressions in objects: accepted ones can be evaluated later."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zonewise.embedded.apiserver.strategy.cluster.webhooks import condition_error
from zonewise.embedded.machinery.cel.match_conditions import compile_conditions


@pytest.mark.parametrize(
    "text", ["true", "namespaceObject == null", "object.metadata.name in request.userInfo.groups"]
)
def test_an_accepted_condition_decides(text: str) -> None:
    """The conditions of an accepted webhook always compile."""
    assert condition_error(text) == ""
    request = {"userInfo": {"groups": ["a"]}}
    pod = {"metadata": {"name": "a"}}
    conditions = compile_conditions([{"name": "c", "expression": text}])
    assert conditions.evaluate(request=request, object=pod, old_object=None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("object.spec.enabled", "must evaluate to bool but got dyn"),
        ("nothing.here", "compilation failed"),
    ],
)
def test_conditions_that_cannot_compile_are_refused(text: str, why: str) -> None:
    """A condition that cannot compile is refused, or every request that the webhook selects would
    be refused, or skip it.
    """
    assert why in condition_error(text)


@pytest.mark.system
def test_a_server_without_expressions_does_not_load_their_language() -> None:
    """A server without a rule or a condition does not import CEL."""
    program = (
        "import sys, zonewise.embedded.apiserver.server;"
        "print('zonewise.embedded.machinery.cel' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert finished.stdout.split() == [b"False"]
