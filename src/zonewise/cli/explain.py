"""``zonewise explain``: why a Service has its hints, what a budget allows, where a volume is.

From a cluster or from a dump.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.program.cluster_completion import completes, objects
from zonewise.cli.program.command import Command
from zonewise.cli.program.dump_kinds import lacking
from zonewise.cli.program.hint_options import Deciding, decision_options
from zonewise.cli.program.options import Options, all_namespaces_option, files_option, output_option
from zonewise.cli.program.screen import is_plain, rendered
from zonewise.cli.program.sources import (
    absent,
    dumped,
    live,
    namespaces_with,
    only,
    readable,
    usable,
)

if TYPE_CHECKING:
    from zonewise.explain.cluster import ReportedCluster, ReportSettings
    from zonewise.explain.service_report import ServiceReport
    from zonewise.runtime.cache.snapshot import Snapshot

_ONE = ("service", "svc")
_MANY = ("services", "svcs")
_DISRUPTION = ("budget", "budgets", "pod", "pods", "pdb", "tdb")
_NAME = "name"
_NAMED = 3
"""How many Services a note names."""
_VOLUMES = {"volume": "volume", "pv": "volume", "pvc": "pvc"}
_WORDS = (*_ONE, *_MANY, *_DISRUPTION, _NAME, *_VOLUMES)
_ALSO = {
    "po": "pod",
    "poddisruptionbudget": "pdb",
    "poddisruptionbudgets": "pdb",
    "topologydisruptionbudget": "tdb",
    "topologydisruptionbudgets": "tdb",
    "persistentvolume": "pv",
    "persistentvolumes": "pv",
    "persistentvolumeclaim": "pvc",
    "persistentvolumeclaims": "pvc",
}
"""kubectl's other names for them."""
_GROUPS = ("", "policy", "zonewise.io")
_SINGLE = {"services": "service", "svcs": "service", "budgets": "budget", "pods": "pod"}


class _What(click.Choice[str]):
    """What to explain; ``TYPE/NAME``, as kubectl prints objects, has both words in one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word that is used here, and the name, if there is one."""
        word, slash, name = str(value).partition("/")
        kind, _, group = word.lower().partition(".")
        if group in _GROUPS:
            word = _ALSO.get(kind, kind)
        found = super().convert(word, param, ctx)
        return f"{_SINGLE.get(found, found)}/{name}" if slash else found


def _names(ctx: click.Context, _incomplete: str) -> list[str]:
    """The names that may follow a word."""
    from zonewise.api import (
        PersistentVolume,
        PersistentVolumeClaim,
        Pod,
        PodDisruptionBudget,
        Service,
        TopologyDisruptionBudget,
    )

    kinds: dict[str, tuple[type[Any], ...]] = {
        **dict.fromkeys(_ONE, (Service,)),
        "pod": (Pod,),
        "budget": (PodDisruptionBudget, TopologyDisruptionBudget),
        "pdb": (PodDisruptionBudget,),
        "tdb": (TopologyDisruptionBudget,),
        "pvc": (PersistentVolumeClaim,),
        **dict.fromkeys(("pv", "volume"), (PersistentVolume,)),
    }
    return objects(ctx, *kinds.get(str(ctx.params.get("what")), ()))


def _clients(ctx: click.Context, _incomplete: str) -> list[str]:
    from zonewise.api import Pod

    return objects(ctx, Pod, everywhere=True)


