"""``zonewise explain name``: what a name resolves to for a client, and why."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from zonewise.api.errors import ConfigError, NotFound, Status
from zonewise.cli.program.dump_kinds import lacking
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import rendered
from zonewise.cli.program.sources import dumped, live, not_dumped, only, readable

if TYPE_CHECKING:
    from zonewise.explain.name import NameClient, NameReport
    from zonewise.runtime.cache.snapshot import Snapshot
    from zonewise.topology.locator_index import LocatorIndex


def print_name(
    options: Options,
    name: str,
    client: str | None,
    domain: str,
    files: Sequence[str],
    output: str | None,
) -> int:
    """Print the report; 1 if the name does not exist."""
    from zonewise.explain.name import render_name

    _check(client)
    snapshot = only(tuple(dumped(files)))[0] if files else live(options, _kinds())
    report = _report(snapshot, name, client, domain, _namespace(options, files))
    if missing := _lacking(snapshot, report, client):
        raise NotFound(Status(message=missing, code=404))
    click.echo(
        render_name(report) if output in (None, "table") else rendered(report.to_dict(), output)
    )
    return 1 if report.code == "NXDOMAIN" else 0


def _namespace(options: Options, files: Sequence[str]) -> str:
    """The namespace that is meant where none is written, as for a Service."""
    from zonewise.cli.program.connection import cluster_config
    from zonewise.explain.cluster import DEFAULT_NAMESPACE

    if files:
        return options.namespace or DEFAULT_NAMESPACE
    return cluster_config(options).namespace


def _kinds() -> tuple[type[Any], ...]:
    from zonewise.api import LeanEndpointSlice, Node, Pod, Service
    from zonewise.api.objects.locator import PodLocator

    return Service, LeanEndpointSlice, Node, Pod, PodLocator


def _lacking(snapshot: Snapshot, report: NameReport, client: str | None) -> str:
    """What a dump would need for this report to be true; "" if it has it.

    Only answers that depend on the client's place need places: of nodes, and of pods or locators.
    """
    service, part, node, pod, locator = _kinds()
    needed = [service]
    if report.by_endpoints:
        needed.append(part)
        if client is not None:
            needed += [node, *((pod,) if snapshot.lacks(locator) else ())]
    return lacking(snapshot, needed, ", ".join(snapshot.files))


def _report(
    snapshot: Snapshot, name: str, client: str | None, domain: str, namespace: str
) -> NameReport:
    from zonewise.explain.name import explain_name
    from zonewise.traffic.slices.identity import service_keys_of

    locators = _locators(snapshot)
    who = _client(client, locators, snapshot)
    service, part, *_ = _kinds()
    ending = domain.strip(".").lower()

    def report(labels: Sequence[str]) -> NameReport:
        key = (labels[-2], labels[-3]) if len(labels) >= 3 else ("", "")
        return explain_name(
            ".".join((*labels, ending)),
            labels,
            who,
            services=snapshot.all(service),
            slices=[piece for piece in snapshot.all(part) if key in service_keys_of(piece)],
            locators=locators,
        )

    searched, plain = _candidates(name, ending, who.pod.partition("/")[0], namespace)
    for labels in searched:
        if (found := report(labels)).code != "NXDOMAIN":
            return found
    return report(plain)


def _candidates(
    name: str, domain: str, home: str, namespace: str
) -> tuple[list[list[str]], list[str]]:
    """The names that are tried, by their labels left of the domain, and the one that is meant else.

    A resolver in a pod appends its search path, the pod's namespace ``home`` first, unless the name
    is whole: written with the cluster's domain, or with a dot at its end. Without a pod a single
    label is a Service in ``namespace``.
    """
    text = name.strip().lower()
    bare = text.rstrip(".")
    labels = bare.removesuffix(f".{domain}").split(".")
    whole = bare.endswith(f".{domain}")
    plain = labels if whole or labels[-1] == "svc" else [*labels, "svc"]
    if whole or text.endswith("."):
        return [], plain
    if not home:
        return [], [*labels, namespace, "svc"] if len(labels) == 1 else plain
    searched = [[*labels, home, "svc"], [*labels, "svc"], labels]
    return searched, searched[0] if len(labels) == 1 else plain


def _locators(snapshot: Snapshot) -> LocatorIndex:
    """What is known of places, from locators and nodes, else from pods and nodes."""
    from zonewise.topology.locator_index import Locator, LocatorIndex

    _, _, node, pod, locator = _kinds()
    nodes = readable(snapshot, node)
    located = readable(snapshot, locator)
    found = LocatorIndex(follow_nodes=nodes is not None)
    for one in nodes or ():
        found.put_node(one)
    if located:
        for one in located:
            found.put(Locator.from_object(one))
    else:
        for one in readable(snapshot, pod) or ():
            found.put(Locator.from_pod(one))
    return found


def _check(client: str | None) -> None:
    """Refuse what can be no client, whatever cluster it is about."""
    if client is None:
        return
    namespace, slash, name = client.partition("/")
    if slash:
        fine = bool(namespace and name) and "/" not in name
    else:
        try:
            fine = bool(ipaddress.ip_address(client.strip().partition("%")[0]))
        except ValueError:
            fine = False
    if not fine:
        raise ConfigError(
            f"--client {client[:100]!r} is neither NAMESPACE/POD nor an address; write it like"
            " shop/web-0 or 10.0.0.1"
        )


def _client(text: str | None, locators: LocatorIndex, snapshot: Snapshot) -> NameClient:
    """The client that ``NAMESPACE/POD`` or an address means; refused if no pod may be seen."""
    from zonewise.explain.name import NameClient
    from zonewise.topology.locator_index import canonical_address

    if text is None:
        return NameClient()
    namespace, slash, name = text.partition("/")
    if not slash:
        address = canonical_address(text.strip())
        owners = locators.pods_at(address)
        pod = "/".join(owners[0]) if owners else ""
        return NameClient(address, pod, locators.locate(address))
    found = locators.get((namespace, name))
    if found is None:
        *_, pod_kind, locator = _kinds()
        if not readable(snapshot, locator):
            snapshot.all(pod_kind)
            what = f"pod {name} in namespace {namespace}"
            not_dumped(snapshot, pod_kind, what)
        sentence = f"--client {text}: there is no pod {name} in namespace {namespace}"
        advice = f"kubectl get pods -n {namespace} shows which there are"
        raise NotFound(Status(message=f"{sentence}; {advice}", code=404))
    if not found.addresses:
        return NameClient("", text)
    return NameClient(found.addresses[0], text, locators.locate(found.addresses[0]))
