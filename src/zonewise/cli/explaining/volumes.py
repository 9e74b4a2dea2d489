"""``zonewise explain volume|pvc``: where a volume is and why, from a cluster or a dump."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from zonewise.api.errors import ConfigError, NotFound, Status
from zonewise.cli.program.dump_kinds import lacking
from zonewise.cli.program.options import Options
from zonewise.cli.program.screen import is_plain, rendered
from zonewise.cli.program.sources import absent, dumped, live, not_dumped, only, readable

if TYPE_CHECKING:
    from zonewise.api.meta import Key
    from zonewise.explain.volume_report import VolumeReport
    from zonewise.explain.volumes import VolumeCluster
    from zonewise.runtime.cache.snapshot import Snapshot

CONFIG = ("zonewise-system", "csi")
FILE = "config.json"
WRITTEN = {
    "volume": ("pv", "persistentvolume", "persistentvolumes", "volume"),
    "pvc": ("pvc", "persistentvolumeclaim", "persistentvolumeclaims"),
}
"""Kinds that may precede the name, as kubectl prints it."""

NOTES = 5
"""How many events are shown, the latest."""


def print_volume(
    options: Options, what: str, name: str, files: Sequence[str], output: str | None
) -> None:
    """Print the report of a claim or a volume."""
    from zonewise.explain.cluster import DEFAULT_NAMESPACE
    from zonewise.explain.volume_report import render_volume

    kind, _, bare = name.rpartition("/")
    if kind.lower() in WRITTEN[what]:
        name = bare
    if files:
        namespace = options.namespace or DEFAULT_NAMESPACE
        snapshot = only(tuple(dumped(files)))[0]
    else:
        from zonewise.cli.program.connection import cluster_config

        namespace = cluster_config(options).namespace
        snapshot = live(options, _kinds())
    cluster = _cluster(snapshot)
    report = _found(snapshot, cluster, what, name, namespace)
    missing = lacking(snapshot, _needed(report, cluster), ", ".join(snapshot.files))
    if missing:
        raise NotFound(Status(message=missing, code=404))
    click.echo(rendered(report.to_dict(), output) if is_plain(output) else render_volume(report))


def _needed(report: VolumeReport, cluster: VolumeCluster) -> list[type[Any]]:
    """The kinds without which a report says of an object that it is not there."""
    _, volume, made_by, node, csi_node, pod, *_ = _kinds()
    if report.reason.code == "VolumeMissing":
        return [volume]
    if report.volume:
        return []
    needed = [made_by]
    if report.reason.code == "WaitsForPod":
        needed.append(pod)
    if cluster.configuration is not None:
        needed += [node, csi_node]
    return needed


def _kinds() -> tuple[type[Any], ...]:
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
    from zonewise.api.objects.events import Event

    config = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
    return (
        PersistentVolumeClaim,
        PersistentVolume,
        StorageClass,
        Node,
        CSINode,
        Pod,
        Event,
        config,
    )


def _cluster(snapshot: Snapshot) -> VolumeCluster:
    from zonewise.explain.volumes import VolumeCluster

    claim, volume, made_by, node, csi_node, pod, event, config = _kinds()
    csi_nodes = readable(snapshot, csi_node) or ()
    return VolumeCluster(
        claims={one.key: one for one in snapshot.all(claim)},
        volumes={one.metadata.name: one for one in snapshot.all(volume)},
        classes={one.metadata.name: one for one in readable(snapshot, made_by) or ()},
        nodes={one.metadata.name: one for one in readable(snapshot, node) or ()},
        csi_nodes=csi_nodes,
        pods=readable(snapshot, pod) or (),
        events=_events(snapshot, event),
        configuration=_configuration(readable(snapshot, config) or (), csi_nodes),
    )


def _events(snapshot: Snapshot, kind: type[Any]) -> dict[Key, tuple[str, ...]]:
    """Notes about claims, the latest last; a dump has events in the older form."""
    rows: list[tuple[str, str, str, str]] = []
    for one in readable(snapshot, kind) or ():
        about = one.regarding
        if about.kind == "PersistentVolumeClaim":
            when = one.event_time or one.deprecated_last_timestamp or ""
            rows.append((when, about.namespace, about.name, f"{one.reason}: {one.note}"))
    for item in snapshot.everything():
        if (item.resource.group, item.resource.kind) == ("", "Event"):
            about = item.get("involvedObject", default={})
            if about.get("kind") == "PersistentVolumeClaim":
                note = f"{item.get('reason', default='')}: {item.get('message', default='')}"
                when = str(item.get("lastTimestamp") or item.get("eventTime") or "")
                rows.append((when, about.get("namespace", ""), about.get("name", ""), note))
    found: dict[Key, tuple[str, ...]] = {}
    for _, namespace, name, note in sorted(rows):
        known = found.get((namespace, name), ())
        found[namespace, name] = (*known, note)[-NOTES:]
    return found


def _configuration(maps: tuple[Any, ...], csi_nodes: tuple[Any, ...]) -> Any:
    """The pools in the driver's ConfigMap; None if there is none that can be read."""
    from zonewise.storage.configuration import parse_configuration
    from zonewise.storage.domains import DomainLabels, short_name

    text = next((one.get("data", FILE) for one in maps if one.key == CONFIG), None)
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


def _found(
    snapshot: Snapshot, cluster: VolumeCluster, what: str, name: str, namespace: str
) -> VolumeReport:
    from zonewise.explain.volumes import explain_claim, explain_volume

    claim_kind, volume_kind, *_ = _kinds()
    if what == "volume":
        volume = cluster.volumes.get(name)
        if volume is not None:
            return explain_volume(cluster, volume)
        not_dumped(snapshot, volume_kind, f"PersistentVolume {name}")
        advice = "kubectl get pv shows which there are"
        sentence = f"there is no PersistentVolume {name}; {advice}"
        raise NotFound(Status(message=sentence, code=404))
    claim = cluster.claims.get((namespace, name))
    if claim is not None:
        return explain_claim(cluster, claim)
    not_dumped(snapshot, claim_kind, f"PersistentVolumeClaim {name} in namespace {namespace}")
    elsewhere = (place for place, other in cluster.claims if other == name)
    kind, listing = "PersistentVolumeClaim", "kubectl get pvc -A"
    raise absent(kind, name, namespace, elsewhere=elsewhere, listing=listing)
