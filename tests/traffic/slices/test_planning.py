"""Slices: scenarios 31 to 38, and what makes an endpoint.

Where the scenarios of hints are tested (T = ``tests/traffic``, C = ``tests/controllers``):

=====  ========================================================================================
1-5    T/test_hints (pure), T/slices/test_rehinting through slices
6, 7   T/test_hints, T/slices/test_rehinting
8-11   T/test_hints
12     T/slices/test_rehinting
13     T/slices/test_properties (bytes of whole plans), T/test_hints
14     T/test_hints, T/slices/test_rehinting
15,16  tests/topology/test_shares, C/hints/test_node_shares
17-20  C/hints/test_node_shares
21     T/test_hints, T/slices/test_rehinting
22,23  T/slices/test_rehinting, C/hints/test_conditions
24     C/hints/test_conditions
25,26  T/test_modes (decision), tests/embedded/apiserver/strategy (validation)
27,28  T/test_hints, T/slices/test_rehinting
29     tests/embedded/apiserver/strategy (validation)
30     C/hints/test_restart
31-38  here; 36 also in C/hints/test_controller
=====  ========================================================================================
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.traffic.slice_server import BORN, SINCE, SliceServer, pod, pods, service

from zonewise.api import EndpointSlice, Pod
from zonewise.api.codec import to_builtins
from zonewise.api.meta import ObjectMeta, OwnerReference
from zonewise.api.objects.discovery import SERVICE_LABEL, TRIGGER_ANNOTATION
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL, MANAGER


def only(server: SliceServer) -> EndpointSlice:
    """The only slice."""
    (piece,) = server.slices.values()
    return piece


def numbers(server: SliceServer) -> list[list[int]]:
    """The pods in each slice."""
    return [
        sorted(
            int(str(endpoint.target_ref and endpoint.target_ref.name)[4:])
            for endpoint in piece.endpoints or ()
        )
        for _, piece in sorted(server.slices.items())
    ]


# What an endpoint is.


def test_an_endpoint_has_everything_the_api_knows_of_a_pod() -> None:
    """A ready pod is written with address, conditions, node, zone and reference, no more."""
    server = SliceServer()
    server.put([pod(7, "b")])
    server.sync()
    body = to_builtins(only(server))
    assert body["endpoints"] == [
        {
            "addresses": ["10.1.0.7"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "b",
            "zone": "b",
            "targetRef": {
                "kind": "Pod",
                "namespace": "default",
                "name": "web-0007",
                "uid": "pod-7",
            },
        }
    ]
    assert body["ports"] == [{"name": "http", "protocol": "TCP", "port": 8080}]
    assert body["addressType"] == "IPv4"


def test_a_slice_has_labels_and_an_owner() -> None:
    """Labels of the Service, three of its own, an owner, and a prefix for its name."""
    server = SliceServer(owner=service(labels={"team": "x", MANAGED_BY_LABEL: "me"}))
    (piece,) = server.plan().create
    assert piece.metadata == ObjectMeta(
        generate_name="web-",
        namespace="default",
        labels={
            MANAGED_BY_LABEL: MANAGER,
            SERVICE_LABEL: "web",
            "team": "x",
        },
        annotations={TRIGGER_ANNOTATION: BORN},
        owner_references=(
            OwnerReference(
                api_version="v1",
                kind="Service",
                name="web",
                uid="svc-1",
                controller=True,
                block_owner_deletion=True,
            ),
        ),
    )


@pytest.mark.parametrize("address", ["None", ""])
def test_slices_of_a_service_without_address_are_labelled(address: str) -> None:
    """Slices of headless Services have the label headless; a Service without ports has none."""
    server = SliceServer(owner=service(clusterIP=address, ports=[]))
    server.put(pods(1))
    server.sync()
    assert only(server).metadata.labels["service.kubernetes.io/headless"] == ""
    assert not only(server).ports
    assert server.sizes() == [1]


def test_a_name_that_is_too_long_gets_no_dash() -> None:
    """The prefix of a slice's name must be a valid name itself."""
    server = SliceServer(owner=service("w" * 253))
    (piece,) = server.plan().create
    assert piece.metadata.generate_name == "w" * 253


TERMINATING = {"deletionTimestamp": "2026-01-03T00:00:00Z"}


