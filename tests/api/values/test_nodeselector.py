"""Node selector terms: which nodes a pod or a volume needs."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api import ParseError, convert
from zonewise.api.objects.core import NodeSelector, NodeSelectorTerm
from zonewise.api.values import nodeselector

LABELS = {"zone": "a", "cpus": "8", "name": "x"}


def term(**parts: Any) -> NodeSelectorTerm:
    """A term from its JSON form."""
    return convert(NodeSelectorTerm, parts)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    """One condition in its JSON form."""
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (expression("zone", "In", "a", "b"), True),
        (expression("zone", "In", "b"), False),
        (expression("rack", "In", "a"), False),
        (expression("zone", "NotIn", "b"), True),
        (expression("zone", "NotIn", "a"), False),
        (expression("rack", "NotIn", "a"), True),
        (expression("zone", "Exists"), True),
        (expression("rack", "Exists"), False),
        (expression("rack", "DoesNotExist"), True),
        (expression("zone", "DoesNotExist"), False),
        (expression("cpus", "Gt", "7"), True),
        (expression("cpus", "Gt", "8"), False),
        (expression("cpus", "Lt", "9"), True),
        (expression("cpus", "Lt", "8"), False),
        (expression("zone", "Gt", "0"), False),
        (expression("rack", "Lt", "9"), False),
    ],
)
def test_conditions_on_labels(condition: dict[str, Any], expected: bool) -> None:
    """Each operator of a condition on labels decides as the scheduler of a real cluster does."""
    terms = nodeselector.from_term(term(matchExpressions=[condition]))
    assert terms.matches(LABELS, "n1") is expected


@pytest.mark.parametrize(
    ("operator", "name", "expected"),
    [("In", "n1", True), ("In", "n2", False), ("NotIn", "n1", False), ("NotIn", "n2", True)],
)
def test_conditions_on_the_name(operator: str, name: str, expected: bool) -> None:
    """A node can be named, which is how DaemonSets bind their pods."""
    terms = nodeselector.from_term(term(matchFields=[expression("metadata.name", operator, name)]))
    assert terms.matches({}, "n1") is expected


def test_all_conditions_of_a_term_must_hold() -> None:
    """Labels and name are joined by "and"."""
    both = term(
        matchExpressions=[expression("zone", "In", "a"), expression("cpus", "Gt", "4")],
        matchFields=[expression("metadata.name", "In", "n1")],
    )
    terms = nodeselector.from_term(both)
    assert terms.matches(LABELS, "n1")
    assert not terms.matches(LABELS, "n2")
    assert not terms.matches({**LABELS, "cpus": "4"}, "n1")


def test_one_term_of_a_selector_is_enough() -> None:
    """Terms are joined by "or"."""
    terms = nodeselector.from_object(
        convert(
            NodeSelector,
            {
                "nodeSelectorTerms": [
                    {"matchExpressions": [expression("zone", "In", "b")]},
                    {"matchExpressions": [expression("zone", "In", "a")]},
                ]
            },
        )
    )
    assert terms.matches(LABELS, "n1")
    assert not terms.matches({"zone": "c"}, "n1")


@pytest.mark.parametrize(
    "terms",
    [
        nodeselector.from_object(NodeSelector()),
        nodeselector.from_object(NodeSelector(node_selector_terms=None)),
        nodeselector.from_object(NodeSelector(node_selector_terms=(NodeSelectorTerm(),))),
        nodeselector.from_object(convert(NodeSelector, {"nodeSelectorTerms": None})),
    ],
)
def test_empty_selectors_select_nothing(terms: nodeselector.NodeTerms) -> None:
    """A selector without terms, or with an empty term, fits no node."""
    assert not terms.matches(LABELS, "n1")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"matchExpressions": [expression("zone", "Equals", "a")]},
            "'Equals' on zone is not one of",
        ),
        ({"matchExpressions": [expression("zone", "In")]}, "in on zone needs a value"),
        ({"matchExpressions": [expression("zone", "Exists", "a")]}, "takes no values"),
        ({"matchExpressions": [expression("cpus", "Gt", "x")]}, "needs a whole number"),
        ({"matchExpressions": [expression("cpus", "Gt", "1", "1")]}, "needs one value, has 2"),
        ({"matchExpressions": [expression("a b", "Exists")]}, "label key 'a b'"),
        ({"matchFields": [expression("spec.x", "In", "a")]}, "'spec.x' is not metadata.name"),
        ({"matchFields": [expression("metadata.name", "Exists")]}, "neither In nor NotIn"),
        ({"matchFields": [expression("metadata.name", "In", "a", "b")]}, "needs one name, has 2"),
    ],
)
def test_a_bad_term_names_the_part_at_fault(parts: dict[str, Any], words: str) -> None:
    """An invalid condition is refused when it is compiled, not while scheduling."""
    with pytest.raises(ParseError) as caught:
        nodeselector.from_term(term(**parts))
    assert words in str(caught.value)


def test_an_invalid_term_selects_nothing_and_others_still_count() -> None:
    """A server accepts such terms; the other terms of the selector are used."""
    bad = term(matchExpressions=[expression("cpus", "Gt", "many")])
    good = term(matchFields=[expression("metadata.name", "In", "n1")])
    assert nodeselector.from_term_leniently(bad) == nodeselector.NodeTerm()
    assert not nodeselector.from_object(NodeSelector(node_selector_terms=(bad,))).matches({}, "n1")
    both = nodeselector.from_object(NodeSelector(node_selector_terms=(bad, good)))
    assert both.matches(LABELS, "n1")
