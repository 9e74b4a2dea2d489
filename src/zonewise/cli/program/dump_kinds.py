"""Which kinds a dump needs, and the advice where one is missing.

There is one list for all commands that read dumps. kubectl fails as a whole if a server does not
know one of the requested kinds, so the kinds that Zonewise defines are a list of their own.

``kubectl get`` prints no trace of a kind that has no object. So a dump without a kind that a report
needs is not read as a cluster without it: it is refused, unless the dump has an empty list of that
kind, which ``kubectl get --raw`` prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonewise.runtime.cache.snapshot import Snapshot

KINDS = (
    "nodes,namespaces,pods,services,endpointslices,deploy,rs,sts,ds,controllerrevisions,jobs,pdb,"
    "pvc,pv,sc,csinodes,priorityclasses,events"
)
"""Kinds that every cluster knows."""

OWN_KINDS = "tdb,domainrollouts,disruptionledgers,podlocators"
"""Kinds of a cluster that has Zonewise's definitions."""

DUMP_COMMAND = f"kubectl get {KINDS} -A -o yaml"

BUDGETS_ADVICE = (
    "if the cluster has them, dump them as well: kubectl get tdb -A -o yaml > own.yaml, and add"
    " -f own.yaml"
)
"""How to get TopologyDisruptionBudgets, which only some clusters know."""

_ALWAYS_THERE = frozenset({"nodes", "services", "endpointslices", "pods"})
"""Resources of which no cluster in use has none."""


def describe_missing(snapshot: Snapshot, kinds: Sequence[type[Any]], where: str) -> str:
    """A sentence on the kinds that a dump has no trace of; "" if there are none."""
    missing = [kind.resource for kind in kinds if snapshot.lacks(kind)]
    if not missing:
        return ""
    names = " and ".join(f"no {resource.kind}" for resource in missing)
    return f"there is {names} in {where}; {advise_dump(kinds, snapshot)}"


def advise_dump(kinds: Sequence[type[Any]], snapshot: Snapshot) -> str:
    """How to get the kinds that a dump has no trace of."""
    missing = [kind.resource for kind in kinds if snapshot.lacks(kind)]
    text = f"dump {' and '.join(resource.plural for resource in missing)} as well"
    paths = [resource.path() for resource in missing if resource.plural not in _ALWAYS_THERE]
    if paths:
        text += f", or if the cluster has none add what kubectl get --raw {paths[0]} prints"
    return text


def may_have_budgets(snapshot: Snapshot) -> bool:
    """Whether the cluster of a dump may have TopologyDisruptionBudgets that the dump lacks.

    Not if the dump has some, or a list of them, or the cluster's definitions without theirs.
    """
    from zonewise.api.objects.apiextensions import CustomResourceDefinition
    from zonewise.api.objects.budgets import TopologyDisruptionBudget

    resource = TopologyDisruptionBudget.resource
    name = f"{resource.plural}.{resource.group}"
    undefined = not snapshot.lacks(CustomResourceDefinition) and not snapshot.get(
        CustomResourceDefinition, name
    )
    return snapshot.lacks(TopologyDisruptionBudget) and not undefined
