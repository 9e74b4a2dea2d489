"""``zonewise proxy --dry-run`` as people run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.run_program import here
from tests.explain.dumps import listed, node

Capture = pytest.CaptureFixture[str]
Item = dict[str, Any]


def service(**spec: Any) -> Item:
    """A load balanced Service."""
    port = {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}
    base = {
        "type": "LoadBalancer",
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10"],
        "ipFamilies": ["IPv4"],
        "externalTrafficPolicy": "Cluster",
        "ports": [port],
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": base | spec,
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}},
    }


def piece() -> Item:
    """Its slice: an endpoint in each zone."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "s-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "s"},
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [f"10.244.{place}.5"],
                "nodeName": name,
                "hints": {"forZones": [{"name": zone}]},
            }
            for place, (name, zone) in enumerate((("n1", "a"), ("n2", "b")), 1)
        ],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def small(**spec: Any) -> list[Item]:
    """Two zones with a node each, and a node without a zone."""
    return [node("n1", "a"), node("n2", "b"), node("n3"), service(**spec), piece()]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A cluster in a file."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(small())))
    return path


def row(path: str, address: str | None, number: int, **more: Any) -> Item:
    """A complete route of the node n1."""
    return {
        "namespace": "default",
        "service": "s",
        "port": "http",
        "family": "IPv4",
        "protocol": "TCP",
        "path": path,
        "address": address,
        "number": number,
        "from": "any",
        "action": "dnat",
        "why": "SameZone",
        "key": None,
        "endpoints": [{"address": "10.244.1.5", "port": 8080, "weight": 1}],
        "affinitySeconds": None,
        "sourceRanges": [],
    } | more


def test_one_node(dump: Path, capsys: Capture) -> None:
    """One node of a file is one object, complete to the last field, as JSON and as YAML."""
    expected = {
        "node": "n1",
        "zone": "a",
        "routes": [
            row("ClusterIP", "10.96.0.10", 80),
            row("LoadBalancer", "198.51.100.1", 80),
            row("NodePort", None, 30080),
        ],
        "healthChecks": [],
        "notes": [],
    }
    words = ("proxy", "--dry-run", "-f", dump, "--node-name", "n1", "-o")
    found = here(capsys, *words, "json")
    assert (found.code, found.err) == (0, "")
    assert json.loads(found.out) == expected
    assert list(json.loads(found.out)["routes"][0]) == list(expected["routes"][0])
    assert yaml.safe_load(here(capsys, *words, "yaml").out) == expected
    assert json.loads(here(capsys, *words, "jsonl").out) == expected


def test_every_node(dump: Path, capsys: Capture) -> None:
    """Without a name every node of the dump is there; a node without a zone says so."""
    found = here(capsys, "proxy", "--dry-run", "-f", dump, "-o", "json")
    nodes = json.loads(found.out)
    assert [(one["node"], one["zone"]) for one in nodes] == [("n1", "a"), ("n2", "b"), ("n3", "")]
    assert [one["routes"][0]["why"] for one in nodes] == ["SameZone", "SameZone", "PlaceUnknown"]


def test_a_folder(tmp_path: Path, capsys: Capture) -> None:
    """In a folder each file is a cluster, and a line names its file and its node."""
    (tmp_path / "0002.json").write_text(json.dumps(listed(small()[1:])))
    (tmp_path / "0001.yaml").write_text(yaml.safe_dump(listed(small()[:1])))
    found = here(capsys, "proxy", "--dry-run", "-f", tmp_path, "-o", "jsonl")
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert [(one["file"], one["node"], len(one["routes"])) for one in rows] == [
        ("0001.yaml", "n1", 0),
        ("0002.json", "n2", 3),
        ("0002.json", "n3", 3),
    ]
    assert list(rows[0]) == ["file", "node", "zone", "routes", "healthChecks", "notes"]


