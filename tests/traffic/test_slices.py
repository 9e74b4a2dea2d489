"""Slices: scenarios 31 to 38, and what makes an endpoint.

Where the scenarios of the research are tested (T = ``tests/traffic``, C = ``tests/controllers``):

=====  ========================================================================================
1-5    T/test_hints (pure), T/test_slice_hints through slices
6, 7   T/test_hints, T/test_slice_hints
8-11   T/test_hints
12     T/test_slice_hints
13     T/test_slice_properties (bytes of whole plans), T/test_hints
14     T/test_hints, T/test_slice_hints
15,16  tests/topology/test_shares, C/test_nodes
17-20  C/test_nodes
21     T/test_hints, T/test_slice_hints
22,23  T/test_slice_hints, C/test_telling
24     C/test_telling
25,26  T/test_modes (decision), tests/embedded/rules (validation)
27,28  T/test_hints, T/test_slice_hints
29     tests/embedded/rules (validation)
30     C/test_restart
31-38  here; 36 also in C/test_hints
=====  ========================================================================================
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.traffic.shelf import BORN, SINCE, Shelf, pod, pods, service

from zonewise.api import EndpointSlice, Pod
from zonewise.api.codec import plain
from zonewise.api.meta import ObjectMeta, OwnerReference
from zonewise.traffic.slices import MANAGED_BY_LABEL, MANAGER, SERVICE_LABEL, TRIGGER_ANNOTATION


def only(shelf: Shelf) -> EndpointSlice:
    """The one slice there is."""
    (piece,) = shelf.slices.values()
    return piece


def numbers(shelf: Shelf) -> list[list[int]]:
    """The pods in each slice."""
    return [
        sorted(
            int(str(one.target_ref and one.target_ref.name)[4:]) for one in piece.endpoints or ()
        )
        for _, piece in sorted(shelf.slices.items())
    ]


# What an endpoint is.


def test_an_endpoint_has_everything_the_api_knows_of_a_pod() -> None:
    """A ready pod is written with address, conditions, node, zone and reference, no more."""
    shelf = Shelf()
    shelf.put([pod(7, "b")])
    shelf.sync()
    body = plain(only(shelf))
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


def test_a_slice_says_whose_it_is() -> None:
    """Labels of the Service, three of its own, an owner, a name to be made."""
    shelf = Shelf(owner=service(labels={"team": "x", MANAGED_BY_LABEL: "me"}))
    (piece,) = shelf.plan().create
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
    """Headless Services say so on their slices; no ports are no ports."""
    shelf = Shelf(owner=service(clusterIP=address, ports=[]))
    shelf.put(pods(1))
    shelf.sync()
    assert only(shelf).metadata.labels["service.kubernetes.io/headless"] == ""
    assert not only(shelf).ports
    assert shelf.sizes() == [1]


def test_a_name_that_is_too_long_gets_no_dash() -> None:
    """The prefix of names is a name itself."""
    shelf = Shelf(owner=service("w" * 253))
    (piece,) = shelf.plan().create
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
    """Scenario 35: serving is Ready; ready is that and not terminating, or that all are wanted."""
    shelf = Shelf(owner=service(publishNotReadyAddresses=publish))
    shelf.put([pod(1, **given)])
    shelf.sync()
    conditions = shelf.endpoints()[0].conditions
    assert (conditions.ready, conditions.serving, conditions.terminating) == expected


@pytest.mark.parametrize(
    "given",
    [{"status": {"phase": "Succeeded"}}, {"status": {"phase": "Failed"}}, {"ips": []}],
)
def test_pods_that_ended_or_have_no_address_do_not_count(given: dict[str, Any]) -> None:
    """Such pods are no endpoints, and one that becomes such a pod is removed."""
    shelf = Shelf()
    shelf.put([pod(1), pod(2)])
    shelf.sync()
    shelf.put([pod(1, **given)])
    shelf.sync()
    assert numbers(shelf) == [[2]]


@pytest.mark.parametrize(
    ("hostname", "subdomain", "expected"),
    [("db-0", "web", "db-0"), ("db-0", "other", None), ("db-0", "", None), ("", "web", None)],
)
def test_hostnames(hostname: str, subdomain: str, expected: str | None) -> None:
    """A pod has a name in the Service's domain only if its subdomain is the Service."""
    shelf = Shelf()
    shelf.put([pod(1, hostname=hostname, subdomain=subdomain)])
    shelf.sync()
    assert shelf.endpoints()[0].hostname == expected


