"""``zonewise proxy --dry-run``."""

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
                "addresses": [f"10.244.{number}.5"],
                "nodeName": name,
                "hints": {"forZones": [{"name": zone}]},
            }
            for number, (name, zone) in enumerate((("n1", "a"), ("n2", "b")), 1)
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
    """The routes of one node are one object with all fields, as JSON and as YAML."""
    expected = {
        "node": "n1",
        "zone": "a",
        "routes": [
            row("ClusterIP", "10.96.0.10", 80),
            row("LoadBalancer", "198.51.100.1", 80, sourceAddress="masqueraded"),
            row("NodePort", None, 30080, sourceAddress="masqueraded"),
        ],
        "healthChecks": [],
        "notes": [],
    }
    words = ("proxy", "--dry-run", "-f", dump, "--node-name", "n1", "-o")
    result = here(capsys, *words, "json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == expected
    assert list(json.loads(result.out)["routes"][0]) == list(expected["routes"][0])
    assert yaml.safe_load(here(capsys, *words, "yaml").out) == expected
    assert json.loads(here(capsys, *words, "jsonl").out) == expected


def test_without_the_gate_zone_hints_are_ignored(tmp_path: Path, capsys: Capture) -> None:
    """A dry run with the gate off has every endpoint, unless trafficDistribution asks for hints."""
    gate = "--feature-gates=TopologyAwareHints=false"
    path = tmp_path / "dump.json"
    for spec, why in (({}, "HintsIgnored"), ({"trafficDistribution": "PreferClose"}, "SameZone")):
        path.write_text(json.dumps(listed(small(**spec))))
        words = ("proxy", "--dry-run", "-f", path, "--node-name", "n1", "-o", "json")
        report = json.loads(here(capsys, *words, gate).out)
        assert {route["why"] for route in report["routes"]} == {why}
        on = json.loads(here(capsys, *words).out)
        assert {route["why"] for route in on["routes"]} == {"SameZone"}


def test_every_node(dump: Path, capsys: Capture) -> None:
    """Without --node-name there is every node of the dump, also one without a zone."""
    result = here(capsys, "proxy", "--dry-run", "-f", dump, "-o", "json")
    nodes = json.loads(result.out)
    assert [(row["node"], row["zone"]) for row in nodes] == [("n1", "a"), ("n2", "b"), ("n3", "")]
    assert [row["routes"][0]["why"] for row in nodes] == ["SameZone", "SameZone", "PlaceUnknown"]


def test_a_folder(tmp_path: Path, capsys: Capture) -> None:
    """In a folder each file is a cluster, and a line names its file and its node."""
    (tmp_path / "0002.json").write_text(json.dumps(listed(small()[1:])))
    (tmp_path / "0001.yaml").write_text(yaml.safe_dump(listed(small()[:1])))
    result = here(capsys, "proxy", "--dry-run", "-f", tmp_path, "-o", "jsonl")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [(row["file"], row["node"], len(row["routes"])) for row in rows] == [
        ("0001.yaml", "n1", 0),
        ("0002.json", "n2", 3),
        ("0002.json", "n3", 3),
    ]
    assert list(rows[0]) == ["file", "node", "zone", "routes", "healthChecks", "notes"]


def test_local_policy_and_health_check(tmp_path: Path, capsys: Capture) -> None:
    """externalTrafficPolicy Local has two rows for each external frontend, and a health check."""
    path = tmp_path / "dump.json"
    more = {"externalTrafficPolicy": "Local", "healthCheckNodePort": 31001}
    affinity = {"sessionAffinity": "ClientIP", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    path.write_text(json.dumps(listed(small(**more, **affinity))))
    result = here(capsys, "proxy", "--dry-run", "-f", path, "--node-name", "n3", "-o", "json")
    report = json.loads(result.out)
    assert [(row["path"], row["from"], row["action"]) for row in report["routes"]] == [
        ("ClusterIP", "any", "dnat"),
        ("LoadBalancer", "inside", "dnat"),
        ("LoadBalancer", "outside", "drop"),
        ("NodePort", "inside", "dnat"),
        ("NodePort", "outside", "drop"),
    ]
    assert {row["affinitySeconds"] for row in report["routes"]} == {10800}
    assert [row["sourceRanges"] for row in report["routes"][1:4]] == [["10.0.0.0/8"]] * 2 + [[]]
    assert report["healthChecks"] == [
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
    """The default output is a table of frontends."""
    assert here(capsys, "proxy", "--dry-run", "-f", dump, "--node-name", "n1").out == TABLE


def test_weights(tmp_path: Path, capsys: Capture) -> None:
    """Weights of slices are in the JSON; the table has percentages, the rules have ranges."""
    weighed = piece()
    weighed["metadata"]["annotations"] = {"zonewise.io/zone-weights": '{"a":{"a":5000,"b":1000}}'}
    for endpoint, zone in zip(weighed["endpoints"], "ab", strict=True):
        endpoint["zone"] = zone
    file = tmp_path / "dump.yaml"
    nodes = (node("n1", "a"), node("n2", "b"))
    file.write_text(yaml.safe_dump(listed([*nodes, service(), weighed])))
    words = ("proxy", "--dry-run", "-f", str(file), "--node-name")
    route = json.loads(here(capsys, *words, "n1", "-o", "json").out)["routes"][0]
    assert route["why"] == "Weighted"
    assert [endpoint["weight"] for endpoint in route["endpoints"]] == [5000, 1000]
    alone = json.loads(here(capsys, *words, "n2", "-o", "json").out)["routes"][0]
    assert alone["endpoints"] == [{"address": "10.244.2.5", "port": 8080, "weight": 1}]
    table = here(capsys, *words, "n1").out
    assert "10.244.1.5:8080 (83.3 %), 10.244.2.5:8080 (16.7 %)" in table
    rules = here(capsys, *words, "n1", "-o", "nft").out
    assert "numgen random mod 6000 < 1000 dnat ip to numgen random mod 1 . ip daddr" in rules
    assert "0 . 10.96.0.10 . tcp . 80 : 10.244.2.5 . 8080" in rules
    assert "1048576 . 10.96.0.10 . tcp . 80 : 10.244.1.5 . 8080" in rules


def test_keys_and_notes(tmp_path: Path, capsys: Capture) -> None:
    """Routes have the topology key that matched; invalid keys have a note."""
    items = small()
    items[3]["metadata"]["annotations"] = {
        "zonewise.io/topology-keys": "kubernetes.io/hostname,topology.kubernetes.io/zone,*"
    }
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(items)))
    result = here(capsys, "proxy", "--dry-run", "-f", path, "-o", "jsonl")
    keys = [json.loads(line)["routes"][0]["key"] for line in result.out.splitlines()]
    assert keys == ["topology.kubernetes.io/zone", "topology.kubernetes.io/zone", "*"]
    items[3]["metadata"]["annotations"]["zonewise.io/topology-keys"] = "*,*"
    path.write_text(json.dumps(listed(items)))
    result = here(capsys, "proxy", "--dry-run", "-f", path, "--node-name", "n1", "-o", "json")
    (note,) = json.loads(result.out)["notes"]
    assert (note["code"], note["object"]) == ("InvalidTopologyKeys", "Service/default/s")
    assert "'*' must be the last key" in note["message"]


def test_labels_come_from_slices_then_locators_then_nodes(tmp_path: Path, capsys: Capture) -> None:
    """As a running proxy: the annotation counts first, then PodLocators, then Nodes with a note."""
    items = small()
    items[3]["metadata"]["annotations"] = {"zonewise.io/topology-keys": "row"}
    for at, row_of_node in enumerate("xy"):
        items[at]["metadata"]["labels"]["row"] = row_of_node
    path = tmp_path / "dump.json"

    def chosen(*more: Item) -> tuple[list[str], list[str]]:
        path.write_text(json.dumps(listed([*items, *more])))
        words = ("proxy", "--dry-run", "-f", path, "--node-name", "n1", "-o", "json")
        report = json.loads(here(capsys, *words).out)
        endpoints = report["routes"][0]["endpoints"]
        return [end["address"] for end in endpoints], [note["code"] for note in report["notes"]]

    assert chosen() == (["10.244.1.5"], ["LabelsFromNodes"])
    locators = [
        {
            "apiVersion": "zonewise.io/v1alpha1",
            "kind": "PodLocator",
            "metadata": {"name": f"pod-{node}", "namespace": "default"},
            "nodeName": node,
            "nodeLabels": {"row": row_of_node},
        }
        for node, row_of_node in (("n1", "y"), ("n2", "x"))
    ]
    assert chosen(*locators) == (["10.244.2.5"], [])
    limited = [item | {"nodeLabels": {}, "nodeLabelKeys": ["zone"]} for item in locators]
    assert chosen(*limited) == (["10.244.1.5"], ["LabelsFromNodes"])
    assert chosen(*(item | {"nodeLabelKeys": ["row"]} for item in limited)) == ([], [])
    values = {"10.244.1.5": {"row": "x"}, "10.244.2.5": {"row": "x"}}
    items[4]["metadata"]["annotations"] = {"zonewise.io/topology": json.dumps(values)}
    assert chosen(*locators) == (["10.244.1.5", "10.244.2.5"], [])


def test_the_routes_are_those_of_the_rules(tmp_path: Path, capsys: Capture) -> None:
    """Of two Services with one address the first has the route, as in the rules; a note says so."""
    other = service(clusterIP="10.96.0.11", clusterIPs=["10.96.0.11"], ports=[{"port": 80}])
    other["metadata"]["name"] = "t"
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([*small(externalIPs=["10.96.0.11"]), other])))
    words = ("proxy", "--dry-run", "-f", path, "--node-name", "n1", "-o")
    report = json.loads(here(capsys, *words, "json").out)
    assert [(row["service"], row["path"], row["address"]) for row in report["routes"]] == [
        ("s", "ClusterIP", "10.96.0.10"),
        ("s", "LoadBalancer", "198.51.100.1"),
        ("s", "NodePort", None),
        ("t", "ClusterIP", "10.96.0.11"),
    ]
    assert [(note["code"], note["object"]) for note in report["notes"]] == [
        ("AddressInUse", "Service/default/s"),
        ("AddressInUse", "Service/default/t"),
    ]
    rules = here(capsys, *words, "nft").out
    assert "198.51.100.1 . tcp . 80 : goto slots-1" in rules
    assert "10.96.0.11 . tcp . 80 :" not in rules
    table = here(capsys, *words, "table").out
    says = "LoadBalancer 198.51.100.1:80/TCP is not routed: Service default/s has it"
    assert f"Service/default/t: {says} (AddressInUse)" in table
    every = here(capsys, "proxy", "--dry-run", "-f", path).out
    assert every.count("\nNode n") == 2, "the first Node begins the page"
    assert every.count(says) == 1, "what all nodes note is printed once"
    assert every.endswith(f"\nService/default/t: {says} (AddressInUse)\n")


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (("--node-name", "n9"), "there is no Node n9 in", 1),
        (("--node-name", "n9"), "; there are n1, n2, n3", 1),
        (("--feature-gates", "X=true"), "unknown feature gate", 2),
        (("--cleanup",), "--dry-run and --cleanup exclude each other", 2),
        (("--init-only",), "--dry-run and --init-only exclude each other", 2),
    ],
)
def test_one_sentence(
    dump: Path, capsys: Capture, words: tuple[str, ...], says: str, code: int
) -> None:
    """Errors are one sentence that says what to do."""
    result = here(capsys, "proxy", "--dry-run", "-f", dump, *words)
    assert result.code == code
    assert says in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("output", ["table", "json", "yaml", "jsonl", "nft"])
