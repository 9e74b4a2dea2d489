"""``zonewise takeover``: which domain stands in for which.

The map is in the configuration of the driver, the ConfigMap ``zonewise-system/csi``, on an embedded
cluster and on a real one alike. It is changed only if the ConfigMap has not changed meanwhile, and
only into one that the driver will accept. What is in force while the configuration is wrong is in
the controller's ConfigMap ``csi-takeover``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from zonewise.api.errors import ConfigError, Conflict, Forbidden, NotFound, Status
from zonewise.cli.program import interrupts
from zonewise.cli.program.cluster_completion import completes, read
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options, output_option

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
"""How long a controller is waited for, in seconds."""
LOOKS = 20


def _domains(ctx: click.Context, _incomplete: str = "") -> list[str]:
    """The domains that can be named: with 'set' those of nodes, with 'clear' those taken over."""
    match ctx.params.get("action"):
        case "set":
            return _domains_of_nodes(ctx)
        case "clear":
            return _domains_taken(ctx)
    return []


def _domains_of_nodes(ctx: click.Context) -> list[str]:
    from itertools import accumulate

    from zonewise.api import CSINode, Node

    snapshot = read(ctx, CSINode, Node)
    if snapshot is None:
        return []
    labels = _labels(snapshot.all(CSINode), ctx.params.get("drivername") or DRIVER)
    return [
        name
        for node in snapshot.all(Node)
        for name in accumulate(
            labels.segments_of_node(node.metadata.labels).values(),
            lambda outer, inner: f"{outer}/{inner}",
        )
    ]


def _domains_taken(ctx: click.Context) -> list[str]:
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP
    from zonewise.storage.configuration import parse_configuration
    from zonewise.storage.domains import DomainLabels

    namespace = ctx.params.get("namespace") or NAMESPACE
    snapshot = read(ctx, ConfigMap, namespace=namespace)
    found = snapshot.get(ConfigMap, CONFIG_MAP, namespace) if snapshot is not None else None
    if found is None:
        return []
    labels = DomainLabels(ctx.params.get("drivername") or DRIVER)
    try:
        return list(
            parse_configuration(str(found.get("data", CONFIG_KEY)), labels).takeover.targets
        )
    except ConfigError:
        return []


def _stand_ins(ctx: click.Context, incomplete: str) -> list[str]:
    """Lists of domains that go on with one more."""
    from zonewise.storage.takeover.stand_ins import ALL

    begun = incomplete.rpartition(",")[0]
    if not begun:
        return [ALL, *_domains_of_nodes(ctx)]
    given = begun.split(",")
    return [f"{begun},{name}" for name in _domains_of_nodes(ctx) if name not in given]


@click.command(
    "takeover",
    cls=Command,
    examples=(
        "takeover status            # what is taken over, what is away from home",
        "takeover set a --by b,c    # nodes of b and c use the volumes of a",
        "takeover set a --by all    # nodes of every other domain do",
        "takeover set a --by b --force   # though nodes of a are Ready",
        "takeover clear a           # give it back; no pod is evicted",
    ),
)
@click.argument("action", metavar="status|set|clear", type=click.Choice(["status", "set", "clear"]))
@click.argument("domain", required=False, metavar="[DOMAIN]", shell_complete=completes(_domains))
@click.option(
    "--by",
    metavar="DOMAIN,…|all",
    shell_complete=completes(_stand_ins),
    help="With 'set': the domains that stand in.",
)
@click.option(
    "--force", is_flag=True, help="With 'set': take over a domain although nodes of it are Ready."
)
@click.option(
    "--drivername", metavar="NAME", default=DRIVER, help=f"The driver.  [default: {DRIVER}]"
)
@output_option("table", "json", "yaml")
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
    """Let nodes of living domains use the volumes of one that failed, and give it back.

    A takeover declares the domain dead: pods on its nodes that are not Ready are removed, and a
    node there that still uses a volume is shut out of it before another node uses it. A domain with
    Ready nodes is taken over only with --force. A domain that is given back gets its pods back when
    they are started again.

    Domains are called by the values of the driver's labels: zone-a, or r1/zone-a.
    """
    if action == "status":
        if domain or by is not None or force:
            raise click.UsageError("status takes no domain, no --by and no --force; leave them out")
        return interrupts.run(_status(options, drivername, output))
    if not domain:
        raise click.UsageError(f"which domain? give its name: takeover {action} DOMAIN")
    if action == "clear":
        if by is not None or force:
            raise click.UsageError("--by and --force are for 'set'; leave them out")
        return interrupts.run(_change(options, drivername, domain, None, output))
    targets = tuple(one.strip() for one in (by or "").split(",") if one.strip())
    if not targets:
        raise click.UsageError("by whom? give --by DOMAIN,… or --by all")
    return interrupts.run(_change(options, drivername, domain, targets, output, force=force))


async def _status(options: Options, driver: str, output: str | None) -> int:
    from zonewise.cli.program.connection import connected

    async with connected(options) as client:
        text, _ = await _configuration(client, options)
        found = await _told(client, options, driver, text)
    _print(found, output)
    return 1 if found.error else 0


async def _change(
    options: Options,
    driver: str,
    domain: str,
    targets: tuple[str, ...] | None,
    output: str | None,
    *,
    force: bool = False,
) -> int:
    from zonewise.cli.program.connection import connected
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import (
        AUTOMATIC_ANNOTATION,
        CONFIG_KEY,
        CONFIG_MAP,
        parse_automatic_domains,
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
    async with connected(options) as client:
        if targets is not None:
            await _require_driver(client, driver)
        for left in reversed(range(TRIES)):
            text, metadata = await _configuration(client, options)
            try:
                current = parse_before_edit(text, labels)
                seen = await _seen(client, driver, current)
                if targets is not None and (
                    unknown := find_unknown_domain((domain, *targets), seen.domains)
                ):
                    raise NotFound(Status(message=unknown, code=404))
                changed = edit_takeover(text, {domain: targets}, labels)
            except ConfigError as error:
                raise Forbidden(
                    Status(
                        message=f"{error}; ConfigMap {namespace}/{CONFIG_MAP} is as it was",
                        code=403,
                    )
                ) from None
            taken = current.takeover
            if targets is None:
                _require_taken(domain, taken)
            elif not force and seen.known and (alive := explain_force(domain, seen.nodes, taken)):
                raise Forbidden(Status(message=alive, code=403))
            told: dict[str, Any] = {"resourceVersion": metadata.resource_version}
            marks = parse_automatic_domains(metadata.annotations)
            if targets is not None and domain in marks:
                # An administrator has it now: it is not given back automatically.
                told["annotations"] = {
                    AUTOMATIC_ANNOTATION: ",".join(sorted(marks - {domain})) or None
                }
            body = {"metadata": told, "data": {CONFIG_KEY: changed}}
            try:
                await client.patch(ConfigMap, CONFIG_MAP, namespace, body)
            except Conflict:
                if not left:
                    raise
                continue
            break
        found = await _told(client, options, driver, changed, domain if targets is None else "")
        odd = (warn_of_down_nodes if targets is None else warn_of_ready_nodes)(domain, seen.nodes)
        if odd is not None and seen.known:
            found = replace(found, warnings=(*found.warnings, odd))
        acted = await _acted(client, namespace, found.takeover)
        found = _with_dead_pools(found, acted)
    if acted is None:
        click.echo(
            f"no controller has acted on it within {ACTS_WITHIN:g} s: kubelets may take a minute"
            " to bring it to the driver, whose pods must run with --takeover-controller",
            err=True,
        )
    if output in ("json", "yaml"):
        _print(found, output)
        return 0
    if targets is None:
        click.echo(f"{domain} is given back; new pods start at home")
    else:
        click.echo(f"{domain} is taken over by {', '.join(targets)}")
    for one in found.warnings:
        click.echo(f"warning: {one}", err=True)
    if targets is None:
        _print_away(found)
    return 0


async def _configuration(client: Client, options: Options) -> tuple[str, ObjectMeta]:
    """The text of the configuration, and what else is known of its ConfigMap."""
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP

    namespace = options.namespace or NAMESPACE
    try:
        found = await client.get(ConfigMap, CONFIG_MAP, namespace)
    except NotFound:
        raise NotFound(
            Status(
                message=f"there is no ConfigMap {namespace}/{CONFIG_MAP}; is the CSI driver"
                " installed? -n names another namespace",
                code=404,
            )
        ) from None
    text = found.get("data", CONFIG_KEY)
    if not isinstance(text, str):
        text = EMPTY
    return text, found.metadata


async def _require_driver(client: Client, driver: str) -> None:
    from zonewise.api import CSIDriver, CSINode
    from zonewise.runtime.cache.snapshot import Snapshot

    snapshot = await Snapshot.live(client, (CSIDriver, CSINode))
    try:
        names = {one.metadata.name for one in snapshot.all(CSIDriver)}
        names |= {entry.name for one in snapshot.all(CSINode) for entry in one.spec.drivers or ()}
    except Forbidden:
        return
    if driver not in names and (names or driver != DRIVER):
        advice = f"the drivers are {', '.join(sorted(names))}" if names else "there is none at all"
        raise NotFound(Status(message=f"there is no CSI driver {driver}; {advice}", code=404))


async def _acted(
    client: Client, namespace: str, wanted: Mapping[str, tuple[str, ...]]
) -> TakeoverStatus | None:
    """What the controller reports once a map is in force, empty without permission to read.

    None if it does not report that soon.
    """
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import STATUS_KEY, STATUS_MAP, TakeoverStatus

    for left in reversed(range(LOOKS)):
        try:
            kept = (await client.get(ConfigMap, STATUS_MAP, namespace)).get("data", STATUS_KEY)
        except NotFound:
            kept = None
        except Forbidden:
            return TakeoverStatus()
        if kept is not None:
            said = TakeoverStatus.parse(str(kept))
            if said.takeover == wanted and not said.error:
                return said
        if left:
            await asyncio.sleep(ACTS_WITHIN / LOOKS)
    return None


def _with_dead_pools(found: TakeoverStatus, told: TakeoverStatus | None) -> TakeoverStatus:
    """What holds, with what only the controller can know: it has access to the storage."""
    from zonewise.storage.takeover.warnings import TAKEN_POOL_DEAD

    if told is None or told.takeover != found.takeover:
        return found
    dead = [one for one in told.warnings if one.code == TAKEN_POOL_DEAD]
    return replace(
        found, warnings=(*found.warnings, *(one for one in dead if one not in found.warnings))
    )


def _require_taken(domain: str, taken: TakeoverMap) -> None:
    if domain not in taken.targets:
        names = ", ".join(sorted(taken.targets))
        advice = f"these are: {names}" if names else "no domain is, so there is nothing to clear"
        raise NotFound(Status(message=f"{domain} is not taken over; {advice}", code=404))


async def _told(
    client: Client, options: Options, driver: str, text: str, given: str = ""
) -> TakeoverStatus:
    """What holds: the map of a valid configuration of version 2, else what the controller keeps."""
    from zonewise.csi.takeover.status import TakeoverStatus
    from zonewise.storage.configuration import StorageConfiguration, parse_configuration
    from zonewise.storage.domains import DomainLabels
    from zonewise.storage.takeover.stand_ins import TakeoverMap

    namespace = options.namespace or NAMESPACE
    try:
        configuration = parse_configuration(text, DomainLabels(driver))
    except ConfigError as error:
        last = await _kept(client, namespace)
        return replace(last, error=str(error))
    try:
        kept = await _kept(client, namespace)
    except Forbidden:
        kept = TakeoverStatus()
    configuration = configuration.inherit_takeover(
        StorageConfiguration(takeover=TakeoverMap(kept.takeover))
    )
    seen = await _seen(client, driver, configuration, given)
    found = TakeoverStatus(configuration.takeover.targets, "", seen.warnings, seen.away)
    return _with_dead_pools(found, kept)


async def _kept(client: Client, namespace: str) -> TakeoverStatus:
    """What the controller reported last; empty if it never did."""
    from zonewise.csi.takeover.controller import ConfigMap
    from zonewise.csi.takeover.status import STATUS_KEY, STATUS_MAP, TakeoverStatus

    try:
        kept = (await client.get(ConfigMap, STATUS_MAP, namespace)).get("data", STATUS_KEY)
    except NotFound:
        kept = ""
    return TakeoverStatus.parse(str(kept))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What of a cluster is read for a change of the map; empty without permission to read."""

    warnings: tuple[Reason, ...] = ()
    away: tuple[Reason, ...] = ()
    nodes: tuple[NodeReadiness, ...] = ()
    domains: tuple[Segments, ...] = ()
    """Of nodes, pools and volumes: nodes of a lost domain may be deleted already."""
    known: bool = False
    """Whether nodes have domains."""