def test_a_pod_on_a_node_that_is_gone_waits() -> None:
    """It is left out and told; others are written; when the node comes it is there."""
    shelf = Shelf()
    shelf.put([pod(1), pod(2, "elsewhere"), pod(3, "")])
    made = shelf.sync()
    assert [one.metadata.name for one in made.lost] == ["web-0002", "web-0003"]
    assert numbers(shelf) == [[1]]
    shelf.zones["elsewhere"] = ""
    made = shelf.sync()
    assert numbers(shelf) == [[1, 2]]
    assert shelf.endpoints()[1].zone is None


def test_a_service_that_publishes_everything_has_pods_on_no_node() -> None:
    """Then the pod is an endpoint without a zone."""
    shelf = Shelf(owner=service(publishNotReadyAddresses=True))
    shelf.put([pod(1, "elsewhere")])
    assert shelf.sync().lost == ()
    assert (shelf.endpoints()[0].node_name, shelf.endpoints()[0].zone) == ("elsewhere", None)


def test_a_node_that_changes_its_zone_changes_its_endpoints() -> None:
    """The zone is the node's of now."""
    shelf = Shelf()
    shelf.put([pod(1, "a"), pod(2, "b")])
    shelf.sync()
    shelf.zones["a"] = "z"
    assert shelf.sync().writes == 1
    assert [one.zone for one in shelf.endpoints()] == ["z", "b"]
    assert shelf.settled()


def test_addresses_are_written_in_one_form() -> None:
    """Long forms are shortened, nonsense is left out, mapped addresses are IPv4."""
    shelf = Shelf(owner=service(ipFamilies=["IPv6", "IPv4"]))
    shelf.put([pod(1, ips=["2001:DB8:0:0::1", "::ffff:10.1.1.1", "nonsense"])])
    shelf.sync()
    assert shelf.endpoints("IPv6")[0].addresses == ("2001:db8::1",)
    assert shelf.endpoints("IPv4")[0].addresses == ("10.1.1.1",)


# Ports.


def container(name: str, number: int, protocol: str = "TCP") -> dict[str, Any]:
    """A container with one named port."""
    port = {"name": name, "containerPort": number, "protocol": protocol}
    return {"name": f"c{number}", "ports": [port]}


def test_named_ports_make_groups() -> None:
    """Scenario 33: pods with other numbers are in other slices; a port a pod lacks is left out."""
    ports = [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "m", "port": 9}]
    shelf = Shelf(owner=service(ports=[ports[0], {**ports[1], "targetPort": 9}]))
    shelf.put([pod(n, containers=[container("web", 80)]) for n in range(3)])
    shelf.put([pod(n, containers=[container("web", 8080)]) for n in range(3, 6)])
    shelf.put([pod(n, containers=[container("web", 80, "UDP")]) for n in range(6, 8)])
    shelf.sync()
    found = {
        tuple((port.name, port.port) for port in piece.ports or ()): [
            one.target_ref.name[-1] for one in piece.endpoints or () if one.target_ref
        ]
        for piece in shelf.slices.values()
    }
    assert found == {
        (("http", 80), ("m", 9)): ["0", "1", "2"],
        (("http", 8080), ("m", 9)): ["3", "4", "5"],
        (("m", 9),): ["6", "7"],
    }
    assert shelf.settled()