def test_local_policy_and_health_check(tmp_path: Path, capsys: Capture) -> None:
    """externalTrafficPolicy Local has two rows for each external way in, and a health check."""
    path = tmp_path / "dump.json"
    more = {"externalTrafficPolicy": "Local", "healthCheckNodePort": 31001}
    affinity = {"sessionAffinity": "ClientIP", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    path.write_text(json.dumps(listed(small(**more, **affinity))))
    found = here(capsys, "proxy", "--dry-run", "-f", path, "--node-name", "n3", "-o", "json")
    made = json.loads(found.out)
    assert [(one["path"], one["from"], one["action"]) for one in made["routes"]] == [
        ("ClusterIP", "any", "dnat"),
        ("LoadBalancer", "inside", "dnat"),
        ("LoadBalancer", "outside", "drop"),
        ("NodePort", "inside", "dnat"),
        ("NodePort", "outside", "drop"),
    ]
    assert {one["affinitySeconds"] for one in made["routes"]} == {10800}
    assert [one["sourceRanges"] for one in made["routes"][1:4]] == [["10.0.0.0/8"]] * 2 + [[]]
    assert made["healthChecks"] == [
        {
            "namespace": "default",
            "service": "s",
            "family": "IPv4",
            "port": 31001,
            "localEndpoints": 0,
        }
    ]


TABLE = """\
Node n1, zone a
NAMESPACE  SERVICE  PORT  FRONTEND                          FROM  ACTION  ENDPOINTS        WHY
default    s        http  ClusterIP 10.96.0.10:80/TCP       any   dnat    10.244.1.5:8080  SameZone
default    s        http  LoadBalancer 198.51.100.1:80/TCP  any   dnat    10.244.1.5:8080  SameZone
default    s        http  NodePort *:30080/TCP              any   dnat    10.244.1.5:8080  SameZone
"""


def test_the_table(dump: Path, capsys: Capture) -> None:
    """For people it is a table of the ways in."""
    assert here(capsys, "proxy", "--dry-run", "-f", dump, "--node-name", "n1").out == TABLE


def test_weights(tmp_path: Path, capsys: Capture) -> None:
    """Weights of the slices are in the JSON; the table and the rules show what they come to."""
    weighed = piece()
    weighed["metadata"]["annotations"] = {"zonewise.io/zone-weights": '{"a":{"a":5000,"b":1000}}'}
    for one, zone in zip(weighed["endpoints"], "ab", strict=True):
        one["zone"] = zone
    file = tmp_path / "dump.yaml"
    nodes = (node("n1", "a"), node("n2", "b"))
    file.write_text(yaml.safe_dump(listed([*nodes, service(), weighed])))
    words = ("proxy", "--dry-run", "-f", str(file), "--node-name")
    route = json.loads(here(capsys, *words, "n1", "-o", "json").out)["routes"][0]
    assert route["why"] == "Weighted"
    assert [one["weight"] for one in route["endpoints"]] == [5000, 1000]
    alone = json.loads(here(capsys, *words, "n2", "-o", "json").out)["routes"][0]
    assert alone["endpoints"] == [{"address": "10.244.2.5", "port": 8080, "weight": 1}]
    shown = here(capsys, *words, "n1").out
    assert "10.244.1.5:8080 (83.3 %), 10.244.2.5:8080 (16.7 %)" in shown
    rules = here(capsys, *words, "n1", "-o", "nft").out
    assert "numgen random mod 6000 < 1000 dnat ip to numgen random mod 1 . ip daddr" in rules
    assert "0 . 10.96.0.10 . tcp . 80 : 10.244.2.5 . 8080" in rules
    assert "1048576 . 10.96.0.10 . tcp . 80 : 10.244.1.5 . 8080" in rules


def test_keys_and_notes(tmp_path: Path, capsys: Capture) -> None:
    """Topology keys are told with the key that matched, invalid ones with a note."""
    items = small()
    items[3]["metadata"]["annotations"] = {
        "zonewise.io/topology-keys": "kubernetes.io/hostname,topology.kubernetes.io/zone,*"
    }
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(items)))
    found = here(capsys, "proxy", "--dry-run", "-f", path, "-o", "jsonl")
    keys = [json.loads(line)["routes"][0]["key"] for line in found.out.splitlines()]
    assert keys == ["topology.kubernetes.io/zone", "topology.kubernetes.io/zone", "*"]
    items[3]["metadata"]["annotations"]["zonewise.io/topology-keys"] = "*,*"
    path.write_text(json.dumps(listed(items)))
    found = here(capsys, "proxy", "--dry-run", "-f", path, "--node-name", "n1", "-o", "json")
    (note,) = json.loads(found.out)["notes"]
    assert (note["code"], note["object"]) == ("InvalidTopologyKeys", "Service/default/s")
    assert "'*' must be the last key" in note["message"]


