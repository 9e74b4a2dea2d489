"""Label selectors: their grammar, what they match, how they print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import LabelSelector, ParseError, Requirement, Selector
from zonewise.api.meta import LabelSelectorRequirement
from zonewise.api.values import selector
from zonewise.api.values.selector import Operator

MATCHES = [
    # text, labels that match, labels that do not
    ("", [{}, {"a": "1"}], []),
    ("  ", [{}], []),
    ("a", [{"a": ""}, {"a": "1"}], [{}, {"b": "1"}]),
    ("!a", [{}, {"b": "1"}], [{"a": ""}]),
    ("a=1", [{"a": "1", "b": "2"}], [{}, {"a": "2"}]),
    ("a==1", [{"a": "1"}], [{"a": "11"}]),
    ("a=", [{"a": ""}], [{}, {"a": "1"}]),
    ("a=,b", [{"a": "", "b": "x"}], [{"a": ""}]),
    ("a!=1", [{}, {"a": "2"}], [{"a": "1"}]),
    ("a in (1,2)", [{"a": "1"}, {"a": "2"}], [{}, {"a": "3"}]),
    ("a notin (1,2)", [{}, {"a": "3"}], [{"a": "1"}]),
    ("a in ()", [{"a": ""}], [{}, {"a": "1"}]),
    ("a in (,1)", [{"a": ""}, {"a": "1"}], [{"a": "2"}]),
    ("a in (1,)", [{"a": ""}, {"a": "1"}], [{"a": "2"}]),
    ("a in (in,notin)", [{"a": "in"}], [{"a": "x"}]),
    ("in in (a)", [{"in": "a"}], [{"a": "a"}]),
    ("notin", [{"notin": "x"}], [{}]),
    ("a>5", [{"a": "6"}, {"a": "10"}], [{}, {"a": "5"}, {"a": "x"}, {"a": ""}, {"a": "9e9"}]),
    ("a<5", [{"a": "4"}, {"a": "-9"}], [{}, {"a": "5"}, {"a": "99999999999999999999"}]),
    ("a=1,a=2", [], [{"a": "1"}, {"a": "2"}]),
    ("a=1,a!=2", [{"a": "1"}], [{"a": "2"}]),
    ("x.io/a = 1 ,\n\tb", [{"x.io/a": "1", "b": ""}], [{"x.io/a": "1"}]),
    (" ! a , b in ( 1 , 2 ) ", [{"b": "1"}], [{"a": "", "b": "1"}, {"b": "3"}]),
]


@pytest.mark.parametrize(("text", "yes", "no"), MATCHES)
def test_texts_match_as_on_a_server(
    text: str, yes: list[dict[str, str]], no: list[dict[str, str]]
) -> None:
    """Every form of the grammar selects what an API server selects with it."""
    parsed = selector.parse(text)
    assert all(parsed.matches(labels) for labels in yes)
    assert not any(parsed.matches(labels) for labels in no)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a in", "expected '(', found the end"),
        ("a in (1", "expected ',' or ')', found the end"),
        ("a in (1 2)", "found '2' at character 9"),
        ("a in 1", "expected '(', found '1' at character 6"),
        ("a b", "expected in, notin, =, ==, !=, > or < after a key, found 'b' at character 3"),
        ("a,", "expected a label key, found the end"),
        (",a", "expected a label key, found ',' at character 1"),
        ("a=1 b", "expected ',' or the end, found 'b'"),
        ("a=(1)", "expected a value, found '('"),
        ("!a=1", "expected ',' or the end, found '='"),
        ("!!a", "expected a label key, found '!'"),
        ("a=!b", "expected a value, found '!'"),
        ("a=1)", "found ')'"),
        ("a>x", "needs a whole number, not 'x'"),
        ("a>", "needs a whole number, not ''"),
        ("a>-5", "value '-5' of label a"),
        ("-a=1", "label key '-a' may have only"),
        ("a/b/c", "label key 'a/b/c' has more than one '/'"),
        ("a=é", "value 'é' of label a"),
        ("a=" + "x" * 64, "has more than 63 characters"),
        ("a in (b-)", "value 'b-' of label a"),
    ],
)
def test_a_bad_text_names_the_part_at_fault(text: str, words: str) -> None:
    """The message has the selector, what was expected or wrong, and the position."""
    with pytest.raises(ParseError) as caught:
        selector.parse(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith("label selector '")


def test_a_long_bad_text_gives_a_short_message() -> None:
    """A message stays readable however long the selector is."""
    with pytest.raises(ParseError) as caught:
        selector.parse("a=" + "é" * 100_000)
    assert len(str(caught.value)) < 500


def test_printing_is_canonical() -> None:
    """Keys and values are sorted, so equal selectors print alike and are equal."""
    first = selector.parse("z,b in (y,x),!c,a==1,d!=2,e>3")
    assert str(first) == "a=1,b in (x,y),!c,d!=2,e>3,z"
    second = selector.parse("e>3,d!=2,a=1,!c,b in (x,y,x),z")
    assert first == second
    assert hash(first) == hash(second)
    assert first != selector.parse("a")
    assert first != "a"
    assert repr(selector.parse("a")) == "Selector('a')"


def test_required_values_are_known_for_indexes() -> None:
    """Equalities and sets give the values to look up; a contradiction gives none."""
    assert selector.parse("a=1,b in (x,y),c,!d,e!=5").required == {
        "a": frozenset({"1"}),
        "b": frozenset({"x", "y"}),
    }
    assert selector.parse("a=1,a=2").required == {"a": frozenset()}
    assert selector.EVERYTHING.required == {}


def test_objects_are_selectors() -> None:
    """matchLabels and matchExpressions must all hold."""
    parsed = selector.from_object(
        LabelSelector(
            match_labels={"app": "web"},
            match_expressions=(
                LabelSelectorRequirement(key="tier", operator="In", values=("a", "b")),
                LabelSelectorRequirement(key="old", operator="DoesNotExist", values=None),
                LabelSelectorRequirement(key="env", operator="NotIn", values=("dev",)),
                LabelSelectorRequirement(key="x", operator="Exists"),
            ),
        )
    )
    assert str(parsed) == "app=web,env notin (dev),!old,tier in (a,b),x"
    assert parsed.matches({"app": "web", "tier": "a", "x": ""})
    assert not parsed.matches({"app": "web", "tier": "a", "x": "", "old": ""})


def test_an_empty_object_selects_everything_and_none_nothing() -> None:
    """The API's two special cases are opposite to each other."""
    assert selector.from_object(LabelSelector()).matches({"a": "1"})
    assert selector.from_object(LabelSelector()) == selector.EVERYTHING
    nothing = selector.from_object(None)
    assert not nothing.matches({})
    assert not nothing.matches({"a": "1"})
    assert nothing == selector.NOTHING
    assert nothing != selector.EVERYTHING


