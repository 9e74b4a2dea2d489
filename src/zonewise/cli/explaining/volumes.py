"""``zonewise explain volume|pvc``: where a volume is and why, from a cluster or a dump."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from zonewise.api import (
    CSINode,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Resource,
    StorageClass,
    unstructured,
)
from zonewise.api.errors import ConfigError
from zonewise.api.meta import Key
from zonewise.api.objects.events import Event
from zonewise.api.reason import Reason
from zonewise.cli.program.command import CommandRefused
from zonewise.cli.program.dump_kinds import describe_missing
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import is_plain, render
from zonewise.cli.program.sources import (
    choose_namespace,
    explain_absence,
    list_readable,
    read_cluster,
    read_dumps,
    require_dumped,
    require_single,
)
from zonewise.csi.takeover.status import STATUS_KEY, TakeoverStatus
from zonewise.explain.volume_report import VolumeReport, render_volume
from zonewise.explain.volumes import VolumeCluster, explain_claim, explain_volume
from zonewise.runtime.cache.snapshot import Snapshot
from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import DomainLabels, short_name

CONFIG = ("zonewise-system", "csi")
STATUS = ("zonewise-system", "csi-takeover")
FILE = "config.json"
NOTES = 5
"""How many events of a claim are shown, the latest."""

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
_VOLUME_KINDS = (PersistentVolumeClaim, PersistentVolume, StorageClass)
_KINDS: tuple[type[Any], ...] = (*_VOLUME_KINDS, Node, CSINode, Pod, Event, ConfigMap)


def print_volume(
    options: Options, what: str, name: str, files: Sequence[str], output: str | None
) -> None:
    """Print the report of a claim or a volume."""
    if files:
        snapshot, _ = require_single(tuple(read_dumps(files)))
    else:
        snapshot = read_cluster(options, _KINDS)
    cluster = _make_cluster(snapshot)
    report = _explain(snapshot, cluster, what, name, choose_namespace(options, files))
    missing = describe_missing(snapshot, _needed_kinds(report, cluster), ", ".join(snapshot.files))
    if missing:
        raise CommandRefused(missing)
    click.echo(render(report.to_dict(), output) if is_plain(output) else render_volume(report))


def _needed_kinds(report: VolumeReport, cluster: VolumeCluster) -> list[type[Any]]:
    """The kinds without which a report may claim that an object does not exist."""
    if report.reason.code == "VolumeMissing":
        return [PersistentVolume]
    if report.volume:
        return []
    needed: list[type[Any]] = [StorageClass]
    if report.reason.code == "WaitsForPod":
        needed.append(Pod)
    if cluster.configuration is not None:
        needed += [Node, CSINode]
    return needed


def _make_cluster(snapshot: Snapshot) -> VolumeCluster:
    config_maps = list_readable(snapshot, ConfigMap) or ()
    csi_nodes = list_readable(snapshot, CSINode) or ()
    classes = list_readable(snapshot, StorageClass) or ()
    return VolumeCluster(
        claims={claim.key: claim for claim in snapshot.all(PersistentVolumeClaim)},
        volumes={volume.metadata.name: volume for volume in snapshot.all(PersistentVolume)},
        classes={storage_class.metadata.name: storage_class for storage_class in classes},
        nodes={node.metadata.name: node for node in list_readable(snapshot, Node) or ()},
        csi_nodes=csi_nodes,
        pods=list_readable(snapshot, Pod) or (),
        events=_collect_events(snapshot),
        configuration=_parse_configuration(config_maps, csi_nodes),
        takeover=_read_takeover(config_maps),
    )


def _read_takeover(config_maps: tuple[Any, ...]) -> tuple[Reason, ...]:
    """Why a takeover waits, as the driver's controller reported it last."""
    text = next((item.get("data", STATUS_KEY) for item in config_maps if item.key == STATUS), "")
    return TakeoverStatus.parse(str(text)).automatic


def _collect_events(snapshot: Snapshot) -> dict[Key, tuple[str, ...]]:
    """Notes about claims, the latest last; a dump has events in the older form."""
    rows: list[tuple[str, str, str, str]] = []
    for event in list_readable(snapshot, Event) or ():
        about = event.regarding
        if about.kind == "PersistentVolumeClaim":
            when = event.event_time or event.deprecated_last_timestamp or ""
            rows.append((when, about.namespace, about.name, f"{event.reason}: {event.note}"))
    for item in snapshot.everything():
        if (item.resource.group, item.resource.kind) == ("", "Event"):
            about = item.get("involvedObject", default={})
            if about.get("kind") == "PersistentVolumeClaim":
                note = f"{item.get('reason', default='')}: {item.get('message', default='')}"
                when = str(item.get("lastTimestamp") or item.get("eventTime") or "")
                rows.append((when, about.get("namespace", ""), about.get("name", ""), note))
    notes: dict[Key, tuple[str, ...]] = {}
    for _, namespace, name, note in sorted(rows):
        notes[namespace, name] = (*notes.get((namespace, name), ()), note)[-NOTES:]
    return notes


def _parse_configuration(
    config_maps: tuple[Any, ...], csi_nodes: tuple[CSINode, ...]
) -> StorageConfiguration | None:
    """The pools in the driver's ConfigMap; None if there is none that can be read."""
    text = next((item.get("data", FILE) for item in config_maps if item.key == CONFIG), None)
    if text is None:
        return None
    names = {
        short_name(key)
        for node in csi_nodes
        for driver in node.spec.drivers or ()
        for key in driver.topology_keys or ()
    }
    try:
        return parse_configuration(str(text), DomainLabels("", tuple(sorted(names))))
    except ConfigError as error:
        click.echo(f"ConfigMap {'/'.join(CONFIG)}: {error}", err=True)
        return None


def _explain(
    snapshot: Snapshot, cluster: VolumeCluster, what: str, name: str, namespace: str
) -> VolumeReport:
    if what == "volume":
        volume = cluster.volumes.get(name)
        if volume is not None:
            return explain_volume(cluster, volume)
        require_dumped(snapshot, PersistentVolume, f"PersistentVolume {name}")
        advice = "list those that exist with 'kubectl get pv'"
        raise CommandRefused(f"there is no PersistentVolume {name}; {advice}")
    claim = cluster.claims.get((namespace, name))
    if claim is not None:
        return explain_claim(cluster, claim)
    kind, listing = "PersistentVolumeClaim", "kubectl get pvc -A"
    require_dumped(snapshot, PersistentVolumeClaim, f"{kind} {name} in namespace {namespace}")
    elsewhere = (other for other, claim_name in cluster.claims if claim_name == name)
    raise explain_absence(kind, name, namespace, elsewhere=elsewhere, listing=listing)