@click.command(
    "explain",
    cls=Command,
    examples=(
        "explain service web                            # of the cluster in your kubeconfig",
        "explain service web -n shop -f dump.yaml       # of a dump, without a cluster",
        "explain services -A -f dumps -o jsonl          # every Service of every file in a folder",
        "explain budget web -n shop                     # what a budget allows in each domain",
        "explain pods -A -f dump.yaml -o jsonl          # which pods may be disrupted now",
        "explain name db.shop.svc --client shop/web-0   # what that pod gets, and why",
        "explain pvc data-db-0 -n shop                  # where its volume is, and why",
    ),
)
@click.argument(
    "what",
    metavar="WHAT",
    type=_What(_WORDS),
)
@click.argument("name", required=False, shell_complete=completes(_names))
@click.option(
    "--client",
    metavar="NAMESPACE/POD",
    shell_complete=completes(_clients),
    help="For a name: the client, a pod or an address.",
)
@click.option(
    "--cluster-domain",
    metavar="DOMAIN",
    default="cluster.local",
    help="For a name: the cluster's domain.  [default: cluster.local]",
)
@decision_options
@all_namespaces_option()
@files_option()
@output_option("table", "json", "yaml", "jsonl")
@click.pass_obj
def command(
    options: Options,
    what: str,
    name: str | None,
    client: str | None,
    cluster_domain: str,
    deciding: Deciding,
    all_namespaces: bool,
    files: tuple[str, ...],
    output: str | None,
) -> int:
    """Tell why traffic stays in its zone, what budgets allow, what names mean, where volumes are.

    WHAT is service, services, budget, budgets, pod, pods, pdb, tdb, name, volume or pvc. TYPE/NAME
    works as with kubectl: 'explain service/web', 'explain pdb/web'.

    'explain service NAME' is one Service in full: the verdict, its zones, its endpoints, and what
    would help. 'explain services' is a line for each.

    'explain budget NAME' shows what a budget allows in each domain, 'explain pod NAME' whether a
    pod may be disrupted and which budgets do not agree.

    'explain name NAME --client NAMESPACE/POD' is what the name server tells that pod: which rule
    and which key chose, and why others were left out. A short name is looked up as in the pod, by
    the search path of its namespace; without --client it is a Service in the namespace of -n.

    'explain pvc NAME' and 'explain volume NAME' tell which pool a volume was cut from, from where
    it can be used, why, and what would help a claim that has none.

    With -f everything is read from a dump; a folder has one cluster in each file. A dump that lacks
    a kind which the answer needs is refused.
    """
    from zonewise.explain.cluster import DEFAULT_NAMESPACE, ReportSettings

    what, slash, written = what.partition("/")
    if slash:
        if name:
            raise click.UsageError(f"there are two names, {written} and {name}; give one of them")
        name = written
    if what == _NAME:
        from zonewise.cli.explaining.name import print_name

        if not name:
            raise click.UsageError("which name? give one, for example web.shop.svc")
        return print_name(options, name, client, cluster_domain, files, output)
    if client is not None:
        raise click.UsageError("--client is for names: explain name NAME --client NAMESPACE/POD")
    if what in _VOLUMES:
        from zonewise.cli.explaining.volumes import print_volume

        if not name:
            raise click.UsageError(f"which {_VOLUMES[what]}? give its name")
        if all_namespaces:
            raise click.UsageError("one claim is in one namespace; give -n instead of -A")
        print_volume(options, _VOLUMES[what], name, files, output)
        return 0
    if what in _DISRUPTION:
        from zonewise.cli.explaining.budgets import explain

        explain(options, what, name, all_namespaces=all_namespaces, files=files, output=output)
        return 0
    if what in _ONE and not name:
        raise click.UsageError("which Service? give its name")
    if what in _MANY and name:
        raise click.UsageError(f"services are all Services; for one say: service {name}")
    if what in _ONE and all_namespaces:
        raise click.UsageError("one Service is in one namespace; give -n instead of -A")
    settings = ReportSettings(deciding.gates, deciding.missing_cpu, deciding.missing_zone)
    if files:
        namespace = options.namespace or DEFAULT_NAMESPACE
        sources = _dumped(files, settings)
    else:
        namespace, sources = _asked(options, settings, all_namespaces=all_namespaces)
    if name:
        _print_one(_found(sources, name, namespace, None if files else options), output)
    else:
        _print_many(sources, None if all_namespaces else namespace, output)
    return 0


