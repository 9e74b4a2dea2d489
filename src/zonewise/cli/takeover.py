"""``zonewise takeover``: which domain stands in for which.

The map is in the configuration of the driver, the ConfigMap ``zonewise-system/csi``, on an embedded
cluster and on a real one alike. It is changed only if the ConfigMap has not changed meanwhile, and
only into one that the driver will accept. The map that is in force while the configuration is wrong
is in the controller's ConfigMap ``csi-takeover``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from zonewise.api.errors import ConfigError, Conflict, Forbidden, NotFound
from zonewise.cli.program import interrupts
from zonewise.cli.program.cluster_completion import complete_from, read_snapshot
from zonewise.cli.program.command import Command, CommandRefused
from zonewise.cli.program.options import Options, add_options, output_option
from zonewise.cli.program.screen import is_plain, render

if TYPE_CHECKING:
    from zonewise.api import CSINode
    from zonewise.api.meta import ObjectMeta
    from zonewise.api.reason import Reason
    from zonewise.csi.takeover.status import TakeoverStatus
    from zonewise.runtime.client.client import Client
    from zonewise.storage.configuration import StorageConfiguration
    from zonewise.storage.domains import DomainLabels, Segments
    from zonewise.storage.takeover.stand_ins import TakeoverMap
    from zonewise.storage.takeover.warnings import NodeReadiness

DRIVER = "csi.zonewise.io"
NAMESPACE = "zonewise-system"
EMPTY = '{"version": 2}'
"""The configuration of a ConfigMap that is still empty."""
TRIES = 5
ACTS_WITHIN = 5.0
"""How long to wait for a controller, in seconds."""
LOOKS = 20


def _complete_domain(ctx: click.Context, _incomplete: str = "") -> list[str]:
    """The domains that can be named: with 'set' those of nodes, with 'clear' those taken over."""
    match ctx.params.get("action"):
        case "set":
            return _list_domains(ctx)
        case "clear":
            return _list_taken(ctx)
    return []


def _list_domains(ctx: click.Context) -> list[str]:
    from itertools import accumulate

    from zonewise.api import CSINode, Node

    snapshot = read_snapshot(ctx, CSINode, Node)
    if snapshot is None:
        return []
    labels = _collect_labels(snapshot.all(CSINode), ctx.params.get("drivername") or DRIVER)
    return [
        name
        for node in snapshot.all(Node)
        for name in accumulate(
            labels.segments_of_node(node.metadata.labels).values(),
            lambda outer, inner: f"{outer}/{inner}",
        )
    ]


def _list_taken(ctx: click.Context) -> list[str]:
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP
    from zonewise.storage.configuration import parse_configuration
    from zonewise.storage.domains import DomainLabels

    namespace = ctx.params.get("namespace") or NAMESPACE
    snapshot = read_snapshot(ctx, ConfigMap, namespace=namespace)
    config_map = snapshot.get(ConfigMap, CONFIG_MAP, namespace) if snapshot is not None else None
    if config_map is None:
        return []
    labels = DomainLabels(ctx.params.get("drivername") or DRIVER)
    try:
        text = str(config_map.get("data", CONFIG_KEY))
        return list(parse_configuration(text, labels).takeover.targets)
    except ConfigError:
        return []


def _complete_stand_ins(ctx: click.Context, incomplete: str) -> list[str]:
    """The list of domains so far, with each domain that it does not have yet."""
    from zonewise.storage.takeover.stand_ins import ALL

    listed = incomplete.rpartition(",")[0]
    if not listed:
        return [ALL, *_list_domains(ctx)]
    given = listed.split(",")
    return [f"{listed},{name}" for name in _list_domains(ctx) if name not in given]


@click.command(
    "takeover",
    cls=Command,
    examples=(
        "takeover status            # which domains are taken over, which pods are away from home",
        "takeover set a --by b,c    # nodes of b and c use the volumes of a",
        "takeover set a --by all    # nodes of all other domains use them",
        "takeover set a --by b --force   # even if nodes of a are Ready",
        "takeover clear a           # give it back; no pod is evicted",
    ),
)
@click.argument("action", metavar="status|set|clear", type=click.Choice(["status", "set", "clear"]))
@click.argument(
    "domain", required=False, metavar="[DOMAIN]", shell_complete=complete_from(_complete_domain)
)
@click.option(
    "--by",
    metavar="DOMAIN,…|all",
    shell_complete=complete_from(_complete_stand_ins),
    help="With 'set': the domains that stand in.",
)
@click.option(
    "--force", is_flag=True, help="With 'set': take over a domain even if nodes of it are Ready."
)
@click.option(
    "--drivername",
    metavar="NAME",
    default=DRIVER,
    help=f"The name of the CSI driver.  [default: {DRIVER}]",
)
@add_options(output_option("table", "json", "yaml"))
@click.pass_obj
def command(
    options: Options,
    action: str,
    domain: str | None,
    by: str | None,
    force: bool,
    drivername: str,
    output: str | None,
) -> int:
    """Let nodes of living domains use the volumes of a failed domain, and give it back.

    A takeover declares the domain dead: pods on its nodes that are not Ready are removed, and a
    node there that still uses a volume is shut out of it before another node uses it. A domain with
    Ready nodes is taken over only with --force. A domain that is given back gets its pods back when
    they are started again.

    The name of a domain is made of the values of the driver's labels: zone-a, or r1/zone-a.
    """
    if action == "status":
        if domain or by is not None or force:
            raise click.UsageError("status takes no domain, no --by and no --force; leave them out")
        return interrupts.run(_print_status(options, drivername, output))
    if not domain:
        raise click.UsageError(f"the domain is missing; write takeover {action} DOMAIN")
    if action == "clear":
        if by is not None or force:
            raise click.UsageError("--by and --force are for 'set'; leave them out")
        return interrupts.run(_change(options, drivername, domain, None, output))
    targets = tuple(filter(None, map(str.strip, (by or "").split(","))))
    if not targets:
        raise click.UsageError(
            "the domains that stand in are missing; add --by DOMAIN,… or --by all"
        )
    return interrupts.run(_change(options, drivername, domain, targets, output, force=force))


async def _print_status(options: Options, driver: str, output: str | None) -> int:
    from zonewise.cli.program.connection import connect

    async with connect(options) as client:
        text, _ = await _read_configuration(client, options)
        status = await _read_status(client, options, driver, text)
    _print(status, output)
    return 1 if status.error else 0


async def _change(
    options: Options,
    driver: str,
    domain: str,
    targets: tuple[str, ...] | None,
    output: str | None,
    *,
    force: bool = False,
) -> int:
    from zonewise.cli.program.connection import connect
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import (
        AUTOMATIC_ANNOTATION,
        CONFIG_KEY,
        CONFIG_MAP,
        GIVEN_BACK_ANNOTATION,
        format_given_back,
        parse_automatic_domains,
        parse_given_back,
    )
    from zonewise.storage.configuration import edit_takeover, parse_before_edit
    from zonewise.storage.domains import DomainLabels
    from zonewise.storage.takeover.warnings import (
        explain_force,
        find_unknown_domain,
        warn_of_down_nodes,
        warn_of_ready_nodes,
    )

    labels = DomainLabels(driver)
    namespace = options.namespace or NAMESPACE
    async with connect(options) as client:
        if targets is not None:
            await _require_driver(client, driver)
        for left in reversed(range(TRIES)):
            text, metadata = await _read_configuration(client, options)
            try:
                current = parse_before_edit(text, labels)
                seen = await _observe(client, driver, current)
                if targets is not None and (
                    unknown := find_unknown_domain((domain, *targets), seen.domains)
                ):
                    raise CommandRefused(unknown)
                changed = edit_takeover(text, {domain: targets}, labels)
            except ConfigError as error:
                unchanged = f"ConfigMap {namespace}/{CONFIG_MAP} was not changed"
                raise CommandRefused(f"{error}; {unchanged}") from None
            taken = current.takeover
            if targets is None:
                _require_taken(domain, taken)
            elif not force and seen.known and (alive := explain_force(domain, seen.nodes, taken)):
                raise CommandRefused(alive)
            changes: dict[str, Any] = {"resourceVersion": metadata.resource_version}
            automatic = parse_automatic_domains(metadata.annotations)
            if targets is not None and domain in automatic:
                # An administrator took it over: it is not given back automatically.
                others = ",".join(sorted(automatic - {domain}))
                changes["annotations"] = {AUTOMATIC_ANNOTATION: others or None}
            if targets is None:
                # Automatic takeover gives it a whole pause from now on.
                given_back = {**parse_given_back(metadata.annotations), domain: time.time()}
                changes["annotations"] = {GIVEN_BACK_ANNOTATION: format_given_back(given_back)}
            body = {"metadata": changes, "data": {CONFIG_KEY: changed}}
            try:
                await client.patch(ConfigMap, CONFIG_MAP, namespace, body)
            except Conflict:
                if not left:
                    raise
                continue
            break
        given = domain if targets is None else ""
        status = await _read_status(client, options, driver, changed, given)
        warn = warn_of_down_nodes if targets is None else warn_of_ready_nodes
        if seen.known and (warning := warn(domain, seen.nodes)) is not None:
            status = replace(status, warnings=(*status.warnings, warning))
        acted = await _wait_for_controller(client, namespace, status.takeover)
        status = _add_dead_pools(status, acted)
    if acted is None:
        click.echo(
            f"no controller has acted on it within {ACTS_WITHIN:g} s: kubelets may take a minute"
            " to bring it to the driver, whose pods must run with --takeover-controller",
            err=True,
        )
    if is_plain(output):
        _print(status, output)
        return 0
    if targets is None:
        click.echo(f"{domain} is given back; new pods start at home")
    else:
        click.echo(f"{domain} is taken over by {', '.join(targets)}")
    for warning in status.warnings:
        click.echo(f"warning: {warning}", err=True)
    if targets is None:
        _print_away(status)
    return 0


async def _read_configuration(client: Client, options: Options) -> tuple[str, ObjectMeta]:
    """The text of the configuration, and the metadata of its ConfigMap."""
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP

    namespace = options.namespace or NAMESPACE
    try:
        config_map = await client.get(ConfigMap, CONFIG_MAP, namespace)
    except NotFound:
        raise CommandRefused(
            f"there is no ConfigMap {namespace}/{CONFIG_MAP}; install the CSI driver, or give its"
            " namespace with -n"
        ) from None
    text = config_map.get("data", CONFIG_KEY)
    return text if isinstance(text, str) else EMPTY, config_map.metadata


async def _require_driver(client: Client, driver: str) -> None:
    from zonewise.api import CSIDriver, CSINode
    from zonewise.runtime.cache.snapshot import Snapshot

    snapshot = await Snapshot.live(client, (CSIDriver, CSINode))
    try:
        names = {csi_driver.metadata.name for csi_driver in snapshot.all(CSIDriver)}
        names |= {entry.name for node in snapshot.all(CSINode) for entry in node.spec.drivers or ()}
    except Forbidden:
        return
    if driver not in names and (names or driver != DRIVER):
        listed = f"the cluster has {', '.join(sorted(names))}" if names else "the cluster has none"
        raise CommandRefused(f"there is no CSI driver {driver}; {listed}")


async def _wait_for_controller(
    client: Client, namespace: str, desired: Mapping[str, tuple[str, ...]]
) -> TakeoverStatus | None:
    """What the controller reports once a map is in force; empty without permission to read.

    None if it does not report that in time.
    """
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import STATUS_KEY, STATUS_MAP, TakeoverStatus

    for left in reversed(range(LOOKS)):
        try:
            text = (await client.get(ConfigMap, STATUS_MAP, namespace)).get("data", STATUS_KEY)
        except NotFound:
            text = None
        except Forbidden:
            return TakeoverStatus()
        if text is not None:
            reported = TakeoverStatus.parse(str(text))
            if reported.takeover == desired and not reported.error:
                return reported
        if left:
            await asyncio.sleep(ACTS_WITHIN / LOOKS)
    return None


def _add_dead_pools(status: TakeoverStatus, reported: TakeoverStatus | None) -> TakeoverStatus:
    """The status with warnings of dead pools, which only the controller can see."""
    from zonewise.storage.takeover.warnings import TAKEN_POOL_DEAD

    if reported is None or reported.takeover != status.takeover:
        return status
    dead = (
        warning
        for warning in reported.warnings
        if warning.code == TAKEN_POOL_DEAD and warning not in status.warnings
    )
    return replace(status, warnings=(*status.warnings, *dead))


def _require_taken(domain: str, taken: TakeoverMap) -> None:
    if domain not in taken.targets:
        names = ", ".join(sorted(taken.targets))
        others = f"these are: {names}" if names else "no domain is, so there is nothing to clear"
        raise CommandRefused(f"{domain} is not taken over; {others}")


async def _read_status(
    client: Client, options: Options, driver: str, text: str, given: str = ""
) -> TakeoverStatus:
    """What is in force: a valid configuration of version 2, else what the controller reported."""
    from zonewise.csi.takeover.status import TakeoverStatus
    from zonewise.storage.configuration import StorageConfiguration, parse_configuration
    from zonewise.storage.domains import DomainLabels
    from zonewise.storage.takeover.stand_ins import TakeoverMap

    namespace = options.namespace or NAMESPACE
    try:
        configuration = parse_configuration(text, DomainLabels(driver))
    except ConfigError as error:
        return replace(await _read_reported(client, namespace), error=str(error))
    try:
        reported = await _read_reported(client, namespace)
    except Forbidden:
        reported = TakeoverStatus()
    configuration = configuration.inherit_takeover(
        StorageConfiguration(takeover=TakeoverMap(reported.takeover))
    )
    seen = await _observe(client, driver, configuration, given)
    status = TakeoverStatus(
        configuration.takeover.targets,
        "",
        seen.warnings,
        seen.away,
        automatic=reported.automatic if configuration.automatic_takeover else (),
        out_of_service=reported.out_of_service,
    )
    return _add_dead_pools(status, reported)


async def _read_reported(client: Client, namespace: str) -> TakeoverStatus:
    """What the controller reported last; empty if it never did."""
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import STATUS_KEY, STATUS_MAP, TakeoverStatus

    try:
        text = (await client.get(ConfigMap, STATUS_MAP, namespace)).get("data", STATUS_KEY)
    except NotFound:
        text = ""
    return TakeoverStatus.parse(str(text))


@dataclass(frozen=True, slots=True)
class _Observed:
    """The state of a cluster that matters for a change of the map; empty without permission."""

    warnings: tuple[Reason, ...] = ()
    away: tuple[Reason, ...] = ()
    nodes: tuple[NodeReadiness, ...] = ()
    domains: tuple[Segments, ...] = ()
    """Of nodes, pools and volumes: nodes of a lost domain may be deleted already."""
    known: bool = False
    """Whether nodes have domains."""


async def _observe(
    client: Client, driver: str, configuration: StorageConfiguration, given: str = ""
) -> _Observed:
    """What is wrong with a map, and what is away from home (of one domain only, if given)."""
    from zonewise.api import CSINode, Node, PersistentVolume, PersistentVolumeClaim, Pod
    from zonewise.csi.takeover.volumes import VolumeUses
    from zonewise.runtime.cache.snapshot import Snapshot
    from zonewise.storage.pools import existing_pools
    from zonewise.storage.takeover.stand_ins import covers, home_of
    from zonewise.storage.takeover.warnings import (
        NodeReadiness,
        find_away_from_home,
        find_takeover_warnings,
    )

    kinds = (Pod, PersistentVolumeClaim, PersistentVolume, Node, CSINode)
    snapshot = await Snapshot.live(client, kinds)
    try:
        pods, claims, volumes, nodes = (
            _Listed(snapshot.all(kind))
            for kind in (Pod, PersistentVolumeClaim, PersistentVolume, Node)
        )
        labels = _collect_labels(snapshot.all(CSINode), driver)
    except Forbidden:
        return _Observed()
    uses = VolumeUses(pods, claims, volumes, nodes, labels)
    volume_uses = [use for use in uses.uses() if not given or covers(given, use.home)]
    readiness = tuple(NodeReadiness(*uses.locate_node(node.metadata.name)) for node in nodes)
    pools = existing_pools(configuration.pools, configuration.pool_states)
    homes = (
        home_of(volume, labels)
        for volume in volumes
        if volume.spec.csi is not None and volume.spec.csi.driver == driver
    )
    domains = [node.domain for node in readiness]
    return _Observed(
        find_takeover_warnings(configuration.takeover, pools, domains),
        find_away_from_home(volume_uses, configuration.takeover),
        readiness,
        (*domains, *(pool.segments for pool in pools), *homes) if labels.labels else (),
        bool(labels.labels),
    )


def _collect_labels(nodes: Iterable[CSINode], driver: str) -> DomainLabels:
    """The labels that name a driver's domains, as kubelets know them."""
    from zonewise.storage.domains import DomainLabels, short_name

    keys = {
        key
        for node in nodes
        for entry in node.spec.drivers or ()
        if entry.name == driver
        for key in entry.topology_keys or ()
    }
    return DomainLabels(driver, tuple(sorted(keys, key=short_name)))


