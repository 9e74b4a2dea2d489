"""``zonewise explain`` on dumps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.cli.run_program import here
from tests.explain.dumps import Item, endpoint, listed, node, part, service

Capture = pytest.CaptureFixture[str]


def small() -> list[Item]:
    """Three zones; one Service has hints, one has too few endpoints."""
    return [
        node("n1", "zone-a", milli=4000),
        node("n2", "zone-b", milli=4000),
        node("n3", "zone-c", milli=3500),
        service(),
        part(
            [
                endpoint("10.0.0.1", on="n1", hints=["zone-a"]),
                endpoint("10.0.0.2", on="n2", hints=["zone-b"]),
                endpoint("10.0.0.3", on="n3", hints=["zone-c"]),
            ]
        ),
        service("api", namespace="shop"),
        part(
            [
                endpoint("10.0.1.1", on="n1"),
                endpoint("10.0.1.2", on="n1"),
                endpoint("10.0.1.3", on="n2"),
                endpoint("10.0.1.4", on="n3"),
                endpoint("10.0.1.5", on="n3", ready=False, terminating=True),
            ],
            of="api",
            name="api-1",
            namespace="shop",
        ),
    ]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A cluster in a file."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(small())))
    return path


HINTED = """\
Service default/web has hints (mode Auto): every zone has endpoints for its share of the \
traffic.

ZONE    NODES  CPU   SHARE  ENDPOINTS  MINIMUM  HINTED  OVERLOAD
zone-a      1    4  34.8 %          1        1       1     4.3 %
zone-b      1    4  34.8 %          1        1       1     4.3 %
zone-c      1  3.5  30.4 %          1        1       1    -8.7 %

ENDPOINT  ZONE    NODE  READY  FOR
10.0.0.1  zone-a  n1    yes    zone-a
10.0.0.2  zone-b  n2    yes    zone-b
10.0.0.3  zone-c  n3    yes    zone-c

TRAFFIC IN ITS ZONE
expected now              100.0 %
without hints              33.3 %
best below 20 % overload  100.0 %
The busiest endpoint gets 4.3 % more than average; hints are taken away above 30 %.
"""

REFUSED = """\
Service shop/api has no hints (mode Auto): 4 endpoints cannot serve 3 zones evenly: at best those \
of zone zone-b get 40 % more traffic than the average, allowed is below 20 %: needs 6, has 4.

ZONE    NODES  CPU   SHARE  ENDPOINTS  MINIMUM  HINTED  OVERLOAD
zone-a      1    4  34.8 %          2        2       0         -
zone-b      1    4  34.8 %          1        2       0         -
zone-c      1  3.5  30.4 %          1        2       0         -

ENDPOINT  ZONE    NODE  READY        FOR
10.0.1.1  zone-a  n1    yes          -
10.0.1.2  zone-a  n1    yes          -
10.0.1.3  zone-b  n2    yes          -
10.0.1.4  zone-c  n3    yes          -
10.0.1.5  zone-c  n3    terminating  -

TRAFFIC IN ITS ZONE
expected now              33.7 %
without hints             33.7 %
best below 20 % overload  94.8 %