@pytest.mark.parametrize(
    ("operator", "values", "words"),
    [
        ("in", ("a",), "operator 'in' on k is not one of In"),
        ("Gt", ("1",), "operator 'Gt' on k is not one of In"),
        ("In", (), "in on k needs a value"),
        ("Exists", ("a",), "exists on k takes no values"),
        ("DoesNotExist", ("a",), "! on k takes no values"),
    ],
)
def test_bad_objects_name_the_operator(operator: str, values: tuple[str, ...], words: str) -> None:
    """The error names the operator of an invalid expression."""
    expression = LabelSelectorRequirement(key="k", operator=operator, values=values)
    with pytest.raises(ParseError) as caught:
        selector.from_object(LabelSelector(match_expressions=(expression,)))
    assert words in str(caught.value)


def test_a_requirement_takes_the_right_number_of_values() -> None:
    """A requirement that compares a key with two values for equality is refused."""
    with pytest.raises(ParseError, match="needs one value, has 2"):
        Requirement("a", Operator.EQUALS, frozenset({"1", "2"}))


def test_labels_select_like_a_service() -> None:
    """A map of labels selects objects that have all of them."""
    parsed = selector.from_labels({"b": "2", "a": "1"})
    assert str(parsed) == "a=1,b=2"
    assert parsed.matches({"a": "1", "b": "2", "c": "3"})
    assert not parsed.matches({"a": "1"})


KEYS = st.sampled_from(["a", "b", "in", "notin", "x.io/a", "A_b.c-d"])
VALUES = st.sampled_from(["", "1", "2", "10", "x", "in", "a-b_c.D"])
NUMBERS = st.integers(0, 20).map(str)
REQUIREMENTS = st.one_of(
    st.builds(
        Requirement,
        KEYS,
        st.sampled_from([Operator.EQUALS, Operator.NOT_EQUALS]),
        VALUES.map(lambda value: frozenset({value})),
    ),
    st.builds(
        Requirement,
        KEYS,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.frozensets(VALUES, min_size=1, max_size=3),
    ),
    st.builds(Requirement, KEYS, st.sampled_from([Operator.EXISTS, Operator.NOT_EXISTS])),
    st.builds(
        Requirement,
        KEYS,
        st.sampled_from([Operator.GREATER, Operator.LESS]),
        NUMBERS.map(lambda value: frozenset({value})),
    ),
)
SELECTORS = st.lists(REQUIREMENTS, max_size=4).map(Selector)
LABELS = st.dictionaries(KEYS, VALUES | NUMBERS, max_size=4)


@given(SELECTORS)
def test_printing_and_parsing_give_the_same_selector(drawn: Selector) -> None:
    """The text of any selector parses to an equal selector."""
    assert selector.parse(str(drawn)) == drawn


@given(SELECTORS, LABELS)
def test_a_selector_is_the_conjunction_of_its_requirements(
    drawn: Selector, labels: dict[str, str]
) -> None:
    """The fast matcher agrees with testing each requirement."""
    assert drawn.matches(labels) == all(r.matches(labels) for r in drawn.requirements)


@given(SELECTORS, LABELS)
def test_an_index_never_hides_a_match(drawn: Selector, labels: dict[str, str]) -> None:
    """Labels that match have one of the required values under every required key."""
    if drawn.matches(labels):
        assert all(labels.get(key) in values for key, values in drawn.required.items())


@given(REQUIREMENTS, LABELS)
def test_opposite_operators_disagree(requirement: Requirement, labels: dict[str, str]) -> None:
    """Each of =, in and existence has an opposite that matches exactly the rest."""
    opposites = {
        Operator.EQUALS: Operator.NOT_EQUALS,
        Operator.IN: Operator.NOT_IN,
        Operator.EXISTS: Operator.NOT_EXISTS,
    }
    other = opposites.get(requirement.operator)
    if other is not None:
        opposite = Requirement(requirement.key, other, requirement.values)
        assert requirement.matches(labels) != opposite.matches(labels)


@given(st.text(alphabet="ab1 ,=!()<>in\t-./é", max_size=20))
def test_any_text_is_a_selector_or_a_parse_error(text: str) -> None:
    """Any text is a selector that prints and parses again, or a ParseError."""
    try:
        parsed = selector.parse(text)
    except ParseError:
        return
    assert selector.parse(str(parsed)) == parsed
