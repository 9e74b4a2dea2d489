"""``zonewise explain name``: what a name resolves to for a client, and why."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

import click

from zonewise.api import LeanEndpointSlice, Node, Pod, Service
from zonewise.api.errors import ConfigError
from zonewise.api.gates import FeatureGates
from zonewise.api.objects.locator import PodLocator
from zonewise.cli.program.command import CommandRefused
from zonewise.cli.program.dump_kinds import describe_missing
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import is_plain, render
from zonewise.cli.program.sources import (
    choose_namespace,
    list_readable,
    read_cluster,
    read_dumps,
    require_dumped,
    require_single,
)
from zonewise.explain.name import NameClient, NameReport, explain_name, render_name
from zonewise.runtime.cache.snapshot import Snapshot
from zonewise.topology.locator_index import Locator, LocatorIndex, canonical_address
from zonewise.traffic.slices.identity import service_keys_of

_KINDS = (Service, LeanEndpointSlice, Node, Pod, PodLocator)


def print_name(
    options: Options,
    name: str,
    client: str | None,
    domain: str,
    gates: FeatureGates | None,
    files: Sequence[str],
    output: str | None,
) -> int:
    """Print the report; 1 if the name does not exist."""
    _check_client(client)
    if files:
        snapshot, _ = require_single(tuple(read_dumps(files)))
    else:
        snapshot = read_cluster(options, _KINDS)
    report = _explain(snapshot, name, client, domain, gates, choose_namespace(options, files))
    if missing := _describe_missing(snapshot, report, client):
        raise CommandRefused(missing)
    click.echo(render(report.to_dict(), output) if is_plain(output) else render_name(report))
    return 1 if report.code == "NXDOMAIN" else 0


def _describe_missing(snapshot: Snapshot, report: NameReport, client: str | None) -> str:
    """What a dump would need for this report to be true; "" if it has it.

    Only answers that depend on the client's location need locations: of nodes, and of pods or
    locators.
    """
    needed: list[type[Any]] = [Service]
    if report.by_endpoints:
        needed.append(LeanEndpointSlice)
        if client is not None:
            needed += [Node, *((Pod,) if snapshot.lacks(PodLocator) else ())]
    return describe_missing(snapshot, needed, ", ".join(snapshot.files))


def _explain(
    snapshot: Snapshot,
    name: str,
    client: str | None,
    domain: str,
    gates: FeatureGates | None,
    namespace: str,
) -> NameReport:
    locators = _index_locators(snapshot)
    name_client = _find_client(client, locators, snapshot)
    ending = domain.strip(".").lower()

    def explain(labels: Sequence[str]) -> NameReport:
        key = (labels[-2], labels[-3]) if len(labels) >= 3 else ("", "")
        slices = snapshot.all(LeanEndpointSlice)
        return explain_name(
            ".".join((*labels, ending)),
            labels,
            name_client,
            services=snapshot.all(Service),
            slices=[part for part in slices if key in service_keys_of(part)],
            locators=locators,
            gates=gates,
        )

    searched, plain = _split_candidates(name, ending, name_client.pod.partition("/")[0], namespace)
    for labels in searched:
        if (report := explain(labels)).code != "NXDOMAIN":
            return report
    return explain(plain)


def _split_candidates(
    name: str, domain: str, home: str, namespace: str
) -> tuple[list[list[str]], list[str]]:
    """The names to try, as labels left of the domain, and the name to report if none exists.

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


def _index_locators(snapshot: Snapshot) -> LocatorIndex:
    """The locations of pods, from locators and nodes, or else from pods and nodes."""
    nodes = list_readable(snapshot, Node)
    index = LocatorIndex(follow_nodes=nodes is not None)
    for node in nodes or ():
        index.put_node(node)
    if locators := list_readable(snapshot, PodLocator):
        for locator in locators:
            index.put(Locator.from_object(locator))
    else:
        for pod in list_readable(snapshot, Pod) or ():
            index.put(Locator.from_pod(pod))
    return index


def _check_client(client: str | None) -> None:
    """Refuse text that is neither a pod nor an address."""
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


def _find_client(text: str | None, locators: LocatorIndex, snapshot: Snapshot) -> NameClient:
    """The client that ``NAMESPACE/POD`` or an address names; refused without access to pods."""
    if text is None:
        return NameClient()
    namespace, slash, name = text.partition("/")
    if not slash:
        address = canonical_address(text.strip())
        owners = locators.pods_at(address)
        pod = "/".join(owners[0]) if owners else ""
        return NameClient(address, pod, locators.locate(address))
    locator = locators.get((namespace, name))
    if locator is None:
        if not list_readable(snapshot, PodLocator):
            snapshot.all(Pod)
            require_dumped(snapshot, Pod, f"pod {name} in namespace {namespace}")
        raise CommandRefused(
            f"--client {text}: there is no pod {name} in namespace {namespace}; list those that"
            f" exist with 'kubectl get pods -n {namespace}'"
        )
    if not locator.addresses:
        return NameClient("", text)
    return NameClient(locator.addresses[0], text, locators.locate(locator.addresses[0]))
