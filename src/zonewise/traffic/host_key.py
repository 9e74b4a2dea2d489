"""Keys that name the host alone: what ``externalTrafficPolicy: Local`` is for (KEP-536).

A Service whose topology keys are exactly ``kubernetes.io/hostname`` is served on the client's host
or not at all. For packets from outside, the host is the node they arrived at, so they need not be
masqueraded: the endpoint there sees the client's address. As with Local, a load balancer has to
know which nodes have an endpoint. The annotation ``zonewise.io/health-check-node-port`` names the
port on which every node says so; ``spec.healthCheckNodePort`` exists with the policy Local only.

No API server allocates that port, so whoever writes the Service chooses it. Proxies listen there on
every node, so it is one of ``NODE_PORTS``: else a tenant could take the port of a kubelet or of
another program of the node while that restarts. What another Service has there comes first
(``routes.claims``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from zonewise.api.objects.core import Service
from zonewise.topology.nodes import HOSTNAME_LABEL

HEALTH_PORT_ANNOTATION = "zonewise.io/health-check-node-port"
PORT_LIMIT = 65_535
NODE_PORTS = range(30_000, 32_768)
"""The ports that API servers allocate node ports from, unless they are told otherwise."""

_NUMBER = re.compile(r"[1-9][0-9]{4}", re.ASCII)


def stays_on_host(keys: Sequence[str]) -> bool:
    """Whether keys name the host and nothing else."""
    return tuple(keys) == (HOSTNAME_LABEL,)


def is_reachable_from_outside(service: Service) -> bool:
    """Whether packets may come from outside of the cluster."""
    return service.spec.type in ("NodePort", "LoadBalancer") or bool(service.spec.external_ips)


def health_port_of(service: Service, keys: Sequence[str]) -> int:
    """The port of the annotation; 0 if there is none or it has an error."""
    text = service.metadata.annotations.get(HEALTH_PORT_ANNOTATION)
    return 0 if text is None or health_port_error(service, keys) else int(text)


def health_port_error(service: Service, keys: Sequence[str]) -> str:
    """Why the annotation of a Service with these keys has no effect; "" if it has, or is absent."""
    text = service.metadata.annotations.get(HEALTH_PORT_ANNOTATION)
    if text is None:
        return ""
    if not _NUMBER.fullmatch(text) or int(text) not in NODE_PORTS:
        return (
            f"it has to be a whole number from {NODE_PORTS[0]} to {NODE_PORTS[-1]}, like a node"
            " port: others are of programs of the nodes"
        )
    if not (stays_on_host(keys) and is_reachable_from_outside(service)):
        instead = (
            "make it reachable from outside"
            if stays_on_host(keys)
            else f"let {HOSTNAME_LABEL} be its only key"
        )
        return (
            "only a Service that is reached from outside, and whose topology keys are exactly"
            f" {HOSTNAME_LABEL}, has a health check here; remove the annotation, or {instead}"
        )
    if int(text) in (port.node_port for port in service.spec.ports if port.protocol == "TCP"):
        return "it is a node port of this Service"
    return ""
