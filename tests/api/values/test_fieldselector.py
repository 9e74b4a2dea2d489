"""Field selectors: terms, escapes, canonical text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import FieldSelector, ParseError
from zonewise.api.values import fieldselector
from zonewise.api.values.fieldselector import FieldTerm


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("", [{}, {"a": "1"}], []),
        (",,", [{}], []),
        ("a=1", [{"a": "1"}], [{}, {"a": "2"}]),
        ("a==1", [{"a": "1"}], [{"a": ""}]),
        ("a!=1", [{}, {"a": "2"}], [{"a": "1"}]),
        ("a=", [{}, {"a": ""}], [{"a": "1"}]),
        ("status.phase!=Running,spec.nodeName=n1", [{"spec.nodeName": "n1"}], [{}]),
        (r"a=x\,y", [{"a": "x,y"}], [{"a": "x"}]),
        (r"a=x\=y", [{"a": "x=y"}], [{"a": "x"}]),
        (r"a=\\", [{"a": "\\"}], [{"a": ""}]),
        (r"a!=\,", [{"a": ""}], [{"a": ","}]),
        ("a= 1 ", [{"a": " 1 "}], [{"a": "1"}]),
    ],
)
def test_texts_match_as_on_a_server(
    text: str, yes: list[dict[str, str]], no: list[dict[str, str]]
) -> None:
    """Equal, not equal, absent fields and escapes behave as on an API server."""
    parsed = fieldselector.parse(text)
    assert all(parsed.matches(fields) for fields in yes)
    assert not any(parsed.matches(fields) for fields in no)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "'a' is not field=value"),
        ("a=1,b", "'b' is not field=value"),
        ("=1", "'=1' is not field=value"),
        ("a=1=2", "needs a backslash"),
        ("a=!=b", "needs a backslash"),
        (r"a=\x", "is not an escape"),
        ("a=\\", "is not an escape"),
    ],
)
def test_a_bad_text_names_the_part_at_fault(text: str, words: str) -> None:
    """The message has the selector and what in it cannot be read."""
    with pytest.raises(ParseError, match="field selector") as caught:
        fieldselector.parse(text)
    assert words in str(caught.value)


def test_required_values_are_known_for_indexes() -> None:
    """The value that a field must have is known without matching."""
    parsed = fieldselector.parse("spec.nodeName=n1,status.phase!=Failed")
    assert parsed.exact("spec.nodeName") == "n1"
    assert parsed.exact("status.phase") is None


TERMS = st.builds(
    FieldTerm,
    st.sampled_from(["metadata.name", "status.phase", "a"]),
    st.text(alphabet="ab,=\\! é", max_size=5),
    st.booleans(),
)


@given(st.lists(TERMS, max_size=4))
def test_printing_and_parsing_give_the_same_selector(terms: list[FieldTerm]) -> None:
    """The text of any selector parses to an equal selector, whatever its values are."""
    printed = FieldSelector(tuple(sorted(terms, key=str)))
    assert fieldselector.parse(str(printed)) == printed


@given(st.text(alphabet="ab,=\\! é", max_size=12))
def test_any_text_is_a_selector_or_a_parse_error(text: str) -> None:
    """Any text is a selector that prints and parses again, or a ParseError."""
    try:
        parsed = fieldselector.parse(text)
    except ParseError:
        return
    assert fieldselector.parse(str(parsed)) == parsed
