"""Node selectors: which nodes a pod or a volume needs.

A selector is a list of terms of which one must hold. A term is a list of conditions on labels and
on fields which must all hold; a term without conditions selects nothing, and so does a selector
without terms. Conditions on labels are those of label selectors, with ``Gt`` and ``Lt`` for labels
that are whole numbers. The only field is ``metadata.name``, with ``In`` and ``NotIn`` of one name.

Selectors are compiled once and evaluated for many nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zonewise.api.errors import ParseError
from zonewise.api.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from zonewise.api.values.selector import EVERYTHING, Operator, Requirement, Selector

NAME_FIELD = "metadata.name"

_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.NOT_EXISTS,
    "Gt": Operator.GREATER,
    "Lt": Operator.LESS,
}


@dataclass(frozen=True, slots=True)
class NameCondition:
    """Whether the name of a node must, or must not, be this one."""

    name: str
    equal: bool


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One compiled term."""

    labels: Selector = EVERYTHING
    names: tuple[NameCondition, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether a node of this name with these labels is selected."""
        if not self.labels.requirements and not self.names:
            return False
        if any((name == condition.name) is not condition.equal for condition in self.names):
            return False
        return self.labels.matches(labels)


@dataclass(frozen=True, slots=True)
class NodeTerms:
    """Compiled terms of which one must hold."""

    terms: tuple[NodeTerm, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether a node of this name with these labels is selected."""
        return any(term.matches(labels, name) for term in self.terms)


def from_term(term: NodeSelectorTerm) -> NodeTerm:
    """The compiled form of one term."""
    return NodeTerm(
        labels=Selector(
            _compile_requirement(condition) for condition in term.match_expressions or ()
        ),
        names=tuple(_compile_name(condition) for condition in term.match_fields or ()),
    )


def from_term_leniently(term: NodeSelectorTerm) -> NodeTerm:
    """The compiled form of one term; a term that cannot be evaluated selects nothing."""
    try:
        return from_term(term)
    except ParseError:
        return NodeTerm()


def from_object(selector: NodeSelector) -> NodeTerms:
    """The compiled form of a selector.

    An API server accepts pods and volumes with terms that cannot be evaluated (``Gt`` of a word).
    Those terms select nothing; the others work as usual.
    """
    terms = selector.node_selector_terms or ()
    return NodeTerms(tuple(from_term_leniently(term) for term in terms))


def _compile_requirement(condition: NodeSelectorRequirement) -> Requirement:
    operator = _OPERATORS.get(condition.operator)
    if operator is None:
        raise ParseError(
            f"node selector: operator {condition.operator[:64]!r} on {condition.key[:317]}"
            f" is not one of {', '.join(_OPERATORS)}"
        )
    values = condition.values or ()
    if operator in {Operator.GREATER, Operator.LESS} and len(values) != 1:
        raise ParseError(
            f"node selector: {condition.operator} on {condition.key[:317]}"
            f" needs one value, has {len(values)}"
        )
    return Requirement(condition.key, operator, frozenset(values))


def _compile_name(condition: NodeSelectorRequirement) -> NameCondition:
    if condition.key != NAME_FIELD:
        raise ParseError(f"node selector: field {condition.key[:64]!r} is not {NAME_FIELD}")
    if condition.operator not in {"In", "NotIn"}:
        raise ParseError(
            f"node selector: operator {condition.operator[:64]!r} on {NAME_FIELD}"
            " is neither In nor NotIn"
        )
    values = condition.values or ()
    if len(values) != 1:
        raise ParseError(f"node selector: {NAME_FIELD} needs one name, has {len(values)}")
    return NameCondition(values[0], condition.operator == "In")