class _Listed:
    """Objects of a list by their keys."""

    def __init__(self, items: Any) -> None:
        self._items = {item.key: item for item in items}

    def get(self, key: tuple[str, str]) -> Any:
        return self._items.get(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items.values())


def _print(status: TakeoverStatus, output: str | None) -> None:
    if is_plain(output):
        click.echo(render(status.to_dict(), output))
        return
    if status.error:
        click.echo(f"the configuration is wrong, the one before is in force: {status.error}")
    if not status.takeover:
        click.echo("no domain is taken over")
    for source, targets in sorted(status.takeover.items()):
        click.echo(f"{source} is taken over by {', '.join(targets)}")
    for hold in status.automatic:
        click.echo(f"automatic: {hold}")
    for fence in status.out_of_service:
        click.echo(f"out of service: {fence}")
    for warning in status.warnings:
        click.echo(f"warning: {warning}", err=True)
    if status.further_warnings:
        click.echo(f"warning: and {status.further_warnings} more", err=True)
    _print_away(status)


def _print_away(status: TakeoverStatus) -> None:
    if status.away_from_home:
        click.echo(f"away from home: {len(status.away_from_home) + status.further_away_from_home}")
        by_fix: dict[str, list[str]] = {}
        for reason in status.away_from_home:
            by_fix.setdefault(reason.fix, []).append(reason.message)
        for fix, messages in by_fix.items():
            for message in messages:
                click.echo(f"  {message}")
            if fix:
                click.echo(f"    {fix}")
        if status.further_away_from_home:
            click.echo(f"  … and {status.further_away_from_home} more")