What would help: Scale to 6 endpoints. Or set annotation service.kubernetes.io/topology-mode to \
zonewise.io/shared, which keeps 62.3 % of the traffic in its zone with the same endpoints. Or \
allow more overload with the annotation zonewise.io/overload, now 20%/30%.
"""


def test_pages(dump: Path, capsys: Capture) -> None:
    """A page begins with the decision and ends with what would help; the exit code is 0."""
    result = here(capsys, "explain", "service", "web", "-f", dump)
    assert (result.code, result.err, result.out) == (0, "", HINTED)
    result = here(capsys, "explain", "svc", "api", "-n", "shop", "-f", dump)
    assert (result.code, result.err, result.out) == (0, "", REFUSED)


def test_many(dump: Path, capsys: Capture) -> None:
    """All Services are a table, one line each."""
    result = here(capsys, "explain", "services", "-A", "-f", dump)
    assert result.code == 0
    assert result.out.splitlines() == [
        "NAMESPACE  NAME  MODE  HINTS         ENDPOINTS  IN-ZONE  WITHOUT    LIMIT",
        "default    web   Auto  yes                   3  100.0 %   33.3 %  100.0 %",
        "shop       api   Auto  no: Overload          4   33.7 %   33.7 %   94.8 %",
    ]
    result = here(capsys, "explain", "services", "-n", "empty", "-f", dump)
    assert (result.code, result.out) == (0, "There is no Service in namespace empty.\n")
    result = here(capsys, "explain", "services", "-f", dump, "-o", "json")
    assert [entry["service"] for entry in json.loads(result.out)] == ["web"]


@pytest.mark.parametrize(
    ("word", "like"), [("servce", "service"), ("Budgest/web", "budget"), ("nmae", "name")]
)
def test_a_misspelled_word_is_answered_with_the_one_that_is_meant(
    capsys: Capture, word: str, like: str
) -> None:
    """The error names the nearest word that is known; a word like none of them gets all words."""
    refused = here(capsys, "explain", word)
    assert refused.code == 2
    assert refused.sentence().endswith(f' explain {like}"?')
    assert "'pvc'" in here(capsys, "explain", "xyzzy").sentence()


def test_formats(dump: Path, capsys: Capture) -> None:
    """JSON, a line of JSON and YAML have the same content."""
    call = ("explain", "service", "web", "-f", dump, "-o")
    report = json.loads(here(capsys, *call, "json").out)
    line = here(capsys, *call, "jsonl").out
    assert line.count("\n") == 1
    assert report == json.loads(line) == yaml.safe_load(here(capsys, *call, "yaml").out)
    assert "file" not in report
    assert "&" not in here(capsys, *call, "yaml").out


def test_not_found(dump: Path, capsys: Capture) -> None:
    """An unknown name is exit code 1 and one sentence, which names another namespace if it can."""
    result = here(capsys, "explain", "service", "api", "-f", dump)
    assert result.code == 1
    assert result.sentence() == (
        "error: there is no Service api in namespace default; there is one in namespace shop: "
        "add -n shop"
    )
    result = here(capsys, "explain", "service", "nope", "-f", dump)
    assert (result.code, result.out) == (1, "")
    assert "explain services -A" in result.sentence()


def test_files_merge(tmp_path: Path, capsys: Capture) -> None:
    """Several files are one cluster, of JSON or of YAML."""
    items = small()
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(items[:3]))
    (tmp_path / "rest.json").write_text(json.dumps(listed(items[3:])))
    files = ("-f", tmp_path / "nodes.yaml", "-f", tmp_path / "rest.json")
    assert here(capsys, "explain", "service", "web", *files).out == HINTED


def test_folders(tmp_path: Path, capsys: Capture) -> None:
    """A folder has one cluster per file; one Service of several clusters is refused."""
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps(listed(small())))
    result = here(capsys, "explain", "services", "-A", "-f", tmp_path, "-o", "jsonl")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [(line["file"], line["service"]) for line in rows] == [
        ("one.json", "web"),
        ("one.json", "api"),
        ("two.json", "web"),
        ("two.json", "api"),
    ]
    table = here(capsys, "explain", "services", "-f", tmp_path).out
    assert [line.split()[0] for line in table.splitlines()] == ["FILE", "one.json", "two.json"]
    result = here(capsys, "explain", "service", "web", "-f", tmp_path)
    assert result.code == 2
    assert "give one file" in result.sentence()


@pytest.mark.parametrize(
    "arguments",
    [
        ("service",),
        ("services", "web"),
        ("service", "web", "-A"),
        ("pods",),
        ("service", "web", "-f", "/nowhere/at/all"),
        ("service", "web", "-f", "/dev/null", "--feature-gates", "Nonsense=true"),
        ("service", "web"),
    ],
)
def test_cannot_start(arguments: tuple[str, ...], capsys: Capture) -> None:
    """Usage, files and connections that do not work are exit code 2 and one sentence."""
    result = here(capsys, "explain", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_long_pages(tmp_path: Path, capsys: Capture) -> None:
    """A page shows fifty endpoints and says how many more there are."""
    endpoints = [endpoint(f"10.0.0.{n}", on=f"n{n % 3 + 1}") for n in range(60)]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed([*small()[:4], part(endpoints)])))
    out = here(capsys, "explain", "service", "web", "-f", path).out
    assert out.count("\n10.0.0.") == 50
    assert "… and 10 more; -o json shows all" in out
    assert "with the slices as they are" in out


KEYED = """\
Topology keys: kubernetes.io/hostname, topology.kubernetes.io/zone
DECIDED BY                   ON NODES  ENDPOINTS
topology.kubernetes.io/zone  n1        10.0.0.1
kubernetes.io/hostname       n2        10.0.0.2
rejected                     n3        -
By its topology keys 69.6 % of the traffic stays in its zone and 30.4 % is rejected, where the \
proxy is Zonewise's; kube-proxy does not know them."""


