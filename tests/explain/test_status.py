"""A cluster on one page."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console

from zonewise.api import Node, Pod, Service
from zonewise.api.meta import Condition
from zonewise.api.objects.core import ServiceStatus
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.cli.local.overview import make_service_table, make_zone_table, sort_worst_first
from zonewise.cli.status import _make_tables
from zonewise.explain.status import Overview, ServiceTraffic, summarize_cluster


def node(name: str, zone: str, *, ready: bool = True, cpu: str = "4") -> Node:
    """A node."""
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {
                "allocatable": {"cpu": cpu},
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        },
        Node,
    )


def pod(name: str, on: str, *, ready: bool = True, phase: str = "Running") -> Pod:
    """A pod."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "n"},
            "spec": {"nodeName": on},
            "status": {"phase": phase, "conditions": conditions},
        },
        Pod,
    )


def service(name: str, **spec: Any) -> Service:
    """A Service."""
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "n"},
            "spec": {"selector": {"a": "b"}, "clusterIP": "10.0.0.1", **spec},
        },
        Service,
    )


SLICE = msgspec.convert(
    {
        "metadata": {
            "name": "s",
            "namespace": "n",
            "labels": {"kubernetes.io/service-name": "near"},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.1.0.1"], "conditions": {"ready": True}},
            {"addresses": ["10.1.0.2"], "conditions": {"ready": False}},
        ],
    },
    EndpointSlice,
)


def page() -> Overview:
    """A page with every kind of row."""
    return summarize_cluster(
        nodes=[node("a1", "a"), node("a2", "a", ready=False, cpu="500m"), node("x", "")],
        pods=[
            pod("1", "a1"),
            pod("2", "a2", ready=False),
            pod("3", "", ready=False, phase="Pending"),
            pod("4", "a1", phase="Succeeded"),
            pod("5", "gone"),
        ],
        services=[
            service("near", trafficDistribution="PreferSameZone"),
            service("head", clusterIP="None"),
            service("manual", selector=None),
        ],
        slices=[SLICE],
        traffic={("n", "near"): ServiceTraffic(requests=10, failed=0.1, in_zone=0.75)},
    )


def test_zones_count_their_nodes_and_pods() -> None:
    """Pods count in the zone of their node; finished ones do not count, pending ones separately."""
    overview = page()
    nameless, zone = overview.zones
    assert (zone.name, zone.nodes, zone.nodes_ready, zone.cpu_milli) == ("a", 2, 1, 4500)
    assert (zone.pods, zone.pods_ready) == (2, 1)
    assert (nameless.name, nameless.nodes, nameless.pods) == ("", 1, 0)
    assert (overview.pods, overview.pods_ready, overview.pods_pending, overview.nodes) == (
        4,
        2,
        1,
        3,
    )


def test_services_show_their_mode_endpoints_and_traffic() -> None:
    """Services with a selector are shown, in the order of their names."""
    head, near = page().services
    assert (head.name, head.mode, head.in_zone) == ("head", "headless", None)
    assert (near.mode, near.endpoints, near.in_zone, near.failed) == (
        *("PreferSameZone", 1),
        *(0.75, 0.1),
    )


def test_tables_are_plain_text_in_a_file() -> None:
    """Without a terminal there are no colors, and every number is in its column."""
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(make_zone_table(page()))
        console.print(make_service_table(page(), most=1))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert lines == [
        "ZONE         NODES  CPU  PODS  READY",
        "(no zone)      1/1    4     0      0",
        "a              1/2  4.5     2      1",
        "(node gone)                 1      1",
        "(pending)                   1      0",
        "SERVICE     MODE      ENDPOINTS  IN-ZONE  UNANSWERED",
        "n/head      headless          0        –           –",
        "and 1 more",
    ]


def test_a_narrow_terminal_still_shows_the_numbers() -> None:
    """Names are cut on forty columns, numbers are not."""
    console = Console(width=40, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(make_service_table(page()))
    rows = captured.get().splitlines()[1:]
    assert [row.split()[-3:] for row in rows] == [["0", "–", "–"], ["1", "75%", "10%"]]


def test_the_worst_services_are_first_and_a_pipe_gets_all() -> None:
    """Unanswered requests come before those that leave their zone; unmeasured Services are last."""
    names = {"fine": (0.0, 1.0), "far": (0.0, 0.1), "lost": (0.9, 1.0), "unknown": None}
    overview = summarize_cluster(
        nodes=[],
        pods=[],
        services=[service(name) for name in names],
        slices=[],
        traffic={
            ("n", name): ServiceTraffic(requests=1, failed=numbers[0], in_zone=numbers[1])
            for name, numbers in names.items()
            if numbers
        },
    )
    ordered = [row.name for row in sort_worst_first(overview).services]
    assert ordered == ["lost", "far", "fine", "unknown"]
    many = summarize_cluster(
        nodes=[],
        pods=[],
        services=[service(f"s{number:02}") for number in range(30)],
        slices=[],
        traffic={},
    )
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(_make_tables(many, cut=False))
    assert captured.get().count("n/s") == 30


def test_the_mode_of_a_service_whose_gate_is_off() -> None:
    """The page reads from the condition that the controller has switched hints off."""
    on = service("near", trafficPolicy="PreferZone")
    condition = Condition(type="zonewise.io/Hints", status="False", reason="GateOff")
    off = msgspec.structs.replace(on, status=ServiceStatus(conditions=(condition,)))
    for summarized, mode in ((on, "Auto"), (off, "Off")):
        page = summarize_cluster(nodes=[], pods=[], services=[summarized], slices=[], traffic={})
        (overview,) = page.services
        assert overview.mode == mode
        assert overview.mode_text == ("Auto" if mode == "Auto" else "Auto (gate off)")
        assert ("requestedMode" in msgspec.to_builtins(overview)) == (mode == "Off")


def test_the_mode_of_a_service_with_topology_keys() -> None:
    """A Service whose keys decide is not shown as one without any preference."""
    keyed = service("near")
    keyed.metadata.annotations["zonewise.io/topology-keys"] = "topology.kubernetes.io/zone,*"
    page = summarize_cluster(nodes=[], pods=[], services=[keyed], slices=[], traffic={})
    (overview,) = page.services
    assert (overview.mode, overview.mode_text) == ("Off", "Keys")
    assert msgspec.to_builtins(overview)["topologyKeys"] == ("topology.kubernetes.io/zone", "*")
