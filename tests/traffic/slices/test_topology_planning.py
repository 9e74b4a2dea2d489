"""Values of topology keys on the slices of a Service: when they are written, and how often."""

from __future__ import annotations

from msgspec.structs import replace
from tests.traffic.clusters import shares
from tests.traffic.slice_server import AUTO, OFF, SliceServer, pod, pods, service

from zonewise.traffic.slices.rehinting import rehint
from zonewise.traffic.slices.topology import TOPOLOGY_ANNOTATION, SliceTopology

ROW = "row"


def texts(server: SliceServer) -> list[str]:
    return [
        piece.metadata.annotations.get(TOPOLOGY_ANNOTATION, "")
        for _, piece in sorted(server.slices.items())
    ]


def keyed(keys: str, *, limit: int = 100) -> SliceServer:
    listed = [key.strip() for key in keys.split(",")]
    server = SliceServer(owner=service(topologyKeys=listed), limit=limit)
    server.labels = {zone: {ROW: f"row-{zone}"} for zone in "abc"}
    return server


def test_the_first_write_has_the_values() -> None:
    """A Service with a key of its own gets the annotation with its slices, and then no write."""
    server = keyed("kubernetes.io/hostname, row, *")
    server.put(pods(1, 1))
    assert server.sync().writes == 1
    first, second = sorted(addresses(server))
    assert texts(server) == [f'{{"{first}":{{"row":"row-a"}},"{second}":{{"row":"row-b"}}}}']
    assert server.settled()


def addresses(server: SliceServer) -> list[str]:
    return [address for endpoint in server.endpoints() for address in endpoint.addresses or ()]


def test_services_without_such_keys_have_none() -> None:
    """Hostname and zone are fields of an endpoint: they need no annotation."""
    for keys in ("kubernetes.io/hostname,topology.kubernetes.io/zone,*", "*", "row,row"):
        server = keyed(keys)
        server.put(pods(1, 1))
        server.sync()
        assert texts(server) == [""]


def test_a_relabelled_node_writes_the_slices_that_name_it() -> None:
    """Of many slices only those with an endpoint on the node are written, each once."""
    server = keyed("row", limit=10)
    server.put(pods(10, 10, 10))
    server.sync()
    on_b = [text for text in texts(server) if "row-b" in text]
    server.labels["b"] = {ROW: "moved"}
    plan = server.sync()
    assert (len(plan.update), plan.writes) == (len(on_b), len(on_b))
    assert not any("row-b" in text for text in texts(server))
    assert server.settled()


def test_values_follow_endpoints_and_go_with_the_keys() -> None:
    """New pods are in the annotation of their slice; without keys it is removed."""
    server = keyed("row")
    server.put(pods(1))
    server.sync()
    server.put([pod(7, "c")])
    assert server.sync().writes == 1
    assert "row-c" in texts(server)[0]
    server.service = service()
    assert server.sync().writes == 1
    assert texts(server) == [""]


def test_above_the_bound_there_are_none_and_the_plan_says_why() -> None:
    """A slice whose values are too long has none; the plan has the reason."""
    server = keyed("row")
    server.labels["a"] = {ROW: "v" * 63}
    server.put(pods(100))
    plan = server.sync()
    assert texts(server) == [""]
    assert plan.topology_reason is not None
    assert plan.topology_reason.code == "TopologyTooLong"
    assert server.settled()


def test_slices_of_another_controller_get_the_values_with_hints_or_without() -> None:
    """Where another controller writes slices, ours adds the values and nothing else."""
    for request in (OFF, AUTO):
        server = SliceServer()
        server.put(pods(2, 2, 2))
        server.sync()
        (bare,) = server.slices.values()
        topology = SliceTopology((ROW,), {zone: {ROW: f"row-{zone}"} for zone in "abc"})
        (piece,) = rehint([bare], request, shares(1, 1, 1), topology=topology).update
        assert "row-c" in piece.metadata.annotations[TOPOLOGY_ANNOTATION]
        assert rehint([piece], request, shares(1, 1, 1), topology=topology).writes == 0
        (without,) = rehint([piece], request, shares(1, 1, 1)).update
        assert TOPOLOGY_ANNOTATION not in without.metadata.annotations
        if request is OFF:
            assert replace(piece, metadata=bare.metadata) == bare