@pytest.mark.parametrize(
    ("given", "publish", "expected"),
    [
        ({}, False, (True, True, False)),
        ({"ready": False}, False, (False, False, False)),
        ({"ready": None}, False, (False, False, False)),
        ({"meta": TERMINATING}, False, (False, True, True)),
        ({"ready": False, "meta": TERMINATING}, False, (False, False, True)),
        ({"ready": False}, True, (True, False, False)),
        ({"ready": False, "meta": TERMINATING}, True, (True, False, True)),
    ],
)
def test_conditions(given: dict[str, Any], publish: bool, expected: tuple[bool, ...]) -> None:
    """Scenario 35: serving is Ready; ready is serving and not terminating, or publishes all."""
    server = SliceServer(owner=service(publishNotReadyAddresses=publish))
    server.put([pod(1, **given)])
    server.sync()
    conditions = server.endpoints()[0].conditions
    assert (conditions.ready, conditions.serving, conditions.terminating) == expected


@pytest.mark.parametrize(
    "given",
    [{"status": {"phase": "Succeeded"}}, {"status": {"phase": "Failed"}}, {"ips": []}],
)
def test_pods_that_ended_or_have_no_address_do_not_count(given: dict[str, Any]) -> None:
    """A pod that ended or has no address is no endpoint, and is removed if it was one."""
    server = SliceServer()
    server.put([pod(1), pod(2)])
    server.sync()
    server.put([pod(1, **given)])
    server.sync()
    assert numbers(server) == [[2]]


@pytest.mark.parametrize(
    ("hostname", "subdomain", "expected"),
    [("db-0", "web", "db-0"), ("db-0", "other", None), ("db-0", "", None), ("", "web", None)],
)
def test_hostnames(hostname: str, subdomain: str, expected: str | None) -> None:
    """A pod has a hostname only if its subdomain is the Service."""
    server = SliceServer()
    server.put([pod(1, hostname=hostname, subdomain=subdomain)])
    server.sync()
    assert server.endpoints()[0].hostname == expected


def test_a_pod_on_a_node_that_is_gone_waits() -> None:
    """A pod on a missing node is left out and reported; others are written; when the node exists it
    is added.
    """
    server = SliceServer()
    server.put([pod(1), pod(2, "elsewhere"), pod(3, "")])
    plan = server.sync()
    assert [waiting.metadata.name for waiting in plan.without_node] == ["web-0002", "web-0003"]
    assert numbers(server) == [[1]]
    server.zones["elsewhere"] = ""
    plan = server.sync()
    assert numbers(server) == [[1, 2]]
    assert server.endpoints()[1].zone is None


def test_a_service_that_publishes_everything_has_pods_on_no_node() -> None:
    """With publishNotReadyAddresses a pod on a missing node is an endpoint without a zone."""
    server = SliceServer(owner=service(publishNotReadyAddresses=True))
    server.put([pod(1, "elsewhere")])
    assert server.sync().without_node == ()
    assert (server.endpoints()[0].node_name, server.endpoints()[0].zone) == ("elsewhere", None)


def test_a_node_that_changes_its_zone_changes_its_endpoints() -> None:
    """Endpoints have the current zone of the node."""
    server = SliceServer()
    server.put([pod(1, "a"), pod(2, "b")])
    server.sync()
    server.zones["a"] = "z"
    assert server.sync().writes == 1
    assert [endpoint.zone for endpoint in server.endpoints()] == ["z", "b"]
    assert server.settled()


def test_addresses_are_written_in_one_form() -> None:
    """Long forms are shortened, invalid addresses left out, mapped addresses are IPv4."""
    server = SliceServer(owner=service(ipFamilies=["IPv6", "IPv4"]))
    server.put([pod(1, ips=["2001:DB8:0:0::1", "::ffff:10.1.1.1", "nonsense"])])
    server.sync()
    assert server.endpoints("IPv6")[0].addresses == ("2001:db8::1",)
    assert server.endpoints("IPv4")[0].addresses == ("10.1.1.1",)


# Ports.


def container(name: str, number: int, protocol: str = "TCP") -> dict[str, Any]:
    """A container with one named port."""
    port = {"name": name, "containerPort": number, "protocol": protocol}
    return {"name": f"c{number}", "ports": [port]}