def test_a_sidecar_can_have_the_port() -> None:
    """Init containers that keep running count, others do not; containers come first."""
    shelf = Shelf(owner=service(ports=[{"port": 80, "targetPort": "web"}]))
    beside = {**container("web", 15001), "restartPolicy": "Always"}
    shelf.put([pod(1, initContainers=[container("web", 1), beside])])
    shelf.put([pod(2, containers=[container("web", 80)], initContainers=[beside])])
    shelf.sync()
    assert sorted(
        port.port or 0 for piece in shelf.slices.values() for port in piece.ports or ()
    ) == [
        80,
        15001,
    ]


def test_ports_that_change_take_over_the_slice() -> None:
    """A Service whose port changes rewrites its slice in place."""
    shelf = Shelf()
    shelf.put(pods(3))
    shelf.sync()
    before = set(shelf.slices)
    shelf.service = service(ports=[{"name": "http", "port": 80, "targetPort": 9090}])
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 1, 0)
    assert set(shelf.slices) == before
    assert only(shelf).ports
    assert shelf.settled()


def test_the_order_of_ports_is_nobodys_business() -> None:
    """Ports in another order are the same ports."""
    two = [{"name": "a", "port": 1, "targetPort": 1}, {"name": "b", "port": 2, "targetPort": 2}]
    shelf = Shelf(owner=service(ports=two))
    shelf.put(pods(1))
    shelf.sync()
    shelf.service = service(ports=two[::-1])
    assert shelf.settled()


# Packing.


def test_new_endpoints_go_where_something_is_written_anyway() -> None:
    """Scenario 31: 250 pods are 100/100/50; 10 new ones land in the slice that loses 60."""
    shelf = Shelf()
    shelf.put(pods(250))
    shelf.sync()
    assert shelf.sizes() == [100, 100, 50]
    shelf.drop(*range(60))
    shelf.put(pods(10, start=300))
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 1, 0)
    assert (made.added, made.removed) == (10, 60)
    assert shelf.sizes() == [50, 100, 50]


def test_a_rest_goes_into_the_slice_that_is_fullest_then() -> None:
    """One slice is chosen, never two; a slice that would overflow is not."""
    shelf = Shelf(limit=10)
    shelf.put(pods(30))
    shelf.sync()
    shelf.drop(0, 1, 10, 11, 12, 13, 20)
    shelf.sync()
    assert shelf.sizes() == [8, 6, 9]
    shelf.put(pods(2, start=50))
    assert shelf.sync().writes == 1
    assert shelf.sizes() == [10, 6, 9]
    shelf.put(pods(5, start=60))
    made = shelf.sync()
    assert (len(made.create), len(made.update)) == (1, 0)
    assert shelf.sizes() == [10, 6, 9, 5]


def test_an_emptied_slice_is_filled_rather_than_deleted() -> None:
    """Where one slice loses everything, new endpoints cost no write in another."""
    shelf = Shelf(limit=10)
    shelf.put(pods(15))
    shelf.sync()
    shelf.drop(*range(10))
    shelf.put(pods(3, start=50))
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 1, 0)
    assert shelf.sizes() == [3, 5]


def test_slices_in_which_nothing_is_left_go() -> None:
    """An emptied slice that nobody needs is deleted."""
    shelf = Shelf(limit=10)
    shelf.put(pods(15))
    shelf.sync()
    shelf.drop(*range(10))
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 0, 1)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_the_limit_is_a_setting(limit: int) -> None:
    """From one to a thousand endpoints per slice."""
    shelf = Shelf(limit=limit)
    shelf.put(pods(1500 if limit == 1000 else 20))
    shelf.sync()
    assert max(shelf.sizes()) == limit


