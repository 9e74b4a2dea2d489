"""Why a client gets these endpoints of a name: the rule, the key, and what was left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.run_program import here
from tests.dns.clusters import Obj, endpoint, headless, pieces, port, service

from zonewise.api import LeanEndpointSlice, Service, convert
from zonewise.explain.name import NameClient, explain_name
from zonewise.topology.locator_index import Locator, LocatorIndex

ZONE = "topology.kubernetes.io/zone"
Capture = pytest.CaptureFixture[str]


def dump(*objects: Obj) -> str:
    """Objects as kubectl prints them."""
    versions = {"EndpointSlice": "discovery.k8s.io/v1", "PodLocator": "zonewise.io/v1alpha1"}
    items = [{"apiVersion": versions.get(source["kind"], "v1"), **source} for source in objects]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def cluster(**spec: str) -> list[Obj]:
    """Three nodes in three zones, a backend on each, a client on the first."""
    nodes: list[Obj] = [
        {"kind": "Node", "metadata": {"name": f"n-{zone}", "labels": {ZONE: zone}}}
        for zone in "abc"
    ]
    rows = [endpoint(f"10.0.0.{at}", nodeName=f"n-{zone}") for at, zone in enumerate("abc", 1)]
    client = {
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "front"},
        "spec": {"nodeName": "n-a"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.1.1"}]},
    }
    web = service("web", clusterIP="10.96.0.7", ports=[port("http", 80)])
    return [*nodes, headless("db", **spec), pieces("db", rows), client, web]


@pytest.fixture
def keyed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dump whose Service has topology keys."""
    path = tmp_path_factory.mktemp("dump") / "dump.yaml"
    path.write_text(dump(*cluster(keys=f"{ZONE},*")))
    return str(path)


def test_the_rule_the_key_and_what_was_left_out(keyed: str, capsys: Capture) -> None:
    """A pod in zone a gets zone a's endpoint; the others are listed with their zones."""
    result = here(capsys, "explain", "name", "db.shop.svc", "--client", "front/web-0", "-f", keyed)
    assert result.code == 0
    assert "pod front/web-0 on node n-a in zone a" in result.out
    assert f"1 of 3 endpoints are returned, those whose node has {ZONE}=a" in result.out
    assert f"its node has {ZONE}=b, the client a" in result.out


def test_a_single_label_is_a_service_of_the_namespace(keyed: str, capsys: Capture) -> None:
    """Without a pod's search path, -n completes a single label; else it is in default."""
    result = here(capsys, "explain", "name", "db", "-n", "shop", "-f", keyed)
    assert result.code == 0
    assert result.out.startswith("db.shop.svc.cluster.local for ")
    result = here(capsys, "explain", "name", "db", "-f", keyed)
    assert result.code == 1
    assert result.out.startswith("db.default.svc.cluster.local for an unknown client")
    assert "location is unknown" not in result.out


def test_a_single_label_needs_the_slices_of_its_service(tmp_path: Path, capsys: Capture) -> None:
    """A dump without EndpointSlices is refused for a short name as for a long one."""
    path = tmp_path / "dump.json"
    path.write_text(dump(*(item for item in cluster() if item["kind"] != "EndpointSlice")))
    short = here(capsys, "explain", "name", "db", "-n", "shop", "-f", path)
    assert (short.code, short.out) == (1, "")
    assert "there is no EndpointSlice in" in short.sentence()
    assert short.err == here(capsys, "explain", "name", "db.shop.svc", "-f", path).err


def test_a_client_may_be_an_address(keyed: str, capsys: Capture) -> None:
    """An address of a pod is that pod; the location of any other address is unknown."""
    name = "db.shop.svc.cluster.local."
    result = here(capsys, "explain", "name", name, "--client", "10.0.1.1", "-f", keyed)
    assert "pod front/web-0 on node n-a" in result.out
    result = here(capsys, "explain", "name", name, "--client", "192.0.2.1", "-f", keyed)
    assert "192.0.2.1, whose location is unknown" in result.out
    assert "all 3 endpoints are returned, because no key before * matches" in result.out


def test_json_has_the_same(keyed: str, capsys: Capture) -> None:
    """With -o json there are the code, the rule, the key, and what is returned and left out."""
    arguments = ("db.shop.svc", "--client", "front/web-0", "-f", keyed, "-o", "json")
    report = json.loads(here(capsys, "explain", "name", *arguments).out)
    assert (report["code"], report["rule"]) == ("NOERROR", "TopologyKey")
    (part,) = report["families"]
    assert part["key"] == ZONE
    assert [entry["address"] for entry in part["told"]] == ["10.0.0.1"]
    assert {entry["address"] for entry in part["leftOut"]} == {"10.0.0.2", "10.0.0.3"}


def test_names_that_are_the_same_for_everybody_say_so(keyed: str, capsys: Capture) -> None:
    """Cluster IPs and names of one endpoint are shown as the same for every client; unknown names
    exit with 1.
    """
    assert (
        "same for every client" in here(capsys, "explain", "name", "web.shop.svc", "-f", keyed).out
    )
    single = here(capsys, "explain", "name", "10-0-0-1.db.shop.svc", "-f", keyed)
    assert "same for every client" in single.out
    unknown = here(capsys, "explain", "name", "nope.shop.svc", "-f", keyed)
    assert unknown.code == 1
    assert "there is no Service nope in namespace shop" in unknown.out


