"""Hints in slices: what is written, how often, and what stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.traffic.clusters import shares
from tests.traffic.slice_server import AUTO, OFF, SliceServer, pod, pods, service

from zonewise.api import EndpointSlice
from zonewise.api.meta import ObjectMeta
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL
from zonewise.traffic.slices.rehinting import rehint, rehint_slice


@pytest.mark.parametrize(
    ("cpu", "places", "expected"),
    [
        ((1, 1, 1), (1, 1, 1), {"a": 1, "b": 1, "c": 1}),
        ((1, 1, 1), (2, 1, 0), {"a": 1, "b": 1, "c": 1}),
        ((1, 1, 1), (1, 1, 0), {"": 2}),
        ((1, 1, 1), (2, 1, 1), {"": 4}),
        ((2, 1, 1), (2, 1, 1), {"a": 2, "b": 1, "c": 1}),
        ((2, 1, 1), (0, 2, 2), {"a": 2, "b": 1, "c": 1}),
        ((1, 1), (4, 0), {"a": 2, "b": 2}),
        ((20, 16, 14), (10, 0, 0), {"a": 4, "b": 3, "c": 3}),
    ],
)
def test_hints_are_written(
    cpu: Sequence[int], places: Sequence[int], expected: dict[str, int]
) -> None:
    """Scenarios 1 to 5 and 8: the first write of a slice has its hints."""
    server = SliceServer(hint_request=AUTO, cpu=cpu)
    server.put(pods(*places))
    assert server.sync().writes == 1
    assert server.per_zone() == expected
    assert server.settled()


def test_hints_stay_and_fall_with_the_number_of_pods() -> None:
    """Scenario 6: 12 pods get hints, 11 keep them, 8 lose them, each in one write."""
    server = SliceServer(hint_request=AUTO)
    server.put(pods(4, 4, 4))
    server.sync()
    before = server.hints()
    server.drop(11)
    assert server.sync().writes == 1
    assert server.hints().items() <= before.items()
    server.drop(3, 7, 10)
    plan = server.sync()
    assert (plan.writes, server.per_zone()) == (1, {"": 8})
    assert plan.decision is not None
    assert plan.decision.reason.code == "Overload"


def test_400_endpoints_in_four_slices() -> None:
    """Scenario 12: nearly equal zones cross twice at most, and a repeat writes nothing."""
    server = SliceServer(hint_request=AUTO, cpu=(98, 100, 101, 103))
    server.put(pods(100, 100, 100, 100))
    assert len(server.sync().create) == 4
    crossing = [
        endpoint
        for endpoint in server.endpoints()
        if endpoint.hints and endpoint.hints.for_zones[0].name != endpoint.zone
    ]
    assert len(crossing) <= 2
    assert server.settled()


def test_one_pod_that_changes_costs_one_slice() -> None:
    """In a Service of many slices a pod that comes, goes or flips writes one of them."""
    server = SliceServer(hint_request=AUTO, limit=10)
    server.put(pods(40, 40, 40))
    server.sync()
    server.put([pod(5, "a", ready=False)])
    assert server.sync().writes == 1
    server.put([pod(500, "b")])
    assert server.sync().writes == 1
    server.drop(7)
    assert server.sync().writes == 1


def test_a_zone_that_is_short_is_corrected_where_the_endpoint_is() -> None:
    """Scenario 14: hints 1/3/3 with unchanged pods are corrected by one move, and one slice is
    written.
    """
    server = SliceServer(hint_request=HintRequest(Mode.SAME_ZONE), limit=4)
    server.put(pods(1, 3, 3))
    server.sync()
    server.hint_request = AUTO
    assert server.sync().writes == 1
    assert sorted(server.per_zone().values()) == [2, 2, 3]


def test_new_endpoints_ride_with_slices_whose_hints_change() -> None:
    """Hints are decided before packing, so a slice is written once for both."""
    server = SliceServer(hint_request=AUTO, cpu=(1, 1), limit=12)
    server.put(pods(6, 6))
    server.sync()
    server.drop(0)
    server.sync()
    server.shares = shares(3, 1)
    server.put([pod(100, "a")])
    plan = server.sync()
    assert plan.writes == 1
    assert server.per_zone() == {"a": 8, "b": 4}


def test_endpoints_of_a_zone_without_share_are_given_away() -> None:
    """Scenario 21: endpoints of a zone without a share serve zones that send traffic, and a repeat
    writes nothing.
    """
    server = SliceServer(hint_request=AUTO, cpu=(1, 1))
    server.put(pods(2, 2, 2))
    server.sync()
    assert server.per_zone() == {"a": 3, "b": 3}
    assert server.settled()


def test_one_endpoint_without_a_zone_removes_the_hints_of_its_family() -> None:
    """Scenario 22: IPv4 loses its hints, the reason names the node; IPv6 keeps them."""
    server = SliceServer(owner=service(ipFamilies=["IPv4", "IPv6"]), hint_request=AUTO, cpu=(1, 1))
    server.put([pod(n, "ab"[n % 2], ips=[f"10.0.0.{n}", f"fd00::{n:x}"]) for n in range(1, 5)])
    server.sync()
    assert server.per_zone("IPv4") == server.per_zone("IPv6") == {"a": 2, "b": 2}
    server.zones["odd"] = ""
    server.put([pod(9, "odd")])
    plan = server.sync()
    assert plan.families["IPv4"].decision.reason.object == "Node/odd"
    assert (server.per_zone("IPv4"), server.per_zone("IPv6")) == ({"": 5}, {"a": 2, "b": 2})


def test_families_are_decided_each_on_its_own() -> None:
    """Scenario 23: of six pods two have IPv6: IPv4 is hinted, IPv6 is refused."""
    server = SliceServer(owner=service(ipFamilies=["IPv4", "IPv6"]), hint_request=AUTO)
    server.put([pod(n, "abc"[n % 3], ips=[f"10.0.0.{n}"]) for n in range(1, 5)])
    server.put([pod(n, "abc"[n % 3], ips=[f"10.0.0.{n}", f"fd00::{n:x}"]) for n in (5, 6)])
    plan = server.sync()
    assert [(kind, family.decision.hinted) for kind, family in plan.families.items()] == [
        ("IPv4", True),
        ("IPv6", False),
    ]
    assert plan.families["IPv6"].decision.reason.code == "TooFewEndpoints"
    assert server.settled()


def test_hints_are_removed_when_the_service_stops_asking() -> None:
    """Scenario 24: all slices lose them in one pass."""
    server = SliceServer(hint_request=AUTO, limit=3)
    server.put(pods(3, 3, 3))
    server.sync()
    server.hint_request = OFF
    assert len(server.sync().update) == 3
    assert server.per_zone() == {"": 9}


def test_endpoints_that_are_not_ready_have_no_hint() -> None:
    """Scenario 27: endpoints that are not ready, or terminating, are neither hinted nor counted."""
    server = SliceServer(hint_request=AUTO)
    server.put(pods(1, 1, 1))
    server.put([pod(8, "a", ready=False), pod(9, "b", meta={"deletionTimestamp": "x"})])
    server.sync()
    assert len([endpoint for endpoint in server.endpoints() if endpoint.hints]) == 3


def test_foreign_slices_that_cancel_hints_are_reported() -> None:
    """Scenario 27: an endpoint of others without a hint is a warning, not a change."""
    server = SliceServer(hint_request=AUTO)
    server.put(pods(1, 1, 1))
    server.sync()
    (piece,) = server.slices.values()
    labels = {**piece.metadata.labels, MANAGED_BY_LABEL: "me"}
    unhinted = tuple(replace(endpoint, hints=None) for endpoint in piece.endpoints or ())
    meta = ObjectMeta(generate_name="x-", labels=labels)
    server.store(replace(piece, metadata=meta, endpoints=unhinted))
    plan = server.plan()
    assert plan.writes == 0
    assert plan.decision is not None
    assert [warning.code for warning in plan.decision.warnings] == ["ForeignEndpoint"]


def test_same_node_hints_and_servers_that_do_not_know_them() -> None:
    """Scenario 28: same-node hints name zone and node; on servers without node hints the zone
    alone.
    """
    server = SliceServer(hint_request=HintRequest(Mode.SAME_NODE))
    server.put(pods(2, 0, 1))
    server.sync()
    hints = [endpoint.hints for endpoint in server.endpoints() if endpoint.hints]
    assert {(hint.for_zones[0].name, hint.for_nodes[0].name) for hint in hints} == {
        ("a", "a"),
        ("c", "c"),
    }
    server.node_hints = False
    server.sync()
    assert all(endpoint.hints and not endpoint.hints.for_nodes for endpoint in server.endpoints())
    assert server.settled()


def test_same_zone_knows_no_limits() -> None:
    """Scenario 28: 5/0/1, all for their own zone."""
    server = SliceServer(hint_request=HintRequest(Mode.SAME_ZONE))
    server.put(pods(5, 0, 1))
    server.sync()
    assert server.per_zone() == {"a": 5, "c": 1}


def test_pods_that_share_an_address_have_hints_of_their_own() -> None:
    """Two ready pods on one address: each counts, and a repeat writes nothing."""
    server = SliceServer(hint_request=AUTO, cpu=(1, 1))
    server.put([pod(n, "a", ips=["192.0.2.1"]) for n in range(3)])
    server.put([pod(n, "b", ips=["192.0.2.2"]) for n in range(3, 6)])
    server.sync()
    assert server.per_zone() == {"a": 3, "b": 3}
    assert server.settled()
    server.drop(0, 1)
    server.sync()
    assert server.settled()


def test_a_pod_that_ends_does_not_share_its_successors_hint() -> None:
    """In the host network both have one address; only the ready one has the hint."""
    server = SliceServer(hint_request=AUTO, cpu=(1, 1))
    server.put([pod(n, "ab"[n % 2], ips=[f"192.0.2.{n}"]) for n in range(4)])
    server.put([pod(9, "a", ips=["192.0.2.0"], meta={"deletionTimestamp": "x"})])
    server.sync()
    assert server.per_zone() == {"a": 2, "b": 2}
    assert [bool(endpoint.hints) for endpoint in server.endpoints()] == [
        True,
        True,
        True,
        True,
        False,
    ]


def test_half_a_plan_is_completed() -> None:
    """A controller that dies between any two writes converges, without a duplicate."""
    for written in range(7):
        server = SliceServer(hint_request=AUTO, limit=3)
        server.put(pods(4, 4, 4))
        server.sync()
        server.drop(*range(6))
        server.put(pods(3, 3, 3, start=50))
        server.apply(server.plan(), writes=written)
        server.memory = None
        server.sync()
        names = [endpoint.target_ref.name for endpoint in server.endpoints() if endpoint.target_ref]
        assert sorted(names) == sorted(server.pods)
        assert "" not in server.per_zone()
        assert server.settled()


# Slices that another controller fills.


def stripped(server: SliceServer) -> None:
    """Slices without hints, as the built-in controller leaves them."""
    for piece in list(server.slices.values()):
        bare = tuple(replace(endpoint, hints=None) for endpoint in piece.endpoints or ())
        server.store(replace(piece, endpoints=bare))


def test_foreign_slices_get_the_hints_a_plan_would_give() -> None:
    """Rehinting stripped slices gives the hints that planning gave, and a repeat writes nothing."""
    server = SliceServer(hint_request=AUTO, cpu=(3, 2, 2), limit=5)
    server.put(pods(9, 4, 3))
    server.sync()
    planned = server.per_zone()
    stripped(server)
    server.apply(rehint(server.slices.values(), AUTO, server.shares))
    assert server.per_zone() == planned
    assert rehint(server.slices.values(), AUTO, server.shares).writes == 0
    assert server.settled()


def test_a_slice_about_to_be_written_gets_its_hints_back() -> None:
    """Admission: hints that its writer removed are restored, and nothing else changes."""
    server = SliceServer(hint_request=AUTO, limit=5)
    server.put(pods(5, 5, 5))
    server.sync()
    before = next(iter(server.slices.values()))
    desired = replace(
        before, endpoints=tuple(replace(e, hints=None) for e in before.endpoints or ())
    )
    others = list(server.slices.values())
    hinted = rehint_slice(
        desired, previous=before, others=others, request=AUTO, shares=server.shares
    )
    assert hinted == before
    assert (
        rehint_slice(before, previous=before, others=others, request=AUTO, shares=server.shares)
        is before
    )


def test_a_new_slice_is_hinted_with_the_others_in_mind() -> None:
    """Admission: endpoints of a new slice serve the zone that lacks endpoints."""
    server = SliceServer(hint_request=AUTO, cpu=(1, 1), limit=6)
    server.put(pods(3, 3))
    server.sync()
    template = next(iter(server.slices.values()))
    more = SliceServer(limit=10)
    more.put([pod(n, "a") for n in range(20, 30)])
    (new,) = more.plan().create
    new = replace(new, metadata=replace(template.metadata, name="web-new", uid=""))
    hinted = rehint_slice(
        new, previous=None, others=server.slices.values(), request=AUTO, shares=server.shares
    )
    count = [
        endpoint.hints.for_zones[0].name for endpoint in hinted.endpoints or () if endpoint.hints
    ]
    assert len(count) == 10
    assert "b" in count


def test_services_that_do_not_ask_are_not_changed() -> None:
    """Only Services that ask for hints and are refused lose them."""
    server = SliceServer(hint_request=AUTO)
    server.put(pods(1, 1, 1))
    server.sync()
    assert rehint(server.slices.values(), OFF, server.shares).writes == 0
    refused = rehint(server.slices.values(), AUTO, shares(1))
    assert refused.decision is not None
    local = HintRequest(reason=replace(refused.decision.reason, code="LocalPolicy"))
    (piece,) = rehint(server.slices.values(), local, server.shares).update
    assert isinstance(piece, EndpointSlice)
    assert all(endpoint.hints is None for endpoint in piece.endpoints or ())
