"""The flag that says how disruption budgets are handled: the same for every program."""

from __future__ import annotations

from typing import Any

import click


def budgets_option(function: Any) -> Any:
    """``--budgets``, as ``budgets``."""
    return click.option(
        "--budgets",
        type=click.Choice(["off", "observe", "enforce"]),
        default="off",
        help="Budgets per failure domain: ignored, counted and reported, or enforced: evictions and"
        " workload controllers are refused what they do not allow.  [default: off]",
    )(function)
