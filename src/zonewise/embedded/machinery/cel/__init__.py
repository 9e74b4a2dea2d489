"""The Common Expression Language, as a Kubernetes API server implements it.

``compile_expression`` checks types and gives a ``Program``; ``Program.evaluate`` runs it within a
budget. Written here and not taken from a library: ``docs/design/002-cel.md`` has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.embedded.machinery.cel.compiler import compiled
from zonewise.embedded.machinery.cel.evaluation import Frame, OutOfBudget, Run
from zonewise.embedded.machinery.cel.kinds import CelKind
from zonewise.embedded.machinery.cel.syntax import CompileError
from zonewise.embedded.machinery.cel.values import EvaluationError

CALL_BUDGET = 1_000_000

__all__ = [
    "CALL_BUDGET",
    "CelKind",
    "CompileError",
    "EvaluationError",
    "OutOfBudget",
    "Program",
    "compile_expression",
]


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression; may be run any number of times."""

    text: str
    kind: CelKind
    variables: frozenset[str]
    run: Run

    def evaluate(
        self, variables: Mapping[str, Any], *, budget: int = CALL_BUDGET
    ) -> tuple[Any, int]:
        """The value, and how many steps it took; EvaluationError if there is none."""
        frame = Frame(dict(variables), budget)
        try:
            return self.run(frame), budget - frame.budget
        except RecursionError:
            raise EvaluationError("values nest too deep") from None


def compile_expression(text: str, variables: Mapping[str, CelKind]) -> Program:
    """The program of an expression over variables of these kinds."""
    made = compiled(text, variables)
    return Program(text, made.kind, made.variables, made.run)