def test_bad_questions_get_one_sentence(keyed: str, capsys: Capture) -> None:
    """A missing name, an unknown client, and a client for something that is not a name get one
    sentence.
    """
    for arguments in (
        ("explain", "name", "-f", keyed),
        ("explain", "name", "db.shop", "--client", "front/nobody", "-f", keyed),
        ("explain", "service", "db", "--client", "front/web-0", "-f", keyed),
    ):
        assert here(capsys, *arguments).sentence()


def test_hard_keys_say_what_would_help(
    tmp_path_factory: pytest.TempPathFactory, capsys: Capture
) -> None:
    """If hard keys match no endpoint the report says NODATA, names the keys, and says what to
    change.
    """
    path = tmp_path_factory.mktemp("dump") / "dump.yaml"
    path.write_text(dump(*cluster(keys=ZONE)))
    result = here(capsys, "explain", "name", "db.shop.svc", "--client", "192.0.2.1", "-f", path)
    assert result.code == 0
    assert "NODATA, none is returned: no endpoint matches" in result.out
    assert "End the topology keys with *" in result.out


def test_a_label_that_limited_locators_leave_out_is_not_known() -> None:
    """Of an endpoint whose node's locator was not to have the key it is said that nobody knows; of
    one that was to have it, that there is none.
    """
    locators = LocatorIndex()
    for node, address, keys, labels in (
        ("n-a", "10.0.1.1", ("rack",), {"rack": "r1"}),
        ("n-b", "10.0.1.2", (ZONE,), {ZONE: "b"}),
        ("n-c", "10.0.1.3", ("rack",), {}),
    ):
        locators.put(
            Locator(("x", node), addresses=(address,), node=node, labels=labels, keys=keys)
        )
    by_kind = {item["kind"]: item for item in cluster(keys="rack")[3:5]}
    client = NameClient("10.0.1.1", location=locators.locate("10.0.1.1"))
    report = explain_name(
        "db",
        ("db", "shop", "svc"),
        client,
        services=[convert(Service, by_kind["Service"])],
        slices=[convert(LeanEndpointSlice, by_kind["EndpointSlice"])],
        locators=locators,
    )
    (family,) = report.families
    assert [row.address for row in family.returned] == ["10.0.0.1"]
    assert [row.reason for row in family.left_out] == [
        "whether node n-b has the label rack is not known",
        "its node has no label rack",
    ]


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ("front/web-0", "all 2 endpoints are returned: none is hinted for node n-a"),
        ("192.0.2.1", "all 2 endpoints are returned: the client's node is not known"),
    ],
)
def test_hints_for_other_nodes_say_which_node_is_meant(
    tmp_path_factory: pytest.TempPathFactory, capsys: Capture, client: str, message: str
) -> None:
    """Where endpoints are hinted for nodes alone, the reason for other clients names their node."""
    rows = [
        endpoint(f"10.0.0.{at}", nodeName=name, hints={"forNodes": [{"name": name}]})
        for at, name in enumerate(("n-b", "n-c"), 1)
    ]
    others = [item for item in cluster() if item["kind"] != "EndpointSlice"]
    path = tmp_path_factory.mktemp("dump") / "dump.yaml"
    path.write_text(dump(*others, pieces("db", rows)))
    result = here(capsys, "explain", "name", "db.shop.svc", "--client", client, "-f", path)
    assert message in result.out


def test_a_short_name_is_looked_up_as_in_the_pod(
    tmp_path_factory: pytest.TempPathFactory, capsys: Capture
) -> None:
    """The search path of the pod's namespace is tried first; a full name is taken as written."""
    path = tmp_path_factory.mktemp("dump") / "dump.yaml"
    near = service("db", "front", clusterIP="10.96.0.8", ports=[port("http", 80)])
    path.write_text(dump(*cluster(), near))
    client = ("--client", "front/web-0", "-f", str(path))
    for name, meant in (
        ("db", "db.front.svc"),
        ("db.shop", "db.shop.svc"),
        ("db.shop.svc", "db.shop.svc"),
        ("db.front.svc.cluster.local", "db.front.svc"),
    ):
        result = here(capsys, "explain", "name", name, *client)
        assert result.code == 0, name
        assert result.out.startswith(f"{meant}.cluster.local for pod front/web-0 ")
    unknown = here(capsys, "explain", "name", "nope", *client)
    assert unknown.code == 1
    assert "there is no Service nope in namespace front" in unknown.out


def test_without_the_gate_hints_are_ignored(tmp_path: Path, capsys: Capture) -> None:
    """The report names the gate as the reason why all endpoints are returned. A flag says that it
    is off, or the controller's condition on the Service.
    """
    rows = [endpoint(f"10.0.0.{at}", zones=(zone,)) for at, zone in enumerate("abc", 1)]
    objects = [*(item for item in cluster() if item["kind"] != "EndpointSlice"), pieces("db", rows)]
    path = tmp_path / "dump.json"
    path.write_text(dump(*objects))
    words = ("explain", "name", "db.shop.svc", "--client", "front/web-0", "-f", path)
    assert "those hinted for zone a" in here(capsys, *words).out
    off = here(capsys, *words, "--feature-gates", "TopologyAwareHints=false")
    text = "all 3 endpoints are returned: hints are switched off (feature gate TopologyAwareHints)"
    assert text in off.out
    conditions = [{"type": "zonewise.io/Hints", "status": "False", "reason": "GateOff"}]
    with_condition = [
        {**item, "status": {"conditions": conditions}} if item["kind"] == "Service" else item
        for item in objects
    ]
    path.write_text(dump(*with_condition))
    assert text in here(capsys, *words).out