def test_what_is_shown_is_what_is_written(tmp_path: Path, capsys: Capture) -> None:
    """Of two Services with one address the first has the route, as in the rules; a note says so."""
    other = service(clusterIP="10.96.0.11", clusterIPs=["10.96.0.11"], ports=[{"port": 80}])
    other["metadata"]["name"] = "t"
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([*small(externalIPs=["10.96.0.11"]), other])))
    words = ("proxy", "--dry-run", "-f", path, "--node-name", "n1", "-o")
    made = json.loads(here(capsys, *words, "json").out)
    assert [(one["service"], one["path"], one["address"]) for one in made["routes"]] == [
        ("s", "ClusterIP", "10.96.0.10"),
        ("s", "LoadBalancer", "198.51.100.1"),
        ("s", "NodePort", None),
        ("t", "ClusterIP", "10.96.0.11"),
    ]
    assert [(note["code"], note["object"]) for note in made["notes"]] == [
        ("AddressInUse", "Service/default/s"),
        ("AddressInUse", "Service/default/t"),
    ]
    rules = here(capsys, *words, "nft").out
    assert "198.51.100.1 . tcp . 80 : goto slots-1" in rules
    assert "10.96.0.11 . tcp . 80 :" not in rules
    table = here(capsys, *words, "table").out
    said = "LoadBalancer 198.51.100.1:80/TCP is not routed: Service default/s has it"
    assert f"Service/default/t: {said} (AddressInUse)" in table
    every = here(capsys, "proxy", "--dry-run", "-f", path).out
    assert every.count("\nNode n") == 2, "the first Node begins the page"
    assert every.count(said) == 1, "what all nodes note is printed once"
    assert every.endswith(f"\nService/default/t: {said} (AddressInUse)\n")


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--node-name", "n9"), "there is no Node n9 in", 1),
        (("--node-name", "n9"), "; there are n1, n2, n3", 1),
        (("--feature-gates", "X=true"), "unknown feature gate", 2),
        (("--cleanup",), "--dry-run and --cleanup exclude each other", 2),
        (("--init-only",), "--dry-run and --init-only exclude each other", 2),
    ],
)
def test_one_sentence(
    dump: Path, capsys: Capture, words: tuple[str, ...], said: str, code: int
) -> None:
    """What cannot be done is one sentence that says what to do."""
    found = here(capsys, "proxy", "--dry-run", "-f", dump, *words)
    assert found.code == code
    assert said in found.err
    assert len(found.err.splitlines()) == 1


@pytest.mark.parametrize("output", ["table", "json", "yaml", "jsonl", "nft"])
def test_no_node_is_not_found(tmp_path: Path, capsys: Capture, output: str) -> None:
    """A dump without nodes is one sentence and exit code 1, whatever the format."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(small()[3:])))
    for where in (path, tmp_path):
        found = here(capsys, "proxy", "--dry-run", "-f", where, "-o", output)
        assert (found.code, found.out) == (1, "")
        assert found.sentence() == f"error: there is no Node in {path}; dump nodes as well"


def test_a_file_without_nodes_among_others_is_noted(tmp_path: Path, capsys: Capture) -> None:
    """In a folder the other clusters are shown, and which one has no nodes is said."""
    (tmp_path / "0001.json").write_text(json.dumps(listed(small()[3:])))
    (tmp_path / "0002.json").write_text(json.dumps(listed(small())))
    found = here(capsys, "proxy", "--dry-run", "-f", tmp_path, "-o", "jsonl")
    assert found.code == 0
    assert {json.loads(line)["file"] for line in found.out.splitlines()} == {"0002.json"}
    said = f"note: there is no Node in {tmp_path / '0001.json'}; dump nodes as well\n"
    assert found.err == said


def test_items_that_are_no_list_are_refused(tmp_path: Path, capsys: Capture) -> None:
    """A dump whose items are something else is no empty cluster: exit code 2, for every command."""
    path = tmp_path / "dump.yaml"
    path.write_text("apiVersion: v1\nkind: List\nitems: 3\n")
    for words in (("proxy", "--dry-run"), ("explain", "services"), ("explain", "budgets")):
        found = here(capsys, *words, "-f", path)
        assert (found.code, found.out) == (2, "")
        assert f"{path}:1: the items of this list are not a list; give" in found.sentence()


def test_of_many_nodes_some_are_named(tmp_path: Path, capsys: Capture) -> None:
    """Of many nodes the sentence names the first ones and counts the others."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([node(f"n{number}", "a") for number in range(1, 9)])))
    found = here(capsys, "proxy", "--dry-run", "-f", path, "--node-name", "zz")
    assert found.code == 1
    assert found.sentence().endswith("; there are n1, n2, n3, n4, n5 and 3 more")


def test_cleanup_alone_removes(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Rules are removed by --cleanup alone; beside --dry-run nothing is touched."""
    called: list[str] = []

    def clean_up() -> list[str]:
        called.append("x")
        return []

    monkeypatch.setattr("zonewise.proxy.tables.kernel.clean_up", clean_up)
    assert here(capsys, "proxy", "--dry-run", "--cleanup").code == 2
    assert called == []
    assert here(capsys, "proxy", "--cleanup").code == 0
    assert called == ["x"]


def test_a_namespace_has_no_effect_and_that_is_said(dump: Path, capsys: Capture) -> None:
    """Routes are of all namespaces; whoever gives -n is told so, beside the routes."""
    found = here(capsys, "proxy", "--dry-run", "-f", dump, "--node-name", "n1", "-n", "nope")
    assert (found.code, found.out) == (0, TABLE)
    assert found.err == "note: -n nope has no effect: routes are of all namespaces\n"