def test_a_service_without_pods_keeps_one_empty_slice() -> None:
    """Scenario 32: the placeholder stays, is taken over by the first pod and comes back."""
    shelf = Shelf()
    shelf.sync()
    (name,) = shelf.slices
    assert (only(shelf).endpoints or (), only(shelf).ports or ()) == ((), ())
    assert shelf.settled()
    shelf.put(pods(1))
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 1, 0)
    assert set(shelf.slices) == {name}
    shelf.drop(0)
    assert shelf.sync().writes == 1
    assert (set(shelf.slices), shelf.sizes(), only(shelf).ports or ()) == ({name}, [0], ())
    assert shelf.settled()


def test_a_service_that_goes_gets_no_new_slices() -> None:
    """What there is is kept right; nothing is created under an owner that is going away."""
    shelf = Shelf(limit=1)
    shelf.put(pods(2))
    shelf.sync()
    meta = replace(shelf.service.metadata, deletion_timestamp="2026-01-03T00:00:00Z")
    shelf.service = replace(shelf.service, metadata=meta)
    shelf.drop(0)
    shelf.put(pods(2, start=5))
    made = shelf.plan()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 1, 0)


# Metadata, foreign edits, families.


def test_labels_follow_the_service() -> None:
    """Scenario 34: a new label is on all slices; managed-by on the Service changes nothing."""
    shelf = Shelf(limit=2)
    shelf.put(pods(4))
    shelf.sync()
    shelf.service = service(labels={MANAGED_BY_LABEL: "me"})
    assert shelf.settled()
    shelf.service = service(labels={"tier": "1"})
    assert len(shelf.sync().update) == 2
    assert {piece.metadata.labels["tier"] for piece in shelf.slices.values()} == {"1"}
    shelf.service = service()
    shelf.sync()
    assert all("tier" not in piece.metadata.labels for piece in shelf.slices.values())


@pytest.mark.parametrize("what", ["endpoints", "ports", "labels", "owner", "zone", "extra", "uid"])
def test_foreign_edits_are_repaired(what: str) -> None:
    """Scenario 36: whatever somebody changes in a slice is written back, in one update."""
    shelf = Shelf()
    shelf.put(pods(2, 1))
    shelf.sync()
    piece = only(shelf)
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
    right = {one.addresses: one for one in endpoints}
    shelf.store(edited)
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 1, 0)
    assert {one.addresses: one for one in shelf.endpoints()} == right
    assert only(shelf).metadata.labels == metadata.labels
    assert only(shelf).metadata.owner_references == metadata.owner_references
    assert shelf.settled()


def test_foreign_annotations_stay() -> None:
    """What others note on a slice is theirs."""
    shelf = Shelf()
    shelf.sync()
    piece = only(shelf)
    noted = replace(piece.metadata, annotations={"note": "x"})
    shelf.store(replace(piece, metadata=noted))
    shelf.put(pods(1))
    shelf.sync()
    assert only(shelf).metadata.annotations == {TRIGGER_ANNOTATION: SINCE, "note": "x"}


def test_slices_of_an_older_service_are_deleted() -> None:
    """Scenario 36: another uid under the same name is another Service."""
    shelf = Shelf()
    shelf.put(pods(2))
    shelf.sync()
    shelf.service = service(uid="svc-2")
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (1, 0, 1)
    assert only(shelf).metadata.owner_references[0].uid == "svc-2"


def test_slices_that_others_write_are_left_alone() -> None:
    """A slice with another managed-by is not ours, whatever it says."""
    shelf = Shelf()
    shelf.put(pods(2))
    shelf.sync()
    piece = only(shelf)
    labels = {**piece.metadata.labels, MANAGED_BY_LABEL: "somebody"}
    theirs = replace(piece, metadata=ObjectMeta(generate_name="x-", labels=labels))
    shelf.store(theirs)
    assert shelf.settled()


def test_slices_on_their_way_out_are_nobodys() -> None:
    """A slice that somebody's finalizer holds is not filled; its endpoints go into another."""
    shelf = Shelf()
    shelf.put(pods(2))
    shelf.sync()
    piece = only(shelf)
    leaving = replace(piece.metadata, deletion_timestamp="2026-01-03T00:00:00Z")
    shelf.store(replace(piece, metadata=leaving))
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (1, 0, 0)
    assert len(made.create[0].endpoints or ()) == 2


