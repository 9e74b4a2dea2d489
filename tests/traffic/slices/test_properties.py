"""Properties of slices in any history: one pass converges, each endpoint once, within limits."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.traffic.clusters import shares
from tests.traffic.slice_server import AUTO, OFF, SliceServer, pod, service, written

from zonewise.api import Pod
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.planning import PlanCache, plan_slices

WISHES = st.sampled_from([AUTO, OFF, HintRequest(Mode.SAME_ZONE), HintRequest(Mode.SAME_NODE)])
PORTS = [{"name": "http", "port": 80, "targetPort": "web"}]


@st.composite
def some_pod(draw: st.DrawFn, number: int) -> Pod:
    """A pod in any state, on any node, with one of two ports or none."""
    ports = [{"name": "web", "containerPort": draw(st.sampled_from([80, 8080]))}]
    shared = draw(st.integers(0, 9)) == 0
    return pod(
        number,
        draw(st.sampled_from("abcdx")),
        ready=draw(st.sampled_from([True, True, True, False, None])),
        ips=["192.0.2.9"] if shared else [f"10.1.0.{number}", f"fd00::{number + 1:x}"],
        meta={"deletionTimestamp": "2026-01-03T00:00:00Z"} if draw(st.integers(0, 9)) == 0 else {},
        status={"phase": draw(st.sampled_from(["Running"] * 9 + ["Failed"]))},
        containers=[{"name": "c", "ports": draw(st.sampled_from([ports, ports, []]))}],
    )


def shaken(data: st.DataObject, server: SliceServer) -> None:
    """A random event: pods, shares or modes change, or slices are edited."""
    for number in data.draw(st.sets(st.integers(0, 40), max_size=12)):
        if data.draw(st.booleans()):
            server.put([data.draw(some_pod(number))])
        else:
            server.pods.pop(f"web-{number:04}", None)
    if data.draw(st.integers(0, 3)) == 0:
        server.shares = shares(*data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    if data.draw(st.integers(0, 4)) == 0:
        server.hint_request = data.draw(WISHES)
    if data.draw(st.integers(0, 5)) == 0:
        server.service = service(
            labels=data.draw(st.sampled_from([{}, {"x": "y"}])),
            ports=PORTS,
            ipFamilies=data.draw(st.sampled_from([["IPv4"], ["IPv4", "IPv6"], ["IPv6"]])),
        )
    if server.slices and data.draw(st.integers(0, 3)) == 0:
        del server.slices[data.draw(st.sampled_from(sorted(server.slices)))]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_slices_are_right_whatever_happens(data: st.DataObject) -> None:
    """After each pass every endpoint is there once, slices are within limits, a repeat is empty."""
    limit = data.draw(st.integers(1, 8))
    server = SliceServer(owner=service(ports=PORTS), hint_request=data.draw(WISHES), limit=limit)
    for _ in range(4):
        shaken(data, server)
        plan = server.plan()
        for seed in (1, 2):
            again = plan_slices(server.view(Random(seed)), PlanCache())
            assert written(again) == written(plan)
            assert again.families == plan.families
        server.apply(plan)
        assert server.plan().writes == 0
        assert all(size <= limit for size in server.sizes())
        for kind in ("IPv4", "IPv6"):
            endpoints = server.endpoints(kind)
            names = [endpoint.target_ref.name for endpoint in endpoints if endpoint.target_ref]
            assert len(set(names)) == len(names) == len(endpoints)
            expected = {
                candidate.metadata.name
                for candidate in server.pods.values()
                if candidate.status.phase == "Running"
                and candidate.spec.node_name in server.zones
                and any((":" in ip.ip) == (kind == "IPv6") for ip in candidate.status.pod_ips)
            }
            assert set(names) == (expected if kind in server.service.spec.ip_families else set())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_controller_that_dies_between_writes_converges(data: st.DataObject) -> None:
    """After half of a plan, another controller without memory completes it without duplicates."""
    server = SliceServer(
        owner=service(ports=PORTS), hint_request=AUTO, limit=data.draw(st.integers(1, 6))
    )
    for _ in range(4):
        shaken(data, server)
        plan = server.plan()
        server.apply(plan, writes=data.draw(st.integers(0, plan.writes)))
        server.memory = None
    server.sync()
    assert server.plan().writes == 0