def keyed(text: str) -> list[Item]:
    """A Service with topology keys, and two endpoints."""
    second = node("n2", "zone-b", milli=4000)
    second["metadata"]["labels"]["kubernetes.io/hostname"] = "n2"
    return [
        node("n1", "zone-a", milli=4000),
        second,
        node("n3", "zone-c", milli=3500),
        service(annotations={"zonewise.io/topology-keys": text}),
        part([endpoint("10.0.0.1", on="n1"), endpoint("10.0.0.2", on="n2")]),
    ]


def test_topology_keys_node_by_node(tmp_path: Path, capsys: Capture) -> None:
    """The decision by keys on every node is in the page and in JSON."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(keyed("kubernetes.io/hostname,topology.kubernetes.io/zone"))))
    page = here(capsys, "explain", "service", "web", "-f", path).out
    assert KEYED in page
    assert "TRAFFIC IN ITS ZONE" not in page
    report = json.loads(here(capsys, "explain", "service", "web", "-f", path, "-o", "json").out)
    keys = report["topologyKeys"]
    assert [(row["node"], row["why"], row["key"]) for row in keys["nodes"]] == [
        ("n1", "TopologyKey", "topology.kubernetes.io/zone"),
        ("n2", "TopologyKey", "kubernetes.io/hostname"),
        ("n3", "NoKeyMatches", None),
    ]
    assert (keys["inZone"], keys["rejected"]) == (0.695652, 0.304348)
    assert "topologyKeys" in report["families"][0]


def test_wrong_topology_keys_are_noted(tmp_path: Path, capsys: Capture) -> None:
    """Keys that are ignored are in the notes, and nothing is reported for them."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(listed(keyed("*,zone"))))
    page = here(capsys, "explain", "service", "web", "-f", path).out
    assert "The topology keys are ignored, all of them: " in page
    result = here(capsys, "explain", "service", "web", "-f", path, "-o", "json")
    assert "topologyKeys" not in json.loads(result.out)
    assert "'*' must be the last key" in result.err


def test_notes_on_many_files_name_the_file(tmp_path: Path, capsys: Capture) -> None:
    """Notes about the clusters of a folder name the file, as the rows do."""
    for name, keys in (("a.json", "*"), ("b.json", "*,zone")):
        (tmp_path / name).write_text(json.dumps(listed(keyed(keys))))
    result = here(capsys, "explain", "services", "-A", "-f", tmp_path, "-o", "jsonl")
    assert result.err.startswith("b.json: Service ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("client", ["bogus", "999.1.1.1", "shop/", "/web", "a/b/c", ""])
def test_bad_clients(dump: Path, capsys: Capture, client: str) -> None:
    """A text that is neither a pod nor an address is exit code 2."""
    result = here(capsys, "explain", "name", "web.default.svc", "--client", client, "-f", dump)
    assert (result.code, result.out) == (2, "")
    assert "is neither NAMESPACE/POD nor an address" in result.sentence()


def test_an_unknown_client(dump: Path, capsys: Capture) -> None:
    """A pod that does not exist is exit code 1."""
    call = ("explain", "name", "web.default.svc", "--client", "shop/nope", "-f", dump)
    result = here(capsys, *call)
    assert (result.code, result.out) == (1, "")
    assert "there is no pod nope in namespace shop" in result.sentence()


def test_the_usage_line_is_short(capsys: Capture) -> None:
    """The usage line has one word for the kinds, which are listed in the text."""
    usage, _, text = here(capsys, "explain", "--help").out.partition("\n\n")
    assert usage.endswith(" explain [OPTIONS] WHAT [NAME]")
    words = text.split()
    assert {"services,", "budgets,", "pods,", "name,", "volume"} <= set(words)


@pytest.mark.parametrize("word", ["service/web", "svc/web", "services/web", "Service/web"])
def test_type_and_name_in_one_word(word: str, dump: Path, capsys: Capture) -> None:
    """An object may be written as kubectl prints it."""
    assert here(capsys, "explain", word, "-f", dump).out == HINTED
    assert here(capsys, "explain", "svc", word, "-f", dump).out == HINTED
    both = here(capsys, "explain", word, "api", "-f", dump)
    assert (both.code, both.out) == (2, "")
    assert "there are two names, web and api" in both.sentence()
