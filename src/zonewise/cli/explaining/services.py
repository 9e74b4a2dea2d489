"""``zonewise explain service|services``: why Services have hints or not."""

from __future__ import annotations

from collections.abc import Sequence

import click

from zonewise.api import LeanEndpointSlice, Node, Pod, Service
from zonewise.cli.program.dump_kinds import describe_missing
from zonewise.cli.program.hint_options import DecisionOptions
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import is_plain, join_some, make_row, print_rows, render
from zonewise.cli.program.sources import (
    Source,
    choose_namespace,
    explain_absence,
    find_namespaces,
    list_readable,
    read_cluster,
    read_dumps,
    require_namespace,
    require_single,
    select_usable,
)
from zonewise.explain.cluster import ReportedCluster, ReportSettings
from zonewise.explain.service import explain_service
from zonewise.explain.service_page import render_service, render_services
from zonewise.explain.service_report import ServiceReport
from zonewise.runtime.cache.snapshot import Snapshot

_KINDS = (Node, Service, LeanEndpointSlice, Pod)
_NAMED = 3
"""How many Services a note names."""


def print_services(
    options: Options,
    name: str | None,
    decision: DecisionOptions,
    *,
    all_namespaces: bool,
    files: Sequence[str],
    output: str | None,
) -> None:
    """Print the report of a Service in full, or a line for each Service."""
    gates = decision.gates if decision.gate_flags else None
    settings = ReportSettings(gates, decision.missing_cpu, decision.missing_zone)
    namespace = choose_namespace(options, files)
    if files:
        sources = select_usable(
            (
                Source(_make_cluster(snapshot, settings), file),
                describe_missing(
                    snapshot, (Service, Node, LeanEndpointSlice), ", ".join(snapshot.files)
                ),
            )
            for snapshot, file in read_dumps(files)
        )
    else:
        snapshot = read_cluster(options, _KINDS, None if all_namespaces else namespace)
        sources = [Source(_make_cluster(snapshot, settings))]
    if name:
        _print_one(_explain(sources, name, namespace, None if files else options), output)
    else:
        live = None if files else options
        _print_all(sources, None if all_namespaces else namespace, live, output)


def _make_cluster(snapshot: Snapshot, settings: ReportSettings) -> ReportedCluster:
    return ReportedCluster(
        nodes=snapshot.all(Node),
        services=snapshot.all(Service),
        slices=snapshot.all(LeanEndpointSlice),
        pods=list_readable(snapshot, Pod) or (),  # slices replace pods that we may not read
        settings=settings,
    )


def _explain(
    sources: Sequence[Source[ReportedCluster]], name: str, namespace: str, live: Options | None
) -> ServiceReport:
    """The report of a Service; ``live`` are the options of a cluster that is not a dump."""
    cluster = require_single(sources, "services").cluster
    service = cluster.services.get((namespace, name))
    if service is not None:
        return explain_service(cluster, service)
    elsewhere = [other for other, service_name in cluster.services if service_name == name]
    if live is not None:
        elsewhere += find_namespaces(live, [Service], name)
    listing = "zonewise explain services -A"
    raise explain_absence("Service", name, namespace, elsewhere=elsewhere, listing=listing)


def _print_one(report: ServiceReport, output: str | None) -> None:
    if is_plain(output):
        _print_notes([("", report)])
        click.echo(render(report.to_dict(), output))
    else:
        click.echo(render_service(report))


def _print_all(
    sources: Sequence[Source[ReportedCluster]],
    namespace: str | None,
    live: Options | None,
    output: str | None,
) -> None:
    reports = [
        (source.file, explain_service(source.cluster, service))
        for source in sources
        for key, service in sorted(source.cluster.services.items())
        if namespace in (None, key[0])
    ]
    if not reports and namespace and live is not None:
        require_namespace(live, namespace)
    _print_notes(reports)
    if is_plain(output):
        print_rows([make_row(file, report.to_dict()) for file, report in reports], output)
    elif reports:
        click.echo(render_services(reports))
    else:
        where = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(f"There is no Service in {where}.")


def _print_notes(reports: Sequence[tuple[str, ServiceReport]]) -> None:
    """Print what neither fields nor tables have: each note once, with its Services."""
    about: dict[tuple[str, str], list[str]] = {}
    for file, report in reports:
        for note in report.notes:
            about.setdefault((file, note), []).append(f"{report.namespace}/{report.service}")
    for (file, note), names in about.items():
        where = f"{file}: " if file else ""
        noun = f"Service{'s' * (len(names) > 1)}"
        click.echo(f"{where}{noun} {join_some(names, _NAMED)}: {note}", err=True)