async def _seen(
    client: Client, driver: str, configuration: StorageConfiguration, given: str = ""
) -> _Seen:
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
        labels = _labels(snapshot.all(CSINode), driver)
    except Forbidden:
        return _Seen()
    uses = VolumeUses(pods, claims, volumes, nodes, labels)
    found = [one for one in uses.uses() if not given or covers(given, one.home)]
    places = tuple(NodeReadiness(*uses.locate_node(node.metadata.name)) for node in nodes)
    pools = existing_pools(configuration.pools, configuration.pool_states)
    homes = (
        home_of(one, labels)
        for one in volumes
        if one.spec.csi is not None and one.spec.csi.driver == driver
    )
    at = [one.domain for one in places]
    return _Seen(
        find_takeover_warnings(configuration.takeover, pools, at),
        find_away_from_home(found, configuration.takeover),
        places,
        (*at, *(pool.segments for pool in pools), *homes) if labels.labels else (),
        bool(labels.labels),
    )


def _labels(nodes: Iterable[CSINode], driver: str) -> DomainLabels:
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
        self._items = {one.key: one for one in items}

    def get(self, key: tuple[str, str]) -> Any:
        return self._items.get(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items.values())


def _print(found: TakeoverStatus, output: str | None) -> None:
    from zonewise.cli.program.screen import rendered

    if output in ("json", "yaml"):
        click.echo(rendered(found.to_dict(), output))
        return
    if found.error:
        click.echo(f"the configuration is wrong, what it said before is in force: {found.error}")
    if not found.takeover:
        click.echo("no domain is taken over")
    for source, targets in sorted(found.takeover.items()):
        click.echo(f"{source} is taken over by {', '.join(targets)}")
    for one in found.warnings:
        click.echo(f"warning: {one}", err=True)
    if found.further_warnings:
        click.echo(f"warning: and {found.further_warnings} more", err=True)
    _print_away(found)


def _print_away(found: TakeoverStatus) -> None:
    if found.away_from_home:
        click.echo(f"away from home: {len(found.away_from_home) + found.further_away_from_home}")
        for one in found.away_from_home:
            click.echo(f"  {one.message}")
        if found.further_away_from_home:
            click.echo(f"  … and {found.further_away_from_home} more")