def test_no_node_is_not_found(tmp_path: Path, capsys: Capture, output: str) -> None:
    """A dump without nodes is one sentence and exit code 1, whatever the format."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(small()[3:])))
    for where in (path, tmp_path):
        result = here(capsys, "proxy", "--dry-run", "-f", where, "-o", output)
        assert (result.code, result.out) == (1, "")
        assert result.sentence() == f"error: there is no Node in {path}; dump nodes as well"


def test_a_file_without_nodes_among_others_is_noted(tmp_path: Path, capsys: Capture) -> None:
    """A file without nodes is noted, and the other clusters of the folder are printed."""
    (tmp_path / "0001.json").write_text(json.dumps(listed(small()[3:])))
    (tmp_path / "0002.json").write_text(json.dumps(listed(small())))
    result = here(capsys, "proxy", "--dry-run", "-f", tmp_path, "-o", "jsonl")
    assert result.code == 0
    assert {json.loads(line)["file"] for line in result.out.splitlines()} == {"0002.json"}
    says = f"note: there is no Node in {tmp_path / '0001.json'}; dump nodes as well\n"
    assert result.err == says


def test_items_that_are_no_list_are_refused(tmp_path: Path, capsys: Capture) -> None:
    """A dump whose items are not a list is exit code 2, for every command."""
    path = tmp_path / "dump.yaml"
    path.write_text("apiVersion: v1\nkind: List\nitems: 3\n")
    for words in (("proxy", "--dry-run"), ("explain", "services"), ("explain", "budgets")):
        result = here(capsys, *words, "-f", path)
        assert (result.code, result.out) == (2, "")
        assert f"{path}:1: the items of this list are not a list; give" in result.sentence()


def test_of_many_nodes_some_are_named(tmp_path: Path, capsys: Capture) -> None:
    """Of many nodes the sentence names the first ones and counts the others."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([node(f"n{number}", "a") for number in range(1, 9)])))
    result = here(capsys, "proxy", "--dry-run", "-f", path, "--node-name", "zz")
    assert result.code == 1
    assert result.sentence().endswith("; there are n1, n2, n3, n4, n5 and 3 more")


def test_cleanup_alone_removes(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """--cleanup removes rules; together with --dry-run it is refused."""
    called: list[str] = []

    def clean_up() -> list[str]:
        called.append("x")
        return []

    monkeypatch.setattr("zonewise.proxy.tables.kernel.clean_up", clean_up)
    assert here(capsys, "proxy", "--dry-run", "--cleanup").code == 2
    assert called == []
    assert here(capsys, "proxy", "--cleanup").code == 0
    assert called == ["x"]


def test_a_namespace_has_no_effect(dump: Path, capsys: Capture) -> None:
    """Routes are of all namespaces; with -n a note says so."""
    result = here(capsys, "proxy", "--dry-run", "-f", dump, "--node-name", "n1", "-n", "nope")
    assert (result.code, result.out) == (0, TABLE)
    assert result.err == "note: -n nope has no effect: routes are of all namespaces\n"
