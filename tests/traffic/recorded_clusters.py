"""Snapshots from the recorded lines of ``hints.jsonl`` and ``churn.jsonl``."""

from __future__ import annotations

from typing import Any

from zonewise.api import Node, convert
from zonewise.topology.shares import Shares, ZoneShare, shares_of
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.hints import ServiceSnapshot
from zonewise.traffic.modes import HintRequest, Mode

AUTO_REQUEST = HintRequest(Mode.AUTO)


def cluster(row: dict[str, Any]) -> ServiceSnapshot:
    """One line of hints.jsonl."""
    zones = tuple(ZoneShare(name, 1, cpu, cpu) for name, cpu in row["cpu_milli"].items())
    targets = tuple(
        TrafficEndpoint(f"10.0.{n >> 8}.{n & 255}", zone=zone)
        for n, zone in enumerate(row["endpoint_zones"])
    )
    return ServiceSnapshot(AUTO_REQUEST, Shares(zones), targets)


def state(step: dict[str, Any]) -> ServiceSnapshot:
    """One state of a history, with its nodes as a cluster has them."""
    nodes = [
        convert(
            Node,
            {
                "metadata": {
                    "name": node["name"],
                    "labels": {"topology.kubernetes.io/zone": node["zone"]} if node["zone"] else {},
                },
                "status": {
                    "allocatable": {"cpu": f"{node['cpu_milli']}m"},
                    "conditions": [{"type": "Ready", "status": str(node["ready"])}],
                },
            },
        )
        for node in step["nodes"]
    ]
    zones = {node["name"]: node["zone"] for node in step["nodes"]}
    targets = tuple(
        TrafficEndpoint(
            entry["address"],
            zone=zones.get(entry["node"], ""),
            node=entry["node"],
            ready=entry["ready"],
            serving=entry["ready"],
            terminating=entry["terminating"],
        )
        for entry in step["endpoints"]
    )
    return ServiceSnapshot(AUTO_REQUEST, shares_of(nodes), targets)
