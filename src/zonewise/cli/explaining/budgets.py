"""``zonewise explain budget|budgets|pod|pods``: what budgets allow, from a cluster or a dump."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from zonewise.api.errors import ConfigError
from zonewise.cli.program import interrupts
from zonewise.cli.program.dump_kinds import BUDGETS_ADVICE, advice, lacking, unknown_budgets
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import is_plain, rendered
from zonewise.cli.program.sources import (
    absent,
    dumped,
    namespaces_with,
    note_absences,
    only,
    readable,
    usable,
)

if TYPE_CHECKING:
    from zonewise.api.objects.policy import PodDisruptionBudget
    from zonewise.api.unstructured import Unstructured
    from zonewise.explain.budgets import BudgetCluster, BudgetReport, PodReport
    from zonewise.runtime.cache.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _Source:
    """A cluster, and the file it was read from, if from one."""

    cluster: BudgetCluster
    file: str = ""


def explain(
    options: Options,
    what: str,
    name: str | None,
    *,
    all_namespaces: bool,
    files: tuple[str, ...],
    output: str | None,
) -> None:
    """Print what is requested."""
    from zonewise.explain.cluster import DEFAULT_NAMESPACE

    kind = what if what in ("pdb", "tdb") else ""
    if kind:
        what, name = ("budget", f"{kind}/{name}") if name else ("budgets", None)
    one = what.removesuffix("s")
    if what == one and not name:
        raise click.UsageError(f"which {one}? give its name")
    if what != one and name:
        raise click.UsageError(f"{what} are all of them; for one say: {one} {name}")
    if what == one and all_namespaces:
        raise click.UsageError(f"one {one} is in one namespace; give -n instead of -A")
    if files:
        namespace = options.namespace or DEFAULT_NAMESPACE
        sources = _dumped(files, one)
    else:
        namespace, sources = _asked(options, all_namespaces=all_namespaces)
    if name:
        report = _found(sources, one, name, namespace, None if files else options)
        _print_one(report, sources[0].file, output)
    else:
        _print_many(sources, one, kind, None if all_namespaces else namespace, output)


def _dumped(files: Sequence[str], what: str) -> list[_Source]:
    """The clusters of dumps; what they lack is refused, or noted.

    A pod may go only if all its budgets agree, so a dump that says nothing of PodDisruptionBudgets
    does not tell. A server without our definitions cannot dump TopologyDisruptionBudgets: that
    there are none in a dump is noted, unless it shows that its cluster has none. Pods' owners may
    be gone, and a budget without pods or owners allows nothing.
    """
    from zonewise.api import Node, Pod, PodDisruptionBudget, TopologyDisruptionBudget

    found: list[tuple[_Source, str]] = []
    absences: list[tuple[str, str, str]] = []
    for snapshot, file in dumped(files):
        cluster = _cluster(snapshot, list(_others(snapshot)), _plain_budgets(snapshot))
        needed: list[type[Any]] = [Node]
        helpful: list[type[Any]] = []
        (needed if what == "pod" else helpful).append(Pod)
        if what == "pod" or snapshot.lacks(TopologyDisruptionBudget):
            needed.append(PodDisruptionBudget)
        if what == "pod" and unknown_budgets(snapshot):
            absences.append((TopologyDisruptionBudget.resource.kind, file, BUDGETS_ADVICE))
        absences += [
            (kind.resource.kind, file, advice([kind], snapshot))
            for kind in helpful
            if snapshot.lacks(kind)
        ]
        absences += [
            (owner.resource.kind, file, f"it owns pods: dump {owner.resource.plural} as well")
            for owner in _unknown_owners(cluster)
            if snapshot.lacks(owner)
        ]
        where = ", ".join(snapshot.files)
        found.append((_Source(cluster, file), lacking(snapshot, needed, where)))
    sources = usable(found)
    note_absences(absences)
    return sources


def _unknown_owners(cluster: BudgetCluster) -> list[type[Any]]:
    """The kinds of the owners of covered pods that were not found."""
    from zonewise.api import Resource, unstructured

    places = {
        (group, kind)
        for namespace_budgets in cluster.budgets_cache.by_namespace.values()
        for group, kind, _, _ in namespace_budgets.missing_owners()
    }
    return [
        unstructured(Resource(group, "v1", kind, f"{kind.lower()}s"))
        for group, kind in sorted(places)
    ]


def _asked(options: Options, *, all_namespaces: bool) -> tuple[str, list[_Source]]:
    from zonewise.api.objects.policy import PodDisruptionBudget
    from zonewise.cli.program.connection import cluster_config, connected
    from zonewise.runtime.cache.snapshot import Snapshot
    from zonewise.runtime.client.scales import fetch

    namespace = cluster_config(options).namespace
    kinds = _kinds()

    async def read() -> BudgetCluster:
        async with connected(options) as client:
            snapshot = await Snapshot.live(
                client, kinds, namespace=None if all_namespaces else namespace
            )
            budgets = snapshot.all(PodDisruptionBudget)
            cluster = _cluster(snapshot, [], budgets, now=time.time())
            others = [
                item
                for namespace_budgets in cluster.budgets_cache.by_namespace.values()
                for reference in namespace_budgets.missing_owners()
                if (item := await fetch(client, *reference)) is not None
            ]
            return _cluster(snapshot, others, budgets, now=time.time())

    return namespace, [_Source(interrupts.run(read()))]


def _kinds() -> tuple[type[Any], ...]:
    from zonewise.api import (
        DaemonSet,
        Deployment,
        DisruptionLedger,
        Node,
        Pod,
        PodDisruptionBudget,
        ReplicaSet,
        StatefulSet,
        TopologyDisruptionBudget,
    )

    return (
        Node,
        Pod,
        TopologyDisruptionBudget,
        DisruptionLedger,
        Deployment,
        ReplicaSet,
        StatefulSet,
        DaemonSet,
        PodDisruptionBudget,
    )


def _cluster(
    snapshot: Snapshot,
    others: Iterable[Unstructured],
    plain: Iterable[PodDisruptionBudget],
    *,
    now: float | None = None,
) -> BudgetCluster:
    from zonewise.explain.budgets import BudgetCluster

    node, pod, budget, ledger, *owners, _ = _kinds()
    return BudgetCluster(
        nodes=snapshot.all(node),
        pods=snapshot.all(pod),
        budgets=[*snapshot.all(budget), *plain],
        owners=[*(item for kind in owners for item in snapshot.all(kind)), *others],
        ledgers=readable(snapshot, ledger) or (),  # without them nothing is granted
        now=now,
        clock=time.time(),
    )


def _others(snapshot: Snapshot) -> Iterator[Unstructured]:
    """Objects of a dump of kinds that are not read otherwise; any of them may own pods."""
    known = {(kind.resource.group, kind.resource.kind) for kind in _kinds()}
    for item in snapshot.everything():
        if (item.resource.group, item.resource.kind) not in known:
            yield item


def _plain_budgets(snapshot: Snapshot) -> list[PodDisruptionBudget]:
    """PodDisruptionBudgets of a dump; those of KEP-8 are of ``v1beta1``, which has equal fields."""
    from zonewise.api import PodDisruptionBudget, convert

    return [
        convert(PodDisruptionBudget, item.raw)
        for item in snapshot.everything()
        if (item.resource.group, item.resource.kind) == ("policy", "PodDisruptionBudget")
    ]


def _found(
    sources: Sequence[_Source], what: str, name: str, namespace: str, asked: Options | None
) -> BudgetReport | PodReport:
    cluster = only(sources, f"{what}s").cluster
    wanted, _, plain = name.rpartition("/")
    found = [
        report
        for report in _reports(cluster, what, None)
        if _name(report) == plain and wanted in ("", _short(report))
    ]
    here = [report for report in found if report.namespace == namespace]
    if len(here) > 1:
        raise ConfigError(f"there are two budgets {plain}; say tdb/{plain} or pdb/{plain}")
    if here:
        return here[0]
    elsewhere = [report.namespace for report in found]
    if asked is not None:
        elsewhere += namespaces_with(asked, _named(what, wanted), plain)
    raise absent(what, name, namespace, elsewhere=elsewhere, listing=f"explain {what}s -A")


def _named(what: str, wanted: str) -> tuple[type[Any], ...]:
    """The kinds that a pod, a budget, or a budget of one kind is of."""
    from zonewise.api import Pod, PodDisruptionBudget, TopologyDisruptionBudget

    budgets: dict[str, type[Any]] = {"tdb": TopologyDisruptionBudget, "pdb": PodDisruptionBudget}
    if what == "pod":
        return () if wanted else (Pod,)
    return tuple(kind for short, kind in budgets.items() if wanted in ("", short))


def _reports(
    cluster: BudgetCluster, what: str, namespace: str | None
) -> Sequence[BudgetReport | PodReport]:
    return (cluster.report_budgets if what == "budget" else cluster.report_pods)(namespace)


def _name(report: BudgetReport | PodReport) -> str:
    from zonewise.explain.budgets import BudgetReport

    return report.budget if isinstance(report, BudgetReport) else report.pod


def _short(report: BudgetReport | PodReport) -> str:
    from zonewise.explain.budgets import BudgetReport

    if not isinstance(report, BudgetReport):
        return ""
    return "tdb" if report.kind == "TopologyDisruptionBudget" else "pdb"


def _print_one(report: BudgetReport | PodReport, file: str, output: str | None) -> None:
    from zonewise.explain.disruption_pages import render_disruption

    if not is_plain(output):
        click.echo(render_disruption(report))
        return
    _note(report)
    click.echo(rendered(_row(file, report), output))


def _print_many(
    sources: Sequence[_Source], what: str, kind: str, namespace: str | None, output: str | None
) -> None:
    from zonewise.explain.disruption_pages import render_disruptions

    reports = [
        (source.file, report)
        for source in sources
        for report in _reports(source.cluster, what, namespace)
        if kind in ("", _short(report))
    ]
    if not is_plain(output):
        place = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(render_disruptions(reports) if reports else f"There is no {what} in {place}.")
        return
    for _, report in reports:
        _note(report)
    rows = [_row(file, report) for file, report in reports]
    if output == "jsonl":
        for row in rows:
            click.echo(rendered(row, output))
    else:
        click.echo(rendered(rows, output))


def _row(file: str, report: BudgetReport | PodReport) -> dict[str, Any]:
    """As in JSON; what comes from a dump names its file."""
    return {"file": file, **report.to_dict()} if file else report.to_dict()


def _note(report: BudgetReport | PodReport) -> None:
    """What programs have no field for."""
    from zonewise.explain.budgets import BudgetReport

    if isinstance(report, BudgetReport):
        for note in report.notes:
            click.echo(f"{report.kind} {report.namespace}/{report.budget}: {note}", err=True)
