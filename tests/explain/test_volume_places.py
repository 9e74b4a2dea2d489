"""From where a volume can be used, with those who stand in for its home."""

from __future__ import annotations

from typing import Any

from tests.explain.dumps import DRIVER, KEY

from zonewise.api import Node, PersistentVolume, convert
from zonewise.explain.volume_report import render_volume
from zonewise.explain.volumes import VolumeCluster, explain_volume

OTHER = f"topology.{DRIVER}/takeover.a"


def takeable() -> PersistentVolume:
    """A volume of zone a that can be taken over."""
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        for key, value in ((KEY, "a"), (OTHER, "true"))
    ]
    attributes = {"pool": "pool-a"}
    body = {
        "metadata": {"name": "v"},
        "spec": {
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            "csi": {"driver": DRIVER, "volumeHandle": "v", "volumeAttributes": attributes},
        },
    }
    return convert(PersistentVolume, body)


def cluster(*taking: str) -> VolumeCluster:
    """Zones a, b and c; nodes of some stand in for a."""
    nodes = {}
    for zone in "abc":
        labels: Any = {KEY: zone} | ({OTHER: "true"} if zone in taking else {})
        nodes[zone] = convert(Node, {"metadata": {"name": zone, "labels": labels}})
    return VolumeCluster(nodes=nodes)


def test_both_places_are_told() -> None:
    """Programs see both terms, people who stands in now; nobody, or unknown, is told as such."""
    report = explain_volume(cluster("b"), takeable())
    assert report.to_dict()["domains"] == [{KEY: "a"}, {OTHER: "true"}]
    words = "can be used from zone a, and from nodes that stand in for it"
    assert f"{words} (now: zone b)" in render_volume(report)
    assert f"{words} (now: zone b or zone c)" in render_volume(
        explain_volume(cluster("b", "c"), takeable())
    )
    assert f"{words} (now: none)" in render_volume(explain_volume(cluster(), takeable()))
    assert f"{words}." in render_volume(explain_volume(VolumeCluster(), takeable()))
