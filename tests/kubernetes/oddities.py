"""Services and pods with unusual endpoints: named ports, sidecars, hostnames, unready pods."""

from __future__ import annotations

import json
from typing import Any

from zonewise.api import Node, Pod, Service, convert
from zonewise.runtime.client.client import Client

Obj = dict[str, Any]
SINCE = "2026-01-02T03:04:05Z"
HTTP = [{"name": "http", "port": 80, "targetPort": 8080}]
NAMED = [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "m", "port": 9090}]
BOTH = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}

SERVICES: dict[str, Obj] = {
    "plain": {"ports": HTTP},
    "unnamed": {"ports": [{"port": 80, "appProtocol": "h2c"}]},
    "named": {"ports": NAMED},
    "headless": {"ports": HTTP, "clusterIP": "None"},
    "portless": {"clusterIP": "None"},
    "early": {"ports": HTTP, "publishNotReadyAddresses": True},
    "both": {"ports": HTTP, **BOTH},
    "six": {"ports": HTTP, "ipFamilies": ["IPv6"]},
    "near": {"ports": HTTP, "trafficDistribution": "PreferSameZone"},
    "nearest": {"ports": HTTP, "trafficDistribution": "PreferSameNode"},
    "nobody": {"ports": HTTP, "selector": {"app": "nobody"}},
    "away": {"ports": HTTP, "selector": None},
}


def container(name: str, port: int, **more: Any) -> Obj:
    """A container with a port called ``web``."""
    ports = [{"name": "web", "containerPort": port}]
    return {"name": name, "image": "box", "ports": ports, **more}


PODS: dict[str, Obj] = {
    "ready": {"containers": [container("box", 80)]},
    "other-port": {"containers": [container("box", 8080)]},
    "no-port": {"containers": [{"name": "box", "image": "box"}]},
    "sidecar": {
        "containers": [{"name": "box", "image": "box"}],
        "initContainers": [container("beside", 15001, restartPolicy="Always")],
    },
    "named-host": {"hostname": "db-0", "subdomain": "headless"},
    "other-host": {"hostname": "db-0", "subdomain": "elsewhere"},
    "unready": {},
    "ended": {},
    "terminating": {},
    "addressless": {},
    "four-only": {},
}


async def plant(client: Client, namespace: str, nodes: dict[str, str]) -> None:
    """Create nodes, Services and pods; every Service selects every pod unless its spec differs."""
    for name, zone in nodes.items():
        labels = {"topology.kubernetes.io/zone": zone} if zone else {}
        await client.create(convert(Node, {"metadata": {"name": name, "labels": labels}}))
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        status = {"status": {**ready, "allocatable": {"cpu": "4"}}}
        await client.patch(Node, name, None, status, subresource="status")
    for name, spec in SERVICES.items():
        meta = {"name": name, "namespace": namespace, "labels": {"team": "odd"}}
        body = {"metadata": meta, "spec": {"selector": {"app": "odd"}, **spec}}
        await client.create(convert(Service, body))
    for number, (name, spec) in enumerate(PODS.items(), start=1):
        await _pod(client, namespace, name, spec, number, sorted(nodes)[number % len(nodes)])


async def _pod(
    client: Client, namespace: str, name: str, spec: Obj, number: int, node: str
) -> None:
    body: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "odd"}},
        "spec": {"nodeName": node, "containers": [container("box", 80)], **spec},
    }
    if name == "terminating":
        body["metadata"]["finalizers"] = ["example.com/stay"]
    await client.raw(
        "POST",
        f"/api/v1/namespaces/{namespace}/pods",
        headers={"Content-Type": "application/json"},
        body=json.dumps(body).encode(),
    )
    ips = [f"10.1.0.{number}", f"fd00:1::{number:x}"][: 1 if name == "four-only" else 2]
    ready = {
        "type": "Ready",
        "status": "False" if name in ("unready", "ended") else "True",
        "lastTransitionTime": SINCE,
    }
    status: Obj = {
        "phase": "Failed" if name == "ended" else "Running",
        "conditions": [ready],
    }
    if name != "addressless":
        status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
    await client.patch(Pod, name, namespace, {"status": status}, subresource="status")
    if name == "terminating":
        await client.delete(Pod, name, namespace, grace_period=0)
