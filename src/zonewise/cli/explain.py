"""``zonewise explain``: why a Service has the hints it has, or none; from a cluster or a dump."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonewise.api.errors import ConfigError, Forbidden, NotFound, Status
from zonewise.cli.command import Command
from zonewise.cli.hintoptions import Deciding, decision_options
from zonewise.cli.options import Options, all_namespaces_option, files_option, output_option

if TYPE_CHECKING:
    from zonewise.explain import Cluster, ServiceReport, Settings
    from zonewise.runtime.snapshot import Snapshot

_ONE = ("service", "svc")
_MANY = ("services", "svcs")


@click.command(
    "explain",
    cls=Command,
    examples=(
        "explain service web                            # of the cluster in your kubeconfig",
        "explain service web -n shop -f dump.yaml       # of a dump, without a cluster",
        "explain services -A -f dumps -o jsonl          # every Service of every file in a folder",
    ),
)
@click.argument("what", metavar="service|services", type=click.Choice([*_ONE, *_MANY]))
@click.argument("name", required=False)
@decision_options
@all_namespaces_option()
@files_option()
@output_option("table", "json", "yaml", "jsonl")
@click.pass_obj
def command(
    options: Options,
    what: str,
    name: str | None,
    deciding: Deciding,
    all_namespaces: bool,
    files: tuple[str, ...],
    output: str | None,
) -> None:
    """Tell why traffic to a Service stays in its zone, or does not.

    'explain service NAME' is one Service in full: the verdict, its zones, its endpoints, and what
    would help. 'explain services' is a line for each. With -f everything is read from what
    'kubectl get nodes,services,endpointslices -o yaml' printed (add pods, and endpoints are taken
    from them); a folder has one cluster in each file.
    """
    from zonewise.explain import DEFAULT_NAMESPACE, Settings

    if what in _ONE and not name:
        raise click.UsageError("which Service? give its name")
    if what in _MANY and name:
        raise click.UsageError(f"services are all Services; for one say: service {name}")
    if what in _ONE and all_namespaces:
        raise click.UsageError("one Service is in one namespace; give -n instead of -A")
    settings = Settings(deciding.gates, deciding.missing_cpu, deciding.missing_zone)
    if files:
        namespace = options.namespace or DEFAULT_NAMESPACE
        sources = _dumped(files, settings)
    else:
        namespace, sources = _asked(options, settings, all_namespaces=all_namespaces)
    if name:
        _print_one(_found(sources, name, namespace), output)
    else:
        _print_many(sources, None if all_namespaces else namespace, output)


@dataclass(frozen=True, slots=True)
class _Source:
    """A cluster, and the file it was read from, if from one."""

    cluster: Cluster
    file: str = ""


def _dumped(files: Sequence[str], settings: Settings) -> list[_Source]:
    from zonewise.runtime.snapshot import Snapshot

    alone = len(files) == 1
    return [
        _Source(
            _cluster(snapshot, settings),
            ", ".join(Path(file).name if alone else file for file in snapshot.files),
        )
        for snapshot in Snapshot.load(files)
    ]


def _asked(
    options: Options, settings: Settings, *, all_namespaces: bool
) -> tuple[str, list[_Source]]:
    from zonewise.cli.connection import cluster_config, connected
    from zonewise.runtime.snapshot import Snapshot

    namespace = cluster_config(options).namespace
    kinds = _kinds()

    async def read() -> Snapshot:
        async with connected(options) as client:
            return await Snapshot.live(
                client, kinds, namespace=None if all_namespaces else namespace
            )

    return namespace, [_Source(_cluster(asyncio.run(read()), settings))]


def _kinds() -> tuple[type[Any], ...]:
    from zonewise.api import LeanEndpointSlice, Node, Pod, Service

    return Node, Service, LeanEndpointSlice, Pod


def _cluster(snapshot: Snapshot, settings: Settings) -> Cluster:
    from zonewise.explain import Cluster

    node, service, part, pod = _kinds()
    try:
        pods = snapshot.all(pod)
    except Forbidden:
        pods = ()  # slices stand for pods that we may not see
    return Cluster(
        nodes=snapshot.all(node),
        services=snapshot.all(service),
        slices=snapshot.all(part),
        pods=pods,
        settings=settings,
    )


def _found(sources: Sequence[_Source], name: str, namespace: str) -> ServiceReport:
    from zonewise.explain import explain_service

    if len(sources) > 1:
        raise ConfigError(
            f"the folder has {len(sources)} clusters, one in each file; give one file, or ask for "
            "services"
        )
    cluster = sources[0].cluster
    service = cluster.services.get((namespace, name))
    if service is not None:
        return explain_service(cluster, service)
    elsewhere = sorted(place for place, other in cluster.services if other == name)
    advice = (
        f"there is one in namespace {elsewhere[0]}: add -n {elsewhere[0]}"
        if elsewhere
        else "explain services -A shows which there are"
    )
    sentence = f"there is no Service {name} in namespace {namespace}; {advice}"
    raise NotFound(Status(message=sentence, code=404))


def _reports(
    sources: Sequence[_Source], namespace: str | None
) -> Iterator[tuple[str, ServiceReport]]:
    from zonewise.explain import explain_service

    for source in sources:
        for (place, _), service in sorted(source.cluster.services.items()):
            if namespace in (None, place):
                report = explain_service(source.cluster, service)
                _note(report)
                yield source.file, report


def _print_one(report: ServiceReport, output: str | None) -> None:
    from zonewise.explain import service_page

    if not _plain(output):
        click.echo(service_page(report))
        return
    _note(report)
    click.echo(_rendered(report.plain(), output))


def _print_many(sources: Sequence[_Source], namespace: str | None, output: str | None) -> None:
    from zonewise.explain import services_page

    reports = _reports(sources, namespace)
    if not _plain(output):
        known = list(reports)
        place = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(services_page(known) if known else f"There is no Service in {place}.")
        return
    rows = (
        {"file": file, **report.plain()} if file else report.plain() for file, report in reports
    )
    if output == "jsonl":
        for row in rows:
            click.echo(_rendered(row, output))
    else:
        click.echo(_rendered(list(rows), output))


def _note(report: ServiceReport) -> None:
    for note in report.notes:
        click.echo(f"Service {report.namespace}/{report.service}: {note}", err=True)


def _plain(output: str | None) -> bool:
    return output not in (None, "table")


def _rendered(value: Any, output: str | None) -> str:
    import msgspec

    text = msgspec.json.encode(value)
    if output == "yaml":
        import yaml

        # Parts that stand in two places would be written as references to each other.
        apart = msgspec.json.decode(text)
        return yaml.safe_dump(apart, sort_keys=False, allow_unicode=True).rstrip("\n")
    return (text if output == "jsonl" else msgspec.json.format(text, indent=2)).decode()