def test_named_ports_make_groups() -> None:
    """Scenario 33: pods with other numbers are in other slices; a port a pod lacks is left out."""
    ports = [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "m", "port": 9}]
    server = SliceServer(owner=service(ports=[ports[0], {**ports[1], "targetPort": 9}]))
    server.put([pod(n, containers=[container("web", 80)]) for n in range(3)])
    server.put([pod(n, containers=[container("web", 8080)]) for n in range(3, 6)])
    server.put([pod(n, containers=[container("web", 80, "UDP")]) for n in range(6, 8)])
    server.sync()
    by_port = {
        tuple((port.name, port.port) for port in piece.ports or ()): [
            endpoint.target_ref.name[-1]
            for endpoint in piece.endpoints or ()
            if endpoint.target_ref
        ]
        for piece in server.slices.values()
    }
    assert by_port == {
        (("http", 80), ("m", 9)): ["0", "1", "2"],
        (("http", 8080), ("m", 9)): ["3", "4", "5"],
        (("m", 9),): ["6", "7"],
    }
    assert server.settled()


def test_a_sidecar_can_have_the_port() -> None:
    """Init containers that keep running count, others do not; containers come first."""
    server = SliceServer(owner=service(ports=[{"port": 80, "targetPort": "web"}]))
    beside = {**container("web", 15001), "restartPolicy": "Always"}
    server.put([pod(1, initContainers=[container("web", 1), beside])])
    server.put([pod(2, containers=[container("web", 80)], initContainers=[beside])])
    server.sync()
    assert sorted(
        port.port or 0 for piece in server.slices.values() for port in piece.ports or ()
    ) == [
        80,
        15001,
    ]


def test_ports_that_change_take_over_the_slice() -> None:
    """A Service whose port changes rewrites its slice in place."""
    server = SliceServer()
    server.put(pods(3))
    server.sync()
    before = set(server.slices)
    server.service = service(ports=[{"name": "http", "port": 80, "targetPort": 9090}])
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 1, 0)
    assert set(server.slices) == before
    assert only(server).ports
    assert server.settled()


def test_the_order_of_ports_does_not_matter() -> None:
    """Ports of a Service in another order cause no write."""
    two = [{"name": "a", "port": 1, "targetPort": 1}, {"name": "b", "port": 2, "targetPort": 2}]
    server = SliceServer(owner=service(ports=two))
    server.put(pods(1))
    server.sync()
    server.service = service(ports=two[::-1])
    assert server.settled()


# Packing.


def test_new_endpoints_go_where_something_is_written_anyway() -> None:
    """Scenario 31: 250 pods are 100/100/50; 10 new ones go into the slice that loses 60."""
    server = SliceServer()
    server.put(pods(250))
    server.sync()
    assert server.sizes() == [100, 100, 50]
    server.drop(*range(60))
    server.put(pods(10, start=300))
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 1, 0)
    assert (plan.added, plan.removed) == (10, 60)
    assert server.sizes() == [50, 100, 50]


def test_remaining_endpoints_go_into_the_fullest_slice_with_room() -> None:
    """Endpoints that remain go into the fullest slice with room for all of them, never into two."""
    server = SliceServer(limit=10)
    server.put(pods(30))
    server.sync()
    server.drop(0, 1, 10, 11, 12, 13, 20)
    server.sync()
    assert server.sizes() == [8, 6, 9]
    server.put(pods(2, start=50))
    assert server.sync().writes == 1
    assert server.sizes() == [10, 6, 9]
    server.put(pods(5, start=60))
    plan = server.sync()
    assert (len(plan.create), len(plan.update)) == (1, 0)
    assert server.sizes() == [10, 6, 9, 5]


def test_an_emptied_slice_is_filled_rather_than_deleted() -> None:
    """Where one slice loses everything, new endpoints cost no write in another."""
    server = SliceServer(limit=10)
    server.put(pods(15))
    server.sync()
    server.drop(*range(10))
    server.put(pods(3, start=50))
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 1, 0)
    assert server.sizes() == [3, 5]


def test_slices_without_endpoints_are_deleted() -> None:
    """An empty slice that is not needed is deleted."""
    server = SliceServer(limit=10)
    server.put(pods(15))
    server.sync()
    server.drop(*range(10))
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 0, 1)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_the_limit_is_a_setting(limit: int) -> None:
    """The limit of endpoints per slice can be set from one to a thousand."""
    server = SliceServer(limit=limit)
    server.put(pods(1500 if limit == 1000 else 20))
    server.sync()
    assert max(server.sizes()) == limit


