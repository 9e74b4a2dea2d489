"""``zonewise explain budget|budgets|pod|pods``: what budgets allow, from a cluster or a dump."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import click

from zonewise.api import (
    DaemonSet,
    Deployment,
    DisruptionLedger,
    DomainRollout,
    Node,
    Pod,
    PodDisruptionBudget,
    ReplicaSet,
    Resource,
    StatefulSet,
    TopologyDisruptionBudget,
    convert,
    unstructured,
)
from zonewise.api.errors import ConfigError
from zonewise.api.unstructured import Unstructured
from zonewise.cli.program import interrupts
from zonewise.cli.program.dump_kinds import (
    BUDGETS_ADVICE,
    advise_dump,
    describe_missing,
    may_have_budgets,
)
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import is_plain, make_row, print_rows, render
from zonewise.cli.program.sources import (
    Source,
    choose_namespace,
    explain_absence,
    find_namespaces,
    list_readable,
    note_absences,
    read_dumps,
    require_namespace,
    require_single,
    select_usable,
)
from zonewise.explain.budgets import BudgetCluster, BudgetReport
from zonewise.explain.disruption_pages import Report, render_disruption, render_disruptions
from zonewise.runtime.cache.snapshot import Snapshot

_OWNERS: tuple[type[Any], ...] = (Deployment, ReplicaSet, StatefulSet, DaemonSet)
_BUDGETS: dict[str, type[Any]] = {"tdb": TopologyDisruptionBudget, "pdb": PodDisruptionBudget}
_KINDS: tuple[type[Any], ...] = (
    Node,
    Pod,
    DisruptionLedger,
    DomainRollout,
    *_OWNERS,
    *_BUDGETS.values(),
)


def print_budgets(
    options: Options,
    what: str,
    name: str | None,
    *,
    all_namespaces: bool,
    files: Sequence[str],
    output: str | None,
) -> None:
    """Print the report of a budget or pod in full, or a line for each of them."""
    kind = what if what in _BUDGETS else ""
    if kind:
        what, name = ("budget", f"{kind}/{name}") if name else ("budgets", None)
    noun = what.removesuffix("s")
    if what == noun and not name:
        raise click.UsageError(f"a name is missing; write explain {noun} NAME")
    if what != noun and name:
        raise click.UsageError(f"{what} takes no name; write explain {noun} {name}")
    if name and all_namespaces:
        raise click.UsageError("-A does not go with a name; give the namespace with -n")
    namespace = choose_namespace(options, files)
    if files:
        sources = _read_dumped(files, noun)
    else:
        sources = [_read_live(options, None if all_namespaces else namespace)]
    if name:
        report = _explain(sources, noun, name, namespace, None if files else options)
        _print_one(report, sources[0].file, output)
    else:
        chosen, live = None if all_namespaces else namespace, None if files else options
        _print_all(sources, noun, kind, chosen, live, output)


def _read_dumped(files: Sequence[str], noun: str) -> list[Source[BudgetCluster]]:
    """The clusters of dumps; kinds that they lack are refused, or noted.

    A pod may be disrupted only if all its budgets allow it, so a dump without PodDisruptionBudgets
    is not enough. A server without our definitions cannot dump TopologyDisruptionBudgets: that a
    dump has none is noted, unless it shows that its cluster has none. Pods' owners may be gone, and
    a budget without pods or owners allows nothing.
    """
    clusters: list[tuple[Source[BudgetCluster], str]] = []
    absences: list[tuple[str, str, str]] = []
    for snapshot, file in read_dumps(files):
        cluster = _make_cluster(snapshot, _list_others(snapshot), _list_pdbs(snapshot))
        needed: list[type[Any]] = [Node]
        helpful: list[type[Any]] = []
        (needed if noun == "pod" else helpful).append(Pod)
        if noun == "pod" or snapshot.lacks(TopologyDisruptionBudget):
            needed.append(PodDisruptionBudget)
        if noun == "pod" and may_have_budgets(snapshot):
            absences.append((TopologyDisruptionBudget.resource.kind, file, BUDGETS_ADVICE))
        absences += [
            (kind.resource.kind, file, advise_dump([kind], snapshot))
            for kind in helpful
            if snapshot.lacks(kind)
        ]
        absences += [
            (owner.resource.kind, file, f"it owns pods: dump {owner.resource.plural} as well")
            for owner in _missing_owner_kinds(cluster)
            if snapshot.lacks(owner)
        ]
        where = ", ".join(snapshot.files)
        clusters.append((Source(cluster, file), describe_missing(snapshot, needed, where)))
    sources = select_usable(clusters)
    note_absences(absences)
    return sources


def _missing_owner_kinds(cluster: BudgetCluster) -> list[type[Any]]:
    """The kinds of owners of covered pods that do not exist."""
    kinds = {
        (group, kind)
        for namespace_budgets in cluster.budgets_cache.by_namespace.values()
        for group, kind, _, _ in namespace_budgets.missing_owners()
    }
    return [
        unstructured(Resource(group, "v1", kind, f"{kind.lower()}s"))
        for group, kind in sorted(kinds)
    ]


def _read_live(options: Options, namespace: str | None) -> Source[BudgetCluster]:
    from zonewise.cli.program.connection import connect
    from zonewise.runtime.client.scales import fetch

    async def read() -> BudgetCluster:
        async with connect(options) as client:
            snapshot = await Snapshot.live(client, _KINDS, namespace=namespace)
            pdbs = snapshot.all(PodDisruptionBudget)
            cluster = _make_cluster(snapshot, [], pdbs, now=time.time())
            others = [
                item
                for namespace_budgets in cluster.budgets_cache.by_namespace.values()
                for reference in namespace_budgets.missing_owners()
                if (item := await fetch(client, *reference)) is not None
            ]
            return _make_cluster(snapshot, others, pdbs, now=time.time())

    return Source(interrupts.run(read()))


def _make_cluster(
    snapshot: Snapshot,
    others: Iterable[Unstructured],
    pdbs: Iterable[PodDisruptionBudget],
    *,
    now: float | None = None,
) -> BudgetCluster:
    return BudgetCluster(
        nodes=snapshot.all(Node),
        pods=snapshot.all(Pod),
        budgets=[*snapshot.all(TopologyDisruptionBudget), *pdbs],
        owners=[*(item for kind in _OWNERS for item in snapshot.all(kind)), *others],
        ledgers=list_readable(snapshot, DisruptionLedger) or (),  # without them nothing is granted
        rollouts=None if snapshot.lacks(DomainRollout) else list_readable(snapshot, DomainRollout),
        now=now,
        clock=time.time(),
    )


def _list_others(snapshot: Snapshot) -> Iterator[Unstructured]:
    """Objects of a dump of all other kinds; any of them may own pods."""
    known = {(kind.resource.group, kind.resource.kind) for kind in _KINDS}
    for item in snapshot.everything():
        if (item.resource.group, item.resource.kind) not in known:
            yield item


def _list_pdbs(snapshot: Snapshot) -> list[PodDisruptionBudget]:
    """PodDisruptionBudgets of a dump; those of KEP-8 are of ``v1beta1``, which has equal fields."""
    return [
        convert(PodDisruptionBudget, item.raw)
        for item in snapshot.everything()
        if (item.resource.group, item.resource.kind) == ("policy", "PodDisruptionBudget")
    ]


def _explain(
    sources: Sequence[Source[BudgetCluster]],
    noun: str,
    name: str,
    namespace: str,
    live: Options | None,
) -> Report:
    """The report of a pod or budget; ``live`` are the options of a cluster that is not a dump."""
    cluster = require_single(sources, f"{noun}s").cluster
    prefix, _, plain = name.rpartition("/")
    matching = [
        report
        for report in _list_reports(cluster, noun, None)
        if _name_of(report) == plain and prefix in ("", _short_kind(report))
    ]
    here = [report for report in matching if report.namespace == namespace]
    if len(here) > 1:
        raise ConfigError(f"there are two budgets {plain}; write tdb/{plain} or pdb/{plain}")
    if here:
        return here[0]
    elsewhere = [report.namespace for report in matching]
    if live is not None:
        elsewhere += find_namespaces(live, _kinds_of(noun, prefix), plain)
    listing = f"zonewise explain {noun}s -A"
    raise explain_absence(noun, name, namespace, elsewhere=elsewhere, listing=listing)


def _kinds_of(noun: str, prefix: str) -> tuple[type[Any], ...]:
    """The kinds that a pod, a budget, or a budget of one kind is of."""
    if noun == "pod":
        return () if prefix else (Pod,)
    return tuple(kind for short, kind in _BUDGETS.items() if prefix in ("", short))


def _list_reports(cluster: BudgetCluster, noun: str, namespace: str | None) -> Sequence[Report]:
    return (cluster.report_budgets if noun == "budget" else cluster.report_pods)(namespace)


def _name_of(report: Report) -> str:
    return report.budget if isinstance(report, BudgetReport) else report.pod


def _short_kind(report: Report) -> Literal["", "tdb", "pdb"]:
    if not isinstance(report, BudgetReport):
        return ""
    return "tdb" if report.kind == "TopologyDisruptionBudget" else "pdb"


def _print_one(report: Report, file: str, output: str | None) -> None:
    if is_plain(output):
        _print_notes(report)
        click.echo(render(make_row(file, report.to_dict()), output))
    else:
        click.echo(render_disruption(report))


def _print_all(
    sources: Sequence[Source[BudgetCluster]],
    noun: str,
    kind: str,
    namespace: str | None,
    live: Options | None,
    output: str | None,
) -> None:
    reports = [
        (source.file, report)
        for source in sources
        for report in _list_reports(source.cluster, noun, namespace)
        if kind in ("", _short_kind(report))
    ]
    if not reports and namespace and live is not None:
        require_namespace(live, namespace)
    if is_plain(output):
        for _, report in reports:
            _print_notes(report)
        print_rows((make_row(file, report.to_dict()) for file, report in reports), output)
    elif reports:
        click.echo(render_disruptions(reports))
    else:
        where = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(f"There is no {noun} in {where}.")


def _print_notes(report: Report) -> None:
    """Print the notes of a budget, which JSON has no field for."""
    if isinstance(report, BudgetReport):
        for note in report.notes:
            click.echo(f"{report.kind} {report.namespace}/{report.budget}: {note}", err=True)
