"""A cluster for ``zonewise dns``: a headless Service with keys, an API server over a folder."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.dns.clusters import Obj, endpoint, headless, namespace, pieces

from zonewise.embedded.apiserver.server import DUAL_STACK, ApiServer, ServerSettings

ZONE = "topology.kubernetes.io/zone"


def free_port() -> int:
    """A free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def objects() -> list[Obj]:
    """A headless Service with keys, endpoints in two zones, and this process as a pod in one."""
    labels = {"a": {ZONE: "a"}, "b": {ZONE: "b"}}
    rows = [endpoint(f"10.0.0.{at}", nodeName=f"n-{zone}") for at, zone in enumerate("ab", 1)]
    items = [namespace("shop"), headless("db", keys=f"{ZONE},*"), pieces("db", rows)]
    for zone, known in labels.items():
        items.append({"kind": "Node", "metadata": {"name": f"n-{zone}", "labels": known}})
    versions = {"EndpointSlice": "discovery.k8s.io/v1"}
    return [{"apiVersion": versions.get(item["kind"], "v1"), **item} for item in items]


def client_pod(name: str, node: str, address: str) -> Obj:
    """A pod that runs."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


@asynccontextmanager
async def api(folder: Path) -> AsyncIterator[ApiServer]:
    """An API server over a folder."""
    server = ApiServer(
        folder,
        settings=ServerSettings(service_networks=DUAL_STACK),
        clock=time.time,
        rng=random.SystemRandom(),
    )
    await server.start(0)
    try:
        yield server
    finally:
        await server.close()
