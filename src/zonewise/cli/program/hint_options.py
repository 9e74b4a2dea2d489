"""The flags that say how hints are decided: the same for all commands that use hints.

A command that takes them gets them as one value each, parsed: what no program could start with is
refused by every command alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from zonewise.api.gates import FeatureGates
    from zonewise.api.values.selector import Selector
    from zonewise.install.installation import Role
    from zonewise.topology.shares import MissingCpu, MissingZone

CommandFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Deciding:
    """How hints are decided, and the flags that say so where they differ from the defaults."""

    gates: FeatureGates
    missing_cpu: MissingCpu
    missing_zone: MissingZone
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """What writes slices, and for which Services."""

    role: Role
    services: Selector
    namespaces: Selector
    flags: tuple[str, ...]


def decision_options(function: CommandFunction) -> CommandFunction:
    """``--missing-cpu``, ``--missing-zone`` and ``--feature-gates``, as ``deciding``."""

    @wraps(function)
    def deciding(
        *args: Any, missing_cpu: str, missing_zone: str, feature_gates: str, **others: Any
    ) -> Any:
        from zonewise.api.gates import FeatureGates
        from zonewise.topology.shares import MissingCpu, MissingZone

        decided = Deciding(
            FeatureGates.parse(feature_gates),
            MissingCpu(missing_cpu),
            MissingZone(missing_zone),
            _given(
                ("--missing-cpu", missing_cpu, "disable"),
                ("--missing-zone", missing_zone, "disable"),
                ("--feature-gates", feature_gates, ""),
            ),
        )
        return function(*args, deciding=decided, **others)

    return _with(
        deciding,
        click.option(
            "--missing-cpu",
            type=click.Choice(["disable", "equal"]),
            default="disable",
            help="What a node without allocatable CPU means: no hints, or all nodes count the"
            " same.  [default: disable]",
        ),
        click.option(
            "--missing-zone",
            type=click.Choice(["disable", "skip-node"]),
            default="disable",
            help="What a node without a zone means: no hints, or it does not count."
            "  [default: disable]",
        ),
        click.option(
            "--feature-gates",
            metavar="A=true,B=false",
            default="",
            help="ServiceTopology, ServiceTrafficPolicy, TopologyAwareHints: see docs/embedded.md.",
        ),
    )


def rollout_options(function: CommandFunction) -> CommandFunction:
    """``--endpointslices``, ``--service-selector`` and ``--namespace-selector``, as ``rollout``."""

    @wraps(function)
    def rolling(
        *args: Any, role: Role, service_selector: str, namespace_selector: str, **others: Any
    ) -> Any:
        from zonewise.api.values.selector import parse

        chosen = Rollout(
            role,
            parse(service_selector),
            parse(namespace_selector),
            _given(
                ("--service-selector", service_selector, ""),
                ("--namespace-selector", namespace_selector, ""),
            ),
        )
        return function(*args, rollout=chosen, **others)

    return _with(
        rolling,
        click.option(
            "--endpointslices",
            "role",
            type=click.Choice(["own", "adopt", "observe"]),
            default="observe",
            help="Who writes EndpointSlices: we do (own), Kubernetes' controller with our hints"
            " (adopt), or Kubernetes alone while we only report (observe).  [default: observe]",
        ),
        click.option(
            "--service-selector",
            metavar="SELECTOR",
            default="",
            help="Only Services with these labels.",
        ),
        click.option(
            "--namespace-selector",
            metavar="SELECTOR",
            default="",
            help="Only Services in namespaces with these labels.",
        ),
    )


def _with(
    function: CommandFunction, *options: Callable[[CommandFunction], CommandFunction]
) -> CommandFunction:
    for option in reversed(options):
        function = option(function)
    return function


def _given(*flags: tuple[str, str, str]) -> tuple[str, ...]:
    return tuple(f"{flag}={value}" for flag, value, usual in flags if value != usual)
