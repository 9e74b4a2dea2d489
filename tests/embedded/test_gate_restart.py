"""A cluster that is restarted with the gate TopologyAwareHints off, and on again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.whole_cluster import whole

from zonewise.api import EndpointSlice, FeatureGates, Service
from zonewise.api.meta import find_condition
from zonewise.embedded.apiserver import server
from zonewise.embedded.cluster import ClusterSettings
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]

Obj = dict[str, Any]
WEB: Obj = {"name": "web", "namespace": "default"}
SHOP: list[Obj] = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": WEB,
        "spec": {
            "replicas": 9,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "box", "image": "box"}]},
            },
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**WEB, "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    },
]


async def test_hints_go_with_the_gate_and_come_back(tmp_path: Path) -> None:
    """Slices lose their hints at a restart without the gate, with the reason GateOff, and have them
    again after the next one.
    """
    seen = []
    for number, on in enumerate((True, False, True)):
        gates = FeatureGates({"TopologyAwareHints": on})
        api = server.ServerSettings(service_networks=server.DUAL_STACK, gates=gates)
        objects = [] if number else [*NodeLayout().nodes(), *SHOP]
        async with whole(objects, folder=tmp_path, settings=ClusterSettings(api=api)) as cluster:
            await asyncio.sleep(120)
            service = await cluster.client.get(Service, "web", "default")
            condition = find_condition(service.status.conditions, "zonewise.io/Hints")
            assert condition is not None
            endpoints = [
                endpoint
                for piece in await cluster.client.list(EndpointSlice)
                if piece.metadata.labels.get("kubernetes.io/service-name") == "web"
                for endpoint in piece.endpoints or ()
            ]
            hinted = sum(endpoint.hints is not None for endpoint in endpoints)
            seen.append((len(endpoints), hinted, condition.reason))
    assert seen == [(9, 9, "Hinted"), (9, 0, "GateOff"), (9, 9, "Hinted")]