def test_a_service_without_pods_keeps_one_empty_slice() -> None:
    """Scenario 32: the placeholder stays, is used for the first pod and comes back."""
    server = SliceServer()
    server.sync()
    (name,) = server.slices
    assert (only(server).endpoints or (), only(server).ports or ()) == ((), ())
    assert server.settled()
    server.put(pods(1))
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 1, 0)
    assert set(server.slices) == {name}
    server.drop(0)
    assert server.sync().writes == 1
    assert (set(server.slices), server.sizes(), only(server).ports or ()) == ({name}, [0], ())
    assert server.settled()


def test_a_service_being_deleted_gets_no_new_slices() -> None:
    """Existing slices are updated; none is created for an owner that is being deleted."""
    server = SliceServer(limit=1)
    server.put(pods(2))
    server.sync()
    meta = replace(server.service.metadata, deletion_timestamp="2026-01-03T00:00:00Z")
    server.service = replace(server.service, metadata=meta)
    server.drop(0)
    server.put(pods(2, start=5))
    plan = server.plan()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 1, 0)


# Metadata, foreign edits, families.


def test_labels_follow_the_service() -> None:
    """Scenario 34: a new label is put on all slices; managed-by on the Service changes nothing."""
    server = SliceServer(limit=2)
    server.put(pods(4))
    server.sync()
    server.service = service(labels={MANAGED_BY_LABEL: "me"})
    assert server.settled()
    server.service = service(labels={"tier": "1"})
    assert len(server.sync().update) == 2
    assert {piece.metadata.labels["tier"] for piece in server.slices.values()} == {"1"}
    server.service = service()
    server.sync()
    assert all("tier" not in piece.metadata.labels for piece in server.slices.values())


@pytest.mark.parametrize("what", ["endpoints", "ports", "labels", "owner", "zone", "extra", "uid"])
def test_foreign_edits_are_repaired(what: str) -> None:
    """Scenario 36: an edit of a slice by others is undone, in one update."""
    server = SliceServer()
    server.put(pods(2, 1))
    server.sync()
    piece = only(server)
    metadata, endpoints = piece.metadata, piece.endpoints or ()
    first = endpoints[0]
    edited = {
        "endpoints": replace(piece, endpoints=endpoints[1:]),
        "ports": replace(piece, ports=()),
        "labels": replace(piece, metadata=replace(metadata, labels={**metadata.labels, "x": "y"})),
        "owner": replace(piece, metadata=replace(metadata, owner_references=())),
        "zone": replace(piece, endpoints=(replace(first, zone="q"), *endpoints[1:])),
        "extra": replace(
            piece, endpoints=(*endpoints, replace(first, addresses=("9.9.9.9",), target_ref=None))
        ),
        "uid": replace(
            piece,
            endpoints=(
                replace(first, target_ref=replace(first.target_ref, uid="x")),
                *endpoints[1:],
            )
            if first.target_ref
            else (),
        ),
    }[what]
    right = {endpoint.addresses: endpoint for endpoint in endpoints}
    server.store(edited)
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 1, 0)
    assert {endpoint.addresses: endpoint for endpoint in server.endpoints()} == right
    assert only(server).metadata.labels == metadata.labels
    assert only(server).metadata.owner_references == metadata.owner_references
    assert server.settled()


def test_foreign_annotations_stay() -> None:
    """Annotations of others on a slice are left alone."""
    server = SliceServer()
    server.sync()
    piece = only(server)
    noted = replace(piece.metadata, annotations={"note": "x"})
    server.store(replace(piece, metadata=noted))
    server.put(pods(1))
    server.sync()
    assert only(server).metadata.annotations == {TRIGGER_ANNOTATION: SINCE, "note": "x"}


def test_slices_of_an_older_service_are_deleted() -> None:
    """Scenario 36: another uid under the same name is another Service."""
    server = SliceServer()
    server.put(pods(2))
    server.sync()
    server.service = service(uid="svc-2")
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (1, 0, 1)
    assert only(server).metadata.owner_references[0].uid == "svc-2"


def test_slices_that_others_write_are_left_alone() -> None:
    """A slice with another managed-by is not ours."""
    server = SliceServer()
    server.put(pods(2))
    server.sync()
    piece = only(server)
    labels = {**piece.metadata.labels, MANAGED_BY_LABEL: "somebody"}
    theirs = replace(piece, metadata=ObjectMeta(generate_name="x-", labels=labels))
    server.store(theirs)
    assert server.settled()


