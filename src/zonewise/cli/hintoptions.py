"""The flags that say how hints are decided: the same for whoever decides, writes or explains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

ROLES = ("own", "adopt", "observe")


def decision_options(function: F) -> F:
    """``--missing-cpu``, ``--missing-zone`` and ``--feature-gates``."""
    for option in (
        click.option(
            "--feature-gates",
            metavar="A=true,B=false",
            default="",
            help="ServiceTopology, ServiceTrafficPolicy, TopologyAwareHints: see docs/embedded.md.",
        ),
        click.option(
            "--missing-zone",
            type=click.Choice(["disable", "skip-node"]),
            default="disable",
            help="What a node without a zone means: no hints, or it does not count."
            "  [default: disable]",
        ),
        click.option(
            "--missing-cpu",
            type=click.Choice(["disable", "equal"]),
            default="disable",
            help="What a node without allocatable CPU means: no hints, or all nodes count the"
            " same.  [default: disable]",
        ),
    ):
        function = option(function)
    return function


def rollout_options(function: F) -> F:
    """``--endpointslices``, ``--service-selector`` and ``--namespace-selector``."""
    for option in (
        click.option(
            "--namespace-selector",
            metavar="SELECTOR",
            default="",
            help="Only Services in namespaces with these labels.",
        ),
        click.option(
            "--service-selector",
            metavar="SELECTOR",
            default="",
            help="Only Services with these labels.",
        ),
        click.option(
            "--endpointslices",
            "role",
            type=click.Choice(ROLES),
            default="observe",
            help="Who writes EndpointSlices: we do (own), Kubernetes' controller with our hints"
            " (adopt), or Kubernetes alone while we only tell (observe).  [default: observe]",
        ),
    ):
        function = option(function)
    return function
