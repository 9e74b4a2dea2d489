"""CEL: its errors, its cost limits and its types. That it decides as the real server does is tested
by ``test_judged.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.embedded.machinery.cel.compiler import compile_expression
from zonewise.embedded.machinery.cel.evaluation import OutOfBudget
from zonewise.embedded.machinery.cel.kinds import DYN, INT, STRING, CelKind, escape_name, list_of
from zonewise.embedded.machinery.cel.syntax import DEPTH_LIMIT, TEXT_LIMIT, CompileError
from zonewise.embedded.machinery.cel.values import Duration, EvaluationError, Timestamp

VARIABLES: dict[str, CelKind] = {"x": DYN, "n": INT, "s": STRING, "l": list_of(INT)}


def value(text: str, **variables: Any) -> Any:
    return compile_expression(text, VARIABLES).evaluate(variables)[0]


def test_compile_errors_show_the_place() -> None:
    """An error has line and column, shows the line and marks the position."""
    with pytest.raises(CompileError) as refused:
        compile_expression("true &&\n  n + 'a' == 1", VARIABLES)
    assert str(refused.value) == (
        "ERROR: <input>:2:5: found no matching overload for '_+_' applied to '(int, string)'\n"
        " |   n + 'a' == 1\n | ....^"
    )


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "1" + ")" * 5000,
        "[" * 5000 + "]" * 5000,
        "-" * 5000 + "n",
        "!" * 5001 + "true",
        "+".join(["n"] * 5000),
        ".a".join(["x"] * 5000),
        "x" + "[0]" * 5000,
        "true?" * 3000 + "n" + ":n" * 3000,
        "n" * (TEXT_LIMIT + 1),
        "{" * 400,
        "'" + "a" * 100,
        "'\\ud800'",
        "\x00",
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_is_refused_or_harmless(text: str) -> None:
    """Nesting and length have limits, and invalid text is an error and nothing else."""
    try:
        program = compile_expression(text, VARIABLES)
        program.evaluate({"x": {}, "n": 1, "s": "", "l": []})
    except (CompileError, EvaluationError):
        pass


def test_long_chains_of_alternatives_do_not_nest() -> None:
    """A thousand alternatives are one junction."""
    assert value(" || ".join(["n == 1"] * 1000) + " || true", n=5) is True
    assert DEPTH_LIMIT < 1000


@given(st.text(alphabet="xnsl.()[]{}?:+-*/%!<>=&|,'\"0123456789 aeui\\\n", max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    """No text makes the compiler or an evaluation raise another exception."""
    try:
        program = compile_expression(text, VARIABLES)
        program.evaluate({"x": {"a": [1]}, "n": 1, "s": "a", "l": [1, 2]})
    except (CompileError, EvaluationError):
        pass


def test_loops_have_a_cost() -> None:
    """Nested loops exceed the budget; no expression runs for long."""
    items = list(range(300))
    text = "l.all(a, l.all(b, l.all(c, a + b + c >= 0)))"
    with pytest.raises(OutOfBudget):
        value(text, l=items)
    assert value("l.all(a, l.all(b, a + b >= 0))", l=items) is True


def test_an_exceeded_budget_is_an_error() -> None:
    """An alternative does not hide that an expression exceeds its budget."""
    text = "l.all(a, l.all(b, l.all(c, false || a >= 0))) || true"
    with pytest.raises(OutOfBudget):
        value(text, l=list(range(300)))


def test_text_functions_have_a_cost() -> None:
    """Repeated work on a long text is counted each time."""
    with pytest.raises(OutOfBudget):
        value("l.all(a, s.contains('b' + string(a)) || true)", l=[1] * 500, s="a" * 1_000_000)


def test_steps_are_counted() -> None:
    """An evaluation reports its cost, so that a caller can use one budget for several."""
    program = compile_expression("l.all(a, a > 0)", VARIABLES)
    few = program.evaluate({"l": [1] * 10})[1]
    many = program.evaluate({"l": [1] * 100})[1]
    assert 0 < few < many


def test_an_error_counts_only_if_no_other_operand_decides() -> None:
    """An operator or a quantifier ignores an error if another operand decides."""
    assert value("1 / n == 1 || true", n=0) is True
    assert value("1 / n == 1 && false", n=0) is False
    assert value("l.exists(a, 1 / a == 1)", l=[0, 1]) is True
    with pytest.raises(EvaluationError, match="division by zero"):
        value("1 / n == 1 || false", n=0)
    with pytest.raises(EvaluationError, match="division by zero"):
        value("l.all(a, 1 / a == 1)", l=[0, 1])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("plain", "plain"),
        ("namespace", "__namespace__"),
        ("a-b.c/d", "a__dash__b__dot__c__slash__d"),
        ("a__b", "a__underscores__b"),
        ("1a", None),
        ("a b", None),
        ("é", None),
        ("", None),
    ],
)
def test_property_names_are_escaped(name: str, written: str | None) -> None:
    """A property whose name is not an identifier is escaped, or has no name in CEL."""
    assert escape_name(name) == written


@given(st.integers(-(2**62), 2**62))
def test_durations_read_back(nanoseconds: int) -> None:
    """A formatted duration parses as the same duration."""
    duration = Duration(nanoseconds)
    assert Duration.parse(str(duration)) == duration


@given(st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))
def test_timestamps_read_back(seconds: int, nanoseconds: int) -> None:
    """A formatted timestamp parses as the same timestamp, from year 1 to year 9999."""
    instant = Timestamp.of_seconds(seconds, nanoseconds)
    assert Timestamp.parse(str(instant)) == instant


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_arithmetic_is_exact_or_an_error(a: int, b: int) -> None:
    """Sums, differences, products and quotients have 64 bits; an overflow is an error."""
    for mark, exact in (("+", a + b), ("-", a - b), ("*", a * b)):
        try:
            assert value(f"x.a {mark} x.b", x={"a": a, "b": b}) == exact
        except EvaluationError:
            assert not -(2**63) <= exact < 2**63
    if b:
        try:
            quotient = value("x.a / x.b", x={"a": a, "b": b})
            rest = value("x.a % x.b", x={"a": a, "b": b})
        except EvaluationError:
            assert (a, b) == (-(2**63), -1)
        else:
            assert quotient * b + rest == a
            assert abs(rest) < abs(b)