def test_slices_being_deleted_are_not_used() -> None:
    """A slice that a finalizer keeps is not filled; its endpoints go into another."""
    server = SliceServer()
    server.put(pods(2))
    server.sync()
    piece = only(server)
    leaving = replace(piece.metadata, deletion_timestamp="2026-01-03T00:00:00Z")
    server.store(replace(piece, metadata=leaving))
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (1, 0, 0)
    assert len(plan.create[0].endpoints or ()) == 2


def test_a_family_that_is_dropped_takes_its_slices_along() -> None:
    """Scenario 37: the slices of a family that a Service no longer has are deleted."""
    server = SliceServer(owner=service(ipFamilies=["IPv4", "IPv6"]))
    server.put([pod(n, ips=[f"10.1.0.{n}", f"fd00::{n}"]) for n in range(1, 4)])
    server.sync()
    assert len(server.endpoints("IPv6")) == 3
    server.service = service()
    plan = server.sync()
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (0, 0, 1)
    assert server.endpoints("IPv6") == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"ipFamilies": ["IPv6", "IPv4"]}, ["IPv6", "IPv4"]),
        ({"ipFamilies": [], "clusterIP": "10.0.0.1"}, ["IPv4"]),
        ({"ipFamilies": [], "clusterIP": "fd00::1"}, ["IPv6"]),
        ({"ipFamilies": [], "clusterIP": "None"}, ["IPv4", "IPv6"]),
    ],
)
def test_families(spec: dict[str, Any], expected: list[str]) -> None:
    """Slices are of the families that the Service names, else of its address, else of both."""
    assert list(SliceServer(owner=service(**spec)).plan().families) == expected


def test_pods_that_share_an_address_are_two_endpoints() -> None:
    """Pods in the host network: each has its endpoint with its readiness."""
    server = SliceServer()
    server.put([pod(n, ips=["192.0.2.1"], hostNetwork=True, ready=n != 2) for n in (1, 2, 3)])
    server.sync()
    assert numbers(server) == [[1, 2, 3]]
    assert server.settled()


def test_duplicate_endpoints_are_removed() -> None:
    """A duplicate of a controller that crashed after a create is removed."""
    server = SliceServer(limit=3)
    server.put(pods(3))
    server.sync()
    twin = replace(only(server), metadata=replace(only(server).metadata, name="", uid=""))
    server.store(twin)
    server.sync()
    assert numbers(server) == [[0, 1, 2]]


# Trigger times.

LATER = "2026-01-02T00:00:09Z"


def moment(server: SliceServer) -> str | None:
    """The trigger time of the slice."""
    return only(server).metadata.annotations.get(TRIGGER_ANNOTATION)


def test_the_trigger_is_what_changed() -> None:
    """Scenario 38: creation first, then the change of readiness; the earliest of several."""
    server = SliceServer()
    server.sync()
    assert moment(server) == BORN
    server.put([pod(1), pod(2, since=LATER)])
    server.sync()
    assert moment(server) == SINCE
    server.put([pod(2, ready=False, since="2026-01-02T00:00:30Z")])
    server.sync()
    assert moment(server) == "2026-01-02T00:00:30Z"


def test_changes_without_a_pod_have_no_trigger() -> None:
    """Scenario 38: labels, removals and terminations carry no time."""
    server = SliceServer()
    server.put([pod(1), pod(2)])
    server.sync()
    server.service = service(labels={"x": "y"})
    server.sync()
    assert moment(server) is None
    server.put([pod(1, meta=TERMINATING)])
    server.sync()
    assert moment(server) is None
    server.drop(1)
    server.sync()
    assert moment(server) is None


def test_remembered_pods_are_current() -> None:
    """What is remembered of a pod is used only while pod, zone and Service are the same."""
    server, fresh = SliceServer(), SliceServer(remember=False)
    for either in (server, fresh):
        either.put(pods(3, 2))
        either.sync()
    changes: list[Pod] = [pod(1, ready=False), pod(2, "b"), pod(2, ips=["10.9.9.9"])]
    for change in changes:
        for either in (server, fresh):
            either.put([change])
            either.sync()
        assert server.endpoints() == fresh.endpoints()
    for either in (server, fresh):
        either.service = service(publishNotReadyAddresses=True)
        either.sync()
    assert server.endpoints() == fresh.endpoints()
