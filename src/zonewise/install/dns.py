"""The DNS server: its account, two pods, and its Service.

It listens on a port above 1024, which needs no capability, and the Service gives it port 53. Its
account may read Services, namespaces, EndpointSlices and PodLocators: neither pods nor nodes. Other
names are forwarded to the node's own servers (``dnsPolicy: Default``), never to the cluster's.
"""

from __future__ import annotations

from zonewise.api.objects.locator import PodLocator
from zonewise.install.installation import DNS, DNS_METRICS, DNS_PORT, Installation, Obj, selector
from zonewise.install.objects import READ, allow, confine, render_account, render_probes
from zonewise.install.workload import render_program

LAMEDUCK = 5
_GRACE = 30


def render_dns(installation: Installation) -> list[Obj]:
    """Everything of the DNS server, if it is requested."""
    if not installation.dns:
        return []
    locators = PodLocator.resource
    rules = [
        allow("", ["namespaces", "services"], READ),
        allow("discovery.k8s.io", ["endpointslices"], READ),
        allow(locators.group, [locators.plural], READ),
    ]
    ports: list[Obj] = [
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "dns"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": "dns-tcp"},
        {"name": "metrics", "port": DNS_METRICS, "targetPort": "metrics"},
    ]
    container = {
        "name": "dns",
        "image": installation.image,
        "args": [
            "dns",
            f"--listen=:{DNS_PORT}",
            f"--metrics-listen=:{DNS_METRICS}",
            f"--lameduck={LAMEDUCK}s",
            *installation.gate_flags,
        ],
        "ports": [
            {"name": "dns", "containerPort": DNS_PORT, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": DNS_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": DNS_METRICS},
        ],
        **render_probes("metrics"),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": confine(),
    }
    pod: Obj = {"dnsPolicy": "Default", "terminationGracePeriodSeconds": _GRACE}
    return [
        *render_account(installation, DNS, rules, labels=selector(DNS)),
        *render_program(installation, DNS, container, ports, pod, selector(DNS)),
    ]