@dataclass(frozen=True, slots=True)
class _Source:
    """A cluster, and the file it was read from, if from one."""

    cluster: ReportedCluster
    file: str = ""


def _dumped(files: Sequence[str], settings: ReportSettings) -> list[_Source]:
    node, service, part, _ = _kinds()
    return usable(
        (
            _Source(_cluster(snapshot, settings), file),
            lacking(snapshot, (service, node, part), ", ".join(snapshot.files)),
        )
        for snapshot, file in dumped(files)
    )


def _asked(
    options: Options, settings: ReportSettings, *, all_namespaces: bool
) -> tuple[str, list[_Source]]:
    from zonewise.cli.program.connection import cluster_config

    namespace = cluster_config(options).namespace
    snapshot = live(options, _kinds(), None if all_namespaces else namespace)
    return namespace, [_Source(_cluster(snapshot, settings))]


def _kinds() -> tuple[type[Any], ...]:
    from zonewise.api import LeanEndpointSlice, Node, Pod, Service

    return Node, Service, LeanEndpointSlice, Pod


def _cluster(snapshot: Snapshot, settings: ReportSettings) -> ReportedCluster:
    from zonewise.explain.cluster import ReportedCluster

    node, service, part, pod = _kinds()
    return ReportedCluster(
        nodes=snapshot.all(node),
        services=snapshot.all(service),
        slices=snapshot.all(part),
        pods=readable(snapshot, pod) or (),  # slices replace pods that we may not read
        settings=settings,
    )


def _found(
    sources: Sequence[_Source], name: str, namespace: str, asked: Options | None
) -> ServiceReport:
    from zonewise.explain.service import explain_service

    cluster = only(sources, "services").cluster
    service = cluster.services.get((namespace, name))
    if service is not None:
        return explain_service(cluster, service)
    elsewhere = [place for place, other in cluster.services if other == name]
    if asked is not None:
        elsewhere += namespaces_with(asked, _kinds()[1:2], name)
    raise absent("Service", name, namespace, elsewhere=elsewhere, listing="explain services -A")


def _reports(
    sources: Sequence[_Source], namespace: str | None
) -> Iterator[tuple[str, ServiceReport]]:
    from zonewise.explain.service import explain_service

    for source in sources:
        for (place, _), service in sorted(source.cluster.services.items()):
            if namespace in (None, place):
                yield source.file, explain_service(source.cluster, service)


def _print_one(report: ServiceReport, output: str | None) -> None:
    from zonewise.explain.service_page import render_service

    if not is_plain(output):
        click.echo(render_service(report))
        return
    _note([("", report)])
    click.echo(rendered(report.to_dict(), output))


def _print_many(sources: Sequence[_Source], namespace: str | None, output: str | None) -> None:
    from zonewise.explain.service_page import render_services

    reports = list(_reports(sources, namespace))
    _note(reports)
    if not is_plain(output):
        place = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(render_services(reports) if reports else f"There is no Service in {place}.")
        return
    rows = (
        {"file": file, **report.to_dict()} if file else report.to_dict() for file, report in reports
    )
    if output == "jsonl":
        for row in rows:
            click.echo(rendered(row, output))
    else:
        click.echo(rendered(list(rows), output))


def _note(reports: Sequence[tuple[str, ServiceReport]]) -> None:
    """What programs have no field for, and tables no room: each note once, with its Services."""
    about: dict[tuple[str, str], list[str]] = {}
    for file, report in reports:
        for note in report.notes:
            about.setdefault((file, note), []).append(f"{report.namespace}/{report.service}")
    for (file, note), names in about.items():
        where = f"{file}: " if file else ""
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        who = f"Service{'s' * (len(names) > 1)} {', '.join(names[:_NAMED])}{more}"
        click.echo(f"{where}{who}: {note}", err=True)
