"""The flags that say how hints are decided: the same for all commands that use hints.

A command that takes them gets them as one value each, parsed, so every command refuses the same
wrong values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.program.options import add_options, feature_gates_option

if TYPE_CHECKING:
    from zonewise.api.gates import FeatureGates
    from zonewise.api.values.selector import Selector
    from zonewise.install.installation import Role
    from zonewise.topology.shares import MissingCpu, MissingZone

CommandFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """How hints are decided, and the flags that say so where they differ from the defaults.

    ``gate_flags`` are those of them that programs take which decide no hints.
    """

    gates: FeatureGates
    gate_flags: tuple[str, ...]
    missing_cpu: MissingCpu
    missing_zone: MissingZone
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """What writes slices, and for which Services."""

    role: Role
    services: Selector
    namespaces: Selector
    flags: tuple[str, ...]


def decision_options(function: CommandFunction) -> CommandFunction:
    """``--missing-cpu``, ``--missing-zone`` and ``--feature-gates``, as ``decision``."""

    @wraps(function)
    def parse_flags(
        *args: Any, missing_cpu: str, missing_zone: str, feature_gates: str, **others: Any
    ) -> Any:
        from zonewise.api.gates import FeatureGates
        from zonewise.topology.shares import MissingCpu, MissingZone

        decision = DecisionOptions(
            FeatureGates.parse(feature_gates),
            _changed_flags(("--feature-gates", feature_gates, "")),
            MissingCpu(missing_cpu),
            MissingZone(missing_zone),
            _changed_flags(
                ("--missing-cpu", missing_cpu, "disable"),
                ("--missing-zone", missing_zone, "disable"),
                ("--feature-gates", feature_gates, ""),
            ),
        )
        return function(*args, decision=decision, **others)

    return add_options(
        click.Option(
            ["--missing-cpu"],
            type=click.Choice(["disable", "equal"]),
            default="disable",
            help="What a node without allocatable CPU means: no hints, or all nodes count the"
            " same.  [default: disable]",
        ),
        click.Option(
            ["--missing-zone"],
            type=click.Choice(["disable", "skip-node"]),
            default="disable",
            help="What a node without a zone means: no hints, or it does not count."
            "  [default: disable]",
        ),
        feature_gates_option(),
    )(parse_flags)


def rollout_options(function: CommandFunction) -> CommandFunction:
    """``--endpointslices``, ``--service-selector`` and ``--namespace-selector``, as ``rollout``."""

    @wraps(function)
    def parse_flags(
        *args: Any, role: Role, service_selector: str, namespace_selector: str, **others: Any
    ) -> Any:
        from zonewise.api.values.selector import parse

        rollout = RolloutOptions(
            role,
            parse(service_selector),
            parse(namespace_selector),
            _changed_flags(
                ("--service-selector", service_selector, ""),
                ("--namespace-selector", namespace_selector, ""),
            ),
        )
        return function(*args, rollout=rollout, **others)

    return add_options(
        click.Option(
            ["--endpointslices", "role"],
            type=click.Choice(["own", "adopt", "observe"]),
            default="observe",
            help="Who writes EndpointSlices: Zonewise (own), Kubernetes with the hints of Zonewise"
            " (adopt), or Kubernetes while Zonewise only reports (observe).  [default: observe]",
        ),
        click.Option(
            ["--service-selector"],
            metavar="SELECTOR",
            default="",
            help="Only Services with these labels.",
        ),
        click.Option(
            ["--namespace-selector"],
            metavar="SELECTOR",
            default="",
            help="Only Services in namespaces with these labels.",
        ),
    )(parse_flags)


def _changed_flags(*flags: tuple[str, str, str]) -> tuple[str, ...]:
    """Those of ``(flag, value, default)`` that differ from the default, as arguments."""
    return tuple(f"{flag}={value}" for flag, value, default in flags if value != default)