def test_a_family_that_is_dropped_takes_its_slices_along() -> None:
    """Scenario 37: from two families to one."""
    shelf = Shelf(owner=service(ipFamilies=["IPv4", "IPv6"]))
    shelf.put([pod(n, ips=[f"10.1.0.{n}", f"fd00::{n}"]) for n in range(1, 4)])
    shelf.sync()
    assert len(shelf.endpoints("IPv6")) == 3
    shelf.service = service()
    made = shelf.sync()
    assert (len(made.create), len(made.update), len(made.delete)) == (0, 0, 1)
    assert shelf.endpoints("IPv6") == []


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
    """Families are the Service's, else those of its address, else both."""
    assert list(Shelf(owner=service(**spec)).plan().families) == expected


def test_pods_that_share_an_address_are_two_endpoints() -> None:
    """Pods on a node's network: each has its endpoint, and its readiness."""
    shelf = Shelf()
    shelf.put([pod(n, ips=["192.0.2.1"], hostNetwork=True, ready=n != 2) for n in (1, 2, 3)])
    shelf.sync()
    assert numbers(shelf) == [[1, 2, 3]]
    assert shelf.settled()


def test_an_endpoint_that_is_twice_there_is_kept_once() -> None:
    """A controller that died after a creation leaves no duplicate for long."""
    shelf = Shelf(limit=3)
    shelf.put(pods(3))
    shelf.sync()
    twin = replace(only(shelf), metadata=replace(only(shelf).metadata, name="", uid=""))
    shelf.store(twin)
    shelf.sync()
    assert numbers(shelf) == [[0, 1, 2]]


# Trigger times.

LATER = "2026-01-02T00:00:09Z"


def moment(shelf: Shelf) -> str | None:
    """The trigger time of the slice."""
    return only(shelf).metadata.annotations.get(TRIGGER_ANNOTATION)


def test_the_trigger_is_what_changed() -> None:
    """Scenario 38: creation first, then the flip of readiness; the earliest of several."""
    shelf = Shelf()
    shelf.sync()
    assert moment(shelf) == BORN
    shelf.put([pod(1), pod(2, since=LATER)])
    shelf.sync()
    assert moment(shelf) == SINCE
    shelf.put([pod(2, ready=False, since="2026-01-02T00:00:30Z")])
    shelf.sync()
    assert moment(shelf) == "2026-01-02T00:00:30Z"


def test_what_no_pod_triggered_has_no_trigger() -> None:
    """Scenario 38: labels, removals and terminations carry no time."""
    shelf = Shelf()
    shelf.put([pod(1), pod(2)])
    shelf.sync()
    shelf.service = service(labels={"x": "y"})
    shelf.sync()
    assert moment(shelf) is None
    shelf.put([pod(1, meta=TERMINATING)])
    shelf.sync()
    assert moment(shelf) is None
    shelf.drop(1)
    shelf.sync()
    assert moment(shelf) is None


def test_remembered_pods_are_the_pods_of_now() -> None:
    """What is remembered of a pod is used only while pod, zone and Service are the same."""
    shelf, fresh = Shelf(), Shelf(remember=False)
    for one in (shelf, fresh):
        one.put(pods(3, 2))
        one.sync()
    changes: list[Pod] = [pod(1, ready=False), pod(2, "b"), pod(2, ips=["10.9.9.9"])]
    for change in changes:
        for one in (shelf, fresh):
            one.put([change])
            one.sync()
        assert shelf.endpoints() == fresh.endpoints()
    for one in (shelf, fresh):
        one.service = service(publishNotReadyAddresses=True)
        one.sync()
    assert shelf.endpoints() == fresh.endpoints()
